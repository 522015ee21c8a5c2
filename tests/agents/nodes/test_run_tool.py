from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END
from langgraph.prebuilt import InjectedState, InjectedStore, ToolRuntime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from agentgraph import (
    Agent,
    AgentGraphError,
    Finish,
    Handoff,
    Patcher,
    Reply,
    current_history,
    idempotency_key,
)
from agentgraph.errors import RoutingError
from agentgraph.graphs.compiled import AnyGraph
from agentgraph.patching import insert_node
from agentgraph.stream import ToolResponseEvent, ToolUsageEvent
from agentgraph.testing import ScriptedModel, Turn, bad_call, call


class Notes(TypedDict, total=False):
    notes: str


def refund(reason: str) -> str:
    """Refund a customer."""
    return f"refunded: {reason}"


def broken() -> str:
    """Always fail."""
    raise ValueError("out of order")


def answers(reply: Reply) -> list[str]:
    return [str(m.text) for m in reply.messages if isinstance(m, ToolMessage)]


def answered_ids(reply: Reply) -> list[str]:
    return sorted(m.tool_call_id for m in reply.messages if isinstance(m, ToolMessage))


def called_ids(reply: Reply) -> list[str]:
    spoken = [m for m in reply.messages if isinstance(m, AIMessage)]
    calls = [one for m in spoken for one in [*m.tool_calls, *m.invalid_tool_calls]]
    return sorted(str(one["id"]) for one in calls)


def texts(messages: Sequence[BaseMessage]) -> list[str]:
    return [str(message.text) for message in messages]


def with_node(name: str) -> Patcher:
    async def said(state: Notes) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{name} was here", id=f"from_{name}")]}

    def patch(graph: AnyGraph) -> AnyGraph:
        graph.add_node(name, said)
        graph.add_edge(name, END)
        return graph

    return Patcher(patch)


async def test_a_tool_answers_and_the_model_goes_on() -> None:
    model = ScriptedModel([call("refund", reason="twice"), "Done."])
    reply = await Agent("desk", model=model, tools=[refund]).ainvoke("I paid twice")
    assert reply.text == "Done."
    assert [message.type for message in reply.messages] == ["ai", "tool", "ai"]
    assert answers(reply) == ["refunded: twice"]
    assert model.requests[1].messages[-1].text == "refunded: twice"


def test_a_tool_turn_runs_from_synchronous_code() -> None:
    model = ScriptedModel([call("refund", reason="twice"), "Done."])
    reply = Agent("desk", model=model, tools=[refund]).invoke("I paid twice")
    assert (reply.text, answers(reply)) == ("Done.", ["refunded: twice"])


async def test_three_async_tools_of_one_message_overlap() -> None:
    barrier = asyncio.Barrier(3)

    @tool
    async def meet(place: str) -> str:
        """Wait for the others."""
        async with asyncio.timeout(5):
            await barrier.wait()
        return f"met in {place}"

    model = ScriptedModel([[call("meet", place=p) for p in ("Oslo", "Rome", "Bath")], "Done."])
    reply = await Agent("desk", model=model, tools=[meet]).ainvoke("go")
    assert sorted(answers(reply)) == ["met in Bath", "met in Oslo", "met in Rome"]
    assert answered_ids(reply) == called_ids(reply)


async def test_three_sync_tools_of_one_message_overlap() -> None:
    barrier = threading.Barrier(3, timeout=5)

    def meet(place: str) -> str:
        """Wait for the others."""
        barrier.wait()
        return f"met in {place}"

    model = ScriptedModel([[call("meet", place=p) for p in ("Oslo", "Rome", "Bath")], "Done."])
    reply = await Agent("desk", model=model, tools=[meet]).ainvoke("go")
    assert sorted(answers(reply)) == ["met in Bath", "met in Oslo", "met in Rome"]


async def test_the_model_is_asked_once_after_several_tools() -> None:
    calls = [call("refund", reason="a"), call("refund", reason="b")]
    model = ScriptedModel([calls, "Done."])
    await Agent("desk", model=model, tools=[refund]).ainvoke("go")
    assert len(model.requests) == 2
    assert texts(model.requests[1].messages[-2:]) == ["refunded: a", "refunded: b"]


async def test_an_async_function_is_a_tool() -> None:
    async def weather(town: str) -> str:
        """Tell the weather."""
        return f"rain in {town}"

    model = ScriptedModel([call("weather", town="Bath"), "Rain."])
    reply = await Agent("desk", model=model, tools=[weather]).ainvoke("Weather?")
    assert answers(reply) == ["rain in Bath"]


async def test_a_native_tool_is_bound_and_never_run() -> None:
    native = {"type": "function", "name": "lookup", "parameters": {}}
    model = ScriptedModel([call("lookup"), "Done."])
    reply = await Agent("desk", model=model, tools=[native, refund]).ainvoke("go")
    assert native in model.requests[0].specs
    assert "lookup is not a valid tool" in answers(reply)[0]


async def test_answer_to_an_unknown_tool_names_the_nearest_and_all_that_can_be_called() -> None:
    leaf = ScriptedModel([call("transfer_to_biling"), "Sorry."])
    clerk = Agent("clerk", model=ScriptedModel([])).as_tool()
    billing = Agent("billing", model=ScriptedModel([]))
    sub = Agent("sub", model=leaf, tools=[refund], agents=[billing, clerk])

    reply = await Agent("desk", model=ScriptedModel([]), agents=[sub]).ainvoke("@sub go")

    (text,) = answers(reply)
    assert "did you mean 'transfer_to_billing'?" in text
    assert all(f" {name}" in text for name in leaf.requests[0].tools)
    assert {"refund", "clerk", "request_help"} <= set(leaf.requests[0].tools)


async def test_a_tool_gets_the_state_with_the_whole_conversation() -> None:
    seen: list[str] = []

    @tool
    def look(state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Look at the conversation."""
        seen.extend(texts(state["messages"]))
        return "seen"

    model = ScriptedModel(["Hello.", call("look"), "Done."])
    agent = Agent("desk", model=model, tools=[look])
    await agent.ainvoke("hi", thread_id="1")
    await agent.ainvoke("look", thread_id="1")
    assert seen == ["hi", "Hello.", "look", ""]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_tool_gets_what_a_patcher_keeps_and_nothing_of_langgraph_s_own(count: int) -> None:
    class Mood(TypedDict, total=False):
        mood: str

    def cheer(state: Any) -> dict[str, str]:
        return {"mood": "good"}

    seen: list[dict[str, Any]] = []

    @tool
    def look(state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Look at the state."""
        seen.append(state)
        return "seen"

    edge = {"after": "continue_conversation", "before": "call_model"}
    cheerful = insert_node("cheer", cheer, **edge, state=Mood)
    model = ScriptedModel([[call("look")] * count, "Done."])
    await Agent("desk", model=model, tools=[look], patcher=cheerful).ainvoke("hi")
    assert [state["mood"] for state in seen] == ["good"] * count
    assert not [name for state in seen for name in state if name.startswith(("branch:", "__"))]


@pytest.mark.parametrize("count", [1, 2])
async def test_a_tool_of_a_sub_agent_gets_the_whole_conversation_too(count: int) -> None:
    seen: list[list[str]] = []

    @tool
    def look(
        messages: Annotated[list[AnyMessage], InjectedState("messages")], runtime: ToolRuntime
    ) -> str:
        """Look at the conversation."""
        assert texts(runtime.state["messages"]) == texts(current_history()) == texts(messages)
        seen.append(texts(messages))
        return "seen"

    front = ScriptedModel([call("transfer_to_clerk")])
    clerk = ScriptedModel([[call("look")] * count, "Done."])
    child = Agent("clerk", model=clerk, tools=[look])
    reply = await Agent("desk", model=front, agents=[child]).ainvoke("look around")
    assert reply.text == "Done."
    assert seen == [["look around", "", "Conversation transferred to clerk", ""]] * count


async def test_a_tool_gets_the_store() -> None:
    @tool
    def remember(fact: str, store: Annotated[BaseStore, InjectedStore]) -> str:
        """Remember a fact."""
        store.put(("facts",), "1", {"fact": fact})
        return "kept"

    store = InMemoryStore()
    model = ScriptedModel([call("remember", fact="blue"), "Done."])
    await Agent("desk", model=model, tools=[remember], store=store).ainvoke("remember blue")
    found = store.get(("facts",), "1")
    assert found is not None
    assert found.value == {"fact": "blue"}


async def test_a_tool_gets_its_runtime() -> None:
    seen: dict[str, object] = {}

    @tool
    def look(runtime: ToolRuntime[str]) -> str:
        """Look at the runtime."""
        seen.update(context=runtime.context, call_id=runtime.tool_call_id, store=runtime.store)
        return "seen"

    store = InMemoryStore()
    model = ScriptedModel([call("look"), "Done."])
    agent = Agent("desk", model=model, tools=[look], store=store, context_schema=str)
    reply = await agent.ainvoke("look", context="gold")
    assert seen == {"context": "gold", "call_id": called_ids(reply)[0], "store": store}


async def test_an_argument_that_does_not_fit_is_answered_with_the_error() -> None:
    model = ScriptedModel([call("refund", amount=3), "Sorry."])
    reply = await Agent("desk", model=model, tools=[refund]).ainvoke("go")
    assert "reason" in answers(reply)[0]
    assert reply.text == "Sorry."


@pytest.mark.parametrize("beside", [[], [call("refund", reason="a")]])
async def test_a_tool_that_raises_is_answered_and_the_model_goes_on(beside: list[Any]) -> None:
    model = ScriptedModel([[call("broken"), *beside], "Sorry."])
    reply = await Agent("desk", model=model, tools=[broken, refund]).ainvoke("go")
    failed = [m for m in reply.messages if isinstance(m, ToolMessage) and m.status == "error"]
    assert [m.name for m in failed] == ["broken"]
    assert "ValueError: out of order" in failed[0].text
    assert reply.text == "Sorry."
    assert answered_ids(reply) == called_ids(reply)


@tool
def note(text: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[str]:
    """Write a note."""
    told = ToolMessage("noted", tool_call_id=call_id)
    return Command(update={"notes": text, "messages": [told]})


async def test_a_tool_updates_the_state_with_a_command() -> None:
    keep = Patcher(lambda graph: graph, state=Notes)
    model = ScriptedModel([call("note", text="buy milk"), "Noted."])
    agent = Agent("desk", model=model, tools=[note], patcher=keep, checkpointer=InMemorySaver())
    reply = await agent.ainvoke("note it", thread_id="1")
    state = await agent.graph.aget_state({"configurable": {"thread_id": "1"}})
    assert state.values["notes"] == "buy milk"
    assert (answers(reply), reply.text) == (["noted"], "Noted.")


def going(goto: Any, *, graph: str | None = None) -> BaseTool:
    @tool
    def go(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Go somewhere."""
        update = {"messages": [ToolMessage("going", tool_call_id=call_id)]}
        return Command(goto=goto, update=update, graph=graph)

    return go


@pytest.mark.parametrize("beside", [[], [call("refund", reason="a")]])
async def test_a_commands_goto_replaces_the_return_to_the_model(beside: list[Any]) -> None:
    model = ScriptedModel([[call("go"), *beside]])
    tools: list[Any] = [going("archive"), refund]
    agent = Agent("desk", model=model, tools=tools, patcher=with_node("archive"))
    reply = await agent.ainvoke("go")
    assert reply.text == "archive was here"
    assert len(model.requests) == 1
    assert answered_ids(reply) == called_ids(reply)


async def test_a_command_may_send() -> None:
    model = ScriptedModel([[call("go"), call("refund", reason="a")]])
    tools: list[Any] = [going([Send("archive", {})]), refund]
    agent = Agent("desk", model=model, tools=tools, patcher=with_node("archive"))
    assert (await agent.ainvoke("go")).text == "archive was here"


async def test_a_command_that_goes_to_the_end_ends_the_turn() -> None:
    model = ScriptedModel([Turn("I am off.", [call("go")]), "Again."])
    agent = Agent("desk", model=model, tools=[going(END)])
    reply = await agent.ainvoke("go", thread_id="1")
    assert (reply.text, answers(reply)) == ("I am off.", ["going"])
    assert (await agent.ainvoke("and now?", thread_id="1")).text == "Again."


async def test_a_goto_refuses_a_transfer_of_the_same_message() -> None:
    model = ScriptedModel([[call("transfer_to_clerk"), call("go")]])
    clerk = Agent("clerk", model=ScriptedModel([]))
    tools, patcher = [going("archive")], with_node("archive")
    agent = Agent("desk", model=model, tools=tools, agents=[clerk], patcher=patcher)
    reply = await agent.ainvoke("go")
    assert (reply.text, reply.agent) == ("archive was here", "desk")
    assert "Not executed" in " ".join(answers(reply))
    assert answered_ids(reply) == called_ids(reply)


async def test_a_goto_to_an_unknown_node_raises() -> None:
    agent = Agent("desk", model=ScriptedModel([call("go")]), tools=[going("nowhere")])
    with pytest.raises(RoutingError, match="'nowhere', which is no node of 'desk'"):
        await agent.ainvoke("go")


async def test_a_command_to_the_parent_graph_raises() -> None:
    tools = [going("call_model", graph=Command.PARENT)]
    agent = Agent("desk", model=ScriptedModel([call("go")]), tools=tools)
    text = "the tool 'go' sent a Command to another graph, .*: return a Handoff"
    with pytest.raises(RoutingError, match=text):
        await agent.ainvoke("go")


def handing(target: str) -> BaseTool:
    @tool
    def escalate() -> Handoff:
        """Pass it on."""
        return Handoff(target, reason="too hard", summary="paid twice")

    return escalate


@pytest.mark.parametrize("beside", [[], [call("refund", reason="a")]])
async def test_a_returned_handoff_transfers_to_the_sub_agent(beside: list[Any]) -> None:
    clerk = ScriptedModel(["I am the clerk."])
    model = ScriptedModel([[call("escalate"), *beside]])
    agents = [Agent("clerk", model=clerk)]
    agent = Agent("desk", model=model, tools=[handing("clerk"), refund], agents=agents)
    reply = await agent.ainvoke("help")
    assert (reply.text, reply.agent) == ("I am the clerk.", "desk/clerk")
    transfer = "Conversation transferred to clerk\nReason: too hard\nSummary: paid twice"
    assert transfer in texts(clerk.requests[0].messages)
    assert answered_ids(reply) == called_ids(reply)


@pytest.mark.parametrize("target", ["clerk", "Clerk", "mid/clerk"])
async def test_a_returned_handoff_reaches_an_agent_at_any_depth(target: str) -> None:
    clerk = Agent("clerk", model=ScriptedModel(["I am the clerk.", "Still here."]))
    mid = Agent("mid", model=ScriptedModel([]), agents=[clerk])
    model = ScriptedModel([call("escalate")])
    sub = Agent("sub", model=model, tools=[handing(target)], agents=[mid])
    agent = Agent("desk", model=ScriptedModel([]), agents=[sub])
    first = await agent.ainvoke("@sub help", thread_id="1")
    second = await agent.ainvoke("more", thread_id="1")
    assert [(r.text, r.agent) for r in (first, second)] == [
        ("I am the clerk.", "desk/sub/mid/clerk"),
        ("Still here.", "desk/sub/mid/clerk"),
    ]
    assert answers(first)[0].startswith("Conversation transferred to clerk\n")


@pytest.mark.parametrize(
    ("target", "handoff", "advice"),
    [
        ("clrek", "sticky", "did you mean 'clerk'?"),
        ("sub", "sticky", "choose one of clerk, mid."),
        ("mid/mid", "sticky", "choose one of clerk, mid."),
        ("clerk", "delegate", "choose one of mid."),
    ],
)
async def test_a_returned_handoff_that_leads_nowhere_is_answered_with_what_is_possible(
    target: str, handoff: Any, advice: str
) -> None:
    mid = Agent("mid", model=ScriptedModel([]), agents=[Agent("clerk", model=ScriptedModel([]))])
    model = ScriptedModel([call("escalate"), "I stay."])
    sub = Agent("sub", model=model, tools=[handing(target)], agents=[mid], handoff=handoff)
    reply = await Agent("desk", model=ScriptedModel([]), agents=[sub]).ainvoke("@sub help")
    assert (reply.text, reply.agent) == ("I stay.", "desk/sub")
    assert advice in answers(reply)[0]


async def test_a_returned_handoff_is_executed_before_a_transfer_of_the_same_message() -> None:
    model = ScriptedModel([[call("transfer_to_boss"), call("escalate")]])
    agents = [Agent(n, model=ScriptedModel([f"I am the {n}."])) for n in ("clerk", "boss")]
    agent = Agent("desk", model=model, tools=[handing("clerk")], agents=agents)
    reply = await agent.ainvoke("help")
    assert reply.agent == "desk/clerk"
    assert "Not executed: the conversation was transferred to clerk" in answers(reply)
    assert answered_ids(reply) == called_ids(reply)


@pytest.mark.parametrize("beside", [[], [call("refund", reason="a")]])
async def test_a_handoff_to_an_unknown_agent_is_answered_and_loops(beside: list[Any]) -> None:
    model = ScriptedModel([[call("escalate"), *beside], "I stay."])
    agents = [Agent("clerk", model=ScriptedModel([]))]
    agent = Agent("desk", model=model, tools=[handing("nobody"), refund], agents=agents)
    reply = await agent.ainvoke("help")
    assert (reply.text, reply.agent) == ("I stay.", "desk")
    told = next(m for m in reply.messages if isinstance(m, ToolMessage) and m.name == "escalate")
    assert (told.status, "'nobody'" in told.text, "clerk" in told.text) == ("error", True, True)


@pytest.mark.parametrize("beside", [[], [call("refund", reason="a")]])
async def test_a_returned_finish_ends_the_turn_with_its_text(beside: list[Any]) -> None:
    @tool
    def close() -> Finish:
        """Close the case."""
        return Finish("The case is closed.")

    model = ScriptedModel([[call("close"), *beside]])
    reply = await Agent("desk", model=model, tools=[close, refund]).ainvoke("close it")
    assert reply.text == "The case is closed."
    assert len(model.requests) == 1
    assert answered_ids(reply) == called_ids(reply)


async def test_a_finish_refuses_a_transfer_of_the_same_message() -> None:
    @tool
    def close() -> Finish:
        """Close the case."""
        return Finish("The case is closed.")

    model = ScriptedModel([[call("transfer_to_clerk"), call("close")]])
    agents = [Agent("clerk", model=ScriptedModel([]))]
    reply = await Agent("desk", model=model, tools=[close], agents=agents).ainvoke("close it")
    assert (reply.text, reply.agent) == ("The case is closed.", "desk")
    assert answered_ids(reply) == called_ids(reply)


@pytest.mark.parametrize("beside", [[], [call("refund", reason="a")]])
async def test_an_unknown_tool_is_answered_with_those_that_exist(beside: list[Any]) -> None:
    model = ScriptedModel([[call("fly"), *beside], "I cannot fly."])
    reply = await Agent("desk", model=model, tools=[refund]).ainvoke("fly")
    told = next(m for m in reply.messages if isinstance(m, ToolMessage) and m.name == "fly")
    assert told.status == "error"
    assert "refund" in told.text
    assert reply.text == "I cannot fly."


async def test_an_agent_without_any_tool_answers_an_unknown_call() -> None:
    model = ScriptedModel([call("fly"), "I cannot fly."])
    reply = await Agent("desk", model=model, default_tools=False).ainvoke("fly")
    assert (reply.text, len(answers(reply))) == ("I cannot fly.", 1)


@pytest.mark.parametrize("good", [0, 1, 2])
async def test_a_malformed_call_is_answered_beside_good_ones(good: int) -> None:
    good_calls = [call("refund", reason="fine")] * good
    model = ScriptedModel([[bad_call("refund"), *good_calls], "Done."])
    reply = await Agent("desk", model=model, tools=[refund]).ainvoke("go")
    told = answers(reply)
    assert sum(text == "refunded: fine" for text in told) == good
    assert sum(text.startswith("Not executed: the arguments are not") for text in told) == 1
    assert answered_ids(reply) == called_ids(reply)
    assert reply.text == "Done."


async def test_a_malformed_transfer_is_answered_and_moves_nothing() -> None:
    model = ScriptedModel([bad_call("transfer_to_clerk"), "I stay."])
    agents = [Agent("clerk", model=ScriptedModel([]))]
    reply = await Agent("desk", model=model, agents=agents).ainvoke("go")
    assert (reply.text, reply.agent) == ("I stay.", "desk")


def with_ids(*ids: str | None) -> AIMessage:
    calls = [{**call("refund", reason=f"{i}"), "id": one} for i, one in enumerate(ids)]
    return AIMessage("", tool_calls=calls)


async def test_a_call_id_used_again_in_a_later_turn_gets_an_answer_of_its_own() -> None:
    model = ScriptedModel([with_ids("call_0"), "One.", with_ids("call_0"), "Two."])
    agent = Agent("desk", model=model, tools=[refund])
    await agent.ainvoke("first", thread_id="1")
    second = await agent.ainvoke("second", thread_id="1")
    history = await agent.ahistory("1")
    told = [m.tool_call_id for m in history if isinstance(m, ToolMessage)]
    assert second.text == "Two."
    assert len(told) == len(set(told)) == 2


@pytest.mark.parametrize("ids", [(None,), (None, None), ("same", "same"), ("", "other")])
async def test_calls_without_ids_of_their_own_are_all_answered(ids: tuple[str | None, ...]) -> None:
    model = ScriptedModel([with_ids(*ids), "Done."])
    reply = await Agent("desk", model=model, tools=[refund]).ainvoke("go")
    assert sorted(answers(reply)) == [f"refunded: {i}" for i in range(len(ids))]
    assert answered_ids(reply) == called_ids(reply)
    assert len(set(called_ids(reply))) == len(ids)


async def test_a_tool_is_told_before_and_after_it_runs() -> None:
    model = ScriptedModel([call("refund", reason="twice"), "Done."])
    agent = Agent("desk", model=model, tools=[refund])
    told = [
        e async for e in agent.astream("go") if isinstance(e, ToolUsageEvent | ToolResponseEvent)
    ]
    assert [type(event) for event in told] == [ToolUsageEvent, ToolResponseEvent]
    assert told[0].call_id == told[1].call_id
    assert [e.content for e in told if isinstance(e, ToolResponseEvent)] == ["refunded: twice"]


async def test_a_message_that_a_tool_adds_does_not_hide_a_transfer_beside_it() -> None:
    @tool
    def quote(call_id: Annotated[str, InjectedToolCallId]) -> Command[str]:
        """Quote the customer."""
        told = ToolMessage("quoted", tool_call_id=call_id)
        return Command(update={"messages": [told, HumanMessage("as I said")]})

    model = ScriptedModel([[call("quote"), call("refund", reason="a"), call("transfer_to_clerk")]])
    clerk = Agent("clerk", model=ScriptedModel(["I am the clerk."]))
    agent = Agent("desk", model=model, tools=[quote, refund], agents=[clerk])
    reply = await agent.ainvoke("go")
    assert reply.agent == "desk/clerk"
    assert answered_ids(reply) == called_ids(reply)


def keyed(keys: list[str]) -> BaseTool:
    @tool
    def pay() -> str:
        """Pay."""
        keys.append(idempotency_key())
        return "paid"

    return pay


async def test_each_call_has_an_idempotency_key_of_its_own() -> None:
    keys: list[str] = []
    pay = call("pay")
    model = ScriptedModel([[pay, pay], pay, "Paid.", pay, "Paid."])
    agent = Agent("desk", model=model, tools=[keyed(keys)])
    await agent.ainvoke("pay", thread_id="1")
    await agent.ainvoke("pay again", thread_id="1")
    assert len(set(keys)) == len(keys) == 4


async def test_a_forgotten_threads_keys_are_not_used_again() -> None:
    keys: list[str] = []
    model = ScriptedModel([call("pay"), "Paid.", call("pay"), "Paid."])
    agent = Agent("desk", model=model, tools=[keyed(keys)])
    await agent.ainvoke("pay", thread_id="1")
    await agent.aforget("1")
    await agent.ainvoke("pay", thread_id="1")
    assert len(set(keys)) == len(keys) == 2


async def test_the_idempotency_key_stays_when_the_call_is_resumed() -> None:
    keys: list[str] = []

    @tool
    def pay() -> str:
        """Pay after approval."""
        keys.append(idempotency_key())
        return f"paid: {interrupt('may I?')}"

    agent = Agent("desk", model=ScriptedModel([call("pay"), "Paid."]), tools=[pay])
    waiting = await agent.ainvoke("pay", thread_id="1")
    reply = await agent.aresume("1", {waiting.interrupts[0].id: "yes"})
    assert answers(reply) == ["paid: yes"]
    assert len(keys) == 2
    assert keys[0] == keys[1]


async def test_idempotency_keys_differ_between_two_tasks_of_one_agent() -> None:
    keys: list[str] = []
    worker = Agent(
        "worker",
        model=ScriptedModel(lambda m: "Paid." if m[-1].type == "tool" else call("pay")),
        tools=[keyed(keys)],
    )
    ask = call("worker", request="pay")
    boss = Agent("boss", model=ScriptedModel([[ask, ask], ask, "Done."]), agents=[worker.as_tool()])
    await boss.ainvoke("pay three times")
    assert len(set(keys)) == len(keys) == 3


async def test_idempotency_keys_differ_between_two_visits_to_a_sub_agent() -> None:
    keys: list[str] = []
    model = ScriptedModel([call("pay"), call("request_help"), call("pay"), "Paid."])
    clerk = Agent("clerk", model=model, tools=[keyed(keys)])
    to_clerk = call("transfer_to_clerk")
    desk = Agent("desk", model=ScriptedModel([to_clerk, to_clerk]), agents=[clerk])
    await desk.ainvoke("pay")
    assert len(set(keys)) == len(keys) == 2


@pytest.mark.parametrize("ask", [idempotency_key, current_history])
def test_what_belongs_to_a_call_cannot_be_asked_outside_of_one(ask: Any) -> None:
    with pytest.raises(AgentGraphError) as caught:
        ask()
    assert caught.value.code == "outside_tool"


async def test_tool_that_ends_the_process_ends_its_call_alone() -> None:
    def leave() -> str:
        """Leave."""
        raise SystemExit(3)

    model = ScriptedModel([call("leave"), "Still here."])
    reply = await Agent("solo", model=model, tools=[leave]).ainvoke("go")

    told = [m for m in reply.messages if isinstance(m, ToolMessage)]
    assert reply.text == "Still here."
    assert [(m.status, "end the process" in m.text) for m in told] == [("error", True)]
