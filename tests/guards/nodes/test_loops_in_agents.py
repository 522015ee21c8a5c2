"""Loops of agents at work: they are told once, then stopped, wherever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent
from agentgraph.graphs.public_graph import whole_state
from agentgraph.guards import LoopDetector, MemorySink
from agentgraph.stream import Event, FinalStateEvent
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import (
    answers,
    audited,
    corrections,
    decided,
    elsewhere,
    for_ever,
    is_legal,
    look,
    looping,
    solo,
    streamed,
    systems,
    watched,
    words_of,
)

TOLD = "`look` was called 3 times with the same arguments and result"
STOPPED = [("a", "loop_detector", "correct"), ("a", "loop_detector", "abort")]


def closed_by(events: list[Event]) -> str | None:
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    return final.close_reason


async def test_a_looping_agent_is_corrected_then_stopped() -> None:
    model, sink = looping(), MemorySink()
    agent = solo(model, guards=watched(sink))
    events = await streamed(agent)
    assert (decided(events), closed_by(events)) == (STOPPED, "loop_detector")
    assert audited(sink) == STOPPED
    assert len(model.requests) == 7
    assert is_legal(await agent.ahistory("t"))


async def test_the_correction_stands_in_the_one_system_message_of_the_next_request() -> None:
    model = looping()
    await solo(model, system_prompt="Find it.").ainvoke("go")
    assert corrections(model, TOLD) == [3]
    assert "Find it." in systems(model.requests[3])[0]
    assert systems(model.requests[3])[0].startswith(systems(model.requests[2])[0])


async def test_a_model_without_a_prompt_is_corrected_by_a_system_message_of_its_own() -> None:
    model = ScriptedModel(lambda messages: call("look", what="it"))
    await Agent("a", model=model, tools=[look], system_prompt=lambda _: "").ainvoke("go")
    assert corrections(model, TOLD) == [3]


async def test_a_model_that_heeds_the_correction_goes_on() -> None:
    model = ScriptedModel(
        lambda messages: "I give up." if TOLD in messages[0].text else call("look", what="it")
    )
    events = await streamed(solo(model))
    assert decided(events) == STOPPED[:1]
    assert (closed_by(events), events[-1].text) == (None, "I give up.")  # type: ignore[attr-defined]


async def test_the_turn_after_a_stopped_one_works_and_begins_anew() -> None:
    turns = [call("look", what="it")] * 10
    agent = solo(ScriptedModel([*turns, "Here again."]))
    first = await agent.ainvoke("go", thread_id="t")
    second = await agent.ainvoke("and now?", thread_id="t")
    assert (words_of(first), first.close_reason) == ("", "loop_detector")
    # Three more of the same are a loop of their own, which is met with a word and no more.
    assert (second.text, second.close_reason) == ("Here again.", None)
    assert is_legal(await agent.ahistory("t"))


async def test_what_a_stopped_turn_has_found_out_is_kept_for_the_next_one() -> None:
    model = ScriptedModel([*[call("look", what="it")] * 7, "It is nothing."])
    agent = solo(model)
    await agent.ainvoke("go", thread_id="t")
    await agent.ainvoke("what was it?", thread_id="t")
    assert answers(model.requests[-1].messages) == ["nothing of it"] * 7


async def test_a_cycle_of_three_is_corrected_then_stopped() -> None:
    model = for_ever(*(call("look", what=what) for what in "abc"))
    agent = solo(model)
    events = await streamed(agent)
    assert decided(events) == STOPPED
    assert corrections(model, "The round `look`, `look`, `look` was made 3 times") == [9]
    assert len(model.requests) == 13
    assert is_legal(await agent.ahistory("t"))


async def test_a_ping_pong_of_two_tools_is_corrected_then_stopped() -> None:
    def listen() -> str:
        """Listen."""
        return "silence"

    model = for_ever(call("look", what="it"), call("listen"))
    events = await streamed(solo(model, look, listen))
    assert decided(events) == STOPPED
    assert corrections(model, "was called 3 times") == [5]
    assert len(model.requests) == 10


async def test_the_same_calls_side_by_side_in_each_message_are_a_loop() -> None:
    model = for_ever([call("look", what="a"), call("look", what="b")])
    agent = solo(model)
    events = await streamed(agent)
    assert set(decided(events)) == set(STOPPED)
    assert closed_by(events) == "loop_detector"
    assert len(model.requests) == 7
    assert is_legal(await agent.ahistory("t"))


async def test_a_call_that_fails_again_is_corrected_and_then_ends_the_run() -> None:
    def fetch(page: int) -> str:
        """Fetch a page."""
        raise LookupError(f"there is no page {page}")

    model = for_ever(call("fetch", page=7))
    agent = solo(model, fetch)
    events = await streamed(agent)
    assert decided(events) == STOPPED
    assert corrections(model, "`fetch` has failed 2 times with the same arguments") == [2]
    assert len(model.requests) == 6  # a failure may pass, as those of a network do
    history = await agent.ahistory("t")
    assert is_legal(history)
    assert {m.status for m in history if isinstance(m, ToolMessage)} == {"error"}


async def test_a_tool_that_fails_with_other_arguments_each_time_is_corrected_now_and_then() -> None:
    def fetch(page: int) -> str:
        """Fetch a page."""
        raise LookupError(f"there is no page {page}")

    model = ScriptedModel([*(call("fetch", page=page) for page in range(14)), "There is none."])
    events = await streamed(solo(model, fetch))
    assert decided(events) == STOPPED[:1] * 3
    assert corrections(model, "`fetch` has failed") == [3, 6, 12]
    assert closed_by(events) is None


async def test_a_looping_sub_agent_is_stopped_and_the_supervisor_can_go_on() -> None:
    model = looping()
    boss = ScriptedModel([call("transfer_to_sub"), "I am here."])
    agent = Agent("boss", model=boss, agents=[solo(model, name="sub")])
    events = await streamed(agent)
    assert decided(events) == [("boss/sub", *rest) for _, *rest in STOPPED]
    assert (closed_by(events), events[-1].agent) == ("loop_detector", "boss/sub")
    assert corrections(model, TOLD) == [3]
    assert is_legal(await agent.ahistory("t"))
    reply = await agent.ainvoke("@boss are you there?", thread_id="t")
    assert (reply.text, reply.close_reason) == ("I am here.", None)


@pytest.mark.parametrize("kind", ["delegate", "tool"])
async def test_a_looping_worker_is_stopped_and_every_call_of_its_message_answered(
    kind: str,
) -> None:
    model, idle = looping(), solo(ScriptedModel(lambda _: "Done."), name="idle")
    sub = solo(model, name="sub")
    asks = [call("look", what="x"), call("transfer_to_idle")]
    asks += [call("transfer_to_sub") if kind == "delegate" else call("sub", request="do it")]
    boss = ScriptedModel([asks, "I am here."])
    members = [idle, sub if kind == "delegate" else sub.as_tool()]
    mode: Any = "delegate" if kind == "delegate" else "sticky"
    agent = Agent("boss", model=boss, agents=members, tools=[look], handoff=mode)
    events = await streamed(agent)
    assert decided(events) == [("boss/sub", *rest) for _, *rest in STOPPED]
    assert (closed_by(events), len(boss.requests)) == ("loop_detector", 1)
    history = await agent.ahistory("t")
    assert is_legal(history)
    assert len(answers(history)) == 3
    reply = await agent.ainvoke("are you there?", thread_id="t")
    assert (reply.text, reply.close_reason) == ("I am here.", None)


async def test_a_loop_is_seen_two_levels_down() -> None:
    model = looping()
    leaf = solo(model, name="leaf")
    mid = Agent("mid", model=ScriptedModel([call("transfer_to_leaf")]), agents=[leaf])
    root = ScriptedModel([call("transfer_to_mid"), "Here."])
    agent = Agent("root", model=root, agents=[mid], handoff="delegate")
    reply = await agent.ainvoke("go", thread_id="t")
    assert (reply.close_reason, len(model.requests)) == ("loop_detector", 7)
    assert corrections(model, TOLD) == [3]
    assert is_legal(await agent.ahistory("t"))


async def test_a_supervisor_that_goes_to_and_fro_for_the_same_lookup_is_stopped() -> None:
    sub = solo(for_ever(call("look", what="it"), call("request_help")), name="sub")
    sub = sub.replace(default_tools=True)
    boss, guards = for_ever(call("transfer_to_sub")), watched(deadlock=None)
    agent = Agent("boss", model=boss, agents=[sub], guards=guards)
    assert (await agent.ainvoke("go")).close_reason == "loop_detector"


async def test_workers_side_by_side_do_not_fill_each_other_s_windows() -> None:
    model = ScriptedModel(lambda said: "Done." if answers(said) else call("look", what="it"))
    asks = [call("sub", request=f"part {n}") for n in range(5)]
    boss = ScriptedModel([asks, "All done."])
    agent = Agent("boss", model=boss, agents=[solo(model, name="sub").as_tool()])
    events = await streamed(agent)
    assert (decided(events), closed_by(events)) == ([], None)


async def test_a_batch_run_is_told_too_and_ends() -> None:
    sink = MemorySink()
    events = await streamed(solo(looping(), guards=watched(sink, "batch")))
    assert (decided(events), closed_by(events)) == (STOPPED, "loop_detector")


async def regulated(model: ScriptedModel, tmp_path: Path) -> tuple[Agent, Any]:
    """Return an agent whose loop waits for a human, and the question."""
    agent = solo(
        model,
        guards=watched(tier="regulated"),
        checkpointer=f"sqlite:///{tmp_path / 'a.db'}",
    )
    reply = await agent.ainvoke("go", thread_id="t")
    (question,) = reply.interrupts
    assert (reply.text, reply.close_reason) == ("", None)
    assert question.payload["guard"] == "loop_detector"
    assert is_legal(await agent.ahistory("t"))
    return agent, question.id


async def test_a_regulated_run_asks_a_human_who_ends_it(tmp_path: Path) -> None:
    model = looping()
    agent, asked = await regulated(model, tmp_path)
    reply = await agent.aresume("t", {asked: "reject"})
    assert (words_of(reply), reply.close_reason, len(model.requests)) == ("", "loop_detector", 7)
    assert is_legal(await agent.ahistory("t"))


async def test_a_regulated_run_goes_on_when_a_human_lets_it(tmp_path: Path) -> None:
    model = ScriptedModel([*[call("look", what="it")] * 7, "I have it."])
    agent, asked = await regulated(model, tmp_path)
    reply = await agent.aresume("t", {asked: "approve"})
    assert (reply.text, reply.close_reason) == ("I have it.", None)
    assert is_legal(await agent.ahistory("t"))


async def test_a_loop_that_goes_on_after_a_human_let_it_is_asked_about_again(
    tmp_path: Path,
) -> None:
    agent, asked = await regulated(looping(), tmp_path)
    reply = await agent.aresume("t", {asked: "approve"})
    (again,) = reply.interrupts
    assert again.id != asked


async def test_a_human_may_answer_in_the_place_of_a_looping_agent(tmp_path: Path) -> None:
    model = looping()
    agent, asked = await regulated(model, tmp_path)
    reply = await agent.aresume("t", {asked: {"type": "respond", "message": "It is lost."}})
    assert (reply.text, reply.close_reason, len(model.requests)) == ("It is lost.", None, 7)
    assert is_legal(await agent.ahistory("t"))


async def test_a_loop_is_remembered_over_an_interrupt_in_another_agent(tmp_path: Path) -> None:
    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    def compiled(url: str, *turns: Any) -> tuple[ScriptedModel, Agent]:
        model = ScriptedModel(turns)
        return model, solo(model, look, ask, checkpointer=url, durability="sync")

    again, url = call("look", what="it"), f"sqlite:///{tmp_path / 'a.db'}"
    _, before = compiled(url, again, again, call("ask"))
    (question,) = (await before.ainvoke("go", thread_id="t")).interrupts
    model, after = compiled(elsewhere(url), *[again] * 6)
    reply = await after.aresume("t", {question.id: "yes"})
    assert corrections(model, TOLD) == [1]
    assert (reply.close_reason, len(model.requests)) == ("loop_detector", 6)
    assert is_legal(await after.ahistory("t"))


async def test_an_agent_without_a_detector_is_not_stopped_by_one() -> None:
    model = ScriptedModel([*[call("look", what="it")] * 20, "At last."])
    reply = await solo(model, guards=watched(loop=None)).ainvoke("go")
    assert (reply.text, reply.close_reason) == ("At last.", None)


async def test_a_detector_of_one_s_own_sets_other_limits() -> None:
    model = looping()
    guards = watched(loop=LoopDetector(window=2, threshold=2))
    assert (await solo(model, guards=guards).ainvoke("go")).close_reason == "loop_detector"
    assert corrections(model, "was called 2 times") == [2]
    assert len(model.requests) == 5


async def test_who_keeps_asking_for_a_tool_that_is_not_there_is_stopped_too() -> None:
    model, sink = for_ever(call("find", what="it")), MemorySink()
    agent = solo(model, guards=watched(sink))
    events = await streamed(agent)
    assert (audited(sink), closed_by(events)) == (STOPPED, "loop_detector")
    assert len(model.requests) == 6
    assert is_legal(await agent.ahistory("t"))


async def test_what_is_stored_of_loops_does_not_grow_with_the_visits_to_a_worker() -> None:
    """A visit that is over loops no more; one that has just begun is known in the next process."""

    async def stored(visits: int) -> tuple[list[str], list[str]]:
        facts = iter(range(1_000))

        def look_up(what: str) -> str:
            """Look something up."""
            return f"fact {next(facts)}"

        def work(messages: list[Any]) -> Any:
            is_told = str(messages[-1].text).startswith("fact")
            return f"It is {messages[-1].text}." if is_told else call("look_up", what="it")

        worker = solo(ScriptedModel(work), look_up, name="worker")
        asks = [call("worker", request=f"part {n}") for n in range(visits)]
        model = ScriptedModel([*asks, "All done."])
        guards = watched(steps=1_000)
        fields: dict[str, Any] = {"guards": guards, "checkpointer": InMemorySaver()}
        boss = Agent("boss", model=model, agents=[worker.as_tool()], **fields)
        assert (await boss.ainvoke("go", thread_id="t")).text == "All done."
        state = await whole_state(boss.graph, {"configurable": {"thread_id": "t"}})
        answered = [m for m in await boss.ahistory("t") if isinstance(m, ToolMessage)]
        spots = [f"boss/worker#{message.tool_call_id}" for message in answered]
        return list(state.values["guarded"]["loops"]), spots

    for visits in (3, 80):
        loops, spots = await stored(visits)
        assert loops == spots[-64:]
