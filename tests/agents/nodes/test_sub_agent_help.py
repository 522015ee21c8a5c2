from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage

from agentgraph import Agent, Guards, Handoff
from agentgraph.errors import ConfigurationError
from agentgraph.guards import StepLimit
from agentgraph.stream import FinalStateEvent, GuardEvent, RoutingEvent
from agentgraph.testing import ScriptedModel, call

ROOT = Path(__file__).parents[3]

SCRIPT = """
import sys

from agentgraph import Agent
from agentgraph.testing import ScriptedModel, call

url, turn = sys.argv[1:]
first = turn == "first"


def look_up(order: str) -> str:
    \"\"\"Look an order up.\"\"\"
    return f"{order} is lost"


sub = ScriptedModel(
    ["sub answers"]
    if first
    else [call("look_up", order="A7"), call("request_help", reason="refunds are not mine")]
)
root = ScriptedModel([call("transfer_to_Sub")] if first else ["root refunds"])
agent = Agent(
    "Root",
    model=root,
    agents=[Agent("Sub", model=sub, tools=[look_up])],
    checkpointer=url,
)
reply = agent.invoke("hi" if first else "refund me", thread_id="t")
print(reply.agent, "|", reply.text, "|", reply.close_reason)
for message in root.requests[-1].messages[1:]:
    print("root saw:", repr(message.text))
"""


def look_up(order: str) -> str:
    """Look an order up."""
    return f"{order} is lost"


def asks_for_help(reason: str = "not mine") -> ScriptedModel:
    return ScriptedModel([call("look_up", order="A7"), call("request_help", reason=reason)])


def endless_pair(guards: Guards | None) -> Agent:
    child = Agent("Child", model=ScriptedModel(lambda _: call("request_help")))
    model = ScriptedModel(lambda _: call("transfer_to_Child"))
    return Agent("Root", model=model, agents=[child], guards=guards)


def patient(calls: int) -> ScriptedModel:
    """Look up so many orders, then answer."""
    return ScriptedModel([*[call("look_up", order=f"A{n}") for n in range(calls)], "done"])


def texts(messages: tuple[BaseMessage, ...]) -> list[str]:
    return [m.text for m in messages if m.text]


async def test_help_goes_to_the_supervisor_in_the_same_turn() -> None:
    sub = Agent("Sub", model=asks_for_help(), tools=[look_up])
    agent = Agent(
        "Root", model=ScriptedModel([call("transfer_to_Sub"), "root helps"]), agents=[sub]
    )

    reply = await agent.ainvoke("hi")

    assert (reply.text, reply.agent) == ("root helps", "Root")


async def test_supervisor_sees_the_reason_and_what_the_sub_agent_did() -> None:
    sub = Agent("Sub", model=asks_for_help("refunds are not mine"), tools=[look_up])
    root = ScriptedModel([call("transfer_to_Sub"), "root helps"])

    await Agent("Root", model=root, agents=[sub]).ainvoke("hi")

    assert texts(root.requests[1].messages[1:]) == [
        "hi",
        "Conversation transferred to Sub",
        "A7 is lost",
        "Help requested of Root: refunds are not mine",
    ]


async def test_supervisor_goes_on_at_continue_conversation() -> None:
    sub = Agent("Sub", model=ScriptedModel([call("request_help")]))
    agent = Agent("Root", model=ScriptedModel(["root helps"]), agents=[sub])

    updates = agent.graph.astream(
        {"messages": [("user", "@Sub hi")]},
        {"configurable": {"thread_id": "t"}},
        stream_mode="updates",
    )

    assert [node async for update in updates for node in update] == [
        "render_system_prompt",
        "router",
        "Sub",
        "continue_conversation",
        "call_model",
    ]


async def test_next_turn_stays_with_the_supervisor() -> None:
    sub = Agent("Sub", model=asks_for_help(), tools=[look_up])
    root = ScriptedModel([call("transfer_to_Sub"), "root helps", "root goes on"])
    agent = Agent("Root", model=root, agents=[sub])

    await agent.ainvoke("hi", thread_id="t")
    reply = await agent.ainvoke("thanks", thread_id="t")

    assert (reply.text, reply.agent) == ("root goes on", "Root")


async def test_help_from_depth_two_goes_up_one_level() -> None:
    leaf = Agent("Leaf", model=asks_for_help("too deep"), tools=[look_up])
    mid_model = ScriptedModel([call("transfer_to_Leaf"), "mid helps", "mid goes on"])
    mid = Agent("Mid", model=mid_model, agents=[leaf])
    agent = Agent("Root", model=ScriptedModel([call("transfer_to_Mid")]), agents=[mid])

    reply = await agent.ainvoke("hi", thread_id="t")
    after = await agent.ainvoke("thanks", thread_id="t")

    assert [(r.text, r.agent) for r in (reply, after)] == [
        ("mid helps", "Root/Mid"),
        ("mid goes on", "Root/Mid"),
    ]
    assert texts(mid_model.requests[1].messages[1:])[-2:] == [
        "A7 is lost",
        "Help requested of Mid: too deep",
    ]


async def test_help_may_be_passed_up_all_levels() -> None:
    leaf = Agent("Leaf", model=ScriptedModel([call("request_help", reason="one")]))
    mid_model = ScriptedModel([call("transfer_to_Leaf"), call("request_help", reason="two")])
    mid = Agent("Mid", model=mid_model, agents=[leaf])
    root = ScriptedModel([call("transfer_to_Mid"), "root helps"])

    reply = await Agent("Root", model=root, agents=[mid]).ainvoke("hi")

    assert (reply.text, reply.agent) == ("root helps", "Root")
    assert texts(root.requests[1].messages[1:])[-2:] == [
        "Help requested of Mid: one",
        "Help requested of Root: two",
    ]


async def test_resumed_agent_at_depth_two_can_ask_for_help() -> None:
    leaf = Agent("Leaf", model=ScriptedModel(["leaf answers", call("request_help")]))
    mid = Agent("Mid", model=ScriptedModel([call("transfer_to_Leaf"), "mid helps"]), agents=[leaf])
    agent = Agent("Root", model=ScriptedModel([call("transfer_to_Mid")]), agents=[mid])

    await agent.ainvoke("hi", thread_id="t")
    reply = await agent.ainvoke("more", thread_id="t")

    assert (reply.text, reply.agent) == ("mid helps", "Root/Mid")


async def test_help_is_told_as_an_event() -> None:
    sub = Agent("Sub", model=ScriptedModel([call("request_help", reason="not mine")]))
    agent = Agent("Root", model=ScriptedModel(["root helps"]), agents=[sub])

    events = [e async for e in agent.astream("@Sub hi") if isinstance(e, RoutingEvent)]

    assert [(e.kind, e.agent, e.source, e.target, e.reason) for e in events[1:]] == [
        ("help", "Root/Sub", "Sub", "Root", "not mine")
    ]


async def test_calls_beside_a_help_request_are_run_and_answered() -> None:
    both = [call("request_help", reason="not mine"), call("look_up", order="A7")]
    sub = Agent("Sub", model=ScriptedModel([both]), tools=[look_up])
    root = ScriptedModel(["root helps"])

    await Agent("Root", model=root, agents=[sub]).ainvoke("@Sub hi")

    answers = [m for m in root.requests[0].messages if isinstance(m, ToolMessage)]
    assert sorted(m.text for m in answers) == ["A7 is lost", "Help requested of Root: not mine"]


async def test_root_has_nobody_to_ask() -> None:
    model = ScriptedModel(["hello"])

    await Agent("Root", model=model, agents=[Agent("Sub", model=ScriptedModel([]))]).ainvoke("hi")

    assert "request_help" not in model.requests[0].tools


async def test_delegate_that_asks_for_help_says_so_in_its_answer() -> None:
    sub = Agent("Sub", model=asks_for_help("not mine"), tools=[look_up])
    root = ScriptedModel([call("transfer_to_Sub"), "root helps"])
    agent = Agent("Root", model=root, agents=[sub], handoff="delegate")

    reply = await agent.ainvoke("hi")

    assert (reply.text, reply.agent) == ("root helps", "Root")
    assert "not mine" in root.requests[1].messages[-1].text


def test_help_works_in_a_fresh_process_that_has_only_the_checkpoint(tmp_path: Path) -> None:
    script = tmp_path / "turn.py"
    script.write_text(SCRIPT)

    def turn(which: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, str(script), f"sqlite:///{tmp_path / 'a.db'}", which],
            capture_output=True,
            text=True,
            timeout=50,
            env={"PYTHONPATH": str(ROOT), "LANGGRAPH_STRICT_MSGPACK": "true"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert turn("first")[0] == "Root/Sub | sub answers | None"
    second = turn("second")

    assert second[0] == "Root | root refunds | None"
    assert second[-3:] == [
        "root saw: 'A7 is lost'",
        "root saw: ''",
        "root saw: 'Help requested of Root: refunds are not mine'",
    ]


async def test_endless_pair_ends_at_the_default_limit() -> None:
    child_model = ScriptedModel(lambda _: call("request_help"))
    root_model = ScriptedModel(lambda _: call("transfer_to_Child"))
    child = Agent("Child", model=child_model)

    guards = Guards.interactive(deadlock=None, loop=None)
    root = Agent("Root", model=root_model, agents=[child], guards=guards)
    reply = await root.ainvoke("hi")

    assert reply.close_reason == "max_steps"
    assert len(root_model.requests) + len(child_model.requests) == 50


async def test_reached_limit_is_told_with_its_decision() -> None:
    agent = endless_pair(Guards.interactive(steps=StepLimit(5, total=5)))

    events = [event async for event in agent.astream("hi")]

    [decision] = [event.decision for event in events if isinstance(event, GuardEvent)]
    evidence: Any = decision["evidence"]
    assert (decision["guard"], decision["action"]) == ("max_steps", "abort")
    assert (evidence["taken"], evidence["limit"]) == (5, 5)
    final = events[-1]
    assert isinstance(final, FinalStateEvent)
    assert final.close_reason == "max_steps"


async def test_steps_are_counted_over_all_levels() -> None:
    leaf_model, mid_model = patient(9), ScriptedModel([call("transfer_to_Leaf")])
    root_model = ScriptedModel([call("transfer_to_Mid")])
    leaf = Agent("Leaf", model=leaf_model, tools=[look_up])
    guards = Guards.interactive(steps=StepLimit(5, total=5))
    mid = Agent("Mid", model=mid_model, agents=[leaf])

    reply = await Agent("Root", model=root_model, agents=[mid], guards=guards).ainvoke("hi")

    assert reply.close_reason == "max_steps"
    assert [len(m.requests) for m in (root_model, mid_model, leaf_model)] == [1, 1, 3]


async def test_as_many_steps_as_allowed_are_no_fault() -> None:
    guards = Guards.interactive(steps=StepLimit(5, total=5))

    reply = await Agent("Solo", model=patient(4), tools=[look_up], guards=guards).ainvoke("hi")

    assert (reply.text, reply.close_reason) == ("done", None)


async def test_steps_start_anew_at_the_next_input() -> None:
    guards = Guards.interactive(steps=StepLimit(3))
    model = ScriptedModel([*[call("look_up", order="A7")] * 4, "done", "and done"])
    agent = Agent("Solo", model=model, tools=[look_up], guards=guards)

    first = await agent.ainvoke("hi", thread_id="t")
    second = await agent.ainvoke("go on", thread_id="t")
    third = await agent.ainvoke("more", thread_id="t")

    assert [r.close_reason for r in (first, second, third)] == ["max_steps", None, None]
    assert (second.text, third.text) == ("done", "and done")


async def test_without_guards_nothing_is_counted() -> None:
    agent = Agent("Solo", model=patient(60), tools=[look_up], guards=None)

    reply = await agent.ainvoke("hi")

    assert (reply.text, reply.close_reason) == ("done", None)


async def test_guards_of_the_root_hold_below_it() -> None:
    sub = Agent("Sub", model=patient(9), tools=[look_up])
    agent = Agent("Root", model=ScriptedModel([]), agents=[sub], guards=None)

    reply = await agent.replace(guards=Guards(steps=StepLimit(2, total=2))).ainvoke("@Sub hi")

    assert reply.close_reason == "max_steps"


async def test_parallel_delegates_share_the_count() -> None:
    models = [patient(20), patient(20)]
    names = ["One", "Two"]
    below = [
        Agent(name, model=model, tools=[look_up]) for name, model in zip(names, models, strict=True)
    ]
    root = ScriptedModel([[call(f"transfer_to_{name}") for name in names]])
    guards = Guards.interactive(steps=StepLimit(7, total=7))
    agent = Agent("Root", model=root, agents=below, handoff="delegate", guards=guards)

    reply = await agent.ainvoke("hi")

    assert reply.close_reason == "max_steps"
    assert len(root.requests) + sum(len(model.requests) for model in models) == 7


async def test_concurrent_threads_have_counts_of_their_own() -> None:
    guards = Guards.interactive(steps=StepLimit(3))
    model = ScriptedModel(
        lambda messages: "done" if len(messages) > 5 else call("look_up", order="A7")
    )
    agent = Agent("Solo", model=model, tools=[look_up], guards=guards)

    replies = await asyncio.gather(*(agent.ainvoke("hi") for _ in range(5)))

    assert {reply.close_reason for reply in replies} == {None}


async def test_handoff_returned_by_a_tool_moves_the_conversation() -> None:
    def escalate() -> Handoff:
        """Escalate."""
        return Handoff("Sub", reason="angry")

    sub = Agent("Sub", model=ScriptedModel(["sub answers"]))
    model = ScriptedModel([call("escalate")])

    reply = await Agent("Root", model=model, tools=[escalate], agents=[sub]).ainvoke("hi")

    assert (reply.text, reply.agent) == ("sub answers", "Root/Sub")


def test_limit_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one model call"):
        StepLimit(0)
