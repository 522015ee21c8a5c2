"""Threads that were stored as checkpoints, before there were sessions, and what becomes of them."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from agentgraph import Agent, Patcher
from agentgraph.testing import ScriptedModel, call
from agentgraph_server import Principal
from tests.flow.planned_work import flow_of, plan, verdict
from tests.server.live_server import approve, lookup, names, problem_of, serving, solo, told
from tests.server.principals.test_current_principal import by_header

COMPLETION = "/agents/Solo/completion"
RESUME = "/agents/Solo/resume"
THREAD = "/agents/Solo/threads/t"
NEXT = {"prompt": "and?", "thread_id": "t"}


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/a.db"


async def stored(agent: Any, store: str, *prompts: str) -> Any:
    """Hold a conversation as earlier versions of the server did; return the last reply."""
    earlier, reply = agent.replace(checkpointer=store), None
    for prompt in prompts:
        reply = await earlier.ainvoke(prompt, thread_id="t")
    return reply


async def test_thread_is_shown_as_it_was_stored(store: str) -> None:
    await stored(solo(call("lookup", order="A7"), "It is lost.", tools=[lookup]), store, "hi")
    async with serving(solo(), store=store) as client:
        thread = (await client.get(THREAD)).json()

    assert [m["text"] for m in thread["messages"]] == ["hi", "", "A7 is lost", "It is lost."]
    assert (thread["busy"], thread["interrupts"]) == (False, [])


async def test_thread_that_somebody_has_taken_over_is_not_there_for_others(store: str) -> None:
    calls: list[str] = []

    def pay() -> str:
        """Pay, if a human agrees."""
        interrupt("pay?")
        calls.append("paid")
        return "paid"

    agent = solo(call("pay"), "hello", "paid", tools=[pay])
    agent = agent.replace(checkpointer=InMemorySaver())  # where the thread stays as it was
    asked = (await agent.ainvoke("hi", thread_id="t")).interrupts[0].id
    async with serving(agent, store=store, auth=by_header) as client:
        client.headers.update({"x-user": "ann", "x-tenant": "default"})
        assert (await client.post(COMPLETION, json=NEXT)).json()["text"] == "hello"
        before = (await client.get(THREAD)).json()
        bob = {"x-user": "bob"}
        problem_of(await client.get(THREAD, headers=bob), 404)
        problem_of(await client.post(COMPLETION, json=NEXT, headers=bob), 404)
        decisions = {"thread_id": "t", "decisions": {asked: True}}
        problem_of(await client.post(RESUME, json=decisions, headers=bob), 409)
        assert (await client.delete(THREAD, headers=bob)).status_code == 204
        assert (await client.get(THREAD)).json() == before and calls == []
        await client.delete(THREAD)
        problem_of(await client.get(THREAD), 404)


@pytest.mark.parametrize("durability", ["exit", "sync"])
async def test_conversation_goes_on_in_a_session(store: str, durability: Any) -> None:
    await stored(solo("hello", "well"), store, "hi", "there?")
    agent = solo("again", call("approve"), "done", tools=[approve], durability=durability)
    async with serving(agent, store=store) as client:
        await client.post(COMPLETION, json=NEXT)
        (asked,) = (await client.post(COMPLETION, json=NEXT)).json()["interrupts"]
        decisions = {"thread_id": "t", "decisions": {asked["id"]: "yes"}}
        answer = await client.post(RESUME, json=decisions)
        thread = (await client.get(THREAD)).json()
        log = (await client.get("/sessions/t/log")).json()

    texts = ["hi", "hello", "there?", "well", "and?"]
    assert isinstance(agent.model, ScriptedModel)
    assert [m.text for m in agent.model.requests[0].messages[1:]] == texts
    assert answer.json()["text"] == "done"
    said = [m["text"] for m in thread["messages"]]
    assert said == [*texts, "again", "and?", "", "a human said yes", "done"]
    assert log[0]["event_type"] == "ag.session.opened"


async def test_agent_that_had_the_conversation_has_it(store: str) -> None:
    def tree(*turns: Any) -> Agent:
        sub = Agent("Sub", model=ScriptedModel(list(turns)))
        return Agent("Solo", model=ScriptedModel([call("transfer_to_Sub")]), agents=[sub])

    await stored(tree("sub here"), store, "hi")
    async with serving(tree("sub again"), store=store) as client:
        answer = (await client.post(COMPLETION, json=NEXT)).json()

    assert (answer["text"], answer["agent"]) == ("sub again", "Solo/Sub")


class Counted(TypedDict):
    count: Annotated[int, operator.add]


@tool
def count(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Count."""
    message = ToolMessage("counted", tool_call_id=call_id)
    return Command(update={"count": 1, "messages": [message]})


@tool
def counted(state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Say what was counted."""
    return f"{state.get('count')} counted"


async def test_state_of_its_graph_goes_on(store: str) -> None:
    def agent(*turns: Any) -> Agent:
        patcher = Patcher(lambda graph: graph, state=Counted)
        return solo(*turns, tools=[count, counted], patcher=patcher)

    await stored(agent(call("count"), call("count"), "ok"), store, "hi")
    async with serving(agent(call("counted"), "ok"), store=store) as client:
        await client.post(COMPLETION, json=NEXT)
        thread = (await client.get(THREAD)).json()

    assert "2 counted" in [m["text"] for m in thread["messages"]]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_question_can_be_decided(store: str, accept: str) -> None:
    reply = await stored(solo(call("approve"), tools=[approve]), store, "hi")
    (question,) = reply.interrupts
    body = {"thread_id": "t", "decisions": {question.id: "yes"}}
    agent = solo("done", "again", tools=[approve])
    async with serving(agent, store=store) as client:
        shown = (await client.get(THREAD)).json()["interrupts"]
        refused = await client.post(RESUME, json={"thread_id": "t", "decisions": {"odd": 1}})
        if accept == "application/json":
            assert (await client.post(RESUME, json=body)).json()["text"] == "done"
        else:
            events = await told(client, RESUME, **body)
            assert names(events) == ["tool_response", "token", "ai_message", "message", "done"]
        await client.post(COMPLETION, json=NEXT)
        thread = (await client.get(THREAD)).json()

    assert [asked["id"] for asked in shown] == [question.id]
    assert problem_of(refused, 409)["code"] == "unknown_interrupt"
    said = [m["text"] for m in thread["messages"]]
    assert said == ["hi", "", "a human said yes", "done", "and?", "again"]


async def test_question_is_taken_back_by_a_new_prompt(store: str) -> None:
    await stored(solo(call("approve"), tools=[approve]), store, "hi")
    agent = solo("as you like", tools=[approve])
    async with serving(agent, store=store) as client:
        answer = (await client.post(COMPLETION, json=NEXT)).json()
        thread = (await client.get(THREAD)).json()

    assert (answer["text"], answer["interrupts"]) == ("as you like", [])
    assert thread["interrupts"] == []
    assert isinstance(agent.model, ScriptedModel)
    (outcome,) = [m.text for m in agent.model.requests[0].messages if m.type == "tool"]
    assert outcome.startswith("Outcome unknown")


async def test_flow_that_waits_is_resumed(store: str) -> None:
    flow = flow_of(plan("a"), "unsure", verdict(True, 0.1)).replace(checkpointer=store)
    (question,) = (await flow.ainvoke("go", thread_id="t")).interrupts
    body = {"thread_id": "t", "decisions": {question.id: {"type": "approve"}}}
    async with serving(flow_of(plan("a"), "more", verdict()), store=store) as client:
        resumed = (await client.post("/agents/report/resume", json=body)).json()
        prompt = {"prompt": "more", "thread_id": "t"}
        answer = (await client.post("/agents/report/completion", json=prompt)).json()
        thread = (await client.get("/agents/report/threads/t")).json()

    assert (resumed["text"], answer["text"]) == ("unsure", "more")
    assert [m["text"] for m in thread["messages"]] == ["go", "unsure", "more", "more"]


async def test_threads_on_a_saver_of_the_agent_s_own_are_reached() -> None:
    saver = InMemorySaver()
    await Agent("Solo", model=ScriptedModel(["hello"]), checkpointer=saver).ainvoke(
        "hi", thread_id="t"
    )
    agent = solo("again", "anew", checkpointer=saver)
    async with serving(agent) as client:
        await client.post(COMPLETION, json=NEXT)
        said = [m["text"] for m in (await client.get(THREAD)).json()["messages"]]
        deleted = await client.delete(THREAD)
        gone = await client.get(THREAD)
        await client.post(COMPLETION, json=NEXT)
        anew = [m["text"] for m in (await client.get(THREAD)).json()["messages"]]

    assert said == ["hi", "hello", "and?", "again"]
    assert deleted.status_code == 204
    problem_of(gone, 404)
    assert anew == ["and?", "anew"]


async def test_thread_is_deleted_where_it_is(store: str) -> None:
    await stored(solo("hello"), store, "hi")
    async with serving(solo(), store=store) as client:
        deleted = await client.delete(THREAD)
        gone = await client.get(THREAD)

    assert deleted.status_code == 204
    problem_of(gone, 404)


async def test_other_tenants_never_reach_it(store: str) -> None:
    await stored(solo("hello"), store, "hi")

    def auth(request: Any) -> Principal:
        return Principal("ann", tenant=request.headers.get("x-tenant", "default"))

    agent = solo("new", "again")
    async with serving(agent, store=store, auth=auth) as client:
        other = {"x-tenant": "other"}
        unknown = await client.get(THREAD, headers=other)
        begun = await client.post(COMPLETION, json=NEXT, headers=other)
        theirs = (await client.get(THREAD, headers=other)).json()
        own = (await client.get(THREAD)).json()

    problem_of(unknown, 404)
    assert begun.json()["text"] == "new"
    assert [m["text"] for m in theirs["messages"]] == ["and?", "new"]
    assert [m["text"] for m in own["messages"]] == ["hi", "hello"]
