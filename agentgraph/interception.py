"""Who is asked around each call of a run: the port between an agent's nodes and its guards.

A graph without guards has nobody on duty, and its nodes do their work unasked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt

from agentgraph.contexts import scope

__all__ = [
    "Answerer",
    "Ledger",
    "LedgerLost",
    "ModelCall",
    "Refusal",
    "Sentry",
    "ToolUse",
    "UnrunCall",
    "current_ledger",
    "guarded",
    "keeping",
    "off_duty",
    "on_duty",
    "posted",
    "wait_for_human",
]

ControlFlow = GraphBubbleUp
"""What passes through every guard: an interrupt is no failure, though it is an `Exception`."""


class LedgerLost(ControlFlow):
    """Nothing can be written down just now, so nothing is to be done: the run is broken off."""


Answerer: TypeAlias = BaseChatModel | str
"""A model, or its name."""
Ask: TypeAlias = Callable[[Answerer | None, Sequence[BaseMessage]], Awaitable[AIMessage]]
"""Asks a model, None for its own."""


class ModelCall(NamedTuple):
    """A model is about to be asked."""

    model: object
    messages: Sequence[BaseMessage]
    specs: Sequence[object]
    ask: Ask
    is_foreign: bool = False
    """Whether a node of somebody else's asks, who has a prompt and tools of their own."""
    settings: Mapping[str, object] = MappingProxyType({})
    """What holds for this call in place of what the model says of itself."""


class ToolUse(NamedTuple):
    """A tool is about to run."""

    tool: BaseTool | None
    name: str
    args: Mapping[str, object]
    key: str
    """The same whenever this very call runs again."""
    message_id: str
    run: Callable[[], Awaitable[object]]


class UnrunCall(NamedTuple):
    """A call that was answered, and nothing ran for it."""

    name: str
    args: object
    message_id: str
    told: str
    failed: bool


class Refusal(NamedTuple):
    """Who stands in the way, and why."""

    guard: str
    why: str


class Sentry(Protocol):
    """Decides on what a node is about to do."""

    @property
    def account(self) -> object:
        """Return what it counts in."""
        ...

    @property
    def asks_again(self) -> bool:
        """Whether a model that has failed is asked again, so that nobody else is to."""
        ...

    @property
    def judges(self) -> bool:
        """Whether an answer may still be refused once the model has given it."""
        ...

    async def model(self, asked: ModelCall) -> AIMessage:
        """Have a model asked, as often as it may be."""
        ...

    def held_back(self, text: str) -> Mapping[str, Any]:
        """Keep what tools answer for the model to be judged; nothing where nobody judges.

        The next node of the model says it then, as if that were its own.
        """
        ...

    def tool(self, use: ToolUse) -> Coroutine[Any, Any, object]:
        """Have a tool run, if it may."""
        ...

    async def unrun(self, call: UnrunCall) -> None:
        """See a call that nothing ran for: a model may make it again and again."""
        ...

    async def handoff(self, target: str, digest: str, *, is_return: bool = False) -> Refusal | None:
        """Let the conversation move to a peer, or back, or say who does not and why."""
        ...

    async def dispatch(self, workers: Sequence[str]) -> Mapping[int, str]:
        """Let workers begin; say of each that must not, by its position, why not."""
        ...

    def timed(self) -> AbstractContextManager[object]:
        """Cut off what takes longer than its stage, or all of the run, may."""
        ...

    async def reported(
        self, worker: str, brief: str, reply: str, message_id: str, work: str = ""
    ) -> None:
        """Note what a worker has answered to a message, which may have asked others too.

        `work` stands for what its tools did for that.
        """
        ...


class Ledger(Protocol):
    """Where that is written which must outlive a kill, before it happens."""

    @property
    def home(self) -> object:
        """Return where inputs have their names from: two of one name elsewhere are two."""
        ...

    @property
    def input_id(self) -> str:
        """Name the outside input that all this serves."""
        ...

    @property
    def speaker(self) -> str:
        """Name whose turn it is."""
        ...

    @property
    def round(self) -> int:
        """Number the round that all this happens in."""
        ...

    @property
    def round_key(self) -> str:
        """Name the attempt at it."""
        ...

    @property
    def account(self) -> Mapping[str, Any]:
        """Return what stands in it for this input."""
        ...

    def hold(self, account: object) -> None:
        """Keep what is counted for this input while its session is at work here."""
        ...

    def act(self, agent: str, *, asks: bool) -> None:
        """Note that an agent acts, or asks its model; it is written down with the round."""
        ...

    async def write(self, record: Mapping[str, object]) -> None:
        """Write a record; it is durable when this returns, else `LedgerLost` is raised."""
        ...


class _Duty(NamedTuple):
    sentry: Sentry | None = None
    ledger: Ledger | None = None


_NOBODY = _Duty()
_duty: ContextVar[_Duty] = ContextVar("agentgraph_duty", default=_NOBODY)


def on_duty() -> Sentry | None:
    """Return who is to be asked, None where nobody is."""
    return _duty.get().sentry


def posted(sentry: Sentry | None) -> scope[_Duty]:
    """Have somebody asked in here, or nobody."""
    return scope(_duty, _Duty(sentry, _duty.get().ledger))


def off_duty() -> scope[_Duty]:
    """Have nobody asked in here, and nothing written down."""
    return scope(_duty, _NOBODY)


def current_ledger() -> Ledger | None:
    """Return the ledger around this code, None outside of a session."""
    return _duty.get().ledger


def keeping(ledger: Ledger | None) -> scope[_Duty]:
    """Have a ledger kept in here."""
    return scope(_duty, _Duty(_duty.get().sentry, ledger))


async def guarded(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    specs: Sequence[object],
    ask: Ask,
    settings: Mapping[str, object] = MappingProxyType({}),
) -> AIMessage:
    """Ask a model, by way of whoever is on duty."""
    sentry = on_duty()
    if sentry is None:
        return await ask(None, messages)
    return await sentry.model(ModelCall(model, messages, specs, ask, settings=settings))


def wait_for_human(question: object, schema: Mapping[str, object]) -> object:
    """Have the run wait for a human's decision, and return it."""
    return interrupt(question, response_schema=dict(schema))
