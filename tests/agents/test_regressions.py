"""Hazards that once bit: each test is named for what must not happen again."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    before_model,
    wrap_model_call,
    wrap_tool_call,
)
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
)
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import InjectedStore
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from agentgraph import Agent, Guards, Intent, idempotency_key
from agentgraph.errors import ConfigurationError, RoutingError
from agentgraph.graphs.public_graph import run_whole
from agentgraph.guards import StepLimit
from agentgraph.stream import FinalStateEvent, InterruptEvent, TokenEvent
from agentgraph.testing import ScriptedModel, call


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    return [str(m.text) for m in messages if isinstance(m, ToolMessage)]


async def look() -> str:
    """Look."""
    return "seen"


async def approve() -> str:
    """Ask a human."""
    return f"approved: {interrupt('sure?')}"


def same_id(name: str, **args: object) -> Any:
    return {**call(name, **args), "id": "call_0"}


async def test_equal_call_ids_of_parent_and_delegate_do_not_share_a_result() -> None:
    ran: list[str] = []

    async def work(who: str) -> str:
        """Work."""
        ran.append(who)
        return f"work of {who}"

    child = Agent("res", model=ScriptedModel([same_id("work", who="child"), "ok"]), tools=[work])
    model = ScriptedModel([same_id("work", who="parent"), call("res", request="q"), "done"])
    agent = Agent("root", model=model, tools=[work], agents=[child.as_tool()])

    await agent.ainvoke("go")

    assert ran == ["parent", "child"]


async def test_result_of_a_cut_off_turn_does_not_answer_a_call_of_the_next() -> None:
    ran: list[str] = []
    begun = asyncio.Event()

    async def work(who: str) -> str:
        """Work."""
        ran.append(who)
        return f"work of {who}"

    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    turns: list[Any] = [
        [same_id("work", who="first"), call("wait")],
        same_id("work", who="second"),
        "done",
    ]
    agent = Agent("a", model=ScriptedModel(turns), tools=[work, wait])
    run = asyncio.create_task(agent.ainvoke("go", thread_id="t"))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    await agent.ainvoke("again", thread_id="t")

    assert ran == ["first", "second"]


@pytest.mark.parametrize("asked", [1, 2])
async def test_stream_does_not_lose_an_interrupt_beside_a_slower_call(asked: int) -> None:
    calls = [*(call("approve") for _ in range(asked)), call("look")]
    agent = Agent("a", model=ScriptedModel([calls, "ok"]), tools=[approve, look])
    events = [event async for event in agent.astream("go", thread_id="t")]

    questions = [event for event in events if isinstance(event, InterruptEvent)]
    assert len(questions) == asked
    assert isinstance(events[-1], FinalStateEvent)
    reply = await agent.aresume("t", {question.id: "yes" for question in questions})
    assert reply.text == "ok"


async def test_message_id_that_a_model_repeats_does_not_overwrite_the_past() -> None:
    model = ScriptedModel([AIMessage("one", id="m"), AIMessage("two", id="m")])
    agent = Agent("a", model=model)
    await agent.ainvoke("first", thread_id="t")

    reply = await agent.ainvoke("second", thread_id="t")

    assert reply.text == "two"
    assert [m.text for m in await agent.ahistory("t")] == ["first", "one", "second", "two"]


async def test_synchronous_wrappers_are_not_ignored() -> None:
    seen: list[str] = []

    @wrap_tool_call
    def deny(request: Any, handler: Any) -> ToolMessage:
        seen.append("tool")
        return ToolMessage("DENIED", tool_call_id=request.tool_call["id"])

    @wrap_model_call
    def watch(request: Any, handler: Any) -> Any:
        seen.append("model")
        return handler(request)

    model = ScriptedModel([call("look"), "done"])
    agent = Agent("a", model=model, tools=[look], middleware=[deny, watch])

    reply = await agent.ainvoke("go")

    assert texts(reply.messages) == ["DENIED"]
    assert seen == ["model", "tool", "model"]


async def test_hook_of_a_sub_agent_sees_the_whole_conversation() -> None:
    seen: list[str] = []

    @before_model
    def peek(state: Any, runtime: Any) -> None:
        seen.append(state["messages"][0].text)

    sub = Agent("sub", model=ScriptedModel(["hi"]), middleware=[peek])
    agent = Agent("root", model=ScriptedModel([call("transfer_to_sub")]), agents=[sub])

    await agent.ainvoke("hello there")

    assert seen == ["hello there"]


async def test_redaction_in_a_sub_agent_reaches_its_model() -> None:
    model = ScriptedModel(["noted"])
    sub = Agent("sub", model=model, middleware=[PIIMiddleware("email")])
    agent = Agent("root", model=ScriptedModel([call("transfer_to_sub")]), agents=[sub])

    await agent.ainvoke("I am bob@example.com")

    assert not any("bob@example.com" in m.text for m in model.requests[-1].messages)


async def test_summary_of_a_sub_agent_shortens_its_view_and_not_its_parents_history() -> None:
    summarizer = SummarizationMiddleware(
        model=ScriptedModel(lambda _: "a summary", strict=False),
        trigger=("messages", 6),
        keep=("messages", 2),
    )
    model = ScriptedModel(lambda messages: "fine")
    sub = Agent("sub", model=model, middleware=[summarizer])
    agent = Agent("root", model=ScriptedModel([call("transfer_to_sub")]), agents=[sub])
    for n in range(8):
        await agent.ainvoke(f"message {n}", thread_id="t")

    history = await agent.ahistory("t")

    assert len(model.requests[-1].messages) < 6
    assert any("a summary" in m.text for m in model.requests[-1].messages)
    assert [m.text for m in history if m.type == "human"] == [f"message {n}" for n in range(8)]


@pytest.mark.parametrize("direct", [True, False])
async def test_tool_that_gives_no_answer_of_its_own_is_answered_all_the_same(direct: bool) -> None:
    @tool(return_direct=direct)
    def silent() -> Command[Any]:
        """Say nothing."""
        return Command()

    @tool(return_direct=direct)
    def astray() -> ToolMessage:
        """Answer another call."""
        return ToolMessage("an answer", tool_call_id="another")

    model = ScriptedModel([[call("silent"), call("astray")], "done"])
    agent = Agent("a", model=model, tools=[silent, astray])

    reply = await agent.ainvoke("go")

    made = next(m for m in reply.messages if isinstance(m, AIMessage) and m.tool_calls)
    answered = [m.tool_call_id for m in reply.messages if isinstance(m, ToolMessage)]
    assert answered == [made_call["id"] for made_call in made.tool_calls]
    assert texts(reply.messages) == ["silent is done.", "an answer"]
    assert reply.text == ("silent is done.\n\nan answer" if direct else "done")


async def test_decision_given_again_is_not_taken_for_an_agent_that_is_gone() -> None:
    model = ScriptedModel([[call("approve"), call("approve")], "done"])
    agent = Agent("a", model=model, tools=[approve])
    asked = await agent.ainvoke("go", thread_id="t")
    first, second = (question.id for question in asked.interrupts)
    await agent.aresume("t", {first: "yes"})

    with pytest.raises(RoutingError, match="decided already"):
        await agent.aresume("t", {first: "yes"})
    reply = await agent.aresume("t", {first: "yes", second: "yes"})

    assert reply.text == "done"


@pytest.mark.parametrize(
    ("phrase", "message", "same"),
    [
        ("👍", "👎", False),
        ("👍", "", False),
        ("की", "को", False),
        ("café", "CAFE\u0301!", True),
        ("when are you open", "When are you open?", True),
    ],
)
def test_intents_do_not_match_what_has_other_letters(phrase: str, message: str, same: bool) -> None:
    assert Intent(phrase, "raw", "x").matches(message) is same


async def test_parallel_delegates_of_a_graph_without_its_agent_share_the_steps() -> None:
    models = [ScriptedModel(lambda _: call("look")) for _ in range(6)]
    workers = [Agent(f"w{n}", model=model, tools=[look]) for n, model in enumerate(models)]
    agent = Agent(
        "boss",
        model=ScriptedModel([[call(f"transfer_to_w{n}") for n in range(6)]]),
        agents=workers,
        handoff="delegate",
        guards=Guards.interactive(steps=StepLimit(10, total=10)),
    )

    result = await run_whole(
        agent.graph, {"messages": [HumanMessage("go")]}, {"configurable": {"thread_id": "t"}}
    )

    assert result["turn"]["closed"] == "max_steps"
    assert sum(len(model.requests) for model in models) == 9


async def test_sub_agent_without_guards_does_not_lift_its_supervisors() -> None:
    sub = Agent("sub", model=ScriptedModel(lambda _: call("look")), tools=[look], guards=None)
    agent = Agent(
        "root",
        model=ScriptedModel([call("transfer_to_sub")]),
        agents=[sub],
        guards=Guards.interactive(steps=StepLimit(4)),
    )

    reply = await agent.ainvoke("go")

    assert reply.close_reason == "max_steps"


async def test_recursion_limit_does_not_come_before_the_step_limit() -> None:
    class Passing(AgentMiddleware[Any, Any]):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        @property
        def name(self) -> str:
            return f"passing_{self.number}"

        def before_model(self, state: Any, runtime: Any) -> None: ...

        def after_model(self, state: Any, runtime: Any) -> None: ...

    agent = Agent(
        "a",
        model=ScriptedModel(lambda _: call("look")),
        tools=[look],
        middleware=[Passing(n) for n in range(5)],
        guards=Guards.interactive(loop=None),
    )

    reply = await agent.ainvoke("go")

    assert reply.close_reason == "max_steps"


async def test_agent_that_a_tool_runs_leaves_nothing_in_the_outer_run() -> None:
    inner = Agent("inner", model=ScriptedModel(lambda _: "the words of inner"))

    async def ask_inner() -> str:
        """Ask another agent."""
        await inner.graph.ainvoke(
            {"messages": [HumanMessage("x")]}, {"configurable": {"thread_id": "inner"}}
        )
        return (await inner.ainvoke("y", thread_id="mine")).text

    agent = Agent("outer", model=ScriptedModel([call("ask_inner"), "done"]), tools=[ask_inner])

    events = [event async for event in agent.astream("go", thread_id="t")]

    assert {event.agent for event in events} == {"outer"}
    assert "".join(e.text for e in events if isinstance(e, TokenEvent)) == "done"
    assert isinstance(events[-1], FinalStateEvent)
    assert list(events[-1].usage["by_agent"]) == ["outer"]  # type: ignore[call-overload]
    assert [m.text for m in await inner.ahistory("mine")] == ["y", "the words of inner"]


async def test_failed_threads_do_not_pile_up() -> None:
    agent = Agent("a", model=ScriptedModel(lambda _: RuntimeError("down")))

    for n in range(1_050):
        with pytest.raises(Exception, match="failed"):
            await agent.ainvoke("go", thread_id=str(n))

    assert len(agent._runner._threads.queues.unfinished_runs) == 1_000


async def test_store_of_a_sub_agent_is_not_ignored() -> None:
    def remember(store: Annotated[BaseStore, InjectedStore()]) -> str:
        """Remember."""
        store.put(("facts",), "a", {"known": True})
        return "remembered"

    store = InMemoryStore()
    sub = Agent("sub", model=ScriptedModel([call("remember"), "ok"]), tools=[remember], store=store)
    agent = Agent("root", model=ScriptedModel([call("transfer_to_sub")]), agents=[sub])

    await agent.ainvoke("go")

    assert store.get(("facts",), "a") is not None
    with pytest.raises(ConfigurationError, match="different stores"):
        agent.replace(store=InMemoryStore())


async def test_summary_of_a_foreign_graph_stays_out_of_the_history() -> None:
    summarizer = SummarizationMiddleware(
        model=ScriptedModel(lambda _: "a summary", strict=False),
        trigger=("messages", 4),
        keep=("messages", 1),
    )
    worker = create_agent(ScriptedModel(lambda _: "fine"), middleware=[summarizer], name="worker")
    agent = Agent("root", model=ScriptedModel([call("transfer_to_worker")]), agents=[worker])
    for n in range(4):
        await agent.ainvoke(f"message {n}", thread_id="t")

    history = await agent.ahistory("t")

    assert [m.text for m in history if m.type == "human"] == [f"message {n}" for n in range(4)]


@pytest.mark.parametrize(
    "given",
    [
        {"tools": None},
        {"tools": look},
        {"agents": Agent("other", model="offline")},
        {"middleware": None},
        {"patcher": None},
        {"system_prompt": None},
        {"history": "5"},
        {"history": True},
        {"guards": True},
        {"model": 123},
        {"checkpointer": "foo"},
        {"response_format": "x"},
        {"store": 3},
        {"context_schema": 3},
    ],
    ids=lambda given: f"{next(iter(given))}={type(next(iter(given.values()))).__name__}",
)
def test_value_of_a_wrong_kind_is_refused_at_construction(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Agent("a", **given)

    [fault] = refused.value.faults
    assert fault.startswith(tuple(given))


@pytest.mark.parametrize("given", [None, {"messages": []}])
async def test_input_of_a_wrong_kind_is_refused_with_what_to_give(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="message or list of messages"):
        await Agent("a", model="offline").ainvoke(given)


def test_events_are_json_whatever_their_payload() -> None:
    event = InterruptEvent(id="1", payload={"at": datetime(2026, 1, 1, tzinfo=UTC), "of": {1}})

    assert json.loads(json.dumps(event.to_dict()))["payload"]["of"] == [1]


async def test_agent_that_has_run_can_be_copied() -> None:
    agent = Agent("a", model=ScriptedModel(lambda _: "hi"))
    await agent.ainvoke("go")

    assert (await copy.deepcopy([agent])[0].ainvoke("again")).text == "hi"


def test_native_tool_with_the_name_of_a_tool_is_refused() -> None:
    native = {"type": "function", "function": {"name": "look", "parameters": {}}}

    with pytest.raises(ConfigurationError, match="taken twice"):
        Agent("a", model="offline", tools=[look, native])


def test_tool_objects_of_users_stay_as_they_are() -> None:
    @tool
    def mine() -> str:
        """Be mine."""
        return "mine"

    given: BaseTool = mine
    before = given.model_dump(exclude={"func"})
    _ = Agent("a", model="offline", tools=[given]).graph

    assert given.model_dump(exclude={"func"}) == before


async def test_bridged_wrappers_do_not_wait_for_each_other_for_ever() -> None:
    @wrap_tool_call
    def outer(request: Any, handler: Any) -> Any:
        return handler(request)

    def slow(n: int) -> str:
        """Work in a thread."""
        return str(n)

    calls = [call("slow", n=n) for n in range(40)]
    agent = Agent("a", model=ScriptedModel([calls, "done"]), tools=[slow], middleware=[outer])

    reply = await asyncio.wait_for(agent.ainvoke("go"), 20)

    assert len(texts(reply.messages)) == 40


async def test_cancel_reaches_the_tool_behind_a_bridged_wrapper() -> None:
    begun = asyncio.Event()
    ran: list[str] = []

    @wrap_tool_call
    def retry(request: Any, handler: Any) -> Any:
        try:
            return handler(request)
        except Exception:
            return handler(request)

    async def work() -> str:
        """Work."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ran.append("ended")
        return ""

    agent = Agent("a", model=ScriptedModel([call("work")]), tools=[work], middleware=[retry])
    run = asyncio.create_task(agent.ainvoke("go"))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert ran == ["ended"]


async def test_work_that_a_sub_agent_has_summarised_away_is_known_to_its_parent() -> None:
    keys: list[str] = []

    async def refund(n: int) -> str:
        """Refund."""
        keys.append(idempotency_key())
        return f"refunded {n}"

    summarizer = SummarizationMiddleware(
        model=ScriptedModel(lambda _: "a summary", strict=False),
        trigger=("messages", 5),
        keep=("messages", 2),
    )
    model = ScriptedModel([*(call("refund", n=n) for n in range(6)), "all refunded"])
    sub = Agent("sub", model=model, tools=[refund], middleware=[summarizer])
    agent = Agent("root", model=ScriptedModel([call("transfer_to_sub")]), agents=[sub])

    reply = await agent.ainvoke("refund all", thread_id="t")

    assert texts(await agent.ahistory("t"))[1:] == [f"refunded {n}" for n in range(6)]
    assert reply.text == "all refunded"
    assert len(set(keys)) == 6


async def test_inner_graph_of_a_tool_does_not_answer_the_outer_call() -> None:
    begun = asyncio.Event()

    async def secret() -> str:
        """Know."""
        return "INNER SECRET"

    inner = Agent("inner", model=ScriptedModel([same_id("secret"), "ok"]), tools=[secret])

    async def ask() -> str:
        """Ask another agent, then wait for ever."""
        config: Any = {"configurable": {"thread_id": "inner"}}
        await inner.graph.ainvoke({"messages": [HumanMessage("x")]}, config)
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent("outer", model=ScriptedModel([same_id("ask"), "done"]), tools=[ask])
    run = asyncio.create_task(agent.ainvoke("go", thread_id="t"))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert all("SECRET" not in text for text in texts(await agent.ahistory("t")))


def test_middleware_of_a_wrong_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not an AgentMiddleware"):
        Agent("a", model="offline", middleware=[3])  # type: ignore[list-item]


async def test_hook_of_a_sub_agent_that_rewrites_and_jumps_is_not_half_applied() -> None:
    class Replace(AgentMiddleware[Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> dict[str, Any]:
            wiped = RemoveMessage(REMOVE_ALL_MESSAGES)
            return {"jump_to": "end", "messages": [wiped, AIMessage("replaced", id="r")]}

    sub = Agent("sub", model=ScriptedModel([]), middleware=[Replace()])
    agent = Agent(
        "root",
        model=ScriptedModel([call("transfer_to_sub")]),
        agents=[sub],
        checkpointer=InMemorySaver(),
    )
    seen: list[list[str]] = []

    async for namespace, update in agent.graph.astream(
        {"messages": [HumanMessage("go")]},
        {"configurable": {"thread_id": "t"}},
        stream_mode="values",
        subgraphs=True,
    ):
        if namespace:
            values: Any = update
            seen.append([m.text for m in values["messages"]])

    assert seen[-1] == ["replaced"]
    assert [m.text for m in await agent.ahistory("t")][-1] == "replaced"
