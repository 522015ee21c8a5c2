"""What the guards that users bring decide, and what they remember of an input."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage

from agentgraph import Agent, Team, patched
from agentgraph.errors import ConfigurationError
from agentgraph.guards import CircuitBreaker, Decision, Guards, MemorySink, Record
from agentgraph.routing import sequence
from agentgraph.sessions import Hub
from agentgraph.stream import AIMessageEvent, TokenEvent
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import audited, solo, streamed, watched
from tests.guards.users_guards import CallLimit, Steps

LOOKS = [call("look", what=str(number)) for number in range(5)]
"""Five calls of a tool, each about something else."""


def look(what: str) -> str:
    """Look something up."""
    return f"{what} is fine"


def looking(*guards: Any, **fields: Any) -> Agent:
    """Return an agent that calls a tool five times, then answers."""
    model = ScriptedModel([*LOOKS, "All seen."])
    return solo(model, look, guards=watched(extra=guards, **fields))


def results(reply: Any) -> list[str]:
    """Return what the calls of tools were answered."""
    return [str(message.text) for message in reply.messages if isinstance(message, ToolMessage)]


# Decisions.


@pytest.mark.parametrize("action", ["deny", "correct", "replan", "fallback"])
async def test_refused_tool_does_not_run_and_the_run_goes_on(action: str) -> None:
    sink = MemorySink()
    reply = await looking(CallLimit(3, action), sink=sink).ainvoke("go")
    fine = [f"{number} is fine" for number in range(3)]
    refused = ["Not executed: look was called 3 times."] * 2
    assert results(reply) == [*fine, *refused]
    assert (reply.text, reply.close_reason) == ("All seen.", None)
    assert audited(sink) == [("a", "call_limit", action)] * 2


async def test_guard_that_aborts_at_a_tool_ends_the_run() -> None:
    reply = await looking(CallLimit(2, "abort")).ainvoke("go")
    assert reply.close_reason == "call_limit"
    assert results(reply)[-1] == "Not executed: look was called 2 times."


async def test_human_lets_pass_what_a_guard_escalates_and_the_next_step_is_asked_about_anew() -> (
    None
):
    agent = looking(CallLimit(4, "escalate"))
    reply = await agent.ainvoke("go", thread_id="t")
    [question] = reply.interrupts
    reply = await agent.aresume("t", {question.id: {"type": "approve"}})
    assert reply.text == "All seen."


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (Decision("abort", "steps", "enough"), "steps"),
        (Decision("deny", "steps", "enough"), "steps"),
        (Decision("deny", "steps", "enough", "no_progress"), "steps"),
        (Decision("deny", "steps", "enough", "cost_overrun"), None),
        (Decision("escalate", "steps", "enough"), None),
        (Decision("fallback", "steps", "enough"), None),
    ],
)
async def test_model_is_not_asked_where_a_guard_says_so(
    decision: Decision, reason: str | None
) -> None:
    model = ScriptedModel(["Hello."])
    tier = "regulated" if reason is None else "interactive"
    agent = solo(model, guards=watched(tier=tier, extra=Steps({"before_model": decision})))
    reply = await agent.ainvoke("hi", thread_id="t")
    assert not model.requests
    assert reply.close_reason == reason
    assert bool(reply.interrupts) == (reason is None)


async def test_correction_before_a_model_is_in_its_next_prompt() -> None:
    model = ScriptedModel(["Hello."])
    guard = Steps({"before_model": Decision("correct", "steps", "Be brief.")})
    reply = await solo(model, guards=watched(extra=guard)).ainvoke("hi")
    assert reply.text == "Hello."
    assert "Be brief." in str(model.requests[0].messages[0].text)


async def test_fallback_answers_in_the_models_place() -> None:
    model, guard = ScriptedModel(["Hello."]), Steps({"before_model": Decision("fallback", "steps")})
    breaker = CircuitBreaker(fallback=AIMessage("We are closed."))
    reply = await solo(model, guards=watched(extra=guard, breaker=breaker)).ainvoke("hi")
    assert reply.text == "We are closed."
    assert not model.requests


async def test_text_that_a_guard_refuses_reaches_no_stream() -> None:
    guard = Steps({"after_model": Decision("correct", "steps", "no secrets")}, when="secret")
    model = ScriptedModel(["The secret is 42.", "I cannot say."])
    events = await streamed(solo(model, guards=watched(extra=guard)))
    texts = [e.text for e in events if isinstance(e, AIMessageEvent | TokenEvent)]
    assert "secret" not in "".join(texts)
    assert "".join(texts).endswith("I cannot say.")
    assert "no secrets" in str(model.requests[1].messages[-1].text)


async def test_human_decides_on_an_answer_that_a_guard_escalates() -> None:
    guard = Steps({"after_model": Decision("escalate", "steps", "unsure")}, when="maybe")
    agent = solo(ScriptedModel(["maybe", "maybe"]), guards=watched(extra=guard))
    reply = await agent.ainvoke("hi", thread_id="t")
    [question] = reply.interrupts
    assert question.payload["answer"] == "maybe"
    reply = await agent.aresume("t", {question.id: {"type": "respond", "message": "No."}})
    assert reply.text == "No."


async def test_guard_corrects_by_what_a_tool_has_answered() -> None:
    guard = Steps({"after_tool": Decision("correct", "steps", "look elsewhere")}, when="3 is fine")
    agent = looking(guard)
    reply = await agent.ainvoke("go")
    assert reply.text == "All seen."
    prompts = [str(request.messages) for request in agent.model.requests]  # type: ignore[union-attr]
    assert ["look elsewhere" in prompt for prompt in prompts] == [False] * 4 + [True, False]


async def test_guard_ends_a_run_by_what_a_tool_has_answered() -> None:
    guard = Steps({"after_tool": Decision("abort", "steps", "a leak")}, when="2 is fine")
    reply = await looking(guard).ainvoke("go")
    assert (reply.close_reason, len(results(reply))) == ("steps", 3)


async def test_handoff_and_worker_do_not_begin_where_a_guard_refuses_them() -> None:
    helper = Agent("helper", "helps", model=ScriptedModel(["Helped."] * 3))
    decision = Decision("deny", "steps", "not this one")
    guard = Steps({"on_handoff": decision, "on_dispatch": decision})
    model = ScriptedModel([call("transfer_to_helper", reason="x"), "Alone."])
    handoffs = Agent("a", model=model, agents=[helper], guards=watched(extra=guard))
    reply = await handoffs.ainvoke("go")
    assert (reply.text, reply.agent) == ("Alone.", "a")
    model = ScriptedModel([call("transfer_to_helper", reason="x"), "Alone."])
    delegates = Agent(
        "a", model=model, agents=[helper], handoff="delegate", guards=watched(extra=guard)
    )
    reply = await delegates.ainvoke("go")
    assert reply.text == "Alone."
    assert "not this one" in results(reply)[0]
    assert not [record for record in guard.records if record.kind in ("handoff", "dispatch")]


# Guards that fail.


@pytest.mark.parametrize("hook", ["before_model", "after_model", "before_tool", "after_tool"])
async def test_guard_that_raises_ends_the_run_and_says_so(hook: str) -> None:
    def fail(*_: object) -> Decision:
        raise ValueError("no secret here")

    sink = MemorySink()
    guard = type("Bad", (CallLimit,), {hook: fail})(9)
    reply = await looking(guard, sink=sink).ainvoke("go")
    assert reply.close_reason == "call_limit"
    assert f"{hook}() has failed: ValueError" in reply.text
    assert "secret" not in reply.text


async def test_guard_whose_fold_raises_ends_the_run() -> None:
    class Bad(CallLimit):
        def fold(self, memory: Mapping[str, int], record: Record) -> Mapping[str, int]:
            raise ValueError

    reply = await looking(Bad()).ainvoke("go")
    assert reply.close_reason == "call_limit"
    assert "fold() has failed: ValueError" in reply.text


def test_all_faults_of_a_guard_are_said_when_it_is_given() -> None:
    class Half:
        name = ""

    class Unstored(CallLimit):
        name: ClassVar[str] = "unstored"

        def start(self) -> Any:
            return object()

    with pytest.raises(ConfigurationError) as error:
        Guards(extra=[CallLimit(), CallLimit(2), Half(), Unstored(), CallLimit])  # type: ignore[list-item]
    faults = "\n".join(error.value.faults)
    assert "CallLimit is called 'call_limit', as another guard is" in faults
    assert "Half has no name" in faults
    assert "Half has no start(), fold(), tighter()" in faults
    assert "the memory of Unstored cannot be stored" in faults
    assert "CallLimit is a class: give CallLimit()" in faults


# What they fold.


async def test_guard_gets_one_record_of_each_thing_that_happened() -> None:
    guard = Steps()
    await looking(guard).ainvoke("go")
    kinds = [record.kind for record in guard.records]
    assert kinds == ["model", "tool"] * 5 + ["model"]
    assert [record.seq for record in guard.records] == [*range(1, 12)]
    tools = [record for record in guard.records if record.kind == "tool"]
    assert {record.tool for record in tools} == {"look"}
    assert len({record.args_digest for record in tools}) == 5
    assert len({record.result_digest for record in tools}) == 5
    models = [record for record in guard.records if record.kind == "model"]
    assert all(record.usage is not None and record.usage.total_tokens for record in models)


async def test_guard_is_shown_what_it_decides_on() -> None:
    guard = Steps()
    await looking(guard).ainvoke("go", thread_id="t")
    by_hook: dict[str, Any] = {}
    for hook, asked in guard.calls:
        by_hook.setdefault(hook, asked)
    assert {asked.thread_id for asked in by_hook.values()} == {"t"}
    assert {asked.agent for asked in by_hook.values()} == {"a"}
    tool = by_hook["before_tool"]
    assert (tool.tool, tool.args, tool.result) == ("look", {"what": "0"}, None)
    assert tool.messages[0].text == "go"
    assert by_hook["after_tool"].result == "0 is fine"
    assert by_hook["before_model"].messages[-1].text == "go"
    assert by_hook["after_model"].result.tool_calls[0]["name"] == "look"


async def test_memory_is_that_of_one_input_over_all_its_agents() -> None:
    model = ScriptedModel([LOOKS[0], call("transfer_to_b", reason="x"), "Bye."])
    below = solo(ScriptedModel([*LOOKS[1:4], "Done."] * 2), look, name="b")
    limit = watched(extra=CallLimit(2))
    agent = Agent("a", model=model, tools=[look], agents=[below], guards=limit)
    reply = await agent.ainvoke("go", thread_id="t")
    assert [text.startswith("Not executed") for text in results(reply) if "transfer" not in text][
        -3:
    ] == [False, True, True]
    reply = await agent.ainvoke("again", thread_id="t")
    assert [text.startswith("Not") for text in results(reply)] == [False, False, True]


async def test_stricter_of_two_guards_of_one_name_holds_and_a_stage_may_have_its_own() -> None:
    loose = watched(extra=CallLimit(9))
    inner = solo(
        ScriptedModel([*LOOKS, "Done."]), look, name="b", guards=watched(extra=CallLimit(1))
    )
    model = ScriptedModel([call("transfer_to_b", reason="x")])
    reply = await Agent("a", model=model, agents=[inner], guards=loose).ainvoke("go")
    assert sum(text.startswith("Not executed") for text in results(reply)) == 4
    inner = solo(
        ScriptedModel([*LOOKS, "Done."]), look, name="b", guards=watched(extra=CallLimit(9))
    )
    model = ScriptedModel([call("transfer_to_b", reason="x")])
    strict = watched(extra=CallLimit(1))
    reply = await Agent("a", model=model, agents=[inner], guards=strict).ainvoke("go")
    assert sum(text.startswith("Not executed") for text in results(reply)) == 4
    staged = Guards(extra=CallLimit(1), stages={"b": Guards(extra=CallLimit(3))})
    inner = solo(ScriptedModel([*LOOKS, "Done."]), look, name="b", guards=None)
    model = ScriptedModel([call("transfer_to_b", reason="x")])
    reply = await Agent("a", model=model, agents=[inner], guards=staged).ainvoke("go")
    assert sum(text.startswith("Not executed") for text in results(reply)) == 2


# Elsewhere.


async def test_guard_holds_in_a_foreign_graph() -> None:
    guard = CallLimit(3)
    model = ScriptedModel([*LOOKS, "All seen."])
    graph = patched(create_agent(model, [look]), Guards(extra=guard))
    state = await graph.ainvoke({"messages": [("user", "go")]})
    texts = [str(m.text) for m in state["messages"] if isinstance(m, ToolMessage)]
    assert sum(text.startswith("Not executed: look was called 3") for text in texts) == 2
    assert state["messages"][-1].text == "All seen."


async def test_guard_holds_over_the_speakers_of_a_team(tmp_path: Path) -> None:
    names, guard = ("a", "b", "c"), CallLimit(3)
    agents = [solo(ScriptedModel([*LOOKS[:2], "Done."]), look, name=name) for name in names]
    team = Team(agents, sequence(names), guards=watched(extra=guard))
    async with await Hub.open(f"sqlite:///{tmp_path / 'log.db'}", serve=[team]) as hub:
        answer = await (await hub.session(team, id="s")).ask("go")
        assert answer.text == "Done."
        state = (await hub.get("s")).state
    assert state.account["extra"]["call_limit"]["memory"]["tool look"] == 3


async def test_usage_in_the_records_is_that_of_the_reply() -> None:
    guard = Steps()
    reply = await looking(guard).ainvoke("go")
    total = sum(r.usage.total_tokens for r in guard.records if r.usage is not None)
    assert total == reply.usage.total_tokens > 0
