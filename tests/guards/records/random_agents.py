"""Random agents, alone and in trees, whose models, tools and humans note all that they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from hypothesis import strategies as st
from langchain_core.messages.ai import UsageMetadata
from langgraph.types import Command

from agentgraph import Agent, effect, idempotency_key
from agentgraph.errors import GuardStopped, ModelError
from agentgraph.guards import (
    AuditTrail,
    Backoff,
    CostBudget,
    Escalation,
    Gate,
    Guard,
    Guards,
    MemorySink,
    Record,
    Subject,
    Trail,
)
from agentgraph.stream import FinalStateEvent, GuardEvent, InterruptEvent
from agentgraph.testing import Fault, ScriptedModel, Turn, call
from agentgraph.testing.answers import Scripted

NAMES = ("ann", "bob", "cid", "dan")


@dataclass(frozen=True)
class Plan:
    """An agent: what its model does turn by turn, then it says a last word; and who is below."""

    name: str
    turns: tuple[str, ...]
    below: tuple[Plan, ...] = ()
    delegates: bool = False

    @property
    def names(self) -> Iterator[str]:
        yield self.name
        for plan in self.below:
            yield from plan.names


@dataclass
class World:
    """What really happened, as those who did it saw it."""

    acted: list[str] = field(default_factory=list)
    """Who has acted, in its order: asked a model or used a tool."""
    asked: Counter[str] = field(default_factory=Counter)
    used: dict[str, int] = field(default_factory=dict)
    """The tokens that models said they used, by agent."""
    paid: dict[str, str] = field(default_factory=dict)
    undone: list[str] = field(default_factory=list)

    @property
    def path(self) -> tuple[str, ...]:
        """Return who acted, each once as long as nobody else did."""
        turns = zip(self.acted, [None, *self.acted], strict=False)
        return tuple(who for who, before in turns if who != before)

    @property
    def tokens(self) -> int:
        return sum(self.used.values())


def model_of(plan: Plan, path: str, world: World) -> ScriptedModel:
    """Return a model that follows a plan, and notes when it is asked and what that costs."""
    left = list(plan.turns)
    said = iter(range(1_000))

    def turn(messages: Any) -> Scripted:
        world.acted.append(path)
        world.asked[path] += 1
        kind = left.pop(0) if left else "say"
        number = next(said)
        if kind == "fault":
            return Fault.server_error()
        if kind == "bad":
            return ValueError("no such model")
        used = UsageMetadata(input_tokens=10 + number, output_tokens=5, total_tokens=15 + number)
        world.used[path] = world.used.get(path, 0) + used["total_tokens"]
        calls = calls_of(kind, plan, number)
        return Turn("" if calls else f"{path} says {number}", calls, used)

    return ScriptedModel(turn, model_name=f"model-{plan.name}")


def calls_of(kind: str, plan: Plan, number: int) -> list[Any]:
    match kind:
        case "look":
            return [call("look", what="it")]
        case "seek":
            return [call("look", what=f"{number}")]
        case "pay":
            return [call("pay", item=f"{plan.name} {number}")]
        case "fail":
            return [call("fail")]
        case "move" if plan.below:
            return [call(f"transfer_to_{plan.below[number % len(plan.below)].name}")]
    return []


def tools_of(path: str, world: World) -> list[Any]:
    def undo(item: str, key: str) -> None:
        world.undone.append(key)

    @effect(compensate=undo)
    def pay(item: str) -> str:
        """Pay for something."""
        world.acted.append(path)
        world.paid[idempotency_key()] = path
        return "paid"

    def look(what: str) -> str:
        """Look something up."""
        world.acted.append(path)
        return "nothing"

    def fail() -> str:
        """Fail."""
        world.acted.append(path)
        raise OSError("no luck")

    return [pay, look, fail]


def tree_of(plan: Plan, world: World, above: str = "", **fields: Any) -> Agent:
    """Return an agent, with all below it."""
    path = f"{above}/{plan.name}" if above else plan.name
    return Agent(
        plan.name,
        f"does {plan.name}",
        model=model_of(plan, path, world),
        tools=tools_of(path, world),
        agents=[tree_of(one, world, path) for one in plan.below],
        handoff="delegate" if plan.delegates else "sticky",
        default_tools=False,
        **fields,
    )


@st.composite
def plans(draw: Any, names: Sequence[str] = NAMES) -> Plan:
    """Draw a tree of agents; what each of them does, it does once."""
    kinds = st.sampled_from(["look", "seek", "pay", "fail", "move", "fault", "bad", "say"])
    weights = st.lists(kinds.filter(lambda kind: kind != "bad"), max_size=6)
    first, *others = names
    below: list[Plan] = []
    if others and draw(st.booleans()):
        split = draw(st.integers(1, len(others)))
        parts = [others[:split], others[split:]]
        below = [draw(plans(part)) for part in parts if part]
    turns = [*draw(weights), *(["bad"] if draw(st.integers(0, 9)) == 0 else [])]
    return Plan(first, tuple(turns), tuple(below), draw(st.booleans()))


def decent(subject: Subject) -> str | None:
    return "no sevens" if "7" in subject.text else None


def doubtful(subject: Subject) -> float:
    return 0.1 if "says 3" in subject.text or "says 2" in subject.text else 0.9


@st.composite
def policies(draw: Any) -> Mapping[str, Any]:
    """Draw what guards a run has, besides where their records go."""
    tier = draw(st.sampled_from(["interactive", "batch", "regulated"]))
    given: dict[str, Any] = {"tier": tier, "backoff": Backoff(0, 0), "velocity": None}
    tokens = draw(st.sampled_from([3_000, 20_000, 1_000_000]))
    given["budget"] = CostBudget(tokens=tokens)
    if draw(st.booleans()):
        given["steps"] = draw(st.integers(1, 8))
    if draw(st.booleans()):
        given["escalation"] = Escalation(0.5, doubtful)
    if draw(st.booleans()):
        given["gates"] = Gate(invariants=[decent])
    return given


@dataclass(frozen=True)
class Totals:
    """What an input has used and done, as a guard's memory."""

    steps: int = 0
    tokens: int = 0
    tools: int = 0
    hops: int = 0
    decisions: tuple[tuple[str, str], ...] = ()
    limited: int = 0
    """How many steps the step limit has counted."""

    def add(self, record: Record) -> Totals:
        """Return the totals with one more record."""
        totals = self._add(record)
        return replace(totals, limited=max(self.limited, record.step))

    def _add(self, record: Record) -> Totals:
        match record.kind:
            case "model":
                tokens = 0 if record.usage is None else record.usage.total_tokens
                return replace(self, steps=self.steps + 1, tokens=self.tokens + tokens)
            case "tool":
                return replace(self, tools=self.tools + 1)
            case "handoff":
                return replace(self, hops=self.hops + (record.data["hop"] is True))
            case "decision" if record.decision is not None:
                decision = str(record.decision["guard"]), str(record.decision["action"])
                return replace(self, decisions=(*self.decisions, decision))
        return self


@dataclass(frozen=True)
class TotalsGuard:
    """A guard that decides nothing: its memory is the fold of all records."""

    name: ClassVar[str] = "totals"
    last: list[Totals] = field(default_factory=lambda: [Totals()], compare=False)

    def start(self) -> Totals:
        return Totals()

    def fold(self, memory: Totals, record: Record) -> Totals:
        self.last[0] = memory.add(record)
        return self.last[0]

    def tighter(self, other: Self) -> Self:
        return self


def guards_of(policy: Mapping[str, Any], sink: MemorySink, *extra: Guard[Any]) -> Guards:
    return Guards(**{**policy, "audit": AuditTrail(sink), "extra": extra})


@dataclass
class Told:
    """What a caller was told of a run, over all that humans decided in it."""

    decisions: list[Mapping[str, Any]] = field(default_factory=list)
    tokens: int = 0
    humans: list[str] = field(default_factory=list)
    end: str = ""


async def told(agent: Agent, answers: Sequence[str]) -> Told:
    """Run an agent to its end; whatever is asked meanwhile is answered in turn."""
    heard, left = Told(), list(answers)
    said: Any = "go"
    while True:
        try:
            events = [one async for one in _heard(agent, said, heard)]
        except (ModelError, GuardStopped):
            heard.end = "failed"
            return heard
        final = next(one for one in events if isinstance(one, FinalStateEvent))
        heard.tokens += int(final.usage["total_tokens"])  # type: ignore[call-overload]
        asked = [one for one in events if isinstance(one, InterruptEvent)]
        if not asked:
            heard.end = final.close_reason or "answered"
            return heard
        verbs = [left.pop(0) if left else "reject" for _ in asked]
        heard.humans += verbs
        said = Command(
            resume={one.id: answer_of(verb) for one, verb in zip(asked, verbs, strict=True)}
        )


async def _heard(agent: Agent, said: Any, into: Told) -> Any:
    async for event in agent.astream(said, thread_id="t"):
        if isinstance(event, GuardEvent):
            into.decisions.append({"agent": event.agent, **event.decision})
        yield event


def answer_of(verb: str) -> Any:
    match verb:
        case "edit":
            return {"type": "edit", "edited": "an edited text"}
        case "respond":
            return {"type": "respond", "message": "a human says"}
    return verb


UNTOLD = {("retry", "allow"), ("failure", "abort")}
"""Decisions that nobody is told of as such: a retry goes unnoticed, an error is raised."""


def trail_of(sink: MemorySink) -> Trail:
    [run] = sink.runs()
    return AuditTrail(sink).trail(run)
