"""Models whose calls are counted and paid for, and runs under guard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata

from agentgraph import Agent, Guards
from agentgraph.guards import CostBudget
from agentgraph.stream import Event, FinalStateEvent, GuardEvent
from agentgraph.testing import FakeClock, ScriptedModel, Turn, call
from agentgraph.testing.answers import Scripted
from agentgraph.testing.script import Turns

PATIENCE_S = 30
WORKERS = 10
OUTPUT = 200
"""The most that a metered model writes, and what it writes each time."""
READ = 20
PAID = READ + OUTPUT
"""The tokens of one call; its reservation is somewhat more, for nobody counts what is read."""

T = TypeVar("T")


class Metered(ScriptedModel):
    """A scripted model that says how much it may write, as those of providers do."""

    max_tokens: int = OUTPUT
    model_name: str = "metered"

    def __init__(self, turns: Turns, **fields: Any) -> None:
        super().__init__(turns, **fields)


def paid(turn: Scripted, *, read: int = READ, written: int = OUTPUT) -> Turn:
    """Return a text, or calls, with what it is paid for."""
    usage = UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)
    match turn:
        case str():
            return Turn(turn, usage=usage)
        case dict():
            return Turn(calls=[turn], usage=usage)
        case list() | tuple():
            return Turn(calls=list(turn), usage=usage)
    raise TypeError(f"{turn!r} is neither a text nor calls")


def unpaid(text: str = "", **fields: Any) -> AIMessage:
    """Return an answer of a provider that does not say what it has used."""
    return AIMessage(text, **fields)


def worker(name: str, turns: Turns, **fields: Any) -> Agent:
    """Return an agent on a metered model, with nothing but what the test gives it."""
    fields = {"default_tools": False, **fields}
    return Agent(name, f"does {name}", model=Metered(turns), **fields)


def look(number: int = 0) -> str:
    """Look at something."""
    return f"seen {number}"


def crowd(kind: str, turn: Any, budget: CostBudget, **fields: Any) -> Agent:
    """Return a supervisor who asks ten workers in one message."""
    workers = [worker(f"w{number}", turn) for number in range(WORKERS)]
    guards = Guards.interactive(budget=budget, fan_out=WORKERS, **fields)
    if kind == "tool":
        calls = [call(one.name, request=f"part {one.name}") for one in workers]
        boss: dict[str, Any] = {"agents": [one.as_tool() for one in workers]}
    else:
        calls = [call(f"transfer_to_{one.name}") for one in workers]
        boss = {"agents": workers, "handoff": "delegate"}
    return worker("boss", [paid(calls), paid("All is done.")], guards=guards, **boss)


def asked(*agents: Agent) -> int:
    """Return how often the models of agents were asked."""
    models = [agent.model for agent in agents]
    return sum(len(model.requests) for model in models if isinstance(model, ScriptedModel))


async def told(agent: Agent, said: str, thread_id: str = "t") -> tuple[FinalStateEvent, list[Any]]:
    """Run an input; return how it ended and what its guards have decided."""
    events: list[Event] = [event async for event in agent.astream(said, thread_id=thread_id)]
    ends = [event for event in events if isinstance(event, FinalStateEvent)]
    return ends[-1], [event.decision for event in events if isinstance(event, GuardEvent)]


def actions(decisions: Sequence[Any]) -> list[tuple[str, str]]:
    """Return which guards have decided what."""
    return [(one["guard"], one["action"]) for one in decisions]


class Driven(FakeClock):
    """A clock that knows when somebody waits for it to move on, and until when."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self._due: set[float] = set()

    async def sleep(self, seconds: float) -> None:
        self._due.add(self.monotonic() + seconds)
        await super().sleep(seconds)

    @contextmanager
    def timeout(self, seconds: float | None) -> Iterator[None]:
        if seconds is not None:
            self._due.add(self.monotonic() + seconds)
        with super().timeout(seconds):
            yield

    def move_on(self) -> None:
        """Move to the next instant for which somebody may be waiting."""
        now = self.monotonic()
        self._due = {due for due in self._due if due > now}
        if self._due:
            self.advance(min(self._due) - now)

    async def settled(self) -> None:
        """Let whoever was woken come to their next wait."""
        for _ in range(_TURNS):
            await super().sleep(0)

    async def drive(self, work: Awaitable[T]) -> T:
        """Bring work to its end; whenever it waits for the clock, that moves on."""

        async def driving() -> None:
            while True:
                await self.asleep()
                await self.settled()
                while in_threads:
                    await asyncio.wait(in_threads)
                    await self.settled()
                self.move_on()

        with _counted_threads() as in_threads:
            driver = asyncio.ensure_future(driving())
            try:
                async with asyncio.timeout(PATIENCE_S):
                    return await work
            finally:
                driver.cancel()

    async def lasting(self, work: Awaitable[T]) -> tuple[T, float]:
        """Return what work comes to, and after how long."""
        began = self.monotonic()
        result = await self.drive(work)
        return result, self.monotonic() - began


_TURNS = 200


@contextmanager
def _counted_threads() -> Iterator[set[asyncio.Future[Any]]]:
    """Keep the calls under way that this loop has given to threads.

    While one runs, the clock must stand: a thread that is slow to start would seem to be late.
    """
    under_way: set[asyncio.Future[Any]] = set()
    loop = asyncio.get_running_loop()
    run_in_executor = loop.run_in_executor

    def run_counted(*args: Any) -> asyncio.Future[Any]:
        future = run_in_executor(*args)
        under_way.add(future)
        future.add_done_callback(under_way.discard)
        return future

    loop.run_in_executor = run_counted  # type: ignore[assignment,method-assign]
    try:
        yield under_way
    finally:
        del loop.run_in_executor


def again(turn: Callable[[], Scripted]) -> Callable[[Any], Scripted]:
    """Return a script that never ends."""
    return lambda messages: turn()
