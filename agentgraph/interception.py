"""The port between the nodes of a graph and its guards: what a node asks before it does something.

Guards install an `Interceptor` around a node; the node finds it by `current_interceptor()`. A graph
without guards has none, and its nodes then do their work directly. A session installs a `Ledger`
beside it: where guards write what has to outlive a kill of the process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt

ControlFlow = GraphBubbleUp
"""What passes through every guard: an interrupt is no failure, though it is an `Exception`."""


class LedgerUnavailable(ControlFlow):
    """The ledger cannot be written to, so nothing may be done: the run is broken off."""


Answerer: TypeAlias = BaseChatModel | str
"""A model, or its name."""
Ask: TypeAlias = Callable[[Answerer | None, Sequence[BaseMessage]], Awaitable[AIMessage]]
"""Asks a model, None for the node's own."""


class ModelCall(NamedTuple):
    """A model is about to be asked."""

    model: object
    messages: Sequence[BaseMessage]
    specs: Sequence[object]
    ask: Ask
    is_foreign: bool = False
    """Whether a node that agentgraph did not build asks, with a prompt and tools of its own."""
    settings: Mapping[str, object] = MappingProxyType({})
    """Settings of this call that override those of the model."""


class ToolUse(NamedTuple):
    """A tool is about to run."""

    tool: BaseTool | None
    name: str
    args: Mapping[str, object]
    key: str
    """The same whenever this very call runs again."""
    message_id: str
    run: Callable[[], Awaitable[object]]


class SkippedCall(NamedTuple):
    """A tool call that was answered although nothing ran for it."""

    name: str
    args: object
    message_id: str
    answer: str
    failed: bool


class Refusal(NamedTuple):
    """Which guard refuses, and why."""

    guard: str
    why: str


class Interceptor(Protocol):
    """What the guards of one agent do around the calls of its nodes."""

    @property
    def account(self) -> object:
        """The account of the outside input, in which calls are counted."""
        ...

    @property
    def retries_models(self) -> bool:
        """Whether it tries a failed model call again, so that no other layer may."""
        ...

    @property
    def judges_answers(self) -> bool:
        """Whether an answer may still be refused once the model has given it."""
        ...

    async def ask_model(self, call: ModelCall) -> AIMessage:
        """Have a model asked, again where guards say so, and return the answer that passes.

        Raises `GuardStopped` where the run is to end, or to wait for a human.
        """
        ...

    def defer_text(self, text: str) -> Mapping[str, Any]:
        """Return the state update that has the answer of a tool judged before it is said.

        The next node of the model says the text as its own answer. The update is empty where no
        guard judges answers: the text may be said at once.
        """
        ...

    def run_tool(self, use: ToolUse) -> Coroutine[Any, Any, object]:
        """Run a tool and return its result, or a `ToolMessage` that says why it may not run."""
        ...

    async def tool_skipped(self, call: SkippedCall) -> None:
        """Count a call that nothing ran for: a model may make it again and again."""
        ...

    async def handoff(self, target: str, digest: str, *, is_return: bool = False) -> Refusal | None:
        """Count that the conversation moves to a peer, or back; return why it may not.

        `digest` stands for the progress of the conversation: where it is the same in two handoffs,
        nothing was achieved between them.
        """
        ...

    async def dispatch(self, workers: Sequence[str]) -> Mapping[int, str]:
        """Count that workers begin; return why some may not, by their positions."""
        ...

    def time_limit(self) -> AbstractContextManager[object]:
        """Cut off what takes longer than the deadline of the stage, or of the input."""
        ...

    async def report(
        self, worker: str, brief: str, reply: str, message_id: str, work: str = ""
    ) -> None:
        """Count what a worker has replied to a brief.

        `message_id` names the message that asked for it, which may have asked others too; `work` is
        a digest of what the worker's tools did.
        """
        ...


class Ledger(Protocol):
    """The log of a session, as guards write to it: each record is durable before its effect."""

    @property
    def id_scope(self) -> object:
        """The store within which input ids are unique: the same id elsewhere is another input."""
        ...

    @property
    def input_id(self) -> str:
        """The id of the outside input that is being answered."""
        ...

    @property
    def speaker(self) -> str:
        """The name of the agent whose turn it is."""
        ...

    @property
    def round(self) -> int:
        """The number of the round."""
        ...

    @property
    def round_key(self) -> str:
        """The name of this attempt at the round."""
        ...

    @property
    def account(self) -> Mapping[str, Any]:
        """What the log has of this input's account."""
        ...

    def retain(self, account: object) -> None:
        """Keep the account of this input in memory while its session is at work here."""
        ...

    def act(self, agent: str, *, asks: bool) -> None:
        """Note that an agent acts, or asks its model; it is written with the round's end."""
        ...

    async def write(self, record: Mapping[str, object]) -> None:
        """Write a record; it is durable when this returns, else `LedgerUnavailable` is raised."""
        ...


class _Interception(NamedTuple):
    interceptor: Interceptor | None = None
    ledger: Ledger | None = None


_NO_INTERCEPTION = _Interception()
_current: ContextVar[_Interception] = ContextVar(
    "agentgraph_interception", default=_NO_INTERCEPTION
)


def current_interceptor() -> Interceptor | None:
    """Return the interceptor around this code, None where no guards hold."""
    return _current.get().interceptor


def current_ledger() -> Ledger | None:
    """Return the ledger around this code, None outside of a session."""
    return _current.get().ledger


class _installed:
    """Have an interception hold in a block."""

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
    """Install an interceptor, or none, around a block; the ledger stays."""
    return _installed(_Interception(interceptor, _current.get().ledger))


def recorded_in(ledger: Ledger | None) -> _installed:
    """Install a ledger, or none, around a block; the interceptor stays."""
    return _installed(_Interception(_current.get().interceptor, ledger))


def without_interception() -> _installed:
    """Leave a block without interceptor and ledger."""
    return _installed(_NO_INTERCEPTION)


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
    """Have the run wait for a human's decision, and return it."""
    return interrupt(question, response_schema=dict(schema))
