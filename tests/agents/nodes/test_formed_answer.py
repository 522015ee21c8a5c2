"""An answer in a form is met, or asked for once more, or the run ends with an error."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from pydantic import BaseModel, ConfigDict, Field, RootModel
from typing_extensions import TypedDict

from agentgraph import Agent, Envelope, Finish, Guards, Team, sequence
from agentgraph.errors import ConfigurationError, ModelError
from agentgraph.guards import CircuitBreaker, CostBudget, Escalation, Gate
from agentgraph.sessions import EV_ROUND_FAILED
from agentgraph.stream import AIMessageEvent, ErrorEvent, FinalStateEvent
from agentgraph.testing import ScriptedModel, Turn, call, check_history
from agentgraph.testing.answers import Scripted, bad_call


class Price(BaseModel):
    """A price."""

    amount: int


class Refusal(BaseModel):
    """Why there is no price."""

    reason: str


class Doubt(BaseModel):
    """Why the price is doubtful: the same fields as a refusal's."""

    reason: str


SIZE = {"type": "object", "properties": {"metres": {"type": "integer"}}, "required": ["metres"]}
WRONG: dict[str, Scripted] = {
    "a text": "Three.",
    "JSON that does not fit": '{"amount": "much"}',
    "a list": "[]",
    "a call that does not fit": call("Price", amount="much"),
    "a malformed call": [bad_call("Price")],
    "nothing": "",
}


def refund(reason: str) -> str:
    """Refund a customer."""
    return f"refunded: {reason}"


def pricing(*turns: Scripted, **fields: Any) -> tuple[Agent[Any], ScriptedModel]:
    """Return an agent that has to answer with a price, and its model."""
    model = ScriptedModel(turns)
    settings = {"response_format": Price, "default_tools": False, **fields}
    return Agent("desk", model=model, **settings), model


def texts(messages: Sequence[Any]) -> list[str]:
    return [str(message.text) for message in messages]


# -- once more, then an error


@pytest.mark.parametrize("wrong", WRONG)
async def test_an_answer_that_does_not_fit_is_asked_for_once_more(wrong: str) -> None:
    agent, model = pricing(WRONG[wrong], call("Price", amount=3))
    reply = await agent.ainvoke("how much?", thread_id="1")
    assert reply.output == Price(amount=3)
    assert len(model.requests) == 2
    check_history([*await agent.ahistory("1"), HumanMessage("next")])


@pytest.mark.parametrize("second", WRONG)
@pytest.mark.parametrize("first", WRONG)
async def test_a_second_answer_that_does_not_fit_ends_the_run(first: str, second: str) -> None:
    agent, model = pricing(WRONG[first], WRONG[second], call("Price", amount=3))
    events: list[Any] = []
    with pytest.raises(ModelError, match="'desk' misses its response_format") as raised:
        async for event in agent.astream("how much?", thread_id="1"):
            events += [event]
    assert raised.value.code == "output"
    assert len(model.requests) == 2
    assert [event.code for event in events if isinstance(event, ErrorEvent)] == ["output"]
    assert not any(isinstance(event, FinalStateEvent) for event in events)
    reply = await agent.ainvoke("once more", thread_id="1")
    assert reply.output == Price(amount=3)


async def test_the_model_is_told_what_does_not_fit_and_what_would() -> None:
    agent, model = pricing('{"amount": "much"}', '{"amount": 3}')
    await agent.ainvoke("how much?")
    question, said, correction = model.requests[1].messages[-3:]
    assert texts([question, said]) == ["how much?", '{"amount": "much"}']
    assert isinstance(correction, HumanMessage)
    assert "amount: Input should be a valid integer" in correction.text
    assert "Call Price" in correction.text and '"required": ["amount"]' in correction.text


async def test_a_text_that_does_not_fit_is_not_kept_but_paid_for() -> None:
    usage = UsageMetadata(input_tokens=5, output_tokens=1, total_tokens=6)
    agent, _ = pricing(
        Turn("Three.", usage=usage), Turn("", [call("Price", amount=3)], usage=usage)
    )
    events = [event async for event in agent.astream("how much?", thread_id="1")]
    assert not [event for event in events if isinstance(event, AIMessageEvent)]
    assert isinstance(events[-1], FinalStateEvent)
    assert events[-1].usage["total_tokens"] == 12
    assert "Three." not in texts(await agent.ahistory("1"))
    assert events[-1].text == '{"amount":3}'


async def test_a_new_turn_may_miss_once_again() -> None:
    wrong, right = call("Price", amount="much"), call("Price", amount=3)
    agent, _ = pricing(wrong, right, wrong, right)
    for _ in range(2):
        assert (await agent.ainvoke("how much?", thread_id="1")).output == Price(amount=3)


async def test_tools_run_between_a_wrong_answer_and_the_right_one() -> None:
    agent, model = pricing(
        [call("Price", amount="much"), call("refund", reason="a")],
        call("refund", reason="b"),
        call("Price", amount=3),
        tools=[refund],
    )
    reply = await agent.ainvoke("how much?")
    results = [str(m.text) for m in reply.messages if isinstance(m, ToolMessage)]
    assert "does not fit" in results[0]
    assert [text for text in results if text.startswith("refunded")] == [
        "refunded: a",
        "refunded: b",
    ]
    assert (reply.output, len(model.requests)) == (Price(amount=3), 3)


async def test_a_question_between_does_not_excuse_a_second_miss() -> None:
    def ask() -> str:
        """Ask a human."""
        return str(interrupt("how much?"))

    agent, model = pricing(
        [call("Price", amount="much"), call("ask")],
        call("Price", amount="more"),
        tools=[ask],
        checkpointer=InMemorySaver(),
    )
    [question] = (await agent.ainvoke("how much?", thread_id="1")).interrupts
    with pytest.raises(ModelError) as raised:
        await agent.replace().aresume("1", {question.id: "three"})  # as another process would
    assert (raised.value.code, len(model.requests)) == ("output", 2)


async def test_a_strategy_that_handles_no_errors_has_no_second_try() -> None:
    strategy = ToolStrategy(Price, handle_errors=False)
    agent, model = pricing("Three.", response_format=strategy)
    with pytest.raises(ModelError, match="misses its response_format"):
        await agent.ainvoke("how much?")
    assert len(model.requests) == 1


# -- forms


@dataclass
class Parcel:
    grams: int
    fragile: bool = False


class Item(typing.TypedDict):
    sku: str


class Order(typing.TypedDict, total=False):
    """An order."""

    number: typing.Required[int]
    items: list[Item]


class Size(TypedDict):
    """A size."""

    metres: int


class Strict(BaseModel):
    """A booking, with no value converted."""

    model_config = ConfigDict(strict=True)

    day: date = Field(alias="theDay")
    rooms: list[str] = []


KINDS: list[tuple[Any, Scripted, object]] = [
    (Parcel, call("Parcel", grams=3), Parcel(3)),
    (Order, call("Order", number=3, items=[{"sku": "a"}]), {"number": 3, "items": [{"sku": "a"}]}),
    (Size, call("Size", metres=3), {"metres": 3}),
    (SIZE, call("Answer", metres=3), {"metres": 3}),
    ({**SIZE, "title": "The size!"}, call("The_size_", metres=3), {"metres": 3}),
    (Strict, call("Strict", theDay="2026-01-02"), Strict(theDay=date(2026, 1, 2))),
    (Price, '```json\n{"amount": 3}\n```', Price(amount=3)),
    (Price | Refusal, call("Refusal", reason="sold"), Refusal(reason="sold")),
    (ToolStrategy(Price | Refusal), call("Price", amount=3), Price(amount=3)),
    (ToolStrategy(Refusal | Doubt), call("Doubt", reason="old"), Doubt(reason="old")),
    (ToolStrategy({"oneOf": [{**SIZE, "title": "A"}, {**SIZE, "title": "B"}]}), call("B", metres=3),
     {"metres": 3}),
    (ProviderStrategy(Parcel), '{"grams": 3, "fragile": true}', Parcel(3, True)),
]  # fmt: skip


@pytest.mark.parametrize(("form", "answer", "output"), KINDS)
async def test_every_kind_of_form_is_read(form: Any, answer: Scripted, output: object) -> None:
    agent, model = pricing(answer, response_format=form)
    reply = await agent.ainvoke("?")
    assert reply.output == output and type(reply.output) is type(output)
    assert len(model.requests) == 1


@pytest.mark.parametrize(("form", "answer", "output"), KINDS)
async def test_every_kind_of_form_is_enforced(form: Any, answer: Scripted, output: object) -> None:
    agent, _ = pricing('{"metres": "x"}', '{"grams": "x"}', response_format=form)
    with pytest.raises(ModelError) as raised:
        await agent.ainvoke("?")
    assert raised.value.code == "output"


async def test_a_provider_is_asked_for_the_form_in_its_own_way() -> None:
    strategy = ProviderStrategy(Price, strict=True)
    agent, model = pricing('{"amount": 3}', tools=[refund], response_format=strategy)
    await agent.ainvoke("?")
    [request] = model.requests
    assert request.options == strategy.to_model_kwargs()
    assert (request.tools, request.tool_choice) == (("refund",), None)


@pytest.mark.parametrize("wraps", [False, True])
async def test_a_provider_without_tools_is_asked_for_the_form_too(wraps: bool) -> None:
    middleware = [Wrapping()] if wraps else []
    strategy = ProviderStrategy(Price)
    agent, model = pricing('{"amount": 3}', response_format=strategy, middleware=middleware)
    assert (await agent.ainvoke("?")).output == Price(amount=3)
    assert model.requests[0].options == strategy.to_model_kwargs()


async def test_a_provider_that_is_known_to_have_no_forms_gets_a_tool() -> None:
    model = ScriptedModel([call("Price", amount=3)], profile={"structured_output": False})
    agent = Agent("desk", model=model, response_format=ProviderStrategy(Price))
    assert (await agent.ainvoke("?")).output == Price(amount=3)
    assert "Price" in model.requests[0].tools


async def test_the_text_of_a_strategy_answers_the_call() -> None:
    strategy = ToolStrategy(Price, tool_message_content="Noted.")
    agent, _ = pricing(call("Price", amount=3), response_format=strategy)
    reply = await agent.ainvoke("?")
    assert texts(reply.messages)[-1] == "Noted."


async def test_a_model_without_tools_is_told_to_answer_in_json() -> None:
    model = ScriptedModel(["Three.", '{"amount": 3}'], binds_tools=False)
    agent = Agent("desk", model=model, response_format=Price, system_prompt="Be brief.")
    assert (await agent.ainvoke("how much?")).output == Price(amount=3)
    for request in model.requests:
        assert "Be brief." in request.system and '"required": ["amount"]' in request.system


class Wrapping(AgentMiddleware[Any, Any]):
    """Middleware that wraps the model's calls, and changes nothing."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request)


async def test_an_answer_through_middleware_is_asked_for_once_more() -> None:
    agent, model = pricing("Three.", call("Price", amount=3), middleware=[Wrapping()])
    assert (await agent.ainvoke("how much?")).output == Price(amount=3)
    assert [request.tools for request in model.requests] == [("Price",)] * 2


class Numbers(RootModel[list[int]]):
    """A list is not what a call can have."""


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ("Price", "no class"),
        (3, "no class"),
        (int, "has to be an object"),
        (Numbers, "'Numbers' has to be an object"),
        (Price | None, "'NoneType' has to be an object"),
        (Wrapping, "Unable to generate"),
        ({"type": "objct"}, "is not valid"),
        (ToolStrategy({"oneOf": [SIZE, SIZE]}), "a name of its own"),
    ],
)
def test_what_is_no_form_is_refused_with_the_reason(form: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Agent("desk", response_format=form)
    [fault] = raised.value.faults
    assert fault.startswith("response_format=") and "give a pydantic model" in fault
    assert reason in fault and len(fault) < 700


def test_every_form_of_a_union_needs_a_name_that_no_tool_has() -> None:
    def refusal() -> str:
        """Refuse."""
        return ""

    refusal.__name__ = "Refusal"
    with pytest.raises(ConfigurationError, match="'Refusal' is taken twice"):
        Agent("desk", tools=[refusal], response_format=ToolStrategy(Price | Refusal))


async def test_a_model_that_gives_itself_a_name_has_no_more_tries_than_others() -> None:
    wrong = AIMessage("", name="gpt", tool_calls=[call("Price", amount="much") | {"id": "1"}])
    agent, model = pricing(wrong, wrong.model_copy(deep=True), guards=None)
    with pytest.raises(ModelError):
        await agent.ainvoke("how much?")
    assert len(model.requests) == 2


# -- sub-agents and sessions


@pytest.mark.parametrize("handoff", ["sticky", "delegate"])
async def test_a_sub_agent_answers_for_its_own_form(handoff: Any) -> None:
    clerk, model = pricing("Three.", call("Price", amount=3))
    clerk = clerk.replace(name="clerk")
    desk = ScriptedModel([call("transfer_to_clerk"), "It is 3."])
    agent: Agent[Any] = Agent("desk", model=desk, agents=[clerk], handoff=handoff)
    reply = await agent.ainvoke("how much?")
    assert len(model.requests) == 2
    if handoff == "sticky":
        assert (reply.output, reply.agent) == (Price(amount=3), "desk/clerk")
    else:
        assert '{"amount":3}' in texts(reply.messages) and reply.text == "It is 3."


@pytest.mark.parametrize("how", ["sticky", "delegate", "as_tool"])
async def test_a_sub_agent_that_misses_its_form_ends_the_run(how: str) -> None:
    clerk, _ = pricing("Three.", "Four.")
    clerk = clerk.replace(name="clerk")
    ask = call("clerk", request="?") if how == "as_tool" else call("transfer_to_clerk")
    members: list[Any] = [clerk.as_tool() if how == "as_tool" else clerk]
    mode: Any = "delegate" if how == "delegate" else "sticky"
    agent = Agent("desk", model=ScriptedModel([ask]), agents=members, handoff=mode)
    with pytest.raises(ModelError, match="'clerk' misses its response_format") as raised:
        await agent.ainvoke("how much?")
    assert raised.value.code == "output"


async def test_a_supervisors_form_holds_for_its_own_answers_only() -> None:
    clerk = Agent("clerk", model=ScriptedModel(["It is three."]))
    agent, _ = pricing(call("transfer_to_clerk"), agents=[clerk])
    reply = await agent.ainvoke("how much?")
    assert (reply.text, reply.output) == ("It is three.", None)


async def test_an_answer_with_defaults_is_whole_in_a_session() -> None:
    agent, _ = pricing("Three grams.", call("Parcel", grams=3), response_format=Parcel)
    result = await Team([agent], sequence(["desk"])).arun("how heavy?")
    assert result.text == '{"grams":3,"fragile":false}'


async def test_a_round_whose_answer_misses_the_form_fails_as_that_and_runs_again() -> None:
    agent, _ = pricing("Three.", "Four.", "Five.", call("Price", amount=3))
    items = [item async for item in Team([agent], sequence(["desk"])).astream("how much?")]
    envelopes = [item for item in items if isinstance(item, Envelope)]
    [failure] = [e for e in envelopes if e.event_type == EV_ROUND_FAILED]
    assert failure.event_data["code"] == "output"
    assert [item.code for item in items if isinstance(item, ErrorEvent)] == ["output"]
    assert [e.text for e in envelopes if e.sender_id == "desk" and e.text] == ['{"amount":3}']


# -- what is no miss


async def test_a_text_that_ends_the_turn_without_the_model_is_no_miss() -> None:
    def done() -> Finish:
        """Be done."""
        return Finish("Closed.")

    agent, _ = pricing(call("done"), tools=[done])
    reply = await agent.ainvoke("?")
    assert (reply.text, reply.output) == ("Closed.", None)


async def test_a_run_that_a_guard_ends_is_no_miss() -> None:
    agent, model = pricing("Three.", guards=Guards.interactive(budget=CostBudget(tokens=1)))
    reply = await agent.ainvoke("how much?")
    assert (reply.close_reason, reply.output) == ("cost_budget", None)
    assert model.requests == []


async def test_a_limit_of_steps_ends_the_run_before_it_is_asked_again() -> None:
    agent, model = pricing("Three.", "Four.", guards=Guards.interactive(steps=1))
    reply = await agent.ainvoke("how much?")
    assert (reply.close_reason, reply.output) == ("max_steps", None)
    assert len(model.requests) == 1


async def test_the_safe_answer_of_a_guard_is_no_miss() -> None:
    safe = CircuitBreaker(fallback=AIMessage("I must not tell."))
    gate = Gate(policy=lambda subject: "no secrets" if "secret" in subject.text else None)
    agent, _ = pricing("a secret", guards=Guards.interactive(gates=gate, breaker=safe))
    reply = await agent.ainvoke("how much?")
    assert (reply.text, reply.output) == ("I must not tell.", None)


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        ({"type": "respond", "message": "Ask Ann."}, "Ask Ann."),
        (
            {"type": "reject"},
            "The run was ended by the guard escalation: a human has rejected it.",
        ),
    ],
)
async def test_what_a_human_says_in_place_of_the_model_is_no_miss(decision: Any, text: str) -> None:
    critic = Escalation(0.5, critic=lambda subject: 0.1)
    agent, _ = pricing(call("Price", amount=3), guards=Guards.interactive(escalation=critic))
    [question] = (await agent.ainvoke("how much?", thread_id="1")).interrupts
    reply = await agent.aresume("1", {question.id: decision})
    assert (reply.text, reply.output) == (text, None)


async def test_a_critic_sees_the_answer_that_was_asked_for_again() -> None:
    critic = Escalation(0.5, critic=lambda subject: 0.1 if "3" in subject.text else 0.9)
    turns = ("Four.", call("Price", amount=3))
    agent, model = pricing(*turns, guards=Guards.interactive(escalation=critic))
    [question] = (await agent.ainvoke("how much?", thread_id="1")).interrupts
    reply = await agent.aresume("1", {question.id: "approve"})
    assert (reply.output, len(model.requests)) == (Price(amount=3), 2)
