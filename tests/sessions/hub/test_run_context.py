"""LangGraph's context of a session's runs: it is stored, and reaches each agent as it declares."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from threading import Lock
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langgraph.types import interrupt
from pydantic import BaseModel, SecretStr
from typing_extensions import TypedDict

from agentgraph import Agent, Team
from agentgraph.errors import ConfigurationError
from agentgraph.routing import FromSpeaker, HumanTarget, Transition, TransitionGraph, sequence
from agentgraph.sessions import Hub
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import after, held, settled, until


@dataclass
class Customer:
    user: str
    tier: str = "basic"


class Account(BaseModel):
    user: str
    since: date = date(2026, 1, 1)


class Place(TypedDict):
    user: str


@dataclass
class Branch:
    user: str
    city: str


GIVEN = {"user": "ann", "tier": "gold"}
seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def look(runtime: ToolRuntime[Any]) -> str:
    """Look at the context."""
    seen.append(runtime.context)
    return "seen"


def ask_and_look(runtime: ToolRuntime[Any]) -> str:
    """Ask a human, then look at the context."""
    interrupt({"question": "may I?"})
    return look(runtime)


def looker(schema: type | None, *, name: str = "a", tool: Any = look, **fields: Any) -> Agent:
    model = ScriptedModel([call(tool.__name__), "Done."])
    return Agent(name, model=model, tools=[tool], context_schema=schema, **fields)


def desk(*agents: Any, **fields: Any) -> Team:
    first = agents[0].name
    answers = [Transition(FromSpeaker("user"), first)]
    rules = TransitionGraph(first, answers, default_target=HumanTarget())
    return Team(agents, rules, name="desk", **fields)


@pytest.mark.parametrize(
    ("schema", "fitted"),
    [
        (Customer, Customer("ann", "gold")),
        (Account, Account(user="ann")),
        (Place, {"user": "ann"}),
        (None, GIVEN),
    ],
)
async def test_each_agent_gets_the_context_as_it_declares(schema: Any, fitted: Any) -> None:
    async with held(desk(looker(schema)), run_context=GIVEN) as session:
        await after(session, "user", "go")
        assert seen == [fitted]
        assert session.record.run_context == GIVEN
        assert session.state.context_vars == {}


@pytest.mark.parametrize("given", [GIVEN, Customer("ann", "gold")])
async def test_a_foreign_graph_gets_it_too(given: Any) -> None:
    model = ScriptedModel([call("look"), "Done."])
    graph = create_agent(model, [look], context_schema=Customer, name="theirs")
    async with held(desk(graph), run_context=given) as session:
        await after(session, "user", "go")
        assert seen == [Customer("ann", "gold")]


async def test_agents_at_any_depth_and_supervisors_get_it() -> None:
    below = looker(Account, name="below")
    model = ScriptedModel([call("transfer_to_below")])
    boss = Agent("boss", model=model, agents=[below], context_schema=Place)
    inner = Team([looker(Customer, name="x")], sequence(["x"]), name="inner")
    watcher = looker(Customer, name="watcher")
    team = Team([boss, inner], sequence(["boss", "inner"]), supervisor=watcher, name="desk")
    async with held(team, run_context=GIVEN) as session:
        await after(session, "user", "go")
        await until(lambda: len(seen) >= 3)
    assert Account(user="ann") in seen
    assert seen.count(Customer("ann", "gold")) >= 2


@pytest.mark.parametrize("log_url", ["sqlite", "postgres"], indirect=True)
async def test_a_resume_in_another_hub_has_it(log_url: str) -> None:
    team = desk(looker(Account, tool=ask_and_look))
    given = Account(user="ann", since=date(2020, 2, 2))
    async with await Hub.open(log_url, serve=[team]) as hub:
        session = await hub.session(team, id="s", run_context=given)
        await after(session, "user", "go")
        assert session.state.status == "waiting_decision"
    async with await Hub.open(log_url, serve=[team]) as hub:
        session = await hub.get("s")
        (question,) = session.state.interrupts
        await session.decide(question, "yes")
        await settled(session)
    assert seen == [given]


async def test_a_fork_has_it() -> None:
    async with await Hub.open(serve=[team := desk(looker(Customer))]) as hub:
        session = await hub.session(team, run_context=GIVEN)
        fork = await session.fork(1)
        await after(fork, "user", "go")
    assert seen == [Customer("ann", "gold")]


async def test_one_run_changes_nothing_for_the_next() -> None:
    def spoil(runtime: ToolRuntime[Any]) -> str:
        """Change the context."""
        seen.append(dict(runtime.context))
        runtime.context["user"] = "mallory"
        return "changed"

    model = ScriptedModel([call("spoil"), "Done."] * 2)
    async with held(desk(Agent("a", model=model, tools=[spoil])), run_context=GIVEN) as session:
        await after(session, "user", "one")
        await after(session, "user", "two")
    assert seen == [GIVEN, GIVEN]


async def test_a_context_that_does_not_fit_opens_no_session() -> None:
    inner = Team([looker(Branch, name="x")], sequence(["x"]), name="inner")
    below = looker(Branch, name="below")
    boss = Agent("boss", model=ScriptedModel(["Hi."]), agents=[below], context_schema=Customer)
    watcher = looker(Branch, name="watcher")
    rules = sequence(["boss", "inner"])
    team = Team([boss, inner], rules, supervisor=watcher, name="desk")
    async with await Hub.open(serve=[team]) as hub:
        with pytest.raises(ConfigurationError, match="city") as refused:
            await hub.session(team, run_context={"user": "ann"})
        assert refused.value.code == "context"
        for name in ("x", "below", "watcher"):
            assert any(repr(name) in fault for fault in refused.value.faults), name
        assert await hub.sessions() == []


class Secret(BaseModel):
    key: SecretStr = SecretStr("hush")


@dataclass
class Locked:
    lock: Any = field(default_factory=Lock)


@pytest.mark.parametrize(
    "given", [7, "text", object(), {"a": object()}, {1: 2}, Secret(), Locked()]
)
async def test_what_is_no_json_is_refused(given: Any) -> None:
    async with await Hub.open(serve=[desk(looker(None))]) as hub:
        with pytest.raises(ConfigurationError, match="run_context"):
            await hub.session("desk", run_context=given)
