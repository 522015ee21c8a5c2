"""The context of running code: the run, the history that was handed over, and the tool call.

These are context variables: the runner of an agent, a team or a tool sets them, and code deep
inside reads them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage, UsageMetadata
from langchain_core.messages.ai import add_usage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from agentgraph.clock import clock
from agentgraph.contexts import scope
from agentgraph.errors import AgentGraphError
from agentgraph.history import KnownHistory
from agentgraph.timeouts import paused_limits, without_limits

Journal: TypeAlias = dict[str | None, list[AnyMessage]]
"""Messages by the id of the call that a delegate serves, None for those of no delegate."""
CallEnd: TypeAlias = Callable[[bool], None]
"""A callback at the end of a tool call; the argument says whether the call succeeded."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The ownership under which checkpoints of a session are written and deleted.

    The store checks the epoch in the transaction that writes: an owner that was taken over writes
    nothing more, however late its last check was.
    """

    thread_id: str
    session_key: str
    """The session's id as the column `session_id` of `agentgraph_sessions` has it."""
    epoch: int


class Suspendable(Protocol):
    """An account whose deadlines can be moved."""

    def suspend(self, since: float) -> None:
        """Leave the time since `since` out of all deadlines."""
        ...


@dataclass(slots=True, weakref_slot=True, eq=False)
class Run:
    """One run of a root agent in this process, shared by all levels of its tree."""

    id: str
    thread_id: str
    owner: object = None
    began_at: float = field(default_factory=lambda: clock().wall())
    usage: dict[str, UsageMetadata] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    journal: Journal = field(default_factory=dict)
    """All messages as soon as they exist: a run that is cut off may have made messages that are in
    no checkpoint yet."""
    results: dict[str, ToolMessage] = field(default_factory=dict)
    """The results of tools, by task: a resume that was cut off must not run the tools again."""
    reports: Mapping[str, ToolMessage] = field(default_factory=dict)
    """What agents have done that were removed while they served a call, by the call's id."""
    checkpoint_id: str | None = None
    """The id of the last checkpoint known to be in the store: if it is missing there, the thread
    was deleted, maybe by another process, and the journal is void."""
    turn_ids: set[str | None] = field(default_factory=set)
    """The ids of its own turn and of the one before: any other id in the store is another run's."""
    is_resumed: bool = False
    """Whether the run goes on with a human's decision."""
    has_ended: bool = False
    """Whether its turn on the thread is over: LangGraph still writes for cancelled tasks then."""
    tell: Callable[[Any], Awaitable[None]] | None = None
    """Emits the run's events, None where the run is not streamed."""
    token_counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many tokens were streamed, by agent and visit: they cannot be taken back."""
    account: Suspendable | None = None
    """The account of its guards, kept alive as long as the run."""
    enclosed_account: object = None
    """Its own account, where that is a part of another one's: kept alive as long."""
    causes: dict[str, str] = field(default_factory=dict)
    """Why guards have ended the run, by close reason."""
    failure_classes: dict[str, str] = field(default_factory=dict)
    """Of what class the failures were for which guards have ended the run, by close reason."""
    is_rejected: bool = False
    """Whether a human has rejected it: then nothing is tried anew for it."""
    known_history: KnownHistory = field(default_factory=KnownHistory)
    """The last history that one of its models was shown."""
    interceptor: object = None
    """The interceptor of its last model node, which the next nodes of the agent may reuse."""
    reader_wait_s: float = 0.0
    """How long the reader of its events has kept the run waiting."""
    reader_waits: int = 0
    """How many of its branches wait for the reader now."""
    reader_wait_at: float = 0.0
    """The instant since which at least one branch waits for the reader."""
    fence: Callable[[], Awaitable[None]] | None = None
    """Called before a checkpoint is written; raises where another process has the thread."""
    outer: Run | None = field(default_factory=lambda: _run.get())
    """The run around it, such as that of the tool that calls this run's agent."""

    def note_stored(self, config: RunnableConfig) -> None:
        """Note that a checkpoint is in the store, if it is one of the run's own level."""
        at = config.get("configurable", {})
        if at.get("thread_id") == self.thread_id and not at.get("checkpoint_ns"):
            self.checkpoint_id = at.get("checkpoint_id")

    def record_messages(self, messages: Iterable[AnyMessage]) -> None:
        """Enter new messages in the journal, under each delegation around this code."""
        new = list(messages)
        turn_journal = _turn_journal.get()
        for journal in (self.journal,) if turn_journal is None else (self.journal, turn_journal):
            for call_id in _delegations.get() or (None,):
                journal.setdefault(call_id, []).extend(new)

    def record_usage(self, agent: str, usage: UsageMetadata | None, model: str) -> None:
        """Add the usage of a model call to the figures of its agent."""
        if usage is not None:
            path = f"{_part.get()}{agent}"
            self.usage[path] = add_usage(self.usage.get(path), usage)
            self.models[path] = model

    def record_usage_of(self, agent: str, message: AIMessage) -> None:
        """Add the usage of a model's message to the figures of its agent."""
        model = str(message.response_metadata.get("model_name") or "")
        self.record_usage(agent, message.usage_metadata, model)

    def record_figures(self, agent: str, figures: Mapping[str, Any]) -> None:
        """Add an agent's usage from the figures that a session reports."""
        sums = [int(figures.get(name) or 0) for name in _TOKEN_FIGURES]
        usage = UsageMetadata(input_tokens=sums[0], output_tokens=sums[1], total_tokens=sums[2])
        self.record_usage(agent, usage, str(figures.get("model") or ""))

    def take_usage(self, name: str) -> dict[str, dict[str, Any]]:
        """Remove and return the usage of the agent of this name and of all agents below it.

        Inside of a part of the run, this is the usage in that part only.
        """
        part = _part.get()
        own = [path for path in self.usage if f"{path}/".startswith(f"{part}{name}/")]
        return {
            path.removeprefix(part): {**self.usage.pop(path), "model": self.models.get(path)}
            for path in own
        }

    def end_reader_wait(self) -> None:
        """Move the deadlines by the time for which the reader has kept the run waiting."""
        since, self.reader_wait_at = self.reader_wait_at, clock().wall()
        self.reader_wait_s += max(0.0, self.reader_wait_at - since)
        if self.account is not None:
            self.account.suspend(since)


_TOKEN_FIGURES = ("input_tokens", "output_tokens", "total_tokens")

_is_unheard: ContextVar[bool] = ContextVar("agentgraph_is_unheard", default=False)
_run: ContextVar[Run | None] = ContextVar("agentgraph_run", default=None)
_inherited_messages: ContextVar[tuple[AnyMessage, ...]] = ContextVar(
    "agentgraph_inherited", default=()
)
_delegations: ContextVar[tuple[str, ...]] = ContextVar("agentgraph_delegations", default=())
_part: ContextVar[str] = ContextVar("agentgraph_part", default="")
_round: ContextVar[str | None] = ContextVar("agentgraph_round", default=None)
_turn_journal: ContextVar[Journal | None] = ContextVar("agentgraph_turn_journal", default=None)
_in_tool: ContextVar[bool] = ContextVar("agentgraph_in_tool", default=False)
_tool_task: ContextVar[str | None] = ContextVar("agentgraph_tool_task", default=None)
"""The task whose tool runs: a graph that the tool runs has tasks of its own."""
_history: ContextVar[tuple[AnyMessage, ...] | None] = ContextVar("agentgraph_history", default=None)
_call_key: ContextVar[str | None] = ContextVar("agentgraph_call_key", default=None)
_call_ends: ContextVar[list[CallEnd] | None] = ContextVar("agentgraph_call_ends", default=None)

_ownership: ContextVar[Ownership | None] = ContextVar("agentgraph_ownership", default=None)

_runs_by_turn: WeakValueDictionary[str, Run] = WeakValueDictionary()
"""The runs of turns whose root graph was invoked without its agent."""


def current_run() -> Run | None:
    """Return the run around a node, None where a graph was invoked without its agent.

    A graph that a tool runs is no part of the tool's run: its messages and steps are its own.
    """
    return None if _in_tool.get() else _run.get()


def emitting_run() -> Run | None:
    """Return the run whose stream takes the events of this code.

    Those of a tool go to the run around it, but not those of a graph that the tool runs.
    """
    if _is_unheard.get():
        return None
    is_own = not _in_tool.get() or _tool_task.get() == _current_task()
    return _run.get() if is_own else None


def without_events() -> scope[bool]:
    """Put no events on the stream in here: what runs is no part of what readers follow."""
    return scope(_is_unheard, True)


def _current_task() -> str | None:
    """Return the namespace of the task around this code, None outside of a graph."""
    config = var_child_runnable_config.get() or {}
    return config.get("configurable", {}).get("checkpoint_ns")


def outer_run() -> Run | None:
    """Return the run around this code, from inside of a tool too."""
    return _run.get()


@contextmanager
def inside_run(run: Run) -> Iterator[None]:
    """Make a run the current one, without the history that an outer run handed over."""
    tokens = _run.set(run), _inherited_messages.set(()), _delegations.set(()), _in_tool.set(False)
    token = _turn_journal.set(None)
    try:
        with without_limits():
            yield
    finally:
        _turn_journal.reset(token)
        _run.reset(tokens[0])
        _inherited_messages.reset(tokens[1])
        _delegations.reset(tokens[2])
        _in_tool.reset(tokens[3])


def inside_ownership(ownership: Ownership | None) -> scope[Ownership | None]:
    """Write checkpoints in here, and in the tasks that begin in here, as this owner."""
    return scope(_ownership, ownership)


def ownership_of(thread_id: object) -> Ownership | None:
    """Return the ownership under which this code writes to a thread, None without one."""
    ownership = _ownership.get()
    return ownership if ownership is not None and ownership.thread_id == thread_id else None


@contextmanager
def shared_run(turn_id: str) -> Iterator[None]:
    """Share a run among the sub-agents of a turn whose root graph was invoked without its agent."""
    if current_run() is not None:
        yield
        return
    run = _runs_by_turn.get(turn_id) or Run(turn_id, "")
    _runs_by_turn[turn_id] = run
    tokens = _run.set(run), _in_tool.set(False)
    try:
        yield
    finally:
        _run.reset(tokens[0])
        _in_tool.reset(tokens[1])


def leave_run() -> None:
    """Remove the run around this code, for the rest of this context."""
    var_child_runnable_config.set(None)
    _run.set(None)
    _inherited_messages.set(())
    _delegations.set(())
    _turn_journal.set(None)
    _in_tool.set(False)
    _history.set(None)
    _call_key.set(None)
    _call_ends.set(None)
    _round.set(None)
    _ownership.set(None)


@contextmanager
def waiting_for_reader() -> Iterator[None]:
    """Wait in here for a slow reader: no limit of the run counts that time."""
    run = outer_run()
    if run is None:
        yield
        return
    if run.reader_waits == 0:
        run.reader_wait_at = clock().wall()
    run.reader_waits += 1
    try:
        with paused_limits():
            yield
    finally:
        run.reader_waits -= 1
        run.end_reader_wait()


def inside_part(place: str) -> scope[str]:
    """Record usage in here under `place`, because two places may have agents of one name."""
    return scope(_part, f"{_part.get()}{place}/" if place else _part.get())


@contextmanager
def inside_round(key: str | None, journal: Journal | None = None) -> Iterator[None]:
    """Set the key of the team's round in here; the keys of its tool calls are made from it.

    New messages are entered in this journal too: other turns share the journal of the run.
    """
    tokens = _round.set(key), _turn_journal.set(journal)
    try:
        yield
    finally:
        _round.reset(tokens[0])
        _turn_journal.reset(tokens[1])


def current_round_key() -> str | None:
    """Return the key of the round around a node, None outside of a team."""
    return None if _in_tool.get() else _round.get()


@contextmanager
def handed_over(messages: Sequence[AnyMessage], call_id: str | None = None) -> Iterator[None]:
    """Hand a history over to a nested graph, which does not store it.

    `call_id` is the id of the call that the nested graph answers, if it is a delegate's graph.
    """
    calls = (*_delegations.get(), call_id) if call_id else _delegations.get()
    tokens = _inherited_messages.set(tuple(messages)), _delegations.set(calls)
    try:
        yield
    finally:
        _inherited_messages.reset(tokens[0])
        _delegations.reset(tokens[1])


def current_delegation() -> str:
    """Return the ids of the calls that the delegates around this code serve, "" without one."""
    return "/".join(_delegations.get())


def history(state: Mapping[str, Any]) -> list[AnyMessage]:
    """Return the whole conversation: the messages handed over to this level, then its own ones.

    A level's message replaces an inherited one of the same id. A level that has rewritten the
    conversation, for instance with a summary, sees only its own messages.
    """
    own = state.get("messages") or ()
    inherited_messages = () if state.get("rewritten") else _inherited_messages.get()
    if not inherited_messages or not own:
        return list(own or inherited_messages)
    return list({message.id: message for message in (*inherited_messages, *own)}.values())


def record_messages(messages: Iterable[AnyMessage]) -> None:
    """Enter new messages in the journal of the current run, if there is one."""
    run = current_run()
    if run is not None:
        run.record_messages(messages)


def recorded_messages() -> list[AnyMessage]:
    """Return the journal's messages of the innermost delegation around this code."""
    run, calls = current_run(), _delegations.get()
    return [] if run is None else run.journal.get(calls[-1] if calls else None, [])


@contextmanager
def inside_call(messages: Sequence[AnyMessage], key: str) -> Iterator[list[CallEnd]]:
    """Provide the history and the idempotency key for the tool call in here.

    Yields the list of callbacks that the tool registers for the end of its call.
    """
    ends: list[CallEnd] = []
    ends_token = _call_ends.set(ends)
    tokens = (
        _history.set(tuple(messages)),
        _call_key.set(key),
        _inherited_messages.set(()),
        _in_tool.set(True),
        _tool_task.set(_current_task()),
    )
    try:
        yield ends
    finally:
        _call_ends.reset(ends_token)
        _history.reset(tokens[0])
        _call_key.reset(tokens[1])
        _inherited_messages.reset(tokens[2])
        _in_tool.reset(tokens[3])
        _tool_task.reset(tokens[4])


def in_tool(is_inside: bool) -> scope[bool]:
    """Mark the code in here as a tool's, or again as a part of the run, such as a guard's code."""
    return scope(_in_tool, is_inside)


def at_call_end(end: CallEnd) -> None:
    """Register a callback for the end of the tool call around this code.

    Its argument says whether the call succeeded. It is not called where the call is broken off or
    waits for a human, nor outside of a tool.
    """
    ends = _call_ends.get()
    if ends is not None:
        ends.append(end)


def conversation() -> Sequence[AnyMessage]:
    """Return the conversation up to the tool call around this code, nothing outside of one."""
    return _history.get() or ()


def current_history() -> list[AnyMessage]:
    """Return the conversation up to the tool call around this code.

    Raises `AgentGraphError("outside_tool")` outside of a tool call.
    """
    messages = _history.get()
    if messages is None:
        raise AgentGraphError(
            "current_history() was called outside of a tool: call it while a tool runs",
            code="outside_tool",
        )
    return list(messages)


def idempotency_key() -> str:
    """Return a key that is the same whenever the current tool call runs again.

        def pay(amount: int) -> str:
            return bank.transfer(amount, key=idempotency_key())

    Raises `AgentGraphError("outside_tool")` outside of a tool call.
    """
    key = _call_key.get()
    if key is None:
        raise AgentGraphError(
            "idempotency_key() was called outside of a tool: call it while a tool runs",
            code="outside_tool",
        )
    return key
