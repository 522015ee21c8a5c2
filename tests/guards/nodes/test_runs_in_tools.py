"""Runs that a tool begins are a part of the outer input: its guards hold over them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langgraph.graph import START, MessagesState, StateGraph

from agentgraph import Agent, Guards, Team, patched
from agentgraph.guards import CostBudget, Gate, MemorySink, StepLimit, Subject, folded
from agentgraph.routing import sequence
from agentgraph.sessions import EV_AUDIT
from agentgraph.stream import FinalStateEvent
from agentgraph.testing import ScriptedModel, Turn, call
from tests.guards.escalating_agents import Till, pays
from tests.guards.guarded_agents import audited, calls, look, recorded, solo, watched
from tests.sessions.talk import after, held, of_type

Ask = Callable[[Agent], Any]


def by_ainvoke(other: Agent) -> Any:
    async def ask(question: str) -> str:
        """Ask the other agent."""
        return (await other.ainvoke(question)).text

    return ask


def by_invoke(other: Agent) -> Any:
    def ask(question: str) -> str:
        """Ask the other agent."""
        return other.invoke(question).text

    return ask


def by_graph(other: Agent) -> Any:
    async def ask(question: str) -> str:
        """Ask the other agent."""
        result = await other.graph.ainvoke({"messages": [("user", question)]})
        return str(result["messages"][-1].text)

    return ask


def by_stream(other: Agent) -> Any:
    async def ask(question: str) -> str:
        """Ask the other agent."""
        ends = [e async for e in other.astream(question) if isinstance(e, FinalStateEvent)]
        return ends[-1].text

    return ask


def by_team(other: Agent) -> Any:
    team = Team([other], sequence([other.name]), name="crew", guards=other.guards)

    async def ask(question: str) -> str:
        """Ask the other agent."""
        return (await team.arun(question)).text

    return ask


def by_run(other: Agent) -> Any:
    team = Team([other], sequence([other.name]), name="crew", guards=other.guards)

    def ask(question: str) -> str:
        """Ask the other agent."""
        return team.run(question).text

    return ask


WAYS: dict[str, Ask] = {
    "ainvoke": by_ainvoke,
    "invoke": by_invoke,
    "graph": by_graph,
    "stream": by_stream,
    "team": by_team,
    "team, blocking": by_run,
}
WAY = pytest.mark.parametrize("way", WAYS)


def alone(tool: Any, *turns: Any, **fields: Any) -> Any:
    return solo(ScriptedModel([*turns, "Done."]), tool, name="boss", **fields)


def in_delegate(tool: Any, *turns: Any, **fields: Any) -> Any:
    below = alone(tool, *turns).replace(name="sub")
    boss: Any = ScriptedModel([call("transfer_to_sub"), "Done."])
    return Agent("boss", model=boss, agents=[below], handoff="delegate", **fields)


def in_agent_tool(tool: Any, *turns: Any, **fields: Any) -> Any:
    below = alone(tool, *turns).replace(name="sub")
    boss: Any = ScriptedModel([call("sub", request="go"), "Done."])
    return Agent("boss", model=boss, agents=[below.as_tool()], **fields)


def in_team(tool: Any, *turns: Any, **fields: Any) -> Any:
    return Team([alone(tool, *turns)], sequence(["boss"]), **fields)


PLACES: dict[str, Any] = {
    "agent": alone,
    "delegate": in_delegate,
    "as a tool": in_agent_tool,
    "team": in_team,
}
PLACE = pytest.mark.parametrize("place", PLACES)


async def ran(outer: Any) -> Any:
    return await (outer.arun("go") if isinstance(outer, Team) else outer.ainvoke("go"))


def busy(tokens: int = 0) -> ScriptedModel:
    """Return a model that finds something new with each call, and never has enough."""
    pages = count()
    used = UsageMetadata(input_tokens=tokens, output_tokens=0, total_tokens=tokens)
    usage: Any = {"usage": used} if tokens else {}
    return ScriptedModel(lambda _: Turn(calls=[call("look", what=f"{next(pages)}")], **usage))


ASK = call("ask", question="Tell me.")


def is_polite(subject: Subject) -> bool | str:
    return "secret" not in subject.text or "keep the secret"


@WAY
async def test_the_outer_gates_judge_what_the_other_agent_says(way: str) -> None:
    sink = MemorySink()
    other = Agent("other", model=ScriptedModel(lambda _: "The secret is 7."))

    def turn(messages: list[Any]) -> Any:
        last = messages[-1]
        return f"I heard: {last.text}" if last.type == "tool" else ASK

    boss = ScriptedModel(turn)
    guards = watched(sink, gates=Gate(policy=is_polite))
    reply = await solo(boss, WAYS[way](other), name="boss", guards=guards).ainvoke("go")
    assert "secret is 7" not in reply.text
    assert ("gate", "abort") in [told[1:] for told in audited(sink)]


@WAY
async def test_the_outer_gates_judge_the_calls_of_the_other_agent(way: str) -> None:
    ran: list[str] = []

    def look(what: str) -> str:
        """Look."""
        ran.append(what)
        return "seen"

    forbids = Gate(policy=lambda subject: subject.tool != "look" or "do not look")
    model = ScriptedModel([call("look", what="it"), "I did not look."])
    other = solo(model, look, name="other")
    outer = alone(WAYS[way](other), ASK, guards=watched(gates=forbids))
    assert (await outer.ainvoke("go")).text == "Done."
    assert ran == []


@WAY
@PLACE
async def test_what_it_spends_is_paid_from_the_outer_budget(way: str, place: str) -> None:
    model = busy(1_000)
    guards = watched(budget=CostBudget(tokens=5_500))
    outer = PLACES[place](WAYS[way](solo(model, name="other")), ASK, guards=guards)
    assert (await ran(outer)).close_reason == "cost_budget"
    assert len(model.requests) in (5, 6)


@WAY
@PLACE
async def test_its_model_calls_are_the_input_s(way: str, place: str) -> None:
    model = busy()
    outer = PLACES[place](
        WAYS[way](solo(model, name="other")), ASK, guards=watched(steps=calls(12))
    )
    assert (await ran(outer)).close_reason == "max_steps"
    assert len(model.requests) in (10, 11)


@WAY
@PLACE
async def test_all_is_in_one_trail(way: str, place: str) -> None:
    sink = MemorySink()
    other = solo(ScriptedModel([call("look", what="it"), "It is 7."]), name="other")
    outer = PLACES[place](WAYS[way](other), ASK, guards=watched(sink))
    result = await ran(outer)
    [run] = sink.runs()
    trail = folded(sink.read(run))
    prefix = {"agent": "boss", "team": "boss"}.get(place, "boss/sub")
    assert trail.path[trail.path.index(f"{prefix}/ask/other") - 1] == prefix
    assert trail.steps == (4 if place in ("agent", "team") else 6)
    assert trail.spend.total_tokens > result.usage.total_tokens > 0
    tools = [(r.agent, r.data["tool"]) for r in recorded(sink, "tool")]
    assert (f"{prefix}/ask/other", "look") in tools
    assert trail.end


@pytest.mark.parametrize("way", ["ainvoke", "invoke", "graph"])
async def test_an_agent_that_calls_itself_in_a_tool_ends_on_the_eighth_level(way: str) -> None:
    sink, levels = MemorySink(), count(1)
    agents: list[Agent] = []

    async def ask(question: str) -> str:
        """Ask myself."""
        return str(await asks(question))

    async def asks(question: str) -> str:
        tool = WAYS[way](agents[0])
        answer = tool(question)
        return str(await answer if isinstance(answer, Awaitable) else answer)

    def turn(messages: list[Any]) -> Any:
        last = messages[-1]
        return (
            f"I heard: {last.text}"
            if last.type == "tool"
            else call("ask", question=f"{next(levels)}")
        )

    model = ScriptedModel(turn)
    agents.append(solo(model, ask, name="me", guards=watched(sink)))
    reply = await agents[0].ainvoke("go")
    assert next(levels) == 9
    assert reply.close_reason is None
    assert "level 9 lies below the last allowed one, 8" in reply.text
    assert [told[1:] for told in audited(sink)] == [("depth_limit", "abort")]


async def test_delegates_of_the_other_agent_are_deeper_than_its_tool() -> None:
    sink = MemorySink()
    leaf = solo(ScriptedModel(["leaf"]), name="leaf")
    mid = Agent(
        "mid", model=ScriptedModel([call("leaf", request="go"), "mid"]), agents=[leaf.as_tool()]
    )
    guards = watched(sink, depth=2)
    reply = await alone(by_ainvoke(mid), ASK, guards=guards).ainvoke("go")
    assert reply.text == "Done."
    assert audited(sink) == [("boss/ask/mid", "depth_limit", "deny")]
    assert isinstance(leaf.model, ScriptedModel) and leaf.model.requests == []


async def test_its_own_guards_tighten_and_never_loosen() -> None:
    first, second = busy(), busy()
    strict = by_ainvoke(solo(first, name="other", guards=Guards(steps=calls(3))))
    outer = alone(strict, ASK, {**ASK, "args": {"question": "Again."}}, guards=watched())
    assert (await outer.ainvoke("go")).text == "Done."
    assert len(first.requests) == 2 * 3  # each run has the steps of its own guards
    lax = by_ainvoke(solo(second, name="other", guards=Guards(steps=StepLimit(99, None))))
    reply = await alone(lax, ASK, guards=watched(steps=calls(7))).ainvoke("go")
    assert (reply.close_reason, len(second.requests)) == ("max_steps", 6)


async def test_each_run_has_its_own_budget_beside_the_outer_one() -> None:
    model = busy(1_000)
    own = Guards(budget=CostBudget(tokens=3_000))
    outer = alone(by_ainvoke(solo(model, name="other", guards=own)), ASK, ASK, guards=watched())
    assert (await outer.ainvoke("go")).text == "Done."
    assert len(model.requests) == 2 * 3


@WAY
async def test_an_agent_without_guards_is_under_those_of_the_tool_s_agent(way: str) -> None:
    model = busy()
    tool = WAYS[way](solo(model, name="other", guards=None))
    reply = await alone(tool, ASK, guards=watched(steps=calls(7))).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 6)


def by_graph_stream(other: Agent) -> Any:
    graph = other.graph.with_config(tags=["aside"])

    async def ask(question: str) -> str:
        """Ask the other agent."""
        parts = graph.astream({"messages": [("user", question)]}, stream_mode="values")
        states = [part async for part in parts]
        return str(states[-1]["messages"][-1].text)

    return ask


def by_blocking_graph(other: Agent) -> Any:
    def ask(question: str) -> str:
        """Ask the other agent."""
        result = other.graph.invoke({"messages": [("user", question)]})
        return str(result["messages"][-1].text)

    return ask


def by_node(other: Agent) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("other", other.graph)
    builder.add_edge(START, "other")
    graph: Any = builder.compile()

    async def ask(question: str) -> str:
        """Ask a graph of others with the other agent as its node."""
        result = await graph.ainvoke({"messages": [("user", question)]})
        return str(result["messages"][-1].text)

    return ask


async def test_that_graph_has_no_guards_elsewhere() -> None:
    model = ScriptedModel([call("look", what="it"), "Seen."])
    graph = solo(model, look, name="other", guards=None).graph
    result = await graph.ainvoke({"messages": [HumanMessage("go")]})
    assert result["messages"][-1].text == "Seen."


@pytest.mark.parametrize("by", [by_graph, by_graph_stream, by_blocking_graph, by_node])
async def test_the_graph_of_an_agent_without_guards_is_under_those_of_the_tool_s_agent(
    by: Ask,
) -> None:
    def refuses(subject: Subject) -> bool | str:
        return subject.tool != "look" or "nobody may look"

    model = busy()
    other = solo(model, look, name="other", guards=None)
    guards = watched(steps=calls(7), gates=Gate(policy=refuses))
    outer = alone(by(other), ASK, guards=guards)
    reply = await outer.ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 6)
    assert "nobody may look" in str(model.requests[-1].messages)


async def test_a_graph_of_others_in_a_tool_is_counted_too() -> None:
    model = busy()
    graph = patched(create_agent(model, [look], name="other"), Guards.interactive())

    async def ask(question: str) -> str:
        """Ask the graph."""
        result = await graph.ainvoke({"messages": [("user", question)]})
        return str(result["messages"][-1].text)

    reply = await alone(ask, ASK, guards=watched(steps=calls(7))).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 6)


async def test_a_tool_of_a_graph_of_others_has_its_runs_guarded_too() -> None:
    model = busy()
    boss = ScriptedModel([ASK, "Done."])
    graph: Any = create_agent(boss, [by_ainvoke(solo(model, name="other"))], name="boss")
    graph = patched(graph, watched(steps=calls(7)))
    await graph.ainvoke({"messages": [("user", "go")]})
    assert len(model.requests) == 6


async def test_what_it_did_is_undone_with_the_outer_input() -> None:
    till = Till()
    other = Agent("other", model=ScriptedModel([*pays("tea"), "Paid."]), tools=[till.tool])
    stuck = [call("look", what="it")] * 20
    boss = ScriptedModel([ASK, *stuck])
    reply = await solo(boss, by_ainvoke(other), look, name="boss", guards=watched()).ainvoke("go")
    assert reply.close_reason == "loop_detector"
    assert till.tries == ["pay tea", "give back tea"]


async def test_what_it_did_is_undone_where_it_is_ended_and_the_rest_stands() -> None:
    till = Till()
    stuck = [call("look", what="it")] * 20
    other = solo(ScriptedModel([*pays("tea"), *stuck]), till.tool, look, name="other")
    boss = ScriptedModel([*pays("milk"), ASK, "Done."])
    tools = (by_ainvoke(other), till.tool)
    assert (await solo(boss, *tools, name="boss", guards=watched()).ainvoke("go")).text == "Done."
    assert till.tries == ["pay milk", "pay tea", "give back tea"]


async def test_its_decisions_are_in_the_log_of_the_session_around_the_tool() -> None:
    other = solo(ScriptedModel([call("look", what="it")] * 20), name="other")
    team = in_team(by_ainvoke(other), ASK, guards=watched())
    async with held(team) as session:
        await after(session, "user", "go")
        told = [one.event_data for one in await of_type(session, EV_AUDIT)]
    decided = [(one["agent"], one["guard"]) for one in told if one["kind"] == "decision"]
    assert ("boss/ask/other", "loop_detector") in decided


async def test_runs_side_by_side_share_the_limits_of_their_input() -> None:
    model = busy()
    tool = by_ainvoke(solo(model, name="other"))
    asks = [call("ask", question=str(n)) for n in range(4)]
    reply = await alone(tool, asks, guards=watched(steps=calls(13))).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 12)


async def test_hops_within_it_count_in_the_row_of_the_input() -> None:
    def down(levels: int) -> Agent:
        below: list[Agent] = []
        for level in range(levels, 0, -1):
            turns = [call(f"transfer_to_a{level + 1}")] if below else []
            below = [Agent(f"a{level}", model=ScriptedModel([*turns, "so"]), agents=below)]
        return below[0]

    sink = MemorySink()
    outer = alone(by_ainvoke(down(4)), ASK, guards=watched(sink, hops=2))
    assert (await outer.ainvoke("go")).text == "Done."
    assert audited(sink) == [("boss/ask/a1/a2/a3", "hop_limit", "deny")]


@pytest.mark.parametrize("durability", ["async", "sync"])
async def test_its_own_steps_are_counted_over_all_its_nodes(durability: Any) -> None:
    asked = ScriptedModel(lambda messages: call("look", what=str(len(messages))))
    other = solo(asked, name="other", guards=watched(steps=calls(3)), durability=durability)
    model = ScriptedModel([call("ask", question="why?"), "Done."])
    agent = solo(model, by_ainvoke(other), guards=watched(), durability=durability)
    reply = await agent.ainvoke("go")
    assert reply.text == "Done."
    assert len(asked.requests) == 3
