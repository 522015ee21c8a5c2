"""Agents at work under guard: what is told of their runs, and what their models were asked."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from agentgraph import Agent, Reply
from agentgraph.guards import AuditTrail, CostBudget, Guards, MemorySink, Record, StepLimit
from agentgraph.history import calls_of
from agentgraph.stream import Event, FinalStateEvent, GuardEvent
from agentgraph.testing import FakeClock, Fault, Request, ScriptedModel, call, check_history
from agentgraph.testing.answers import Scripted

Told = tuple[str, str, str]
"""A decision: at which agent, of which guard, and which."""

BUDGET = CostBudget(tokens=1_000_000)


def look(what: str) -> str:
    """Look something up."""
    return f"nothing of {what}"


def watched(sink: MemorySink | None = None, tier: str = "interactive", **fields: Any) -> Guards:
    """Return a tier's guards, with what it needs, on a sink of their own."""
    audit = AuditTrail(sink or MemorySink())
    budget = {"budget": BUDGET, "velocity": None} if tier == "regulated" else {}
    return Guards(tier, **{"audit": audit, **budget, **fields})  # type: ignore[arg-type]


def for_ever(*turns: Scripted, name: str = "scripted") -> ScriptedModel:
    """Return a model that says its turns again and again."""
    said = cycle(turns)
    return ScriptedModel(lambda messages: next(said), model_name=name)


def looping() -> ScriptedModel:
    """Return a model that asks for the same until the world ends."""
    return for_ever(call("look", what="it"))


def calls(most: int) -> StepLimit:
    """Return the limit on the model calls of an input, whatever they lead to."""
    return StepLimit(most, total=most)


def solo(model: Any, *tools: Any, name: str = "a", **fields: Any) -> Agent:
    """Return an agent with these tools and no others."""
    given = {"tools": tools or (look,), "default_tools": False, **fields}
    return Agent(name, f"does {name}", model=model, **given)


async def streamed(agent: Agent, said: Any = "go", thread_id: str = "t") -> list[Event]:
    """Run an input to its end, and return all that was told of it."""
    return [event async for event in agent.astream(said, thread_id=thread_id)]


def decided(events: Iterable[object]) -> list[Told]:
    """Return the decisions that a stream has told."""
    told = [event for event in events if isinstance(event, GuardEvent)]
    return [(e.agent, str(e.decision["guard"]), str(e.decision["action"])) for e in told]


def recorded(sink: MemorySink, *kinds: str) -> list[Record]:
    """Return the records of all runs, or those of some kinds."""
    records = [record for run in sink.runs() for record in sink.read(run)]
    return [record for record in records if not kinds or record.kind in kinds]


def audited(sink: MemorySink) -> list[Told]:
    """Return the decisions that stand in a trail."""
    found = ((record.agent, record.decision) for record in recorded(sink, "decision"))
    return [(agent, str(one["guard"]), str(one["action"])) for agent, one in found if one]


def systems(request: Request) -> list[str]:
    """Return the texts of all system messages of a request."""
    return [str(m.text) for m in request.messages if isinstance(m, SystemMessage)]


def corrections(model: ScriptedModel, text: str) -> list[int]:
    """Return which requests of a model hold a text, in their one system message."""
    assert all(len(systems(request)) <= 1 for request in model.requests)
    return [n for n, request in enumerate(model.requests) if text in "".join(systems(request))]


def is_legal(messages: Sequence[BaseMessage]) -> bool:
    """Tell whether a provider would go on from a history: every call has exactly one answer."""
    check_history([*messages, HumanMessage("and now?")])
    asked = [str(c["id"]) for m in messages if isinstance(m, AIMessage) for c in calls_of(m)]
    answered = [m.tool_call_id for m in messages if isinstance(m, ToolMessage)]
    return sorted(asked) == sorted(answered) and len(asked) == len(set(asked))


def answers(messages: Iterable[BaseMessage]) -> list[str]:
    """Return what calls were answered."""
    return [str(m.text) for m in messages if isinstance(m, ToolMessage)]


def words_of(end: Reply | FinalStateEvent) -> str:
    """Return what was said, "" where the text only tells that a guard has ended the run."""
    told = f"The run was ended by the guard {end.close_reason}"
    return "" if end.close_reason and end.text.startswith(told) else end.text


def elsewhere(url: str) -> str:
    """Return the URL of a copy of a SQLite store, which this process knows nothing of."""
    path = Path(url.removeprefix("sqlite:///"))
    copy = path.parent / "copy"
    copy.mkdir()
    for part in path.parent.glob(f"{path.name}*"):
        shutil.copy(part, copy)
    return f"sqlite:///{copy / path.name}"


class Hurried(FakeClock):
    """A clock that skips what is slept, and notes how long that would have been."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.slept.append(seconds)
            self.advance(seconds)
        await super().sleep(0)


class Provider:
    """A model that is down until it is mended, and may be held up while it is asked."""

    def __init__(self, name: str, *, fault: Scripted | None = None) -> None:
        self.fault: Scripted | None = fault or Fault.server_error()
        self.says: Scripted = f"{name} speaks"
        self.asked = asyncio.Event()
        self.lets_go: asyncio.Event | None = None
        self.model = ScriptedModel(self._turn, model_name=name)

    @property
    def requests(self) -> int:
        """Return how often it was asked."""
        return len(self.model.requests)

    def mend(self) -> None:
        """Let it answer from now on."""
        self.fault = None

    def hold(self) -> asyncio.Event:
        """Keep whoever asks waiting, until the event is set."""
        self.lets_go = asyncio.Event()
        self.asked.clear()
        return self.lets_go

    async def _turn(self, messages: list[BaseMessage]) -> Scripted:
        self.asked.set()
        if self.lets_go is not None:
            await self.lets_go.wait()
        return self.says if self.fault is None else self.fault


def stopped_by(result: Any) -> str | None:
    """Return the guard that has ended a foreign graph's run, None where it went to its end."""
    about = result["messages"][-1].response_metadata.get("agentgraph", {})
    return cast("str | None", about.get("stopped_by"))
