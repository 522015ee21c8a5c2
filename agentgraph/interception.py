"""The interface between the nodes of a graph and its guards.

Guards install an `Interceptor` around a node; the node finds it by `current_interceptor()`. A graph
without guards has none, and its nodes then do their work directly. A session installs a `Ledger`
too, to which guards write what must outlive a kill of the process.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt

from agentgraph.contexts import scope

T = TypeVar("T")

ControlFlow = GraphBubbleUp
"""Errors that pass through every guard: an interrupt is an `Exception`, but no failure."""


class LedgerUnavailable(ControlFlow):
    """The ledger cannot be written, so no action may begin: the run is broken off."""


Answerer: TypeAlias = BaseChatModel | str
"""A model, or its name."""
Ask: TypeAlias = Callable[[Answerer | None, Sequence[BaseMessage]], Awaitable[AIMessage]]
"""Asks a model; None asks the node's own one."""


class ModelCall(NamedTuple):
    """A model call that a node is about to make."""

    model: object
    messages: Sequence[BaseMessage]
    specs: Sequence[object]
    ask: Ask
    is_foreign: bool = False
    """Whether the node belongs to a foreign graph, and so adds its own prompt and tools."""
    settings: Mapping[str, object] = MappingProxyType({})
    """Settings of this call that override those of the model."""


class RunTool(Protocol):
    """Runs a call of a tool, with other arguments than the model's where they are given."""

    def __call__(self, args: Mapping[str, object] | None = None) -> Awaitable[object]: ...


class ToolUse(NamedTuple):
    """A tool call that a node is about to run."""

    tool: BaseTool | None
    name: str
    args: Mapping[str, object]
    key: str
    """The idempotency key: the same whenever this call runs again."""
    message_id: str
    run: RunTool
    call_id: str = ""

    def with_args(self, args: Mapping[str, object]) -> ToolUse:
        """Return the call with other arguments."""
        return self._replace(args=args, run=partial(self.run, args))


class SkippedCall(NamedTuple):
    """A tool call that was answered although no tool ran."""

    name: str
    args: object
    message_id: str
    answer: str
    failed: bool


class Admission(NamedTuple):
    """Which workers may begin, by their positions; those that are not named may begin at once."""

    refusals: Mapping[int, str] = MappingProxyType({})
    """Why workers may not begin."""
    most_at_once: int | None = None
    """How many may work at once: the others begin after them. None means all."""
    guard: str = ""
    """The guard that refuses, "" where none does."""


class Refusal(NamedTuple):
    """The guard that refuses, and its reason."""

    guard: str
    why: str


class CodeGuard(Protocol):
    """What guards do around code of the user that a node runs beside its model and its tools."""

    async def run_code(self, code: Code[T], turn: Mapping[str, Any] | None = None) -> T:
        """Run code as a tool is run: the models and runs in it are a part of the input.

        `turn` is the turn that the node begins, None where it begins none. Raises `GuardStopped`
        where the code is broken off; then the run ends at the model's next node.
        """
        ...


class Interceptor(CodeGuard, Protocol):
    """What the guards of one agent do around the calls of its nodes."""

    @property
    def account(self) -> object:
        """The account of the outside input, in which calls are counted."""
        ...

    @property
    def retries_models(self) -> bool:
        """Whether the guards retry failed model calls; then no other layer may retry."""
        ...

    @property
    def judges_answers(self) -> bool:
        """Whether an answer may still be refused once the model has given it."""
        ...

    @property
    def has_answered(self) -> bool:
        """Whether the last answer of `ask_model` is the guards' or a human's, and no model's."""
        ...

    async def ask_model(self, call: ModelCall) -> AIMessage:
        """Ask a model, again where guards decide so, and return the answer that passes.

        Raises `GuardStopped` where the run must end, or wait for a human.
        """
        ...

    def defer_text(self, text: str) -> Mapping[str, Any]:
        """Return the state update by which the answer of a tool is judged before it is sent.

        The next model node judges the text, and sends it as the agent's answer. The update is empty
        where no guard judges answers: then the text may be sent at once.
        """
        ...

    def run_tool(self, use: ToolUse) -> Coroutine[Any, Any, object]:
        """Run a tool and return its result, or a `ToolMessage` that says why it may not run."""
        ...

    async def tool_skipped(self, call: SkippedCall) -> None:
        """Count a call that was answered although no tool ran: a model may repeat it forever."""
        ...

    async def handoff(
        self,
        target: str,
        digest: str,
        *,
        returns_from: str | None = None,
        levels: int = 0,
        brief: str = "",
    ) -> Refusal | None:
        """Count a move of the conversation; return a refusal if it may not be made.

        It leads to a peer, so many `levels` down with a `brief`, or back to the supervisor.
        `digest` identifies the progress of the conversation: two handoffs with the same digest have
        no progress between them. `returns_from` does so for a return, without what was said with
        earlier ones.
        """
        ...

    async def dispatch(self, workers: Sequence[str]) -> Admission:
        """Count the workers that begin now, and say which must wait, and which may not begin."""
        ...

    def watch(self) -> AbstractContextManager[object]:
        """Return what watches the code of a tool: the models and tools that it calls itself."""
        ...

    def time_limit(self) -> AbstractContextManager[object]:
        """Return the time limit of the stage or of the input, whichever comes first."""
        ...

    def enclosure(self, call: OuterCall) -> object:
        """Return what the guards know of a tool call of this agent in which a run begins."""
        ...

    async def report(
        self, worker: str, brief: str, reply: str, message_id: str, work: str = ""
    ) -> None:
        """Count a worker's reply to a brief.

        `message_id` is the id of the message with the brief, which may have briefs for other
        workers too; `work` is a digest of what the worker's tools did.
        """
        ...


class Ledger(Protocol):
    """The session's log for guards: a record is durable before the effect that it describes."""

    @property
    def id_scope(self) -> object:
        """The store within which input ids are unique: the same id elsewhere is another input."""
        ...

    @property
    def input_id(self) -> str:
        """The id of the current outside input."""
        ...

    async def input_text(self) -> str:
        """Return the text of the current outside input."""
        ...

    @property
    def speaker(self) -> str:
        """The name of the agent that has the turn."""
        ...

    @property
    def round(self) -> int:
        """The number of the round."""
        ...

    @property
    def round_key(self) -> str:
        """The key of this attempt at the round."""
        ...

    @property
    def attempt(self) -> int:
        """Return which attempt at the round this is, from 1."""
        ...

    @property
    def account(self) -> Mapping[str, Any]:
        """The values in the log for this input's account."""
        ...

    def retain(self, account: object) -> None:
        """Keep the account of this input in memory while this process drives its session."""
        ...

    def act(self, agent: str, *, asks: bool) -> None:
        """Note that an agent acts, or asks its model; the end of the round writes the note."""
        ...

    async def write(self, record: Mapping[str, object]) -> None:
        """Write a record; it is durable when this returns, else `LedgerUnavailable` is raised."""
        ...


class OuterCall(NamedTuple):
    """The call of a guarded agent's tool around this code, and around all runs that begin in it."""

    interceptor: Interceptor
    tool: str
    ledger: Ledger | None
    loop: AbstractEventLoop


class Code(NamedTuple, Generic[T]):
    """Code of the user, such as a prompt function: its name, and what runs it."""

    name: str
    work: Callable[[], Awaitable[T]]
    is_wrapper: bool = False
    """Whether it runs around a call that has guards of its own, as middleware does."""


class _Interception(NamedTuple):
    interceptor: Interceptor | None = None
    ledger: Ledger | None = None
    outer: OuterCall | None = None


_NO_INTERCEPTION = _Interception()
_current: ContextVar[_Interception] = ContextVar(
    "agentgraph_interception", default=_NO_INTERCEPTION
)


def current_interceptor() -> Interceptor | None:
    """Return the interceptor around this code, None without guards."""
    return _current.get().interceptor


def current_ledger() -> Ledger | None:
    """Return the ledger around this code, None outside of a session."""
    return _current.get().ledger


def outer_call() -> OuterCall | None:
    """Return the tool call in which the run around this code has begun, None for any other run."""
    return _current.get().outer


class _installed:
    """Install an interception around a block."""

    # No generator: each call of a run enters several, and a generator costs three times as much.
    __slots__ = ("_interception", "_token")

    _token: Token[_Interception]

    def __init__(self, interception: _Interception) -> None:
        self._interception = interception

    def __enter__(self) -> None:
        self._token = _current.set(self._interception)

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)


def intercepted_by(interceptor: Interceptor | None) -> _installed:
    """Install an interceptor, or none, around a block; keep the ledger."""
    current = _current.get()
    return _installed(_Interception(interceptor, current.ledger, current.outer))


def recorded_in(ledger: Ledger | None) -> _installed:
    """Install a ledger, or none, around a block; keep the interceptor."""
    current = _current.get()
    return _installed(_Interception(current.interceptor, ledger, current.outer))


def interception() -> Callable[[], AbstractContextManager[None]]:
    """Return what installs the interceptor and the ledger around this code anew, further inside."""
    return partial(_installed, _current.get())


def inside_tool(tool: str) -> _installed:
    """Run a tool: without interceptor and ledger, as the call around all runs that begin in it."""
    interceptor, ledger, outer = _current.get()
    if interceptor is not None:
        outer = OuterCall(interceptor, tool, ledger, get_running_loop())
    return _installed(_Interception(None, None, outer))


def leave_tool() -> None:
    """Make the code in this context no part of the tool call around it."""
    _current.set(_NO_INTERCEPTION)


_code_guard: ContextVar[CodeGuard | None] = ContextVar("agentgraph_code_guard", default=None)


def code_guarded_by(guard: CodeGuard | None) -> scope[CodeGuard | None]:
    """Let a node's code of the user run under a guard, or none, in a node without interceptor."""
    return scope(_code_guard, guard)


def current_code_guard() -> CodeGuard | None:
    """Return the guard of a node's code of the user, None without guards."""
    return current_interceptor() or _code_guard.get()


async def ask_model(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    specs: Sequence[object],
    ask: Ask,
    settings: Mapping[str, object] = MappingProxyType({}),
) -> AIMessage:
    """Ask a model by way of the interceptor around this code, directly where there is none."""
    interceptor = current_interceptor()
    if interceptor is None:
        return await ask(None, messages)
    return await interceptor.ask_model(ModelCall(model, messages, specs, ask, settings=settings))


def wait_for_human(question: object, schema: Mapping[str, object]) -> object:
    """Interrupt the run until a human has decided, and return the decision."""
    return interrupt(question, response_schema=dict(schema))


# What a tool reports while it runs.

_MOST_REPORTS = 1_000
"""How many steps of one call are kept, the last ones."""


class Report(NamedTuple):
    """One step of a tool, as a call of its own."""

    name: str
    args: object
    result: object
    failed: bool


_reports: ContextVar[deque[Report] | None] = ContextVar("agentgraph_reports", default=None)


def report_call(tool: str, args: object, result: object = None, failed: bool = False) -> None:
    """Report a step of the running tool to its guards, as if it were a tool call of its own.

        def run_code(code: str) -> str:
            for step in interpreter.run(code):
                report_call(step.function, step.arguments, step.value, failed=step.failed)

    When the tool ends, the loop detector sees its steps in order, and the audit trail has a record
    of each. Call it inside a tool, from its thread too. Outside of a guarded tool it does nothing,
    so that the tool can be used alone.
    """
    reports = _reports.get()
    if reports is not None:
        reports.append(Report(tool, args, result, failed))


class collected_reports:
    """Collect what the code in this context reports."""

    __slots__ = ("_token", "reports")

    _token: Token[deque[Report] | None]

    def __enter__(self) -> deque[Report]:
        self.reports: deque[Report] = deque(maxlen=_MOST_REPORTS)
        self._token = _reports.set(self.reports)
        return self.reports

    def __exit__(self, *error: object) -> None:
        _reports.reset(self._token)
