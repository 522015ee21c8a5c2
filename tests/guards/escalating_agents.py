"""Agents whose answers or failures are left to a human: alone, deep in a tree, as delegates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage, ToolMessage

from agentgraph import Agent, effect, idempotency_key
from agentgraph.agents import Reply
from agentgraph.guards import AuditTrail, CostBudget, Escalation, Gate, Guards, MemorySink
from agentgraph.testing import Fault, ScriptedModel, call
from tests.guards.guarded_agents import words_of

__all__ = [
    "ANSWER",
    "DECISIONS",
    "INVALID",
    "PLACES",
    "REASONS",
    "Till",
    "clerk",
    "decided",
    "tree",
]

PLACES = ("root", "deep", "delegate", "tool")
REASONS = ("doubt", "failure")
ANSWER = "It is paid."
BUDGET = CostBudget(tokens=1_000_000)

DECISIONS: dict[str, tuple[Any, str]] = {
    "approve": ("approve", ANSWER),
    "edit": ({"type": "edit", "edited": "It is paid twice."}, "It is paid twice."),
    "reject": ({"type": "reject", "message": "not today"}, ""),
    "respond": ({"type": "respond", "message": "Ann has paid."}, "Ann has paid."),
}
"""What a human may decide, and what the agent says then."""

INVALID: list[Any] = [
    "perhaps",
    7,
    [],
    {"type": "edit"},
    {"type": "respond", "message": ""},
    {"type": "approve", "because": "I say so"},
    {"decisions": []},
]


@dataclass
class Till:
    """What was paid, and what was paid back; under each key once, however often it is tried."""

    paid: dict[str, str] = field(default_factory=dict)
    returned: dict[str, str] = field(default_factory=dict)
    tries: list[str] = field(default_factory=list)

    @property
    def tool(self) -> Callable[..., str]:
        @effect(compensate=self.give_back)
        def pay(item: str) -> str:
            """Pay for something."""
            self.tries.append(f"pay {item}")
            self.paid.setdefault(idempotency_key(), item)
            return f"paid for {item}"

        return pay

    def give_back(self, item: str, key: str) -> None:
        self.tries.append(f"give back {item}")
        self.returned.setdefault(key, item)

    @property
    def left(self) -> list[str]:
        """Return what is paid for and not paid back."""
        return [item for key, item in self.paid.items() if key not in self.returned]


def pays(*items: str) -> list[Any]:
    """Return calls that pay for these."""
    return [call("pay", item=item) for item in items]


def unsure(reason: str, sink: MemorySink | None = None, **fields: Any) -> Guards:
    """Return guards that leave to a human what the clerk says, and all that has failed."""
    critic = (
        (lambda subject: 0.2 if subject.stage == "clerk" else 1.0) if reason == "doubt" else None
    )
    given = {
        "budget": BUDGET,
        "velocity": None,
        "escalation": Escalation(0.85, critic),
        "retry": None,
        "audit": AuditTrail(sink),
        **fields,
    }
    return Guards.regulated(**given)


def clerk(till: Till, reason: str, *items: str) -> Agent:
    """Return an agent who pays, and then is not sure, or has a model that fails once."""
    faults = [Fault.server_error()] if reason == "failure" else []
    calls = [call("pay", item=item) for item in items or ("tea",)]
    model = ScriptedModel([calls, *faults, ANSWER])
    return Agent("clerk", "pays", model=model, tools=[till.tool], default_tools=False)


def tree(place: str, worker: Agent, **fields: Any) -> Agent:
    """Return a tree in which the worker has its place; whoever has it as a delegate repeats it."""
    match place:
        case "root":
            return worker.replace(**fields)
        case "deep":
            mid = Agent("mid", "leads", model=_moves("clerk"), agents=[worker])
            return Agent("boss", "is", model=_moves("mid"), agents=[mid], **fields)
        case "delegate":
            model = ScriptedModel(_repeating(call("transfer_to_clerk")))
            return Agent("boss", model=model, agents=[worker], handoff="delegate", **fields)
        case _:
            model = ScriptedModel(_repeating(call("clerk", request="pay")))
            return Agent("boss", model=model, agents=[worker.as_tool()], **fields)


def decided(place: str, reply: Reply) -> str:
    """Return what the clerk has said in the end."""
    return words_of(reply).removeprefix("" if place in ("root", "deep") else "The clerk: ")


async def asked(agent: Agent) -> Reply:
    """Have an agent come to its question."""
    reply = await agent.ainvoke("pay for tea", thread_id="t")
    assert (reply.text, reply.close_reason, len(reply.interrupts)) == ("", None, 1)
    return reply


async def said(place: str, agent: Agent, reply: Reply, decision: Any) -> str:
    """Decide, and return what comes of it."""
    [question] = reply.interrupts
    reply = await agent.aresume("t", {question.id: decision})
    assert reply.interrupts == ()
    return decided(place, reply)


def _moves(name: str) -> ScriptedModel:
    return ScriptedModel([call(f"transfer_to_{name}")])


def _repeating(asked: Any) -> Callable[[list[BaseMessage]], Any]:
    def turn(messages: list[BaseMessage]) -> Any:
        last = messages[-1]
        return f"The clerk: {last.text}" if isinstance(last, ToolMessage) else asked

    return turn


def gate(*refused: str) -> Gate:
    """Return a gate that lets everything pass but these words."""

    def decent(subject: Any) -> str | None:
        return next((f"no {word}, please" for word in refused if word in subject.text), None)

    return Gate(invariants=[decent])
