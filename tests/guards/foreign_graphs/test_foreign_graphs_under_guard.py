"""Graphs of others under guard: patched by hand, below an agent of ours, and in a team."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, after_model, before_model
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from agentgraph import Agent, Guards, Team, effect, patched
from agentgraph.errors import ConfigurationError
from agentgraph.graphs.public_graph import run_whole
from agentgraph.guards import (
    CircuitBreaker,
    CostBudget,
    Gate,
    MemorySink,
    Subject,
)
from agentgraph.routing import round_robin, sequence
from agentgraph.stream import GuardEvent
from agentgraph.testing import Fault, ScriptedModel, bad_call, call
from tests.guards.guarded_agents import (
    Hurried,
    answers,
    audited,
    calls,
    decided,
    for_ever,
    is_legal,
    look,
    looping,
    recorded,
    solo,
    stopped_by,
    streamed,
    systems,
    watched,
)
from tests.sessions.talk import after, held, talk

TOLD = "`look` was called 3 times with the same arguments and result"
STOPPED = [("loop_detector", "correct"), ("loop_detector", "abort")]
GO = {"messages": [HumanMessage("go")]}
ON_T: Any = {"configurable": {"thread_id": "t"}}


@pytest.fixture
def clock() -> Iterator[Hurried]:
    with Hurried().installed() as installed:
        yield installed


def made_by_hand(model: Any, *tools: Any) -> Any:
    """Return an agent made of LangGraph's own parts."""
    bound = model.bind_tools(tools)

    async def ask(state: MessagesState) -> Any:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", ask)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile(name="clerk")


def made_by_langchain(model: Any, *tools: Any, **fields: Any) -> Any:
    return create_agent(model, list(tools), name="clerk", **fields)


def hooked(model: Any, *tools: Any) -> Any:
    """Return an agent of LangChain's with hooks around its model."""

    @before_model
    def before(state: Any, runtime: Any) -> None: ...

    @after_model
    def behind(state: Any, runtime: Any) -> None: ...

    hooks: list[AgentMiddleware[Any, Any]] = [before, behind]
    return made_by_langchain(model, *tools, middleware=hooks)


KINDS = pytest.mark.parametrize(
    "made", [made_by_langchain, hooked, made_by_hand], ids=["langchain", "hooks", "by hand"]
)


def told(sink: MemorySink) -> list[tuple[str, str]]:
    return [(guard, action) for _, guard, action in audited(sink)]


@KINDS
async def test_a_loop_is_corrected_then_stopped(made: Any) -> None:
    model, sink = looping(), MemorySink()
    result = await patched(made(model, look), watched(sink, "batch")).ainvoke(GO)
    assert (stopped_by(result), len(model.requests)) == ("loop_detector", 7)
    assert told(sink) == STOPPED
    assert is_legal(result["messages"])
    assert [m.type for m in result["messages"]] == ["human", *["ai", "tool"] * 7, "ai"]


async def test_the_default_batch_policy_does_it_too() -> None:
    model = looping()
    result = await patched(made_by_langchain(model, look), Guards.batch()).ainvoke(GO)
    assert (stopped_by(result), len(model.requests)) == ("loop_detector", 7)


async def test_a_correction_is_read_once_and_not_stored_beside_the_one_prompt() -> None:
    model = ScriptedModel([*[call("look", what="it")] * 3, call("look", what="else"), "Done."])
    graph = patched(made_by_langchain(model, look, system_prompt="Find it."), Guards.batch())
    result = await graph.ainvoke(GO)
    assert result["messages"][-1].text == "Done."
    assert [systems(request) for request in model.requests] == [["Find it."]] * 5
    heard = [[m.text for m in r.messages if m.type == "human"] for r in model.requests]
    assert [len(texts) for texts in heard] == [1, 1, 1, 2, 1]
    assert TOLD in heard[3][1]
    assert [m.text for m in result["messages"] if m.type == "human"] == ["go"]


async def test_a_prompt_among_the_messages_takes_the_correction_in() -> None:
    model = looping()
    graph = patched(made_by_hand(model, look), Guards.batch())
    await graph.ainvoke({"messages": [("system", "Find it."), ("user", "go")]})
    (system,) = systems(model.requests[3])
    assert system.startswith("Find it.\n\n")
    assert TOLD in system


@KINDS
async def test_the_next_input_on_the_thread_works_and_begins_anew(made: Any) -> None:
    model = ScriptedModel([*[call("look", what="it")] * 9, "Here again."])
    graph = patched(made(model, look), Guards.batch())
    graph.checkpointer = InMemorySaver()
    assert stopped_by(await graph.ainvoke(GO, ON_T)) == "loop_detector"
    result = await graph.ainvoke({"messages": [HumanMessage("and now?")]}, ON_T)
    assert (result["messages"][-1].text, stopped_by(result)) == ("Here again.", None)
    assert is_legal(result["messages"])


@KINDS
async def test_calls_side_by_side_are_seen(made: Any) -> None:
    model = for_ever([call("look", what="a"), call("look", what="b")])
    result = await patched(made(model, look), Guards.batch()).ainvoke(GO)
    assert (stopped_by(result), len(model.requests)) == ("loop_detector", 7)
    assert is_legal(result["messages"])


@KINDS
async def test_a_tool_that_fails_again_and_again_ends_it(made: Any) -> None:
    def fetch(page: int) -> Any:
        """Fetch a page."""
        return Command(
            update={"messages": [ToolMessage("gone", tool_call_id=next(ids), status="error")]}
        )

    ids = (f"c{n}" for n in range(100))
    turns: Any = [[{**call("fetch", page=7), "id": f"c{n}"}] for n in range(9)]
    result = await patched(made(ScriptedModel(turns), fetch), Guards.batch()).ainvoke(GO)
    assert (stopped_by(result), len(answers(result["messages"]))) == ("loop_detector", 6)


@KINDS
async def test_healthy_work_is_left_alone(made: Any) -> None:
    states = iter([*["running"] * 9, "ready"])

    @effect(poll=True)
    def status() -> str:
        """Return how far the job is."""
        return next(states)

    sink = MemorySink()
    pages = [call("look", what=f"page {n}") for n in range(20)]
    model = ScriptedModel([*pages, *[call("status")] * 10, "Done."])
    result = await patched(made(model, look, status), watched(sink)).ainvoke(GO)
    assert (result["messages"][-1].text, told(sink)) == ("Done.", [])
    kinds = [record.kind for record in recorded(sink)]
    assert (kinds.count("model"), kinds.count("tool")) == (31, 30)


@KINDS
async def test_its_model_calls_are_limited(made: Any) -> None:
    pages = iter(range(100))
    model = ScriptedModel(lambda _: call("look", what=str(next(pages))))
    result = await patched(made(model, look), watched(steps=calls(7))).ainvoke(GO)
    assert (stopped_by(result), len(model.requests)) == ("max_steps", 7)
    assert is_legal(result["messages"])


async def test_what_it_spends_is_counted() -> None:
    pages = iter(range(100))
    model = ScriptedModel(lambda _: call("look", what=str(next(pages))))
    guards = watched(budget=CostBudget(tokens=3_000))
    result = await patched(made_by_langchain(model, look), guards).ainvoke(GO)
    assert stopped_by(result) == "cost_budget"
    assert 2 <= len(model.requests) < 50


@KINDS
async def test_a_regulated_one_asks_a_human_also_in_another_copy(made: Any) -> None:
    saver = InMemorySaver()

    def copy(*turns: Any) -> Any:
        guards = watched(tier="regulated")
        graph = patched(made(ScriptedModel(turns), look), guards)
        graph.checkpointer = saver
        return graph

    again = [call("look", what="it")] * 7
    result = await copy(*again).ainvoke(GO, ON_T)
    (question,) = result["__interrupt__"]
    assert question.value["guard"] == "loop_detector"
    result = await copy("I have it.").ainvoke(Command(resume={question.id: "approve"}), ON_T)
    assert (result["messages"][-1].text, stopped_by(result)) == ("I have it.", None)
    assert is_legal(result["messages"])


@KINDS
async def test_a_human_may_end_it_or_answer_in_its_place(made: Any) -> None:
    for thread, answer, text, guard in (
        ("1", "reject", "Stopped by loop_detector: a human has rejected it.", "loop_detector"),
        ("2", {"type": "respond", "message": "It is lost."}, "It is lost.", None),
    ):
        graph = patched(made(looping(), look), watched(tier="regulated"))
        graph.checkpointer = InMemorySaver()
        config: Any = {"configurable": {"thread_id": thread}}
        (question,) = (await graph.ainvoke(GO, config))["__interrupt__"]
        result = await graph.ainvoke(Command(resume={question.id: answer}), config)
        said = [m.text for m in result["messages"] if isinstance(m, AIMessage) and m.text]
        assert ("".join(said), stopped_by(result)) == (text, guard)
        assert is_legal(result["messages"])


async def test_its_loop_is_remembered_over_an_interrupt_in_another_copy() -> None:
    saver = InMemorySaver()

    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    def copy(*turns: Any) -> tuple[ScriptedModel, Any]:
        model = ScriptedModel(turns)
        graph = patched(made_by_langchain(model, look, ask), Guards.batch())
        graph.checkpointer = saver
        return model, graph

    again = call("look", what="it")
    _, graph = copy(again, again, call("ask"))
    (question,) = (await graph.ainvoke(GO, ON_T))["__interrupt__"]
    model, graph = copy(*[again] * 6)
    result = await graph.ainvoke(Command(resume={question.id: "yes"}), ON_T)
    assert (stopped_by(result), len(model.requests)) == ("loop_detector", 6)


@KINDS
async def test_its_model_is_asked_again_after_a_failure(made: Any, clock: Hurried) -> None:
    model = ScriptedModel([Fault.server_error(), Fault.rate_limit(3), "Here I am."])
    result = await patched(made(model, look), watched()).ainvoke(GO)
    assert (result["messages"][-1].text, len(model.requests)) == ("Here I am.", 3)
    assert clock.slept[1] == 3


async def test_an_answer_stands_in_for_its_dead_provider(clock: Hurried) -> None:
    model = ScriptedModel(lambda _: Fault.server_error())
    other = ScriptedModel(["never"], model_name="cheap")
    guards = watched(breaker=CircuitBreaker(fallback=AIMessage("Out of order.")))
    graph = patched(made_by_langchain(model, look), guards)
    said = [(await graph.ainvoke(GO))["messages"][-1].text for _ in range(4)]
    assert (set(said), len(model.requests)) == ({"Out of order."}, 5)
    # It has a prompt and tools that nobody knows of: no other model can be put in its place.
    guards = watched(breaker=CircuitBreaker(fallback=other))
    with pytest.warns(UserWarning, match=r"none can stand in for that of 'graph': .*AIMessage"):
        graph = patched(made_by_langchain(model, look), guards)
    with pytest.raises(Exception, match="500"):
        await graph.ainvoke(GO)
    assert other.requests == []


@KINDS
async def test_a_gate_refuses_one_call_of_several(made: Any) -> None:
    ran: list[str] = []

    def note(text: str) -> str:
        """Note something."""
        ran.append(text)
        return "noted"

    def forbids(subject: Subject) -> Any:
        return subject.tool != "note" or (subject.args or {}).get("text") != "secret"

    asks = [call("note", text=text) for text in ("a", "secret", "b")]
    model = ScriptedModel([asks, "Done."])
    result = await patched(made(model, note), watched(gates=Gate(policy=forbids))).ainvoke(GO)
    assert (result["messages"][-1].text, sorted(ran)) == ("Done.", ["a", "b"])
    refused = [m for m in result["messages"] if m.type == "tool" and m.status == "error"]
    assert [m.text.partition(":")[0] for m in refused] == ["Not executed"]
    assert is_legal(result["messages"])


@KINDS
async def test_an_answer_that_a_gate_refuses_is_given_anew(made: Any) -> None:
    def is_long(subject: Subject) -> bool:
        return len(subject.text) > 3

    model = ScriptedModel(["No.", "A long one."])
    result = await patched(made(model, look), watched(gates=Gate(invariants=(is_long,)))).ainvoke(
        GO
    )
    assert [m.text for m in result["messages"]] == ["go", "A long one."]


async def test_the_original_stays_as_it_is() -> None:
    model = ScriptedModel([*[call("look", what="it")] * 9, "At last."])
    original = made_by_langchain(model, look)
    patched(original, Guards.batch())
    assert (await original.ainvoke(GO))["messages"][-1].text == "At last."


async def test_a_patched_copy_keeps_the_config_of_the_original() -> None:
    original = made_by_langchain(looping(), look)
    copy = patched(original, Guards.batch())
    assert copy.config == original.config


def test_what_cannot_be_guarded_is_said() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("writer", lambda state: {})
    graph.add_edge(START, "writer")
    with pytest.raises(ConfigurationError, match="no node of a model to guard"):
        patched(graph.compile(), Guards.batch())
    once = patched(made_by_langchain(looping(), look), Guards.batch())
    with pytest.raises(ConfigurationError, match="guarded already"):
        patched(once, Guards.batch())
    ours = solo(looping())
    with pytest.raises(ConfigurationError, match="guarded already"):
        patched(ours.graph, Guards.batch())


async def test_a_bare_agent_of_ours_can_be_guarded_by_hand() -> None:
    model = looping()
    graph = patched(solo(model, guards=None).graph, Guards.batch())
    result = await run_whole(graph, GO, ON_T)
    assert (result["turn"]["closed"], len(model.requests)) == ("loop_detector", 7)
    assert is_legal(result["messages"])


# Below an agent of ours, and in a team: under the guards that hold there


@KINDS
@pytest.mark.parametrize("mode", ["sticky", "delegate"])
async def test_a_foreign_sub_agent_is_under_its_supervisor_s_guards(made: Any, mode: Any) -> None:
    model = looping()
    boss = ScriptedModel([call("transfer_to_clerk"), "I am here."])
    agent = Agent("boss", model=boss, agents=[made(model, look)], handoff=mode)
    events = await streamed(agent)
    assert decided(events) == [("boss/clerk", *one) for one in STOPPED]
    assert events[-1].close_reason == "loop_detector"  # type: ignore[attr-defined]
    assert len(model.requests) == 7
    assert is_legal(await agent.ahistory("t"))
    reply = await agent.ainvoke("@boss are you there?", thread_id="t")
    assert (reply.text, reply.close_reason) == ("I am here.", None)


async def test_its_model_calls_count_with_those_of_all_levels() -> None:
    pages = iter(range(100))
    model = ScriptedModel(lambda _: call("look", what=str(next(pages))))
    boss = ScriptedModel([call("transfer_to_clerk")])
    clerk = made_by_langchain(model, look)
    agent = Agent("boss", model=boss, agents=[clerk], guards=watched(steps=calls(10)))
    reply = await agent.ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 9)


async def test_a_foreign_sub_agent_that_works_is_left_alone() -> None:
    model = ScriptedModel([*[call("look", what=str(n)) for n in range(9)], "Done."])
    boss = ScriptedModel([call("transfer_to_clerk"), "Thanks."])
    agent = Agent("boss", model=boss, agents=[made_by_langchain(model, look)], handoff="delegate")
    events = await streamed(agent)
    assert (decided(events), events[-1].text) == ([], "Thanks.")  # type: ignore[attr-defined]


async def test_a_regulated_foreign_sub_agent_asks_through_its_supervisor() -> None:
    model = ScriptedModel([*[call("look", what="it")] * 7, "I have it."])
    boss = ScriptedModel([call("transfer_to_clerk")])
    clerk = made_by_langchain(model, look)
    agent = Agent("boss", model=boss, agents=[clerk], guards=watched(tier="regulated"))
    (question,) = (await agent.ainvoke("go", thread_id="t")).interrupts
    reply = await agent.aresume("t", {question.id: "approve"})
    assert (reply.text, reply.close_reason) == ("I have it.", None)
    assert is_legal(await agent.ahistory("t"))


@KINDS
@pytest.mark.parametrize("guards", [None, Guards.interactive()], ids=["bare", "guarded"])
async def test_a_malformed_call_that_it_ends_on_is_answered(made: Any, guards: Any) -> None:
    model = ScriptedModel([call("look", what="it"), bad_call("look")])
    boss = ScriptedModel([call("transfer_to_clerk"), "I am here."])
    agent = Agent("boss", model=boss, agents=[made(model, look)], guards=guards)
    await agent.ainvoke("go", thread_id="t")
    history = await agent.ahistory("t")
    assert is_legal(history)
    assert (history[-1].type, history[-1].text[:13]) == ("tool", "Not executed:")
    assert (await agent.ainvoke("@boss are you there?", thread_id="t")).text == "I am here."
    assert is_legal(await agent.ahistory("t"))


async def test_without_guards_a_foreign_sub_agent_has_none() -> None:
    model = ScriptedModel([*[call("look", what="it")] * 9, "At last."])
    boss = ScriptedModel([call("transfer_to_clerk")])
    agent = Agent("boss", model=boss, agents=[made_by_langchain(model, look)], guards=None)
    assert (await agent.ainvoke("go")).text == "At last."


@KINDS
async def test_a_foreign_speaker_is_under_its_team_s_guards(made: Any) -> None:
    model = looping()
    other = solo(ScriptedModel(lambda _: "b speaks"), name="b")
    team = Team([made(model, look), other], sequence(["clerk", "b"]))
    events = [one async for one in team.astream("go") if isinstance(one, GuardEvent)]
    assert decided(events) == [("clerk", *one) for one in STOPPED]
    assert len(model.requests) == 7
    model = looping()
    team = Team([made(model, look), other], sequence(["clerk", "b"]), failure_target="b")
    async with held(team) as session:
        await after(session, "user", "go")
        assert await talk(session) == [("user", "go"), ("b", "b speaks")]


# What cannot be done there is told


@effect(compensate=lambda item: None)
def pay(item: str) -> str:
    """Pay for something."""
    return "paid"


@effect
def ship(item: str) -> str:
    """Ship something."""
    return "shipped"


@effect(poll=True)
def status() -> str:
    """Return how far the job is."""
    return "running"


async def test_actions_that_nobody_registers_are_told_of_and_run() -> None:
    clerk = made_by_langchain(ScriptedModel([call("pay", item="a"), "Paid."]), pay, ship, status)
    agent = Agent("boss", model=ScriptedModel([call("transfer_to_clerk")]), agents=[clerk])
    with pytest.warns(UserWarning, match="what pay, ship does in 'boss/clerk' is not registered"):
        reply = await agent.ainvoke("go", thread_id="t")
    assert (reply.text, reply.close_reason) == ("Paid.", None)


def test_a_speaker_s_fallback_that_is_a_model_is_told_of() -> None:
    other = ScriptedModel(["never"], model_name="cheap")
    guards = watched(breaker=CircuitBreaker(fallback=other))
    team = Team(
        [made_by_langchain(ScriptedModel(["."]))],
        round_robin(["clerk"], max_turns=1),
        guards=guards,
    )
    with pytest.warns(UserWarning, match="none can stand in for that of 'clerk'"):
        assert "clerk" in team.graph.nodes


@pytest.mark.parametrize(
    "held", [{"saga": None}, {"breaker": CircuitBreaker(fallback=AIMessage("Later."))}]
)
def test_nothing_is_told_of_what_holds(held: Any) -> None:
    tools = (pay, ship) if "saga" in held else (look, status)
    graph = patched(made_by_langchain(looping(), *tools), watched(**held))  # else it would raise
    assert "await_human" in graph.nodes
