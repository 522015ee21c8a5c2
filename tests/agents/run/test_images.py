"""Images, files and sounds: what a user gives, what a model makes, what a tool returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from agentgraph import Agent
from agentgraph.stream import AIMessageEvent, Event, FinalStateEvent, ToolResponseEvent
from agentgraph.testing import ScriptedModel, call
from tests.wire import call as wire_call
from tests.wire import chat_openai, serve, text

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
IMAGE = {"type": "image", "base64": PIXEL, "mime_type": "image/png"}
LINKED = {"type": "image", "url": "https://pictures.example/chart.png"}
CAPTION = {"type": "text", "text": "The chart."}
DRAWN = AIMessage([CAPTION, IMAGE])


def draw() -> list[dict[str, Any]]:
    """Draw a chart."""
    return [CAPTION, IMAGE]


def find() -> list[str]:
    """Find nothing."""
    return []


async def told(agent: Agent, given: Any = "draw it", **fields: Any) -> list[Event]:
    return [event async for event in agent.astream(given, **fields)]


def drawings(events: Sequence[Event]) -> list[Any]:
    return [(e.text, *e.blocks) for e in events if isinstance(e, AIMessageEvent)]


async def test_an_image_in_an_answer_is_kept_stored_and_told_beside_its_text() -> None:
    agent = Agent("desk", model=ScriptedModel([DRAWN, DRAWN]))
    reply = await agent.ainvoke("draw it", thread_id="t")
    events = await told(agent)

    assert reply.text == "The chart."
    assert reply.messages[-1].content == DRAWN.content
    assert (await agent.ahistory("t"))[-1].content == DRAWN.content
    assert drawings(events) == [("The chart.", IMAGE)]
    assert isinstance(events[-1], FinalStateEvent)
    assert events[-1].text == "The chart."


async def test_an_image_without_a_text_is_told() -> None:
    agent = Agent("desk", model=ScriptedModel([AIMessage([IMAGE])]))
    assert drawings(await told(agent)) == [("", IMAGE)]


async def test_an_image_of_openai_s_own_tool_is_told() -> None:
    made = AIMessage(
        [{"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PIXEL}],
        response_metadata={"model_provider": "openai", "output_version": "responses/v1"},
    )
    ((_, block),) = drawings(await told(Agent("desk", model=ScriptedModel([made]))))
    assert (block["type"], block["base64"]) == ("image", PIXEL)


async def test_an_image_of_a_foreign_graph_is_told() -> None:
    graph = create_agent(ScriptedModel([DRAWN]), [], name="painter")
    root = Agent("desk", model=ScriptedModel([call("transfer_to_painter")]), agents=[graph])
    assert ("The chart.", IMAGE) in drawings(await told(root))


async def test_events_without_an_image_have_no_blocks_on_the_wire() -> None:
    agent = Agent("desk", model=ScriptedModel([call("find"), "Nothing."]), tools=[find])
    assert not [e for e in await told(agent) if "blocks" in e.to_dict()]


async def test_an_image_of_a_tool_reaches_the_model_and_the_stream() -> None:
    model = ScriptedModel([call("draw"), "There."])
    agent = Agent("desk", model=model, tools=[draw])
    events = await told(agent, thread_id="t")

    (response,) = [e for e in events if isinstance(e, ToolResponseEvent)]
    assert (response.content, list(response.blocks)) == ("The chart.", [IMAGE])
    assert response.to_dict()["blocks"] == [IMAGE]
    answer = model.requests[1].messages[-1]
    assert isinstance(answer, ToolMessage)
    assert answer.content == [CAPTION, IMAGE]


async def test_a_tool_message_with_an_image_reaches_the_model_whole() -> None:
    def draw_message() -> ToolMessage:
        """Draw a chart."""
        return ToolMessage([CAPTION, LINKED], tool_call_id="", artifact={"rows": 3})

    model = ScriptedModel([call("draw_message"), "There."])
    reply = await Agent("desk", model=model, tools=[draw_message]).ainvoke("draw it")

    assert model.requests[1].messages[-1].content == [CAPTION, LINKED]
    (answer,) = [m for m in reply.messages if isinstance(m, ToolMessage)]
    assert answer.artifact == {"rows": 3}


async def test_a_tool_that_finds_nothing_answers_with_an_empty_list() -> None:
    model = ScriptedModel([call("find"), "Nothing."])
    await Agent("desk", model=model, tools=[find]).ainvoke("find it")
    assert model.requests[1].messages[-1].content == "[]"


@pytest.mark.parametrize("as_blocks", [True, False])
async def test_images_reach_openai_in_its_own_form(as_blocks: bool) -> None:
    with serve() as wire:
        wire.script(wire_call("draw"), text("There."), text("Yes."))
        agent = Agent("desk", model=chat_openai(wire), tools=[draw])
        given: Any = [CAPTION, LINKED]
        given = given if as_blocks else HumanMessage(given)
        await agent.ainvoke(given, thread_id="t")
        await agent.ainvoke("really?", thread_id="t")
        for body in wire.requests:
            asked = next(m for m in body["messages"] if m["role"] == "user")
            assert asked["content"][1] == {
                "type": "image_url",
                "image_url": {"url": "https://pictures.example/chart.png"},
            }
        for body in wire.requests[1:]:
            drawn = next(m for m in body["messages"] if m["role"] == "tool")
            assert PIXEL in str(drawn["content"])
