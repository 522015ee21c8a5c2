from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentgraph import Agent, Guards, Reply
from agentgraph.agents import Citation
from agentgraph.errors import ModelError
from agentgraph.guards import Backoff
from agentgraph.stream import (
    AIMessageEvent,
    ErrorEvent,
    Event,
    FinalStateEvent,
    GuardEvent,
    TokenEvent,
    ToolUsageEvent,
)
from agentgraph.testing import Fault, ScriptedModel, Turn, call


class Price(BaseModel):
    """A price."""

    amount: int


class Weight(TypedDict):
    """A weight."""

    grams: int


SIZE = {
    "title": "Size",
    "description": "A size.",
    "type": "object",
    "properties": {"metres": {"type": "integer"}},
    "required": ["metres"],
}
FORMS: list[tuple[Any, str, dict[str, Any], object]] = [
    (Price, "Price", {"amount": 3}, Price(amount=3)),
    (Weight, "Weight", {"grams": 3}, {"grams": 3}),
    (SIZE, "Size", {"metres": 3}, {"metres": 3}),
]
forms = pytest.mark.parametrize(("form", "name", "args", "output"), FORMS)


def refund(reason: str) -> str:
    """Refund a customer."""
    return f"refunded: {reason}"


async def told(agent: Agent, text: str, **fields: Any) -> list[Event]:
    return [event async for event in agent.astream(text, **fields)]


def errors(events: Sequence[Event]) -> list[str]:
    return [event.code for event in events if isinstance(event, ErrorEvent)]


def answers(reply: Reply) -> list[str]:
    return [str(m.text) for m in reply.messages if isinstance(m, ToolMessage)]


# -- a model without tools


async def test_a_model_that_cannot_bind_tools_runs_as_plain_chat_and_says_so() -> None:
    model = ScriptedModel(["Hello."], binds_tools=False)
    events = await told(Agent("desk", model=model, tools=[refund]), "hi")
    assert errors(events) == ["tools_unsupported"]
    assert isinstance(events[-1], FinalStateEvent)
    assert events[-1].text == "Hello."


async def test_a_model_that_cannot_bind_tools_and_needs_none_is_no_error() -> None:
    model = ScriptedModel(["Hello."], binds_tools=False)
    assert errors(await told(Agent("desk", model=model, default_tools=False), "hi")) == []


async def test_a_model_that_cannot_bind_tools_reads_the_calls_of_others_as_text() -> None:
    first = Agent("desk", model=ScriptedModel([call("refund", reason="a"), "Done."]))
    agent = first.replace(tools=[refund])
    before = await agent.ainvoke("go", thread_id="1")
    plain = ScriptedModel(["Yes."], binds_tools=False)
    await agent.replace(model=plain).ainvoke([*before.messages, HumanMessage("was it?")])
    seen = [m.text for m in plain.requests[0].messages[1:]]
    assert seen == ["[asked for: refund]", "[refund returned] refunded: a", "Done.", "was it?"]


async def test_a_model_that_cannot_bind_tools_is_plain_chat_inside_middleware_too() -> None:
    class Passing(AgentMiddleware[Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(request)

    model = ScriptedModel(["Hello."], binds_tools=False)
    agent = Agent("desk", model=model, tools=[refund], middleware=[Passing()])
    assert (await agent.ainvoke("hi")).text == "Hello."


# -- content blocks

SEARCHED = AIMessage(
    [
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "tides"},
        },
        {
            "type": "text",
            "text": "High at noon.",
            "annotations": [
                {
                    "type": "url_citation",
                    "url": "https://tides.example",
                    "title": "Tides",
                    "start_index": 0,
                    "end_index": 4,
                }
            ],
        },
    ],
    response_metadata={"model_provider": "openai", "output_version": "responses/v1"},
)


async def test_text_and_citations_of_a_responses_message_are_read() -> None:
    reply = await Agent("desk", model=ScriptedModel([SEARCHED])).ainvoke("tides?")
    assert reply.text == "High at noon."
    assert reply.citations == (Citation("https://tides.example", "Tides"),)


async def test_a_native_call_in_a_responses_message_is_told_and_not_answered() -> None:
    agent = Agent("desk", model=ScriptedModel([SEARCHED]), tools=[{"type": "web_search"}])
    events = await told(agent, "tides?", thread_id="1")
    (used,) = [event for event in events if isinstance(event, ToolUsageEvent)]
    assert (used.tool, used.call_id, used.agent) == ("web_search", "ws_1", "desk")
    assert used.args["query"] == "tides"
    assert [m.type for m in await agent.ahistory("1")] == ["human", "ai"]
    assert [e.text for e in events if isinstance(e, AIMessageEvent)] == ["High at noon."]


async def test_the_blocks_of_a_responses_message_go_back_to_the_model_as_they_were() -> None:
    model = ScriptedModel([SEARCHED, "Later."])
    agent = Agent("desk", model=model, tools=[{"type": "web_search"}])
    await agent.ainvoke("tides?", thread_id="1")
    await agent.ainvoke("and then?", thread_id="1")
    assert model.requests[1].messages[-2].content == SEARCHED.content


async def test_text_in_blocks_is_streamed_as_text() -> None:
    message = AIMessage([{"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}])
    events = await told(Agent("desk", model=ScriptedModel([message])), "go")
    assert [e.text for e in events if isinstance(e, TokenEvent)] == ["One. ", "Two."]
    assert isinstance(events[-1], FinalStateEvent)
    assert events[-1].text == "One. Two."


# -- provider errors, at the last of the three attempts


def at_once() -> Guards:
    return Guards.interactive(backoff=Backoff(base_s=0))


async def test_a_provider_error_is_raised_as_a_model_error_with_its_cause() -> None:
    model = ScriptedModel([Fault.server_error()] * 3)
    with pytest.raises(ModelError, match=r"'desk' failed: InternalServerError 500") as caught:
        await Agent("desk", model=model, guards=at_once()).ainvoke("hi")
    assert getattr(caught.value.__cause__, "status_code", None) == 500


@pytest.mark.parametrize("fault", [Fault.rate_limit(), Fault.cut("half of this is said")])
async def test_a_provider_error_is_told_once_and_then_raised(fault: Fault) -> None:
    events: list[Event] = []
    agent = Agent("desk", model=ScriptedModel([fault] * 3), guards=at_once())
    with pytest.raises(ModelError):
        async for event in agent.astream("hi"):
            events.append(event)  # noqa: PERF401 - kept although the iteration ends in an error
    assert errors(events) == ["model"]
    assert not [e for e in events if isinstance(e, AIMessageEvent | FinalStateEvent)]


@pytest.mark.parametrize("fault", [Fault.server_error(), Fault.cut("half of this is said")])
async def test_after_a_provider_error_nothing_is_stored_as_said_and_the_next_turn_works(
    fault: Fault,
) -> None:
    model = ScriptedModel([fault, fault, fault, "Hello."])
    agent = Agent("desk", model=model, guards=at_once())
    with pytest.raises(ModelError):
        await agent.ainvoke("one", thread_id="1")
    assert [m.text for m in await agent.ahistory("1")] == ["one"]
    reply = await agent.ainvoke("two", thread_id="1")
    assert reply.text == "Hello."
    assert [m.text for m in model.requests[3].messages[1:]] == ["one", "two"]


async def test_where_there_is_no_fallback_none_is_told_to_have_been_taken() -> None:
    agent = Agent("desk", model=ScriptedModel([Fault.server_error()] * 3), guards=at_once())
    events: list[Event] = []
    with pytest.raises(ModelError):
        async for event in agent.astream("hi"):
            events.append(event)  # noqa: PERF401 - kept although the iteration ends in an error
    told = [e.decision for e in events if isinstance(e, GuardEvent)][-1]
    failed = "the provider failed: InternalServerError 500"
    assert told["action"] == "abort"
    assert told["cause"] == f"{failed} (fallback is not possible here)"


async def test_a_provider_error_in_a_sub_agent_names_it_and_the_next_turn_goes_on_there() -> None:
    desk = ScriptedModel([call("transfer_to_clerk")])
    clerk = Agent("clerk", model=ScriptedModel([*[Fault.server_error()] * 3, "Hello."]))
    agent = Agent("desk", model=desk, agents=[clerk], guards=at_once())
    with pytest.raises(ModelError, match="clerk"):
        await agent.ainvoke("one", thread_id="1")
    reply = await agent.ainvoke("two", thread_id="1")
    assert (reply.text, reply.agent) == ("Hello.", "desk/clerk")


# -- usage


def used(read: int, written: int) -> UsageMetadata:
    return {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}


async def test_usage_is_summed_up_and_told_by_agent() -> None:
    clerk = ScriptedModel(
        [
            Turn(calls=[call("refund", reason="a")], usage=used(10, 1)),
            Turn("Done.", usage=used(20, 2)),
        ]
    )
    desk = ScriptedModel([Turn(calls=[call("transfer_to_clerk")], usage=used(100, 5))])
    agents = [Agent("clerk", model=clerk, tools=[refund])]
    reply = await Agent("desk", model=desk, agents=agents).ainvoke("hi")
    by_agent = {name: part.total_tokens for name, part in reply.usage.by_agent.items()}
    assert by_agent == {"desk": 105, "desk/clerk": 33}
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (130, 8)


async def test_usage_is_of_this_turn_alone_and_told_at_its_end() -> None:
    agent = Agent("desk", model=ScriptedModel([Turn(t, usage=used(10, 1)) for t in "ab"]))
    await agent.ainvoke("one", thread_id="1")
    final = (await told(agent, "two", thread_id="1"))[-1]
    assert isinstance(final, FinalStateEvent)
    assert final.usage["total_tokens"] == 11


# -- answers in a form


@forms
async def test_an_answer_in_a_form_is_the_output(
    form: Any, name: str, args: dict[str, Any], output: object
) -> None:
    model = ScriptedModel([call(name, **args)])
    reply = await Agent("desk", model=model, response_format=form).ainvoke("how much?")
    assert reply.output == output
    assert model.requests[0].tool_choice == "any"
    assert len(model.requests) == 1


@forms
async def test_a_misfit_answer_is_answered_with_the_error_and_corrected(
    form: Any, name: str, args: dict[str, Any], output: object
) -> None:
    model = ScriptedModel([call(name, **dict.fromkeys(args, "much")), call(name, **args)])
    reply = await Agent("desk", model=model, response_format=form).ainvoke("how much?")
    assert "does not fit" in answers(reply)[0]
    assert reply.output == output


@forms
async def test_a_text_answer_that_is_json_is_read(
    form: Any, name: str, args: dict[str, Any], output: object
) -> None:
    text = str(args).replace("'", '"')
    reply = await Agent("desk", model=ScriptedModel([text]), response_format=form).ainvoke("?")
    assert (reply.output, reply.text) == (output, text)


async def test_the_output_of_a_turn_does_not_stay_for_the_next() -> None:
    model = ScriptedModel([call("Price", amount=3), call("transfer_to_clerk")])
    clerk = Agent("clerk", model=ScriptedModel(["No."]))
    agent = Agent("desk", model=model, agents=[clerk], response_format=Price)
    await agent.ainvoke("how much?", thread_id="1")
    reply = await agent.ainvoke("sure?", thread_id="1")
    assert (reply.text, reply.output) == ("No.", None)


async def test_tools_run_before_the_answer_in_a_form() -> None:
    model = ScriptedModel([call("refund", reason="a"), call("Price", amount=3)])
    agent = Agent("desk", model=model, tools=[refund], response_format=Price)
    reply = await agent.ainvoke("how much?")
    assert answers(reply)[0] == "refunded: a"
    assert reply.output == Price(amount=3)


async def test_an_answer_in_a_form_beside_a_tool_waits_for_the_tool() -> None:
    model = ScriptedModel([[call("Price", amount=3), call("refund", reason="a")]])
    agent = Agent("desk", model=model, tools=[refund], response_format=Price)
    reply = await agent.ainvoke("how much?")
    assert "refunded: a" in answers(reply)
    assert reply.output == Price(amount=3)


@forms
async def test_a_sub_agent_answers_in_its_form(
    form: Any, name: str, args: dict[str, Any], output: object
) -> None:
    clerk = Agent("clerk", model=ScriptedModel([call(name, **args)]), response_format=form)
    desk = ScriptedModel([call("transfer_to_clerk")])
    reply = await Agent("desk", model=desk, agents=[clerk]).ainvoke("how much?")
    assert (reply.output, reply.agent) == (output, "desk/clerk")
