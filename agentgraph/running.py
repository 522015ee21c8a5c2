"""The run that code is part of: what it shares, what was handed to it, and the tool call it is in.

Context variables: the runner of an agent, a team or a tool sets them, code deep inside reads them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

from langchain_core.messages import AnyMessage, ToolMessage, UsageMetadata
from langchain_core.messages.ai import add_usage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from agentgraph.clock import clock
from agentgraph.contexts import scope
from agentgraph.errors import AgentGraphError
from agentgraph.timeouts import paused_limits, without_limits

CallEnd: TypeAlias = Callable[[bool], None]
"""Called at the end of a tool call with whether it went well."""


class Suspendable(Protocol):
    """An account whose deadlines can be moved."""

    def suspend(self, since: float) -> None:
        """Leave the time since then out of all deadlines."""
        ...


@dataclass(slots=True, weakref_slot=True)
class Run:
    """One run of a root agent in this process, shared by all levels of its tree."""

    id: str
    thread_id: str
    owner: object = None
    began_at: float = field(default_factory=lambda: clock().wall())
    usage: dict[str, UsageMetadata] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    journal: dict[str | None, list[AnyMessage]] = field(default_factory=dict)
    """Every message as soon as it exists, by the id of the call that a delegate serves, None at
    the root: a run that is cut off may have made messages that are in no checkpoint yet."""
    results: dict[str, ToolMessage] = field(default_factory=dict)
    """What tools have returned, by task: a resume that was cut off must not run them again."""
    checkpoint_id: str | None = None
    """The last checkpoint that the store is known to have had: if it is gone, the thread was
    deleted, maybe by another process, and the journal is void."""
    turn_ids: set[str | None] = field(default_factory=set)
    """The ids of its own turn and of the one before: any other in the store is another run's."""
    is_resumed: bool = False
    """Whether it goes on with a human's decision."""
    has_ended: bool = False
    """Whether its turn on the thread is over: LangGraph still writes for tasks it has cancelled."""
    tell: Callable[[Any], Awaitable[None]] | None = None
    """Takes the run's events, where it is streamed."""
    token_counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many tokens were streamed, by agent and visit: they cannot be taken back."""
    account: Suspendable | None = None
    """What its guards have counted; it lives as long as the run."""
    interceptor: object = None
    """The guards of its last model node: the next nodes of the same agent may go on with them."""
    reader_wait_s: float = 0.0
    """How long the reader of its events has kept it waiting."""
    reader_waits: int = 0
    """How many of its branches wait for that reader now."""
    reader_wait_at: float = 0.0
    """Since when they do."""
    fence: Callable[[], Awaitable[None]] | None = None
    """Called before a checkpoint is written: it raises where another has taken the thread over."""

    def note_stored(self, config: RunnableConfig) -> None:
        """Note that a checkpoint is in the store, if it is one of the run's own level."""
        at = config.get("configurable", {})
        if at.get("thread_id") == self.thread_id and not at.get("checkpoint_ns"):
            self.checkpoint_id = at.get("checkpoint_id")

    def record_messages(self, messages: Iterable[AnyMessage]) -> None:
        """Enter new messages in the journal, under each delegation that this code serves."""
        new = list(messages)
        for call_id in _delegations.get() or (None,):
            self.journal.setdefault(call_id, []).extend(new)

    def record_usage(self, agent: str, usage: UsageMetadata | None, model: str) -> None:
        """Add what a model call has used to its agent's figures."""
        if usage is not None:
            path = f"{_part.get()}{agent}"
            self.usage[path] = add_usage(self.usage.get(path), usage)
            self.models[path] = model

    def record_figures(self, agent: str, figures: Mapping[str, Any]) -> None:
        """Add what an agent has used, from the figures that a session reports."""
        sums = [int(figures.get(name) or 0) for name in _TOKEN_FIGURES]
        usage = UsageMetadata(input_tokens=sums[0], output_tokens=sums[1], total_tokens=sums[2])
        self.record_usage(agent, usage, str(figures.get("model") or ""))

    def take_usage(self, name: str) -> dict[str, dict[str, Any]]:
        """Return what an agent of this name and all below it have used, and begin anew.

        Inside of a part of the run, it is the usage in that part only.
        """
        part = _part.get()
        own = [path for path in self.usage if f"{path}/".startswith(f"{part}{name}/")]
        return {
            path.removeprefix(part): {**self.usage.pop(path), "model": self.models.get(path)}
            for path in own
        }

    def end_reader_wait(self) -> None:
        """Move its deadlines by the time for which its reader has kept it waiting."""
        since, self.reader_wait_at = self.reader_wait_at, clock().wall()
        self.reader_wait_s += max(0.0, self.reader_wait_at - since)
        if self.account is not None:
            self.account.suspend(since)


_TOKEN_FIGURES = ("input_tokens", "output_tokens", "total_tokens")

_run: ContextVar[Run | None] = ContextVar("agentgraph_run", default=None)
_inherited_messages: ContextVar[tuple[AnyMessage, ...]] = ContextVar(
    "agentgraph_inherited", default=()
)
_delegations: ContextVar[tuple[str, ...]] = ContextVar("agentgraph_delegations", default=())
_part: ContextVar[str] = ContextVar("agentgraph_part", default="")
_round: ContextVar[str | None] = ContextVar("agentgraph_round", default=None)
_in_tool: ContextVar[bool] = ContextVar("agentgraph_in_tool", default=False)
_history: ContextVar[tuple[AnyMessage, ...] | None] = ContextVar("agentgraph_history", default=None)
_call_key: ContextVar[str | None] = ContextVar("agentgraph_call_key", default=None)
_call_ends: ContextVar[list[CallEnd] | None] = ContextVar("agentgraph_call_ends", default=None)

_runs_by_turn: WeakValueDictionary[str, Run] = WeakValueDictionary()
"""The runs of turns whose root was invoked without its agent."""


def current_run() -> Run | None:
    """Return the run around a node, None where a graph was invoked without its agent.

    A graph that a tool runs is no part of the tool's run: its messages and steps are its own.
    """
    return None if _in_tool.get() else _run.get()


def outer_run() -> Run | None:
    """Return the run around this code, from inside of a tool too."""
    return _run.get()


@contextmanager
def inside_run(run: Run) -> Iterator[None]:
    """Make a run the current one; what an outer run handed over does not reach into it."""
    tokens = _run.set(run), _inherited_messages.set(()), _delegations.set(()), _in_tool.set(False)
    try:
        with without_limits():
            yield
    finally:
        _run.reset(tokens[0])
        _inherited_messages.reset(tokens[1])
        _delegations.reset(tokens[2])
        _in_tool.reset(tokens[3])


@contextmanager
def shared_run(turn_id: str) -> Iterator[None]:
    """Share one run among the sub-agents of a turn whose root was invoked without its agent."""
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
    """Forget, for good in this context, whatever run this code is inside of."""
    var_child_runnable_config.set(None)
    _run.set(None)
    _inherited_messages.set(())
    _delegations.set(())
    _in_tool.set(False)
    _history.set(None)
    _call_key.set(None)
    _call_ends.set(None)
    _round.set(None)


@contextmanager
def waiting_for_reader() -> Iterator[None]:
    """Wait in here for a slow reader: that time counts for none of the run's limits."""
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
    """Record usage in here under this place, because two places may have agents of one name."""
    return scope(_part, f"{_part.get()}{place}/" if place else _part.get())


@contextmanager
def inside_round(key: str | None) -> Iterator[None]:
    """Name the round of a team that runs in here; the keys of its tool calls follow from it."""
    token = _round.set(key)
    try:
        yield
    finally:
        _round.reset(token)


def current_round_key() -> str | None:
    """Return the name of the round around a node, None outside of a team."""
    return None if _in_tool.get() else _round.get()


@contextmanager
def handed_over(messages: Sequence[AnyMessage], call_id: str | None = None) -> Iterator[None]:
    """Hand a history over to a nested graph, which does not store it.

    `call_id` is the id of the call that the nested graph answers, where it is a delegate's.
    """
    calls = (*_delegations.get(), call_id) if call_id else _delegations.get()
    tokens = _inherited_messages.set(tuple(messages)), _delegations.set(calls)
    try:
        yield
    finally:
        _inherited_messages.reset(tokens[0])
        _delegations.reset(tokens[1])


def current_delegation() -> str:
    """Return the ids of the calls that this code serves as a delegate; "" where it is none."""
    return "/".join(_delegations.get())


def history(state: Mapping[str, Any]) -> list[AnyMessage]:
    """Return the whole conversation: what was handed over to this level, then its own messages.

    A message of its own replaces an inherited one of the same id; a level that has rewritten the
    conversation, with a summary for instance, sees nothing but its own.
    """
    own = state.get("messages") or ()
    inherited_messages = () if state.get("rewritten") else _inherited_messages.get()
    if not inherited_messages:
        return list(own)
    return list({message.id: message for message in (*inherited_messages, *own)}.values())


def record_messages(messages: Iterable[AnyMessage]) -> None:
    """Enter new messages in the journal of the current run, if there is one."""
    run = current_run()
    if run is not None:
        run.record_messages(messages)


def recorded_messages() -> list[AnyMessage]:
    """Return the messages of the run's journal, of the innermost delegation that this serves."""
    run, calls = current_run(), _delegations.get()
    return [] if run is None else run.journal.get(calls[-1] if calls else None, [])


@contextmanager
def inside_call(messages: Sequence[AnyMessage], key: str) -> Iterator[list[CallEnd]]:
    """Let a tool ask for the history and its idempotency key.

    Yields the list of functions that the tool wants called when its call has ended.
    """
    ends: list[CallEnd] = []
    ends_token = _call_ends.set(ends)
    tokens = (
        _history.set(tuple(messages)),
        _call_key.set(key),
        _inherited_messages.set(()),
        _in_tool.set(True),
    )
    try:
        yield ends
    finally:
        _call_ends.reset(ends_token)
        _history.reset(tokens[0])
        _call_key.reset(tokens[1])
        _inherited_messages.reset(tokens[2])
        _in_tool.reset(tokens[3])


def in_tool(is_inside: bool) -> scope[bool]:
    """Mark the code in here as a tool's, or as a guard's beside it, which is part of the run."""
    return scope(_in_tool, is_inside)


def at_call_end(end: CallEnd) -> None:
    """Have a function called with whether the tool call around this code went well.

    It is not called where a call is broken off or waits for a human, nor outside of a tool.
    """
    ends = _call_ends.get()
    if ends is not None:
        ends.append(end)


def current_history() -> list[AnyMessage]:
    """Return the conversation as the tool that calls this finds it.

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
    """Return a key that is the same whenever this very tool call runs again.

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
