"""A human decides on what an agent is unsure of, and on what has failed, wherever in a tree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.agents import Reply
from agentgraph.errors import AlreadyDecided, RoutingError
from agentgraph.guards import Gate, Guards, MemorySink
from agentgraph.testing import ScriptedModel, call
from tests.guards.escalating_agents import (
    ANSWER,
    DECISIONS,
    INVALID,
    PLACES,
    REASONS,
    Till,
    asked,
    clerk,
    decided,
    gate,
    said,
    tree,
    unsure,
)
from tests.guards.guarded_agents import look, recorded, watched

everywhere = pytest.mark.parametrize("place", PLACES)

GUARD = {"doubt": "escalation", "failure": "retry"}


@everywhere
@pytest.mark.parametrize("reason", REASONS)
async def test_a_question_tells_what_it_is_about_and_how_it_may_be_answered(
    place: str, reason: str
) -> None:
    agent = tree(place, clerk(Till(), reason), guards=unsure(reason))
    [question] = (await asked(agent)).interrupts
    payload: Any = question.payload
    assert (payload["type"], payload["guard"]) == ("escalation", GUARD[reason])
    assert payload["answer"] == (ANSWER if reason == "doubt" else "")
    assert payload["agent"] == question.agent == ("clerk" if place == "root" else payload["stage"])
    assert payload["agent"].endswith("clerk")
    assert payload["allowed"] == ["approve", "edit", "reject", "respond"]
    assert "0.85" in payload["cause"] if reason == "doubt" else "500" in payload["cause"]
    assert question.response_schema is not None and "anyOf" in question.response_schema


@everywhere
@pytest.mark.parametrize("verb", DECISIONS)
@pytest.mark.parametrize("reason", REASONS)
async def test_what_a_human_decides_is_done_and_nothing_is_done_twice(
    place: str, reason: str, verb: str
) -> None:
    till, sink = Till(), MemorySink()
    worker = clerk(till, reason)
    agent = tree(place, worker, guards=unsure(reason, sink))
    decision, text = DECISIONS[verb]
    reply = await asked(agent)
    [question] = reply.interrupts

    reply = await agent.aresume("t", {question.id: decision})

    assert (decided(place, reply), reply.interrupts) == (text, ())
    assert reply.close_reason == (GUARD[reason] if verb == "reject" else None)
    assert till.left == ([] if verb == "reject" else ["tea"])
    assert till.tries == ["pay tea", *(["give back tea"] if verb == "reject" else [])]
    # Only what has failed is tried again, and only where a human says so.
    asks_again = reason == "failure" and verb == "approve"
    assert len(worker.model.requests) == 2 + asks_again  # type: ignore[union-attr]
    [human] = recorded(sink, "human")
    assert human.data["decision"] == verb


@everywhere
@pytest.mark.parametrize("verb", DECISIONS)
@pytest.mark.parametrize("reason", REASONS)
async def test_what_is_no_answer_is_asked_again_with_what_is_wrong_with_it(
    place: str, reason: str, verb: str
) -> None:
    till = Till()
    agent = tree(place, clerk(till, reason), guards=unsure(reason))
    reply = await asked(agent)
    first: Any = reply.interrupts[0].payload
    decision, text = DECISIONS[verb]

    for invalid in INVALID:
        [question] = reply.interrupts
        reply = await agent.aresume("t", {question.id: invalid})
        assert (reply.text, reply.close_reason) == ("", None)
        payload: Any = reply.interrupts[0].payload
        assert payload == {**first, "error": payload["error"]}
        assert '"approve"' in payload["error"] and '"respond"' in payload["error"]

    assert await said(place, agent, reply, decision) == text
    assert till.left == ([] if verb == "reject" else ["tea"])
    assert till.tries.count("pay tea") == 1


@everywhere
@pytest.mark.parametrize("verb", DECISIONS)
@pytest.mark.parametrize("reason", REASONS)
async def test_a_decision_counts_once(place: str, reason: str, verb: str) -> None:
    till = Till()
    agent = tree(place, clerk(till, reason), guards=unsure(reason))
    [question] = (await asked(agent)).interrupts
    decision, text = DECISIONS[verb]

    results = await asyncio.gather(
        *(agent.aresume("t", {question.id: decision}) for _ in range(2)), return_exceptions=True
    )

    replies = [one for one in results if isinstance(one, Reply)]
    [refused] = [one for one in results if isinstance(one, RoutingError)]
    assert [decided(place, one) for one in replies] == [text]
    assert isinstance(refused, AlreadyDecided) and refused.decision == decision
    with pytest.raises(AlreadyDecided, match="decided already"):
        await agent.aresume("t", {question.id: "approve"})
    assert till.tries.count("pay tea") == 1
    assert till.tries.count("give back tea") == (verb == "reject")


@everywhere
@pytest.mark.parametrize("reason", REASONS)
async def test_a_decision_on_what_nobody_asked_is_refused_and_the_question_stands(
    place: str, reason: str
) -> None:
    agent = tree(place, clerk(Till(), reason), guards=unsure(reason))
    reply = await asked(agent)
    [question] = reply.interrupts
    for unknown in ({"nobody": "approve"}, {"nobody": "approve", question.id: "approve"}, {}):
        with pytest.raises(RoutingError) as refused:
            await agent.aresume("t", unknown)
        assert refused.value.code == "unknown_interrupt"
    assert [one.id for one in await agent.ainterrupts("t")] == [question.id]
    assert await said(place, agent, reply, "approve") == ANSWER


@asynccontextmanager
async def other_process(path: Path) -> AsyncIterator[AsyncSqliteSaver]:
    """Open a saver of one's own on a file."""
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        yield saver


@everywhere
@pytest.mark.parametrize("verb", DECISIONS)
@pytest.mark.parametrize("reason", REASONS)
async def test_another_process_decides_and_goes_on(
    place: str, reason: str, verb: str, tmp_path: Path
) -> None:
    till = Till()
    decision, text = DECISIONS[verb]

    async def within(do: Callable[[Agent], Awaitable[Reply]], model: ScriptedModel) -> Reply:
        worker = clerk(till, reason).replace(model=model)
        async with other_process(tmp_path / "t.db") as saver:
            return await do(tree(place, worker, guards=unsure(reason), checkpointer=saver))

    reply = await within(asked, clerk(till, reason).model)  # type: ignore[arg-type]
    [question] = reply.interrupts
    invalid = await within(lambda agent: agent.aresume("t", {question.id: "?"}), ScriptedModel([]))
    [question] = invalid.interrupts
    model = ScriptedModel([ANSWER])
    reply = await within(lambda agent: agent.aresume("t", {question.id: decision}), model)

    assert (decided(place, reply), reply.interrupts) == (text, ())
    assert till.left == ([] if verb == "reject" else ["tea"])
    assert till.tries.count("pay tea") == 1
    assert len(model.requests) == (reason == "failure" and verb == "approve")


@everywhere
@pytest.mark.parametrize("reason", REASONS)
async def test_an_edit_passes_the_gates_again_and_may_be_refused(place: str, reason: str) -> None:
    till, sink = Till(), MemorySink()
    guards = unsure(reason, sink, gates=gate("curse"))
    agent = tree(place, clerk(till, reason), guards=guards)
    reply = await asked(agent)
    for text in ("a curse", "another curse"):
        [question] = reply.interrupts
        reply = await agent.aresume("t", {question.id: {"type": "edit", "edited": text}})
        payload: Any = reply.interrupts[0].payload
        assert "the edit does not pass" in payload["cause"] and "no curse" in payload["cause"]
        assert payload["answer"] == text
        assert payload["evidence"]["validation"]["passed"] is False
    decent = {"type": "edit", "edited": "a blessing"}
    assert await said(place, agent, reply, decent) == "a blessing"
    assert till.tries == ["pay tea"]
    humans = [one.data["decision"] for one in recorded(sink, "human")]
    assert humans == ["edit"] * 3


@everywhere
async def test_what_a_human_says_in_an_agents_place_is_not_judged(place: str) -> None:
    guards = unsure("doubt", stages={"clerk": Guards(gates=gate("curse"))})
    agent = tree(place, clerk(Till(), "doubt"), guards=guards)
    reply = await asked(agent)
    assert await said(place, agent, reply, {"type": "respond", "message": "a curse"}) == "a curse"


@everywhere
async def test_approval_of_what_a_gate_has_blocked_asks_for_another_answer(place: str) -> None:
    model = ScriptedModel(["a curse", "a blessing"])
    worker = clerk(Till(), "").replace(model=model)
    agent = tree(place, worker, guards=unsure("", gates=gate("curse")))
    reply = await asked(agent)
    assert reply.interrupts[0].payload["guard"] == "gate"
    assert await said(place, agent, reply, "approve") == "a blessing"


@everywhere
async def test_memory_of_langgraph_is_enough(place: str) -> None:
    saver = InMemorySaver()
    till = Till()
    first = tree(place, clerk(till, "doubt"), guards=unsure("doubt"), checkpointer=saver)
    reply = await asked(first)
    worker = clerk(till, "doubt").replace(model=ScriptedModel([]))
    rebuilt = tree(place, worker, guards=unsure("doubt"), checkpointer=saver)
    assert await said(place, rebuilt, reply, "approve") == ANSWER


@pytest.mark.parametrize("tier", ["batch", "regulated"])
@pytest.mark.parametrize("at_once", [True, False])
async def test_an_approval_leaves_what_was_decided_on_another_agent(
    tier: Any, at_once: bool
) -> None:
    """The cook goes in a circle, and waits in a tool; the clerk beside it gets an approval."""
    looks = call("look", what="it")

    def ask() -> str:
        """Ask a human."""
        return str(interrupt("May I?"))

    mends = [False]
    failing = ScriptedModel(lambda _: ANSWER if mends[0] else "never")
    cook = ScriptedModel([*[looks] * 6, [looks, call("ask")], "never"])
    workers = [
        Agent("clerk", model=failing, default_tools=False),
        Agent("cook", model=cook, tools=[look, ask], default_tools=False),
    ]
    both = [call(f"transfer_to_{one.name}") for one in workers]
    sink = MemorySink()
    policy = watched(
        sink,
        tier,
        stages={"clerk": Guards(gates=Gate(invariants=[lambda one: one.text == ANSWER]))},
    )
    boss = Agent("boss", model=ScriptedModel([both, "never"]), agents=workers, guards=policy)
    boss = boss.replace(handoff="delegate", default_tools=False)
    reply = await boss.ainvoke("go", thread_id="t")
    [failed] = [one.id for one in reply.interrupts if one.agent == "boss/clerk"]
    [other] = [one.id for one in reply.interrupts if one.agent == "boss/cook"]
    mends[0] = True
    if at_once:
        reply = await boss.aresume("t", {failed: "approve", other: "yes"})
    else:
        await boss.aresume("t", {failed: "approve"})
        reply = await boss.aresume("t", {other: "yes"})
    assert len(cook.requests) == 7
    if tier == "batch":
        assert reply.close_reason == "loop_detector"
    else:
        [question] = reply.interrupts
        assert question.payload["guard"] == "loop_detector"
