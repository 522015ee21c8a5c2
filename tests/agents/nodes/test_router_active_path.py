from __future__ import annotations

from pathlib import Path

import pytest

from agentgraph import Agent
from agentgraph.stream import FinalStateEvent, RoutingEvent
from agentgraph.testing import ScriptedModel, call


def family(
    *,
    root: ScriptedModel | None = None,
    mid: ScriptedModel | None = None,
    leaf: ScriptedModel | None = None,
    checkpointer: str | None = None,
) -> Agent:
    below = Agent("Leaf", model=leaf or ScriptedModel([]))
    between = Agent("Mid", model=mid or ScriptedModel([]), agents=[below])
    model = root or ScriptedModel([])
    return Agent("Root", model=model, agents=[between], checkpointer=checkpointer)


def descending(checkpointer: str | None = None, *answers: str) -> Agent:
    return family(
        root=ScriptedModel([call("transfer_to_Mid")]),
        mid=ScriptedModel([call("transfer_to_Leaf")]),
        leaf=ScriptedModel(list(answers)),
        checkpointer=checkpointer,
    )


def file_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'a.db'}"


async def test_transfer_answers_in_the_same_turn() -> None:
    agent = descending(None, "leaf answers")

    reply = await agent.ainvoke("hi")

    assert (reply.text, reply.agent) == ("leaf answers", "Root/Mid/Leaf")


async def test_next_turn_resumes_at_the_deepest_agent() -> None:
    agent = descending(None, "leaf answers", "leaf again", "and again")

    await agent.ainvoke("hi", thread_id="t")
    replies = [await agent.ainvoke("more", thread_id="t") for _ in range(2)]

    assert [(r.text, r.agent) for r in replies] == [
        ("leaf again", "Root/Mid/Leaf"),
        ("and again", "Root/Mid/Leaf"),
    ]


async def test_resumed_agent_sees_the_whole_conversation_once() -> None:
    leaf = ScriptedModel(["one", "two"])
    agent = family(
        root=ScriptedModel([call("transfer_to_Mid")]),
        mid=ScriptedModel([call("transfer_to_Leaf")]),
        leaf=leaf,
    )

    await agent.ainvoke("first", thread_id="t")
    await agent.ainvoke("second", thread_id="t")

    assert [m.text for m in leaf.requests[1].messages[1:]] == [
        "first",
        "",
        "Conversation transferred to Mid",
        "",
        "Conversation transferred to Leaf",
        "one",
        "second",
    ]


async def test_each_message_of_a_sub_agent_is_stored_once() -> None:
    agent = descending(None, "one", "two")

    await agent.ainvoke("first", thread_id="t")
    await agent.ainvoke("second", thread_id="t")

    history = await agent.ahistory("t")
    assert [m.text for m in history if m.text in ("first", "second", "one", "two")] == [
        "first",
        "one",
        "second",
        "two",
    ]
    assert len({m.id for m in history}) == len(history) == 8


async def test_other_threads_are_not_moved() -> None:
    agent = family(
        root=ScriptedModel([call("transfer_to_Mid"), "root answers"]),
        mid=ScriptedModel(["mid answers"]),
    )

    await agent.ainvoke("hi", thread_id="one")
    reply = await agent.ainvoke("hi", thread_id="two")

    assert (reply.text, reply.agent) == ("root answers", "Root")


async def test_conversation_resumes_at_the_deepest_agent_after_a_restart(tmp_path: Path) -> None:
    await descending(file_of(tmp_path), "leaf answers").ainvoke("hi", thread_id="t")
    leaf = ScriptedModel(["leaf again"])
    restarted = family(leaf=leaf, checkpointer=file_of(tmp_path))

    reply = await restarted.ainvoke("more", thread_id="t")

    assert (reply.text, reply.agent) == ("leaf again", "Root/Mid/Leaf")
    assert [m.text for m in leaf.requests[0].messages[-2:]] == ["leaf answers", "more"]


@pytest.mark.parametrize("below", [["Mid"], []], ids=["leaf is gone", "all are gone"])
async def test_path_to_an_agent_that_is_gone_falls_back_to_the_nearest_living_one(
    below: list[str], tmp_path: Path
) -> None:
    await descending(file_of(tmp_path), "leaf answers").ainvoke("hi", thread_id="t")
    agents = [Agent(name, model=ScriptedModel(["here I am"])) for name in below]
    root = ScriptedModel(["here I am"])
    smaller = Agent("Root", model=root, agents=agents, checkpointer=file_of(tmp_path))

    events = [event async for event in smaller.astream("more", thread_id="t")]

    path = "/".join(["Root", *below])
    fallback = [event for event in events if isinstance(event, RoutingEvent)]
    assert [(e.kind, e.target) for e in fallback] == [("fallback", below[0] if below else "Root")]
    assert "'Mid/Leaf'" in fallback[0].reason
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    assert (final.text, final.agent) == ("here I am", path)


async def test_fall_back_is_told_once(tmp_path: Path) -> None:
    await descending(file_of(tmp_path), "leaf answers").ainvoke("hi", thread_id="t")
    model = ScriptedModel(["one", "two"])
    smaller = Agent("Root", model=model, checkpointer=file_of(tmp_path))

    await smaller.ainvoke("more", thread_id="t")
    events = [event async for event in smaller.astream("more", thread_id="t")]

    assert not [event for event in events if isinstance(event, RoutingEvent)]


async def test_root_that_answers_itself_is_the_replys_agent() -> None:
    reply = await family(root=ScriptedModel(["root answers"])).ainvoke("hi")

    assert reply.agent == "Root"


async def test_transfer_carries_reason_and_summary_to_the_receiver() -> None:
    mid = ScriptedModel(["mid answers"])
    transfer = call("transfer_to_Mid", reason="money", summary="charged twice")

    await family(root=ScriptedModel([transfer]), mid=mid).ainvoke("hi")

    assert mid.requests[0].messages[-1].text == (
        "Conversation transferred to Mid\nReason: money\nSummary: charged twice"
    )


async def test_first_of_two_transfers_is_made_and_the_other_is_refused() -> None:
    one, two = ScriptedModel(["one answers", "one again"]), ScriptedModel([])
    both = [call("transfer_to_One"), call("transfer_to_Two")]
    agent = Agent(
        "Root",
        model=ScriptedModel([both]),
        agents=[Agent("One", model=one), Agent("Two", model=two)],
    )

    reply = await agent.ainvoke("hi", thread_id="t")
    again = await agent.ainvoke("more", thread_id="t")

    told = [m.text for m in one.requests[0].messages[-2:]]
    assert told[0] == "Conversation transferred to One"
    assert told[1].startswith("Not executed: ")
    assert (reply.agent, again.agent) == ("Root/One", "Root/One")
