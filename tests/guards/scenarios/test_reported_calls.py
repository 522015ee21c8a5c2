"""Tools that run code tell their steps: the guards treat them as calls of their own."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from agentgraph import patched
from agentgraph.guards import AuditTrail, Guards, MemorySink, report_call
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import recorded
from tests.guards.scenarios.driver import ask, course_of, requests, stuck, working


def run_code(what: str) -> str:
    """Run a program that looks the same up, and then fails at something."""
    report_call("look_up", {"key": "it"}, "nothing")
    report_call("fetch", {"page": what}, "no such page", failed=True)
    return f"ran {what}"


async def test_equal_steps_of_different_programs_are_no_loop() -> None:
    agent = working(ask("run_code", *(f"program {n}" for n in range(20))), run_code)
    course = await course_of(agent)
    assert (course.close_reason, course.actions) == (None, [])


def repeating(what: str) -> str:
    """Run a program that looks the same up twice."""
    for _ in range(2):
        report_call("look_up", {"key": "it"}, "nothing")
    return "ran"


async def test_a_program_that_repeats_its_steps_is_corrected_and_ended() -> None:
    agent = stuck(ask("repeating", "x = 1"), repeating)
    course = await course_of(agent)
    assert (course.close_reason, course.corrections) == ("loop_detector", 1)
    assert requests(agent) <= 5
    assert "`look_up` was called" in course.text


async def test_the_steps_are_in_the_audit_trail() -> None:
    sink = MemorySink()
    agent = working(ask("run_code", "p"), run_code, guards=Guards(audit=AuditTrail(sink)))
    await agent.ainvoke("go")
    data = [record.data for record in recorded(sink, "tool")]
    assert [one["tool"] for one in data] == ["run_code", "look_up", "fetch"]
    assert data[1:] == [
        {"tool": "look_up", "within": "run_code", "failed": False},
        {"tool": "fetch", "within": "run_code", "failed": True},
    ]


async def test_the_steps_of_a_tool_that_fails_are_told_too() -> None:
    def crash(what: str) -> str:
        """Crash."""
        report_call("look_up", {"key": what}, "nothing")
        raise ValueError("crash")

    sink = MemorySink()
    agent = working(ask("crash", "p"), crash, guards=Guards(audit=AuditTrail(sink)))
    await agent.ainvoke("go")
    assert [one.data["tool"] for one in recorded(sink, "tool")] == ["crash", "look_up"]


async def test_the_tools_of_a_graph_of_others_report_as_well() -> None:
    sink, model = MemorySink(), ScriptedModel([call("run_code", what="p"), "Done."])
    graph: Any = create_agent(model, [run_code])
    guarded = patched(graph, Guards.batch(audit=AuditTrail(sink)))
    await guarded.ainvoke({"messages": [HumanMessage("go")]})
    assert {one.data["tool"] for one in recorded(sink, "tool")} == {"run_code", "look_up", "fetch"}


@pytest.mark.parametrize("guards", [None, "outside of a run"])
async def test_without_guards_a_report_does_nothing(guards: str | None) -> None:
    if guards is None:
        agent = working(ask("run_code", "p"), run_code, guards=None)
        assert (await agent.ainvoke("go")).text == "Done."
    else:
        assert run_code("p") == "ran p"
