"""What runs in the cells: agents, teams and flows that pay for tea, milk and jam, each in its way.

What they say depends on nothing but what they have been told, so that a run which goes on after a
kill differs from one that nobody killed only where the framework makes it differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langgraph.types import interrupt

from agentgraph import Agent, Team, TransitionGraph, effect, idempotency_key
from agentgraph.flow import Flow, Verdict
from agentgraph.guards import Backoff, Escalation, Guards
from agentgraph.routing import FromSpeaker, ParallelTarget, Transition, sequence
from agentgraph.sessions.single.team import SingleTeam
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph.testing import ScriptedModel, call
from tests.contract.cells import (
    AFTER_DISPATCH,
    AFTER_EFFECT,
    BEFORE_DISPATCH,
    COMMITTED,
    INSIDE,
    Subject,
)
from tests.contract.site import DELEGATED, ITEM, ITEMS, NOT_AT_TOOL, Dispatches, Site, next_item

PAID, DOUBTED, ALIVE = "All is paid.", "I am not sure about that.", "I am here."
SEATS = dict(zip(("alice", "bob", "carol"), ITEMS, strict=True))
"""Who pays for what, where each member of a team or flow pays for one thing."""


@dataclass(frozen=True)
class Till:
    """The tools and models with which a subject pays."""

    subject: Subject
    site: Site

    def pay(self) -> Any:
        """Return the tool that pays."""
        site, subject = self.site, self.subject

        async def pay(item: str) -> str:
            """Pay for something."""
            if subject.asks and item == ITEM:
                decision = interrupt({"pay": item})
                site.ledger.write("acted", item, data=decision)
                if not str(decision).startswith("approve"):
                    return f"refused {item}"
            if subject.operation not in NOT_AT_TOOL:
                site.come_to(INSIDE, item)
            site.ledger.write("paid", item, idempotency_key())
            if subject.operation not in NOT_AT_TOOL:
                site.come_to(AFTER_EFFECT, item)
            return f"paid {item}"

        if not subject.is_effect:
            return pay
        lookup = None if subject.operation == "blind effect" else site.ledger.receipt
        return effect(compensate=self._undo if subject.is_undone else None, lookup=lookup)(pay)

    def _undo(self, item: str, key: str) -> None:
        if item == ITEMS[2]:
            self.site.come_to(BEFORE_DISPATCH)
        self.site.come_to(INSIDE, item)
        self.site.ledger.write("undone", item, key)
        self.site.come_to(AFTER_EFFECT, item)

    def model(self, turn: Callable[[list[Any]], Any]) -> ScriptedModel:
        """Return a model that takes its turns by a function, and notes what it is asked for."""

        def noted(messages: list[Any]) -> Any:
            item = next_item(messages)
            self.site.ledger.write("asked", item)
            if self.subject.operation not in NOT_AT_TOOL:
                self.site.come_to(BEFORE_DISPATCH, item)
            return turn(messages)

        return ScriptedModel(noted)

    def agent(self, name: str, turn: Callable[[list[Any]], Any], **fields: Any) -> Agent[Any]:
        """Return an agent with the tool that pays."""
        fields = {"tools": [self.pay()], **fields}
        watch = [Dispatches(self.site)]
        model = self.model(turn)
        return Agent(name, name, model=model, default_tools=False, middleware=watch, **fields)


def agent_of(till: Till, **fields: Any) -> Agent[Any]:
    """Return the agent of a subject that is one."""
    operation = till.subject.operation
    if operation == "model call":
        return _caller(till, **fields)
    if operation in ("sub-agent", "delegate"):
        return _boss(till, operation, **fields)
    if operation == "compensation":
        return till.agent("clerk", _doubting, **fields)
    at_once = operation.startswith("parallel")
    return till.agent("clerk", _paying_at_once if at_once else _paying, **fields)


def _paying(messages: list[Any]) -> Any:
    if _is_greeting(messages):
        return ALIVE
    item = next_item(messages)
    return call("pay", item=item) if item else PAID


def _paying_at_once(messages: list[Any]) -> Any:
    """Pay for tea, and then for all the rest in one message."""
    if _is_greeting(messages):
        return ALIVE
    item = next_item(messages)
    if item in ("", ITEMS[0]):
        return call("pay", item=item) if item else PAID
    return [call("pay", item=each) for each in ITEMS[ITEMS.index(item) :]]


def _doubting(messages: list[Any]) -> Any:
    answer = _paying(messages)
    return DOUBTED if answer == PAID else answer


def _is_greeting(messages: list[Any]) -> bool:
    return next((m.text for m in reversed(messages) if m.type == "human"), "") == "hello"


def _caller(till: Till, **fields: Any) -> Agent[Any]:
    """Return an agent whose model is what is paid for: each of its turns is one payment."""
    site = till.site

    def note(item: str) -> str:
        """Note something."""
        if item == ITEMS[0]:
            site.come_to(BEFORE_DISPATCH)
        return f"noted {item}"

    def turn(messages: list[Any]) -> Any:
        item = next_item(messages)
        if _is_greeting(messages) or not item:
            return ALIVE if item or _is_greeting(messages) else PAID
        site.come_to(INSIDE, item)
        site.ledger.write("paid", item)
        site.come_to(AFTER_EFFECT, item)
        return call("note", item=item)

    return till.agent("clerk", turn, tools=[note], **fields)


def _boss(till: Till, operation: str, **fields: Any) -> Agent[Any]:
    """Return an agent who pays for tea and leaves milk to another one."""

    def turn(messages: list[Any]) -> Any:
        item = next_item(messages)
        if _is_greeting(messages) or item == ITEMS[0]:
            return _paying(messages)
        if item == ITEM:
            return call("transfer_to_clerk")
        return _paying(messages)

    def below(messages: list[Any]) -> Any:
        if operation == "delegate" and next_item(messages) != ITEM:
            return DELEGATED
        return _paying(messages)

    clerk = till.agent("clerk", below)
    handoff: Any = "delegate" if operation == "delegate" else "sticky"
    return till.agent("boss", turn, agents=[clerk], handoff=handoff, **fields)


def team_of(till: Till, durability: Any) -> Team:
    """Return three who pay for one thing each, and end their session."""
    names = [*SEATS]
    agents = [_member(till, name) for name in names]
    rules = sequence(names)
    if till.subject.operation == "parallel round":
        agents.append(_member(till, "dan"))
        both = ParallelTarget(("bob", "dan"), join="carol")
        rules = TransitionGraph("alice", [Transition(FromSpeaker("alice"), both)])
    fields: dict[str, Any] = {"expectations": (), "durability": durability}
    return Team(agents, rules, name="shop", **fields)


def _member(till: Till, name: str) -> Agent[Any]:
    """Return a member of a team or flow, who pays for one thing and says so."""
    item, site, operation = SEATS.get(name, "eggs"), till.site, till.subject.operation
    watched = {"packet": "bob", "close": "carol"}.get(operation) == name

    def turn(messages: list[Any]) -> Any:
        last = messages[-1]
        if last.type != "tool":
            return call("pay", item=item)
        if watched:
            site.come_to(BEFORE_DISPATCH)
        return f"{name}: {last.text}"

    def noted(messages: list[Any]) -> Any:
        site.ledger.write("asked", item)
        if operation not in NOT_AT_TOOL and messages[-1].type != "tool":
            site.come_to(BEFORE_DISPATCH, item)
        if operation == "packet" and item == ITEMS[2] and site.is_done:
            site.come_to(COMMITTED)
        return turn(messages)

    watch = [Dispatches(site), *([Answered(site)] if watched else [])]
    fields: dict[str, Any] = {"default_tools": False, "middleware": watch}
    return Agent(name, name, model=ScriptedModel(noted), tools=[till.pay()], **fields)


class Answered(Dispatches):
    """Comes to the instant at which a member's last answer is there, and its packet is not."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        answer = await handler(request)
        if request.messages[-1].type == "tool":
            self._site.come_to(AFTER_DISPATCH)
        return answer


def flow_of(till: Till, **fields: Any) -> Flow[Any]:
    """Return a flow in which each worker pays for one thing; its result is judged by a function."""

    def judge(aggregate: object) -> Verdict:
        doubts = till.subject.is_undone
        return Verdict(accepted=not doubts, confidence=1.0, problems=("no",) if doubts else ())

    work = [_member(till, name) for name in SEATS]
    guards = Guards.batch(replans=0, backoff=Backoff(0, 0), velocity=None)
    return Flow("shop", work=work, topology="sop", validate=judge, guards=guards, **fields)


def doubtful() -> Guards:
    """Return guards that ask a human about an answer that is in doubt."""
    return Guards.interactive(
        escalation=Escalation(0.5, lambda subject: 0.1 if DOUBTED in subject.text else 1.0)
    )


def runner_of(till: Till, url: str) -> Any:
    """Return the agent or flow that runs on a thread."""
    subject = till.subject
    fields: dict[str, Any] = {"checkpointer": url, "durability": subject.durability}
    if subject.home == "flow":
        return flow_of(till, **fields)
    return agent_of(till, **fields, **({"guards": doubtful()} if subject.is_undone else {}))


def served_of(till: Till) -> CompiledTeam:
    """Return what a hub serves: a team, or an agent in sessions of its own."""
    subject = till.subject
    if subject.home == "team":
        return team_of(till, subject.durability)
    durability: Any = "sync" if subject.stores_steps else "async"
    guards: dict[str, Any] = {"guards": doubtful()} if subject.is_undone else {}
    return SingleTeam.of(agent_of(till, durability=durability, **guards))
