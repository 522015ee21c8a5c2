"""What an agent takes as an input, and what it refuses before anything is stored."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent
from agentgraph.errors import ConfigurationError
from agentgraph.testing import ScriptedModel

IMAGE = {"type": "image", "url": "https://pictures.example/cat.png"}
SOUND = {"type": "audio", "base64": "aGVsbG8=", "mime_type": "audio/wav"}
PAPER = {"type": "file", "base64": "aGVsbG8=", "mime_type": "application/pdf"}
TEXT = {"type": "text", "text": "What is this?"}


def listener() -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(["Yes."])
    return Agent("desk", model=model), model


@pytest.mark.parametrize(
    "given",
    [
        "hi",
        HumanMessage("hi"),
        [HumanMessage("hi")],
        (HumanMessage("hi"),),
        [{"role": "user", "content": "hi"}],
        {"role": "user", "content": "hi"},
        {"messages": [HumanMessage("hi")]},
        {"messages": (HumanMessage("hi"),)},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": "hi"},
        [("user", "hi")],
        ["hi"],
    ],
)
async def test_a_text_a_message_or_a_state_of_messages_is_an_input(given: Any) -> None:
    agent, model = listener()
    assert (await agent.ainvoke(given)).text == "Yes."
    assert [m.text for m in model.requests[0].messages[1:]] == ["hi"]


async def test_the_messages_of_a_reply_are_an_input() -> None:
    first, _ = listener()
    reply = await first.ainvoke("hi")
    agent, model = listener()
    await agent.ainvoke({"messages": [HumanMessage("hi"), *reply.messages, HumanMessage("so?")]})
    assert [m.text for m in model.requests[0].messages[1:]] == ["hi", "Yes.", "so?"]


@pytest.mark.parametrize(
    "blocks", [[TEXT, IMAGE], [IMAGE], [SOUND], [TEXT, PAPER], ["What is this?", IMAGE], [TEXT]]
)
@pytest.mark.parametrize("in_state", [True, False])
async def test_content_blocks_are_one_message_of_the_human(blocks: Any, in_state: bool) -> None:
    agent, model = listener()
    await agent.ainvoke({"messages": blocks} if in_state else blocks, thread_id="t")
    (asked,) = model.requests[0].messages[1:]
    assert isinstance(asked, HumanMessage)
    assert asked.content == blocks
    assert (await agent.ahistory("t"))[0].content == blocks


EMPTY = [
    "",
    " \n\t",
    [],
    (),
    [""],
    HumanMessage(""),
    [HumanMessage(" ")],
    HumanMessage([]),
    [{"type": "text", "text": " "}],
    HumanMessage([{"type": "text", "text": ""}]),
    [AIMessage("Hello, how can I help?"), HumanMessage("")],
    {"messages": []},
    {"messages": ""},
]


@pytest.mark.parametrize("given", EMPTY, ids=repr)
async def test_an_empty_input_is_refused_before_anything_is_stored(given: Any) -> None:
    agent, model = listener()
    with pytest.raises(ConfigurationError, match="is empty: give a text") as error:
        await agent.ainvoke(given, thread_id="t")
    assert error.value.code == "input"
    assert await agent.ahistory("t") == []
    assert (await agent.ainvoke("hi", thread_id="t")).text == "Yes."
    assert len(model.requests) == 1


def test_an_empty_input_is_refused_by_sync_calls_too() -> None:
    agent, _ = listener()
    with pytest.raises(ConfigurationError, match="is empty"):
        agent.invoke("")
    with pytest.raises(ConfigurationError, match="is empty"):
        list(agent.stream(""))


@pytest.mark.parametrize(
    "given",
    [
        {"question": "hi"},
        {"messages": ["hi"], "tier": "gold"},
        {"messages": {"question": "hi"}},
        {},
        3,
        None,
        [3],
        [IMAGE, HumanMessage("hi")],
    ],
    ids=repr,
)
async def test_another_input_is_refused_and_told_what_to_give(given: Any) -> None:
    agent, _ = listener()
    advice = r"is no text, message or list of messages .*'messages'.* `context=`"
    with pytest.raises(ConfigurationError, match=advice) as error:
        await agent.ainvoke(given, thread_id="t")
    assert error.value.code == "input"
    assert await agent.ahistory("t") == []


async def test_a_refused_input_is_not_repeated_at_length() -> None:
    agent, _ = listener()
    with pytest.raises(ConfigurationError) as error:
        await agent.ainvoke({"image": "A" * 100_000})  # type: ignore[arg-type]
    assert len(str(error.value)) < 1000


async def test_an_empty_message_of_an_old_thread_is_not_sent() -> None:
    model = ScriptedModel(["Here."])
    agent = Agent("desk", model=model, checkpointer=InMemorySaver())
    old = {"messages": [HumanMessage("", id="1"), AIMessage("Yes?", id="2")]}
    config: Any = {"configurable": {"thread_id": "t"}}
    await agent.graph.aupdate_state(config, old, as_node="call_model")

    await agent.ainvoke("hi", thread_id="t")

    assert [m.text for m in model.requests[0].messages[1:]] == ["Yes?", "hi"]
    assert [m.text for m in await agent.ahistory("t")] == ["", "Yes?", "hi", "Here."]
