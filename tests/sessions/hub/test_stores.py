"""LangGraph's store in a team: which one the tools of its members get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.messages import BaseMessage
from langgraph.prebuilt import InjectedStore
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from agentgraph import Agent
from agentgraph.errors import ConfigurationError
from agentgraph.routing import FromSpeaker, HumanTarget, Transition, TransitionGraph, sequence
from agentgraph.sessions import Hub, Team
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import after, agent, until


def remember(fact: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Remember."""
    store.put(("facts",), fact, {"known": True})
    return "remembered"


def turn(messages: Sequence[BaseMessage]) -> Any:
    has_called = any((one.type, one.name) == ("tool", "remember") for one in messages)
    return "done" if has_called else call("remember", fact="tide")


def member(name: str = "a", **fields: Any) -> Agent:
    """Return an agent that remembers something in the store that it gets."""
    model = ScriptedModel(turn)
    return Agent(name, name, model=model, tools=[remember], default_tools=False, **fields)


def has_fact(store: BaseStore) -> bool:
    return store.get(("facts",), "tide") is not None


async def test_a_team_without_a_store_gets_the_hubs() -> None:
    store = InMemoryStore()
    inner = Team([member("inner_a")], sequence(["inner_a"]), name="inner")
    for one in (member(), inner, agent("front", call("transfer_to_a"), agents=[member()])):
        team = Team([one], sequence([one.name]), name="team")
        async with await Hub.open(serve=[team], store=store) as hub:
            state = await after(await hub.session(team), "user", "go")
            assert state.pending_close_reason == "sequence_complete"
        assert has_fact(store)
        store.delete(("facts",), "tide")


async def test_the_teams_own_store_comes_before_those_of_its_members_and_of_the_hub() -> None:
    own, members, hubs = InMemoryStore(), InMemoryStore(), InMemoryStore()
    for team, store in (
        (Team([member(store=members)], sequence(["a"]), store=own), own),
        (Team([agent("b"), member(store=members)], sequence(["a"])), members),
        (Team([member("front", store=members)], sequence(["front"]), name="front"), members),
    ):
        async with await Hub.open(serve=[team], store=hubs) as hub:
            await after(await hub.session(team), "user", "go")
        assert [has_fact(one) for one in (own, members, hubs)] == [
            one is store for one in (own, members, hubs)
        ]
        store.delete(("facts",), "tide")


def foreign(store: BaseStore) -> Any:
    return create_agent(ScriptedModel(turn), [remember], name="a", store=store)


def delegating(store: BaseStore) -> Agent:
    sub = member("sub", store=store)
    return Agent(
        "a",
        model=ScriptedModel([call("transfer_to_sub")]),
        agents=[sub],
        default_tools=False,
    )


def nested(store: BaseStore) -> Team:
    return Team([member("b")], sequence(["b"]), name="a", store=store)


@pytest.mark.parametrize("make", [foreign, delegating, nested])
async def test_the_store_of_a_member_is_not_ignored(make: Callable[[BaseStore], Any]) -> None:
    store = InMemoryStore()
    result = await Team([make(store)], sequence(["a"])).arun("go")
    assert result.close_reason == "sequence_complete"
    assert has_fact(store)


@pytest.mark.parametrize("make", [foreign, nested])
async def test_the_store_of_a_delegate_of_an_agent_is_not_ignored(
    make: Callable[[BaseStore], Any],
) -> None:
    store = InMemoryStore()
    root = Agent("root", model=ScriptedModel([call("transfer_to_a")]), agents=[make(store)])
    await root.ainvoke("go")
    assert has_fact(store)


async def test_the_runtime_of_a_tool_has_the_store_in_a_run_and_in_the_graph() -> None:
    stores: list[BaseStore | None] = []

    def look(runtime: ToolRuntime) -> str:
        """Look."""
        stores.append(runtime.store)
        return "seen"

    def look_once(messages: Sequence[BaseMessage]) -> Any:
        return "done" if messages[-1].type == "tool" else call("look")

    one = Agent("a", model=ScriptedModel(look_once), tools=[look], default_tools=False)
    store = InMemoryStore()
    team = Team([one], sequence(["a"]), store=store)
    assert (await team.arun("go")).text == "done"
    await team.graph.ainvoke({"messages": [("user", "go")]})
    assert stores == [store, store]


@pytest.mark.parametrize("owner", ["supervisor", "team", "hub"])
async def test_a_supervisor_gets_a_store_too(owner: str) -> None:
    store = InMemoryStore()
    boss = member("boss", **({"store": store} if owner == "supervisor" else {}))
    fields: Any = {"store": store} if owner == "team" else {}
    rules = TransitionGraph("a", [Transition(FromSpeaker("user"), "a")], HumanTarget())
    team = Team([agent("a")], rules, supervisor=boss, **fields)
    async with await Hub.open(serve=[team], store=store if owner == "hub" else None) as hub:
        await after(await hub.session(team), "user", "go")
        await until(lambda: has_fact(store))


async def test_what_is_no_store_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="store='memory': give a LangGraph store"):
        Team([agent("a")], sequence(["a"]), store="memory")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="give a LangGraph store"):
        await Hub.open(store="memory")  # type: ignore[arg-type]
