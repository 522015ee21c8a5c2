"""Graphs of others in a team, and a team's graph among those of others."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from agentgraph import Agent, Team
from agentgraph.errors import AgentGraphError, ConfigurationError, SessionError
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import (
    EV_INTERRUPT,
    EV_PACKET,
    EV_ROUND_FAILED,
    FullTranscript,
    current_session,
    delete_context,
    set_context,
)
from agentgraph.testing import Fault, ScriptedModel, call
from tests.sessions.talk import after, agent, asked, held, of_type, settled, shown, talk


def made(name: str, *turns: Any, tools: Any = (), **fields: Any) -> Any:
    """Return a `create_agent` graph that says its turns."""
    return create_agent(ScriptedModel(turns), list(tools), name=name, **fields)


def pair(*agents: Any, **fields: Any) -> Team:
    return Team(agents, sequence(["a", "b"]), **fields)


@tool
def put(key: str, value: int) -> str:
    """Put a value."""
    set_context(key, value)
    return "put"


@tool
def ask(what: str) -> str:
    """Ask a human."""
    return f"decided: {interrupt({'question': what})}"


def nested() -> Team:
    """Return a team of an agent with a sub-agent, a graph of others, and a team."""
    above = agent("a", "so", agents=[agent("below")])
    inner = Team([agent("c")], sequence(["c"]), name="inner")
    return Team([above, made("b", "so"), inner], sequence(["a", "b", "inner"]))


def test_the_drawing_of_a_team_has_the_graphs_of_its_agents() -> None:
    graph = nested().graph
    assert {"a", "b", "inner"}.issubset(graph.get_graph().nodes)
    one_level = graph.get_graph(xray=1).nodes
    assert {"a:call_model", "a:below", "b:model", "inner:c"}.issubset(one_level)
    all_levels = graph.get_graph(xray=True).nodes
    assert {"a:below:call_model", "b:model", "inner:c:call_model"}.issubset(all_levels)
    names = [name for name, _ in graph.get_subgraphs(recurse=True)]
    assert names == ["a", "a|below", "b", "inner", "inner|c"]


async def test_the_state_of_a_team_has_the_states_of_its_agents() -> None:
    asking = agent("a", call("ask", what="it"), "so", tools=[ask])
    graph = Team([asking], sequence(["a"])).graph.copy({"checkpointer": InMemorySaver()})
    config: Any = {"configurable": {"thread_id": "t"}}
    given: Any = {"messages": [("user", "go")]}
    assert (await graph.ainvoke(given, config))["__interrupt__"]
    [task] = (await graph.aget_state(config, subgraphs=True)).tasks
    state: Any = task.state
    [message] = state.values["messages"]
    assert [c["name"] for c in message.tool_calls] == ["ask"]
    result = await graph.ainvoke(Command(resume="yes"), config)
    assert result["messages"][-1].text == "so"


async def test_what_is_said_in_a_team_that_a_delegate_waits_in_is_not_taken_over() -> None:
    asking = agent("a", call("put", key="k", value=1), call("ask", what="it"), tools=[put, ask])
    inner = Team([asking], sequence(["a"]), name="inner")
    boss = agent("boss", call("transfer_to_inner"), "Well.", agents=[inner], handoff="delegate")
    assert (await boss.ainvoke("go", thread_id="t")).interrupts
    assert [m.type for m in await boss.ahistory("t")] == ["human", "ai"]
    await boss.ainvoke("something else", thread_id="t")
    history = await boss.ahistory("t")
    assert [m.type for m in history] == ["human", "ai", "tool", "human", "ai"]


async def test_a_foreign_graph_speaks_and_is_heard() -> None:
    other = agent("b")
    async with held(pair(made("a", "from a"), other)) as session:
        state = await after(session, "user", "hello")
        assert await talk(session) == [("user", "hello"), ("a", "from a"), ("b", "b speaks")]
        assert "[a]: from a" in shown(other)
        assert state.pending_close_reason == "sequence_complete"


async def test_a_foreign_graph_is_shown_the_conversation_as_messages() -> None:
    model = ScriptedModel(["from b"])
    other = create_agent(model, [], name="b")
    async with held(pair(agent("a"), other)) as session:
        await after(session, "user", "hello")
        told = "\n".join(str(m.text) for m in model.requests[0].messages)
        assert "[user]: hello" in told
        assert "[a]: a speaks" in told


async def test_the_tools_of_a_foreign_graph_write_the_context_with_the_round() -> None:
    @tool
    def drop(key: str) -> str:
        """Drop a key."""
        delete_context(key)
        return "dropped"

    calls = [call("put", key="k", value=1), call("drop", key="old")]
    one = made("a", calls, "so", tools=[put, drop])
    async with held(pair(one, agent("b")), context={"old": 1}) as session:
        state = await after(session, "user", "hello")
        assert dict(state.context_vars) == {"k": 1}
        packet = (await of_type(session, EV_PACKET))[0]
        assert packet.event_data["context_updates"] == {"set": {"k": 1}, "delete": ["old"]}
        assert [c["tool"] for c in packet.event_data["steps"][0]["calls"]] == ["put", "drop"]


async def test_a_foreign_tool_reaches_its_session() -> None:
    seen: list[str] = []

    @tool
    def look() -> str:
        """Look."""
        seen.append(current_session().id)
        return "seen"

    async with held(pair(made("a", call("look"), "so", tools=[look]), agent("b")), id="s") as s:
        await after(s, "user", "hello")
        assert seen == ["s"]


async def test_a_foreign_tool_routes() -> None:
    @tool
    def escalate() -> str:
        """Escalate."""
        return "escalated"

    rules = TransitionGraph(
        "a",
        (Transition(FromSpeaker("a") & ToolCalled("escalate"), "b"),),
        TerminateTarget("done"),
    )
    team = Team([made("a", call("escalate"), "so", tools=[escalate]), agent("b")], rules)
    async with held(team) as session:
        assert (await after(session, "user", "hello")).last_speaker_id == "b"


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_a_foreign_tool_asks_a_human(durability: Any) -> None:
    one = made("a", call("put", key="k", value=1), call("ask", what="?"), "so", tools=[put, ask])
    async with held(pair(one, agent("b"), durability=durability)) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_decision"
        (question,) = await of_type(session, EV_INTERRUPT)
        assert question.event_data["speaker"] == "a"
        await session.decide(question.event_data["id"], "yes")
        state = await settled(session)
        packet = (await of_type(session, EV_PACKET))[0]
        results = [c["result"] for step in packet.event_data["steps"] for c in step["calls"]]
        assert results == ["put", "decided: yes"]
        assert dict(state.context_vars) == {"k": 1}


async def test_a_foreign_graph_that_fails_is_tried_again() -> None:
    one = made("a", Fault.server_error(), "so")
    # Its guards would have it ask its model once more, and no round would fail.
    async with held(pair(one, agent("b"), guards=None)) as session:
        state = await after(session, "user", "hello")
        (failed,) = await of_type(session, EV_ROUND_FAILED)
        assert failed.event_data["code"] in ("error", "model")
        assert "InternalServerError" in failed.event_data["message"]
        assert state.pending_close_reason == "sequence_complete"


async def test_a_graph_without_words_is_silent() -> None:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("quiet", lambda state: {"messages": []})
    graph.add_edge(START, "quiet")
    async with held(pair(graph.compile(name="a"), agent("b"))) as session:
        state = await after(session, "user", "hello")
        assert [one.event_data["code"] for one in await of_type(session, EV_ROUND_FAILED)] == [
            "silent",
            "silent",
        ]
        assert state.pending_close_reason == "round_failed"


async def test_a_graph_that_never_ends_is_stopped() -> None:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("spin", lambda state: Command(goto="spin"))
    graph.add_edge(START, "spin")
    compiled = graph.compile(name="a").with_config(recursion_limit=20)
    async with held(pair(compiled, agent("b"))) as session:
        await after(session, "user", "hello")
        failed = (await of_type(session, EV_ROUND_FAILED))[0]
        assert failed.event_data["code"] == "recursion_limit"


async def test_what_a_foreign_graph_has_used_is_told() -> None:
    async with held(pair(made("a", "from a"), agent("b"))) as session:
        await after(session, "user", "hello")
        usage = (await of_type(session, EV_PACKET))[0].event_data["usage"]
        assert usage["a"]["total_tokens"] > 0


def test_a_graph_that_keeps_a_history_of_its_own_is_refused() -> None:
    kept = made("a", "x", checkpointer=True)
    with pytest.raises(ConfigurationError, match="checkpointer=True"):
        pair(kept, agent("b"))


def chat() -> TransitionGraph:
    """Return rules by which two agents answer whatever their human says."""
    rules = (Transition(FromSpeaker("user"), "a"), Transition(FromSpeaker("a"), "b"))
    return TransitionGraph("a", rules, HumanTarget())


async def test_a_teams_graph_runs_without_a_hub() -> None:
    team = pair(agent("a"), agent("b"))
    result = await team.graph.ainvoke(
        {"messages": [HumanMessage("hello")]}, {"configurable": {"thread_id": "t"}}
    )
    assert [m.text for m in result["messages"]] == ["b speaks"]
    assert result["messages"][0].name == "b"


async def test_a_thread_of_a_teams_graph_is_one_session_over_its_turns() -> None:
    one, other = agent("a"), agent("b")
    team = Team([one, other], chat(), view=FullTranscript())
    config: Any = {"configurable": {"thread_id": "t"}}
    for text in ("first", "second", "third"):
        result = await team.graph.ainvoke({"messages": [HumanMessage(text)]}, config)
        assert result["messages"][-1].text == "b speaks"
    assert len(asked(one)) == 3
    assert "[user]: first" in shown(one)
    assert "[user]: third" in shown(one)
    await team.graph.ainvoke(
        {"messages": [HumanMessage("elsewhere")]}, {"configurable": {"thread_id": "u"}}
    )
    assert "first" not in shown(one)


async def test_a_thread_whose_session_has_ended_begins_another() -> None:
    one = agent("a")
    team = Team([one], sequence(["a"]))
    config: Any = {"configurable": {"thread_id": "t"}}
    for text in ("first", "second", "third"):
        result = await team.graph.ainvoke({"messages": [HumanMessage(text)]}, config)
        assert result["messages"][-1].text == "a speaks"
    assert len(asked(one)) == 3
    assert "first" not in shown(one)


async def test_a_round_that_fails_for_good_raises_where_there_is_no_hub() -> None:
    team = Team([agent("a", "", "")], sequence(["a"]))
    with pytest.raises(SessionError) as caught:
        await team.graph.ainvoke(
            {"messages": [HumanMessage("hello")]}, {"configurable": {"thread_id": "t"}}
        )
    assert caught.value.code == "round_failed"


async def test_without_a_hub_a_tool_has_no_session_handle_and_may_write_the_context() -> None:
    told: list[str] = []

    def look() -> str:
        """Look."""
        set_context("k", 1)
        try:
            current_session()
        except AgentGraphError as error:
            told.append(error.code)
        return "seen"

    team = Team([agent("a", call("look"), "so", tools=[look])], sequence(["a"]))
    await team.graph.ainvoke(
        {"messages": [HumanMessage("x")]}, {"configurable": {"thread_id": "t"}}
    )
    assert told == ["no_hub"]


async def test_a_teams_graph_asks_a_human_by_an_interrupt() -> None:
    def ask_human(what: str) -> str:
        """Ask a human."""
        return f"decided: {interrupt(what)}"

    one = agent("a", call("ask_human", what="?"), "so", tools=[ask_human])
    team = pair(one, agent("b"))
    config: Any = {"configurable": {"thread_id": "t"}}
    graph = team.compile(InMemorySaver())
    result = await graph.ainvoke({"messages": [HumanMessage("hello")]}, config)
    (question,) = result["__interrupt__"]
    assert question.value == "?"
    result = await graph.ainvoke(Command(resume="yes"), config)
    assert result["messages"][-1].text == "b speaks"
    assert any("decided: yes" in str(m.text) for m in asked(one)[-1].messages)


def around(team: Team, *, saver: Any = None) -> Any:
    """Return a graph of a user's own, with a team as a node between two others."""

    def prepare(state: MessagesState) -> dict[str, Any]:
        return {"messages": [HumanMessage("prepared", id="prepared")]}

    def conclude(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"concluded: {state['messages'][-1].text}")]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("prepare", prepare)
    graph.add_node("team", team.graph)
    graph.add_node("conclude", conclude)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "team")
    graph.add_edge("team", "conclude")
    graph.add_edge("conclude", END)
    return graph.compile(checkpointer=saver)


async def test_a_team_is_a_node_in_a_graph_of_the_users_own() -> None:
    one = agent("a")
    graph = around(pair(one, agent("b")))
    result = await graph.ainvoke({"messages": [HumanMessage("hello")]})
    assert result["messages"][-1].text == "concluded: b speaks"
    assert "prepared" in shown(one)
    assert "hello" in shown(one)


async def test_a_team_as_a_node_goes_on_over_the_turns_of_its_thread() -> None:
    one = agent("a")
    graph = around(Team([one, agent("b")], chat(), view=FullTranscript()), saver=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    for text in ("first", "second"):
        result = await graph.ainvoke({"messages": [HumanMessage(text)]}, config)
        assert result["messages"][-1].text == "concluded: b speaks"
    assert len(asked(one)) == 2
    # What was said is known from the session, and is said to it once.
    assert shown(one).count("first") == 1


async def test_a_team_as_a_node_asks_a_human_through_the_users_graph() -> None:
    def ask_human(what: str) -> str:
        """Ask a human."""
        return f"decided: {interrupt(what)}"

    one = agent("a", call("ask_human", what="?"), "so", tools=[ask_human])
    graph = around(pair(one, agent("b")), saver=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    result = await graph.ainvoke({"messages": [HumanMessage("hello")]}, config)
    assert [one.value for one in result["__interrupt__"]] == ["?"]
    result = await graph.ainvoke(Command(resume="yes"), config)
    assert result["messages"][-1].text == "concluded: b speaks"
    assert len(asked(one)) == 2


async def test_two_threads_of_a_node_do_not_hear_each_other() -> None:
    one = agent("a")
    graph = around(Team([one, agent("b")], chat()), saver=InMemorySaver())
    for thread in ("t", "u"):
        await graph.ainvoke(
            {"messages": [HumanMessage(f"for {thread}")]}, {"configurable": {"thread_id": thread}}
        )
    assert "for t" not in shown(one)


def test_a_team_runs_from_a_script() -> None:
    result = pair(agent("a"), agent("b")).run("hello", context={"k": 1})
    assert (result.text, result.close_reason) == ("b speaks", "sequence_complete")
    assert dict(result.state.context_vars) == {"k": 1}
    assert [one.sender_id for one in result.envelopes if one.is_substantive] == ["user", "a", "b"]
    assert result.usage.total_tokens > 0


async def test_a_run_that_waits_for_a_human_returns_without_a_reason() -> None:
    result = await Team([agent("a"), agent("b")], chat()).arun("hello")
    assert (result.text, result.close_reason) == ("b speaks", None)
    assert result.state.status == "waiting_human"


async def test_a_run_can_be_watched() -> None:
    team = pair(agent("a"), agent("b"))
    kinds = [getattr(one, "event_type", type(one).__name__) async for one in team.astream("hello")]
    assert kinds.count(EV_PACKET) == 2
    assert "TokenEvent" in kinds
    assert kinds[-1] == "ag.session.closed"


@pytest.mark.parametrize("mode", ["sticky", "delegate"])
@pytest.mark.parametrize("guards", [{}, {"guards": None}], ids=["guarded", "unguarded"])
async def test_a_team_speaks_for_a_supervisor_who_hands_over_to_it(
    mode: Any, guards: dict[str, Any]
) -> None:
    heard: list[list[str]] = []

    def say(messages: list[BaseMessage]) -> str:
        heard.append([message.text for message in messages if message.type == "human"])
        return f"answer {len(heard)}"

    clerk = Agent("clerk", model=ScriptedModel(say), default_tools=False)
    desk = Team([clerk], sequence(["clerk"]), name="desk", **guards)
    turns: list[Any] = [
        call("transfer_to_desk"),
        "So it is.",
        call("transfer_to_desk"),
        "So it was.",
    ]
    boss = Agent("boss", model=ScriptedModel(turns), agents=[desk], handoff=mode, **guards)
    boss = boss.replace(checkpointer=InMemorySaver())
    replies = [await boss.ainvoke(text, thread_id="t") for text in ("first", "second")]
    spoken = ["answer 1", "answer 2"] if mode == "sticky" else ["So it is.", "So it was."]
    assert [reply.text for reply in replies] == spoken
    assert [texts[-1] for texts in heard] == ["[user]: first", "[user]: second"]
