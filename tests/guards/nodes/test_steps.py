"""Steps in trees and teams: model calls that lead to nothing new, and all those of an input."""

from __future__ import annotations

from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, Team
from agentgraph.graphs.public_graph import whole_state
from agentgraph.guards import MemorySink, StepLimit, folded
from agentgraph.routing import round_robin, sequence
from agentgraph.testing import Fault, ScriptedModel, call
from agentgraph.testing.answers import Scripted
from tests.guards.guarded_agents import (
    Hurried,
    calls,
    decided,
    elsewhere,
    is_legal,
    look,
    recorded,
    solo,
    streamed,
    watched,
)
from tests.sessions.talk import after, held, talk


def reading() -> ScriptedModel:
    """Return a model that finds something new with each call."""
    pages = iter(range(1000))
    return ScriptedModel(lambda messages: call("look", what=str(next(pages))))


def fail(what: str) -> str:
    """Fail."""
    raise ValueError(f"nothing about {what}")


def blind(what: str) -> str:
    """Look, and see nothing."""
    return "nothing"


async def test_a_run_that_learns_something_goes_on_to_the_limit_of_its_input() -> None:
    model = reading()
    agent = solo(model, guards=watched(steps=StepLimit(5, total=60)))
    reply = await agent.ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 60)
    assert "60 model calls were made for one input; 60 are allowed" in reply.text


async def test_without_a_limit_of_the_input_only_idle_calls_count() -> None:
    turns = [call("look", what=str(n)) for n in range(30)]
    guards = watched(steps=StepLimit(2, total=None))
    reply = await solo(ScriptedModel([*turns, "Done."]), guards=guards).ainvoke("go")
    assert (reply.text, reply.close_reason) == ("Done.", None)


async def test_the_count_begins_anew_with_each_new_result() -> None:
    pages = iter(["a", "b", "c", *"ccccccccc"])

    def look() -> str:
        """Look."""
        return str(next(pages))

    model = ScriptedModel(lambda messages: call("look"))
    guards = watched(steps=4, loop=None)
    reply = await solo(model, look, guards=guards).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 2 + 4)
    assert "4 model calls were made since the last new result" in reply.text


async def test_a_result_that_was_seen_before_another_is_not_new() -> None:
    pages = cycle("ab")

    def look() -> str:
        """Look."""
        return str(next(pages))

    model = ScriptedModel(lambda messages: call("look"))
    guards = watched(steps=9, loop=None)
    reply = await solo(model, look, guards=guards).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 1 + 9)


async def test_a_failing_tool_tells_nothing_new() -> None:
    numbers = count()

    def look(what: str) -> str:
        """Look."""
        raise RuntimeError(f"failure {next(numbers)}")

    model = reading()
    guards = watched(steps=9, loop=None)
    reply = await solo(model, look, guards=guards).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 9)


async def test_answers_of_speakers_are_new_results_for_a_team() -> None:
    numbers = count()
    agents = [solo(ScriptedModel(lambda _: f"I say {next(numbers)}."), name=n) for n in "ab"]
    team = Team(agents, round_robin(["a", "b"], max_turns=30), guards=watched(steps=3))
    result = await team.arun("go")
    assert (result.close_reason, next(numbers)) == ("round_robin_complete", 30)


async def test_an_attempt_at_a_provider_that_failed_is_a_step() -> None:
    sink = MemorySink()
    model = ScriptedModel([Fault.rate_limit(), Fault.rate_limit(), "never"])
    with Hurried().installed():
        reply = await solo(model, guards=watched(sink, steps=2)).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 2)
    assert len(recorded(sink, "model")) == 2


@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_the_trail_has_as_many_steps_as_the_account(attempts: int) -> None:
    sink = MemorySink()
    faults = [Fault.rate_limit()] * (attempts - 1)
    model = ScriptedModel([*faults, call("look", what="a"), "Done."])
    agent = solo(model, guards=watched(sink), checkpointer=InMemorySaver())
    with Hurried().installed():
        await agent.ainvoke("go", thread_id="t")
    snapshot = await whole_state(agent.graph, {"configurable": {"thread_id": "t"}})
    [run] = sink.runs()
    assert folded(sink.read(run)).steps == snapshot.values["guarded"]["steps"] == attempts + 1


async def test_the_fiftieth_model_call_that_leads_nowhere_is_the_last() -> None:
    pages = iter(range(1000))
    model = ScriptedModel(lambda messages: call("fail", what=str(next(pages))))
    agent = solo(model, fail)
    events = await streamed(agent)
    assert decided(events)[-1] == ("a", "max_steps", "abort")
    assert len(model.requests) == 50
    assert is_legal(await agent.ahistory("t"))


async def test_the_same_answer_to_another_question_is_new_by_default() -> None:
    pages = iter(range(60))
    model = ScriptedModel([*(call("blind", what=str(n)) for n in pages), "Done."])
    reply = await solo(model, blind).ainvoke("go")
    assert (reply.text, reply.close_reason) == ("Done.", None)


async def test_a_limit_of_one_s_own_counts_results_alone() -> None:
    pages = iter(range(60))
    model = ScriptedModel([*(call("blind", what=str(n)) for n in pages), "Done."])
    reply = await solo(model, blind, guards=watched(steps=20)).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 20)


async def test_steps_are_shared_by_all_levels() -> None:
    pages = iter(range(1000))
    model = ScriptedModel(lambda messages: call("look", what=str(next(pages))))
    boss = ScriptedModel([call("sub", request="go")])
    agent = Agent("boss", model=boss, agents=[solo(model, name="sub").as_tool()])
    reply = await agent.replace(guards=watched(steps=calls(10))).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 9)


async def test_steps_are_shared_by_workers_side_by_side() -> None:
    pages = iter(range(1000))
    model = ScriptedModel(lambda messages: call("look", what=str(next(pages))))
    boss = ScriptedModel([[call("sub", request=f"part {n}") for n in range(4)]])
    agent = Agent("boss", model=boss, agents=[solo(model, name="sub").as_tool()])
    reply = await agent.replace(guards=watched(steps=calls(21))).ainvoke("go", thread_id="t")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 20)
    assert is_legal(await agent.ahistory("t"))


async def test_steps_are_counted_over_a_resume_in_another_agent(tmp_path: Path) -> None:
    pages = iter(range(1000))

    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    def compiled(url: str, *first: Scripted) -> tuple[ScriptedModel, Agent]:
        turns = iter(first)
        model = ScriptedModel(lambda m: next(turns, call("look", what=str(next(pages)))))
        fields: dict[str, Any] = {"checkpointer": url, "durability": "sync"}
        return model, solo(model, look, ask, guards=watched(steps=calls(7)), **fields)

    url = f"sqlite:///{tmp_path / 'a.db'}"
    _, before = compiled(url, call("look", what="a"), call("look", what="b"), call("ask"))
    (question,) = (await before.ainvoke("go", thread_id="t")).interrupts
    model, later = compiled(elsewhere(url))
    reply = await later.aresume("t", {question.id: "yes"})
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 4)


async def test_a_regulated_run_that_is_out_of_steps_asks_for_more() -> None:
    pages = iter(range(1000))
    model = ScriptedModel(lambda messages: call("look", what=str(next(pages))))
    agent = solo(model, guards=watched(tier="regulated", steps=calls(4)))
    reply = await agent.ainvoke("go", thread_id="t")
    (question,) = reply.interrupts
    assert question.payload["guard"] == "max_steps"
    reply = await agent.aresume("t", {question.id: "approve"})
    (again,) = reply.interrupts
    assert len(model.requests) == 8
    reply = await agent.aresume("t", {again.id: "reject"})
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 8)
    assert is_legal(await agent.ahistory("t"))


async def test_steps_of_a_team_are_shared_by_its_rounds() -> None:
    agents = [solo(ScriptedModel(lambda _: "said"), name=name) for name in "abc"]
    async with held(
        Team(agents, sequence(["a", "b", "c"]), guards=watched(steps=calls(2)))
    ) as session:
        state = await after(session, "user", "go")
        assert [who for who, _ in await talk(session)] == ["user", "a", "b"]
        assert state.pending_close_reason == "max_steps"
