from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agentgraph import Agent, Intent
from agentgraph.testing import FakeClock, ScriptedModel, call

INTROSPECTION = {"get_time_date", "list_tools_available"}
LISTS_AGENTS = {"list_subagents_available"}
PLACE = {"get_current_active_agent", "get_supervisor_agent"}


def refund(reason: str) -> str:
    """Refund a customer.

    Only once per order.
    """
    return reason


async def told(agent: Agent, model: ScriptedModel, text: str = "hi") -> str:
    """Return what the first tool call of the model was answered."""
    await agent.ainvoke(text)
    return model.requests[-1].messages[-1].text


def asks(tool: str, **args: object) -> ScriptedModel:
    return ScriptedModel([call(tool, **args), "done"])


async def test_agent_alone_has_the_two_that_always_have_an_answer() -> None:
    model = ScriptedModel(["hello"])

    await Agent("Solo", model=model).ainvoke("hi")

    assert set(model.requests[0].tools) == INTROSPECTION


async def test_agent_with_intents_can_list_them() -> None:
    model = ScriptedModel(["hello"])
    intent = Intent("good morning", "raw", "Good morning to you.")

    await Agent("Solo", model=model, intents=[intent]).ainvoke("hi")

    assert set(model.requests[0].tools) == {*INTROSPECTION, "list_intents_available"}


async def test_agent_whose_only_others_answer_like_tools_can_list_them() -> None:
    model = ScriptedModel(["hello"])
    clerk = Agent("Clerk", model=ScriptedModel([])).as_tool()

    await Agent("Root", model=model, agents=[clerk]).ainvoke("hi")

    assert set(model.requests[0].tools) == INTROSPECTION | PLACE | LISTS_AGENTS | {"Clerk"}


async def test_supervisor_and_sub_agent_know_their_places_too() -> None:
    root, sub = ScriptedModel([call("transfer_to_Sub")]), ScriptedModel(["hello"])

    await Agent("Root", model=root, agents=[Agent("Sub", model=sub)]).ainvoke("hi")

    assert set(root.requests[0].tools) == INTROSPECTION | PLACE | LISTS_AGENTS | {"transfer_to_Sub"}
    assert set(sub.requests[0].tools) == INTROSPECTION | PLACE | {"request_help"}


async def test_default_tools_can_be_switched_off() -> None:
    root, sub = ScriptedModel([call("transfer_to_Sub")]), ScriptedModel(["hello"])
    below = Agent("Sub", model=sub, tools=[refund], default_tools=False)
    agent = Agent("Root", model=root, agents=[below], default_tools=False)

    await agent.ainvoke("hi")

    assert root.requests[0].tools == ("transfer_to_Sub",)
    assert sub.requests[0].tools == ("refund", "request_help")


async def test_switching_off_holds_for_one_agent_only() -> None:
    sub = ScriptedModel(["hello"])
    below = Agent("Sub", model=sub)
    agent = Agent("Root", model=ScriptedModel([]), agents=[below], default_tools=False)

    await agent.ainvoke("@Sub hi")

    assert set(sub.requests[0].tools) == INTROSPECTION | PLACE | {"request_help"}


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("UTC", "12:30:00 2026-07-14 UTC"),
        ("utc", "12:30:00 2026-07-14 UTC"),
        ("Europe/Paris", "14:30:00 2026-07-14 CEST"),
        ("Asia/Tokyo", "21:30:00 2026-07-14 JST"),
    ],
)
async def test_time_and_date_are_told_for_a_zone(zone: str, expected: str) -> None:
    model = asks("get_time_date", timezone=zone)

    with FakeClock(datetime(2026, 7, 14, 12, 30, tzinfo=UTC)).installed():
        answer = await told(Agent("Solo", model=model), model)

    assert answer == expected


async def test_time_and_date_are_utc_unless_a_zone_is_given() -> None:
    model = asks("get_time_date")

    with FakeClock(datetime(2026, 7, 14, 12, 30, tzinfo=UTC)).installed():
        answer = await told(Agent("Solo", model=model), model)

    assert answer == "12:30:00 2026-07-14 UTC"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "/etc/passwd", ""])
async def test_unknown_zone_is_answered_with_what_to_do(zone: str) -> None:
    model = asks("get_time_date", timezone=zone)

    answer = await told(Agent("Solo", model=model), model)

    assert answer == f"There is no time zone {zone!r}: use a name such as Europe/Paris."


async def test_tools_are_listed_by_name_and_first_line() -> None:
    model = asks("list_tools_available")

    answer = await told(Agent("Solo", model=model, tools=[refund]), model)

    assert answer == "- `refund`: Refund a customer."


async def test_sub_agents_are_listed_with_what_they_do() -> None:
    model = asks("list_subagents_available")
    billing = Agent("Billing", "Answers billing questions", model=ScriptedModel([]))
    clerk = Agent("Clerk", "Looks things up", model=ScriptedModel([])).as_tool()

    answer = await told(Agent("Root", model=model, agents=[billing, clerk]), model)

    assert answer == "- `Billing`: Answers billing questions\n- `Clerk`: Looks things up"


async def test_intents_are_listed_as_a_table() -> None:
    model = asks("list_intents_available")
    intents = [Intent("good morning", "raw", "Hello."), Intent("refund", "agent", "Sub")]
    agent = Agent(
        "Root", model=model, agents=[Agent("Sub", model=ScriptedModel([]))], intents=intents
    )

    answer = await told(agent, model)

    assert answer.splitlines() == [
        "| Phrase | Kind | Target |",
        "| --- | --- | --- |",
        "| good morning | raw | Hello. |",
        "| refund | agent | Sub |",
    ]


async def test_agent_without_tools_says_so() -> None:
    model = asks("list_tools_available")

    assert await told(Agent("Solo", model=model), model) == "I have no tools."


async def test_active_agent_and_supervisor_are_told_below() -> None:
    model = ScriptedModel(
        [[call("get_current_active_agent"), call("get_supervisor_agent")], "done"]
    )
    mid = Agent("Mid", model=ScriptedModel([]), agents=[Agent("Leaf", model=model)])

    await Agent("Root", model=ScriptedModel([]), agents=[mid]).ainvoke("@Leaf hi")

    assert [m.text for m in model.requests[-1].messages[-2:]] == ["Leaf", "Mid"]


async def test_root_has_no_supervisor() -> None:
    model = ScriptedModel(
        [[call("get_current_active_agent"), call("get_supervisor_agent")], "done"]
    )
    agent = Agent("Root", model=model, agents=[Agent("Sub", model=ScriptedModel([]))])

    await agent.ainvoke("hi")

    assert [m.text for m in model.requests[-1].messages[-2:]] == [
        "Root",
        "I have no supervisor.",
    ]


async def test_help_is_requested_of_the_supervisor_right_above() -> None:
    model = ScriptedModel([call("request_help", reason="not mine")])
    mid_model = ScriptedModel(["mid helps"])
    mid = Agent("Mid", model=mid_model, agents=[Agent("Leaf", model=model)])

    reply = await Agent("Root", model=ScriptedModel([]), agents=[mid]).ainvoke("@Leaf hi")

    assert reply.agent == "Root/Mid"
    assert mid_model.requests[0].messages[-1].text == "Help requested of Mid: not mine"


async def test_tools_that_move_the_conversation_say_what_for() -> None:
    model = ScriptedModel(["hello"])
    sub = Agent("Sub", "Answers billing questions.", model=ScriptedModel([]))

    await Agent("Root", model=model, agents=[sub], default_tools=False).ainvoke("hi")

    function = model.requests[0].specs[0]["function"]
    assert isinstance(function, dict)
    assert function["description"] == (
        "Transfer the conversation to Sub. Answers billing questions."
    )
    assert set(function["parameters"]["properties"]) == {"reason", "summary"}
    assert not function["parameters"].get("required")


async def test_callers_list_of_tools_stays_as_it_is() -> None:
    tools = [refund]
    agent = Agent("Solo", model=ScriptedModel(["hello"]), tools=tools)

    await agent.ainvoke("hi")

    assert tools == [refund]
