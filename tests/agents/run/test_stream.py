from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

from agentgraph import Agent, Guards
from agentgraph.errors import AgentGraphError, ModelError, RoutingError
from agentgraph.graphs.compiled import AnyCompiledGraph, AnyGraph
from agentgraph.guards import Backoff, StepLimit
from agentgraph.patching import insert_node, wrap_node
from agentgraph.stream import (
    AIMessageEvent,
    ErrorEvent,
    Event,
    FinalStateEvent,
    GuardEvent,
    InterruptEvent,
    RoutingEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)
from agentgraph.testing import Fault, ScriptedModel, Turn, call

CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}


def lookup(order: str) -> str:
    """Look an order up."""
    return f"{order} is lost"


def approve() -> str:
    """Ask a human."""
    return str(interrupt({"question": "may I?"}))


def solo(*turns: Any, **fields: Any) -> Agent:
    return Agent("Solo", model=ScriptedModel(list(turns)), **fields)


def deep() -> Agent:
    leaf = Agent(
        "Leaf",
        model=ScriptedModel([call("lookup", order="A7"), "It is lost."]),
        tools=[lookup],
    )
    mid = Agent("Mid", model=ScriptedModel([call("transfer_to_Leaf")]), agents=[leaf])
    return Agent("Root", model=ScriptedModel([call("transfer_to_Mid")]), agents=[mid])


async def collect(stream: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in stream]


async def collect_failing(
    stream: AsyncIterator[Event],
) -> tuple[list[Event], Exception]:
    events: list[Event] = []
    try:
        async for event in stream:
            events.append(event)  # noqa: PERF401 - what was told before the error counts
    except AgentGraphError as error:
        return events, error
    raise AssertionError("the stream did not raise")


def kinds(events: Sequence[Event]) -> list[str]:
    """Return the types of events in their order, several tokens in a row as one."""
    types = [event.type for event in events]
    return [one for i, one in enumerate(types) if one != "token" or types[i - 1] != "token"]


async def test_answer_is_told_as_tokens_then_whole_then_as_the_result() -> None:
    events = await collect(solo("Hello to you.").astream("hi"))

    assert [type(event) for event in events] == [
        TokenEvent,
        TokenEvent,
        TokenEvent,
        AIMessageEvent,
        FinalStateEvent,
    ]
    texts = [e.text for e in events if isinstance(e, TokenEvent)]
    assert texts == ["Hello", " to", " you."]


async def test_tool_call_is_told_before_its_answer() -> None:
    agent = solo(Turn("Let me look.", [call("lookup", order="A7")]), "Lost.", tools=[lookup])

    events = await collect(agent.astream("hi"))

    assert kinds(events) == [
        "token",
        "ai_message",
        "tool_usage",
        "tool_response",
        "token",
        "ai_message",
        "message",
    ]
    usage, response = [e for e in events if isinstance(e, ToolUsageEvent | ToolResponseEvent)]
    assert isinstance(usage, ToolUsageEvent)
    assert isinstance(response, ToolResponseEvent)
    assert (usage.tool, usage.args) == ("lookup", {"order": "A7"})
    assert (response.tool, response.content, response.status) == (
        "lookup",
        "A7 is lost",
        "success",
    )
    assert usage.call_id == response.call_id != ""


async def test_every_call_of_a_message_is_told() -> None:
    both = [call("lookup", order="A7"), call("lookup", order="B8")]

    events = await collect(solo(both, "Lost.", tools=[lookup]).astream("hi"))

    asked = [e.call_id for e in events if isinstance(e, ToolUsageEvent)]
    answered = [e.call_id for e in events if isinstance(e, ToolResponseEvent)]
    assert len(asked) == len(set(asked)) == 2
    assert sorted(asked) == sorted(answered)


async def test_failed_call_is_told_as_an_error() -> None:
    def broken() -> str:
        """Fail."""
        raise ValueError("no such order")

    events = await collect(solo(call("broken"), "Sorry.", tools=[broken]).astream("hi"))

    told = [e for e in events if isinstance(e, ToolResponseEvent)]
    assert [(e.status, "no such order" in e.content) for e in told] == [("error", True)]


async def test_events_of_depth_two_come_in_order_with_their_agents() -> None:
    events = await collect(deep().astream("hi"))

    told = dict.fromkeys((e.type, e.agent) for e in events)
    assert list(told) == [
        ("routing", "Root"),
        ("routing", "Root/Mid"),
        ("tool_usage", "Root/Mid/Leaf"),
        ("tool_response", "Root/Mid/Leaf"),
        ("token", "Root/Mid/Leaf"),
        ("ai_message", "Root/Mid/Leaf"),
        ("message", "Root/Mid/Leaf"),
    ]


async def test_tokens_of_depth_two_make_up_the_message() -> None:
    events = await collect(deep().astream("hi"))

    tokens = [e for e in events if isinstance(e, TokenEvent)]
    said = [e for e in events if isinstance(e, AIMessageEvent)]
    assert [t.text for t in tokens] == ["It", " is", " lost."]
    assert {t.message_id for t in tokens} == {m.message_id for m in said}


async def test_each_text_is_told_once_as_a_message() -> None:
    agent = deep()

    first = await collect(agent.astream("hi", thread_id="t"))

    assert [e.text for e in first if isinstance(e, AIMessageEvent)] == ["It is lost."]
    assert [e.text for e in first if isinstance(e, FinalStateEvent)] == ["It is lost."]


async def test_transfers_are_told_as_routing_and_not_as_tools() -> None:
    events = await collect(deep().astream("hi"))

    routed = [(e.kind, e.source, e.target) for e in events if isinstance(e, RoutingEvent)]
    assert routed == [("transfer", "Root", "Mid"), ("transfer", "Mid", "Leaf")]
    assert [e.tool for e in events if isinstance(e, ToolUsageEvent)] == ["lookup"]


async def test_delegations_are_told_with_the_answers_they_bring() -> None:
    sub = Agent("Sub", model=ScriptedModel(["sub answers"]))
    model = ScriptedModel([call("transfer_to_Sub", reason="money"), "done"])
    agent = Agent("Root", model=model, agents=[sub], handoff="delegate")

    events = await collect(agent.astream("hi"))

    assert [(e.kind, e.target, e.reason) for e in events if isinstance(e, RoutingEvent)] == [
        ("delegate", "Sub", "money")
    ]
    assert [e.content for e in events if isinstance(e, ToolResponseEvent)] == ["sub answers"]
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    assert (final.agent, final.text) == ("Root", "done")


async def test_events_are_numbered_and_carry_thread_and_run() -> None:
    agent = deep()

    events = await collect(agent.astream("hi", thread_id="t"))

    assert [e.sequence for e in events] == list(range(1, len(events) + 1))
    assert {e.thread_id for e in events} == {"t"}
    assert len({e.run_id for e in events}) == 1
    assert events[0].run_id


async def test_each_run_has_an_id_of_its_own() -> None:
    agent = solo("one", "two")

    first = await collect(agent.astream("hi", thread_id="t"))
    second = await collect(agent.astream("hi", thread_id="t"))

    assert first[0].run_id != second[0].run_id
    assert second[0].sequence == 1


async def test_every_event_becomes_json() -> None:
    events = await collect(deep().astream("hi"))

    told = [json.loads(json.dumps(event.to_dict())) for event in events]

    assert [one["sequence"] for one in told] == [event.sequence for event in events]


async def test_question_to_a_human_is_told_before_the_end() -> None:
    agent = solo(call("approve"), "done", tools=[approve])

    events = await collect(agent.astream("hi", thread_id="t"))

    assert kinds(events) == ["tool_usage", "interrupt", "message"]
    question = events[1]
    assert isinstance(question, InterruptEvent)
    assert question.payload == {"question": "may I?"}
    assert (await agent.aresume("t", {question.id: "yes"})).text == "done"


async def test_guards_decision_is_told_before_the_end() -> None:
    guards = Guards.interactive(steps=StepLimit(1))
    agent = solo(call("lookup", order="A7"), tools=[lookup], guards=guards)

    events = await collect(agent.astream("hi"))

    assert kinds(events) == ["tool_usage", "tool_response", "guard", "message"]
    assert isinstance(events[2], GuardEvent)
    final = events[3]
    assert isinstance(final, FinalStateEvent)
    assert final.close_reason == "max_steps"


async def test_failing_model_is_told_then_raised_and_never_stored() -> None:
    agent = solo(Fault.server_error(503), "hello", guards=None)

    events, error = await collect_failing(agent.astream("hi", thread_id="t"))
    reply = await agent.ainvoke("again", thread_id="t")

    assert kinds(events) == ["error"]
    told = events[0]
    assert isinstance(told, ErrorEvent)
    assert isinstance(error, ModelError)
    assert (told.code, told.agent, told.message) == ("model", "Solo", str(error))
    assert (told.sequence, told.thread_id) == (1, "t")
    assert reply.text == "hello"
    assert [m.text for m in await agent.ahistory("t")] == ["hi", "again", "hello"]


async def test_model_that_fails_in_mid_stream_is_told_after_its_tokens() -> None:
    at_once = Guards.interactive(backoff=Backoff(base_s=0))
    agent = solo(*[Fault.cut("This is going to be long.")] * 3, guards=at_once)

    events, error = await collect_failing(agent.astream("hi"))

    assert kinds(events) == ["token", "error"]
    assert isinstance(error, ModelError)


async def test_failing_model_of_a_sub_agent_is_told_with_its_path() -> None:
    sub = Agent("Sub", model=ScriptedModel([Fault.rate_limit()]))
    agent = Agent("Root", model=ScriptedModel([]), agents=[sub], guards=None)

    events, _ = await collect_failing(agent.astream("@Sub hi"))

    assert [(e.type, e.agent) for e in events] == [("routing", "Root"), ("error", "Root/Sub")]


async def test_error_does_not_repeat_what_the_provider_said() -> None:
    agent = solo(ValueError("key sk-secret is wrong"))

    events, error = await collect_failing(agent.astream("hi"))

    assert "sk-secret" not in json.dumps([event.to_dict() for event in events])
    assert "sk-secret" not in str(error)
    assert isinstance(error.__cause__, ValueError)


async def test_store_that_cannot_be_opened_is_told_then_raised() -> None:
    agent = solo("hello", checkpointer="sqlite:////nowhere/at/all/a.db")

    events, error = await collect_failing(agent.astream("hi"))

    assert [(e.type, getattr(e, "code", "")) for e in events] == [("error", "storage")]
    assert isinstance(error, AgentGraphError)


async def test_any_error_of_a_node_is_told_then_raised() -> None:
    def fail(state: object) -> None:
        raise ZeroDivisionError("a patch is broken")

    patch = insert_node("fail", fail, after="continue_conversation", before="call_model")
    events: list[Event] = []

    with pytest.raises(ZeroDivisionError):
        async for event in solo("hello", patcher=patch).astream("hi"):
            events.append(event)  # noqa: PERF401 - what was told before the error counts

    assert [(e.type, getattr(e, "code", "")) for e in events] == [("error", "error")]


async def test_model_without_tools_is_told_and_answers() -> None:
    agent = Agent("Solo", model=ScriptedModel(["hello"], binds_tools=False))

    events = await collect(agent.astream("hi"))

    told = [e.code for e in events if isinstance(e, ErrorEvent)]
    assert told == ["tools_unsupported"]
    assert kinds(events)[-1] == "message"


async def test_earlier_notice_does_not_hide_a_later_error() -> None:
    async def lose(state: object, inner: Callable[[object], Awaitable[object]]) -> None:
        await inner(state)
        raise RoutingError("nobody is there")

    model = ScriptedModel(["hello"], binds_tools=False)
    agent = Agent("Solo", model=model, patcher=wrap_node("call_model", lose))

    events, _ = await collect_failing(agent.astream("hi"))

    assert [e.code for e in events if isinstance(e, ErrorEvent)] == ["tools_unsupported", "routing"]


async def test_closed_stream_ends_the_run_and_leaves_the_thread_free() -> None:
    agent = solo("one two three", "next")
    stream = agent.astream("hi", thread_id="t")

    await anext(stream)
    await stream.aclose()
    reply = await agent.ainvoke("again", thread_id="t")

    assert reply.text == "next"


async def test_result_tells_usage_by_agent() -> None:
    events = await collect(deep().astream("hi"))

    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    by_agent = final.usage["by_agent"]
    assert isinstance(by_agent, dict)
    assert set(by_agent) == {"Root", "Root/Mid", "Root/Mid/Leaf"}


def test_invoke_works_in_a_script() -> None:
    assert solo("hello").invoke("hi").text == "hello"


async def test_invoke_works_inside_a_running_loop() -> None:
    assert solo("hello").invoke("hi").text == "hello"


def test_stream_works_in_a_script() -> None:
    events = list(deep().stream("hi"))

    assert kinds(events)[-3:] == ["token", "ai_message", "message"]
    assert [e.sequence for e in events] == list(range(1, len(events) + 1))


async def test_stream_works_inside_a_running_loop() -> None:
    assert kinds(list(solo("hello").stream("hi"))) == ["token", "ai_message", "message"]


def test_sync_stream_that_is_left_early_leaves_the_thread_free() -> None:
    agent = solo("one two three", "next")
    for event in agent.stream("hi", thread_id="t"):
        assert event.type == "token"
        break

    assert agent.invoke("again", thread_id="t").text == "next"


def test_sync_stream_raises_what_the_run_raised() -> None:
    with pytest.raises(ModelError):
        list(solo(Fault.server_error(), guards=None).stream("hi"))


async def test_sync_and_async_calls_share_a_thread() -> None:
    model = ScriptedModel(["one", "two"])
    agent = Agent("Solo", model=model)

    agent.invoke("first", thread_id="t")
    await agent.ainvoke("second", thread_id="t")

    assert [m.text for m in model.requests[1].messages[1:]] == ["first", "one", "second"]


def test_graph_draws_its_nodes() -> None:
    drawn = deep().graph.get_graph()

    assert {
        "render_system_prompt",
        "router",
        "continue_conversation",
        "call_model",
        "call_tools",
        "Mid",
    } <= set(drawn.nodes)


def test_mermaid_shows_sub_agents_at_all_levels() -> None:
    drawn = deep().mermaid()

    assert "subgraph Mid" in drawn
    assert "subgraph Leaf" in drawn


async def test_state_is_read_with_langgraphs_own_call() -> None:
    agent = deep().replace(checkpointer=InMemorySaver())
    await agent.ainvoke("hi", thread_id="t")

    state = agent.graph.get_state(CONFIG)

    assert state.next == ()
    assert state.values["current_active_agent"] == "Mid/Leaf"
    assert [m.text for m in state.values["messages"]] == [m.text for m in await agent.ahistory("t")]


async def test_graph_streams_in_langgraphs_own_modes() -> None:
    graph = solo("hello").graph
    parts: list[Any] = [
        part
        async for part in graph.astream(
            {"messages": [("user", "hi")]}, CONFIG, stream_mode=["updates", "messages"]
        )
    ]

    nodes = [node for mode, data in parts if mode == "updates" for node in data]
    tokens = [data[0].text for mode, data in parts if mode == "messages"]
    assert nodes == ["render_system_prompt", "router", "continue_conversation", "call_model"]
    assert "hello" in tokens


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["no memory", "memory"])
async def test_graph_is_a_node_in_a_graph_of_the_user(saver: InMemorySaver | None) -> None:
    def greet(state: MessagesState) -> dict[str, list[AIMessage]]:
        return {"messages": [AIMessage("Welcome.")]}

    builder: AnyGraph = StateGraph(MessagesState)
    builder.add_node("greet", greet)
    builder.add_node("agent", deep().graph)
    builder.add_edge(START, "greet")
    builder.add_edge("greet", "agent")
    outer: AnyCompiledGraph = builder.compile(checkpointer=saver)

    result = await outer.ainvoke({"messages": [("user", "hi")]}, CONFIG)

    texts = [m.text for m in result["messages"] if m.text]
    assert texts == [
        "hi",
        "Welcome.",
        "Conversation transferred to Mid",
        "Conversation transferred to Leaf",
        "A7 is lost",
        "It is lost.",
    ]
