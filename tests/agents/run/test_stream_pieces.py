"""What a model thinks and the arguments that it writes, on the stream, piece by piece."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from agentgraph import Agent, Guards
from agentgraph.guards import Gate
from agentgraph.stream import (
    AIMessageEvent,
    Event,
    FinalStateEvent,
    ReasoningEvent,
    TokenEvent,
    ToolArgsEvent,
    ToolUsageEvent,
)
from agentgraph.testing import ScriptedModel, Turn, call

THOUGHT = "He was charged twice, I think."


def refund(reason: str) -> str:
    """Refund a charge."""
    return f"refunded: {reason}"


async def told(agent: Agent, text: str = "I was charged twice", **fields: Any) -> list[Event]:
    return [event async for event in agent.astream(text, **fields)]


def thoughts(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningEvent))


def types(events: Sequence[Event]) -> list[str]:
    """Return the types of events, each once where it repeats itself."""
    named = [event.type for event in events]
    return [one for one, before in zip(named, [None, *named], strict=False) if one != before]


def thinking(text: str = "It is on its way.", **fields: Any) -> Turn:
    return Turn(text, reasoning=THOUGHT, **fields)


async def test_thoughts_are_told_before_the_text_and_are_no_part_of_it() -> None:
    events = await told(Agent("desk", model=ScriptedModel([thinking()])))

    assert types(events) == ["reasoning", "token", "ai_message", "message"]
    assert thoughts(events) == THOUGHT
    assert len([e for e in events if isinstance(e, ReasoningEvent)]) > 2
    assert isinstance(events[-1], FinalStateEvent)
    assert events[-1].text == "It is on its way."
    assert {e.message_id for e in events if isinstance(e, ReasoningEvent | TokenEvent)} == {
        e.message_id for e in events if isinstance(e, AIMessageEvent)
    }


async def test_thoughts_are_stored_once_with_their_message() -> None:
    agent = Agent("desk", model=ScriptedModel([thinking()]))
    await told(agent, thread_id="t")
    _, answer = await agent.ahistory("t")
    blocks: list[Any] = answer.content_blocks
    assert [block["type"] for block in blocks] == ["reasoning", "text"]
    assert blocks[0]["reasoning"] == THOUGHT


async def test_arguments_are_told_in_pieces_before_the_call() -> None:
    model = ScriptedModel(
        [thinking("", calls=[call("refund", reason="twice")], pieces=True), "Done."]
    )
    events = await told(Agent("desk", model=model, tools=[refund]))

    pieces = [e for e in events if isinstance(e, ToolArgsEvent)]
    (used,) = [e for e in events if isinstance(e, ToolUsageEvent)]
    assert len(pieces) > 1
    assert json.loads("".join(piece.delta for piece in pieces)) == {"reason": "twice"}
    assert {(piece.tool, piece.call_id) for piece in pieces} == {("refund", used.call_id)}
    assert types(events)[:3] == ["reasoning", "tool_args", "tool_usage"]


async def test_the_pieces_of_parallel_calls_have_their_own_ids() -> None:
    both = Turn("", [call("refund", reason="one"), call("refund", reason="two")], pieces=True)
    agent = Agent("desk", model=ScriptedModel([both, "Done."]), tools=[refund])
    pieces = [e for e in await told(agent) if isinstance(e, ToolArgsEvent)]

    joined: dict[str, str] = {}
    for piece in pieces:
        joined[piece.call_id] = joined.get(piece.call_id, "") + piece.delta
    assert [json.loads(text)["reason"] for text in joined.values()] == ["one", "two"]


async def test_a_transfer_is_told_as_a_move_and_not_by_its_arguments() -> None:
    transfer = Turn("", [call("transfer_to_billing", reason="money")], pieces=True)
    model = ScriptedModel([transfer, thinking()])
    billing = Agent("billing", "Answers billing questions", model=model)
    events = await told(Agent("desk", model=model, agents=[billing]))

    assert not [e for e in events if isinstance(e, ToolArgsEvent)]
    assert {e.agent for e in events if isinstance(e, ReasoningEvent)} == {"desk/billing"}
    assert thoughts(events) == THOUGHT


async def test_a_foreign_graph_s_thoughts_and_arguments_are_told_too() -> None:
    model = ScriptedModel(
        [thinking("", calls=[call("refund", reason="twice")], pieces=True), "Done."]
    )
    graph = create_agent(model, [refund], name="clerk")
    root = Agent("desk", model=ScriptedModel([call("transfer_to_clerk")]), agents=[graph])
    events = await told(root)

    assert thoughts(events) == THOUGHT
    pieces = [e for e in events if isinstance(e, ToolArgsEvent)]
    assert json.loads("".join(piece.delta for piece in pieces)) == {"reason": "twice"}
    assert {e.agent for e in pieces} == {"desk/clerk"}


async def test_what_a_gate_judges_is_not_streamed_as_thoughts_either() -> None:
    guards = Guards.interactive(gates=[Gate(policy=lambda subject: True)])
    model = ScriptedModel([thinking()])
    events = await told(Agent("desk", model=model, guards=guards))

    assert types(events) == ["ai_message", "message"]


async def test_the_events_are_json_and_typed_by_name() -> None:
    model = ScriptedModel(
        [thinking("", calls=[call("refund", reason="twice")], pieces=True), "Done."]
    )
    events = await told(Agent("desk", model=model, tools=[refund]))
    thought = next(e for e in events if isinstance(e, ReasoningEvent)).to_dict()
    piece = next(e for e in events if isinstance(e, ToolArgsEvent)).to_dict()

    place = {"agent", "thread_id", "run_id", "sequence"}
    assert thought.keys() == place | {"text", "message_id"}
    assert piece.keys() == place | {"tool", "delta", "call_id", "message_id"}


# -- the forms of providers


class Chunked(BaseChatModel):
    """Streams given chunks, the first answer from `chunks`, the next one a text."""

    chunks: list[AIMessageChunk]
    asked: list[int]

    @property
    def _llm_type(self) -> str:
        return "chunked"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        self.asked.append(len(messages))
        chunks = self.chunks if len(self.asked) == 1 else [AIMessageChunk(content="Done.", id="m2")]
        for chunk in chunks:
            yield ChatGenerationChunk(message=chunk)


def chunk(content: Any = "", provider: str = "", calls: Any = (), **extra: Any) -> AIMessageChunk:
    return AIMessageChunk(
        content=content,
        id="m1",
        tool_call_chunks=[tool_call_chunk(**fields) for fields in calls],
        response_metadata={"model_provider": provider} if provider else {},
        additional_kwargs=extra,
    )


def first_call(args: str, index: int = 0) -> dict[str, Any]:
    return {"name": "refund", "args": args, "id": "c1", "index": index}


def next_call(args: str, index: int = 0) -> dict[str, Any]:
    return {"name": None, "args": args, "id": None, "index": index}


OPENAI_CHAT = [
    chunk("", "openai", [first_call("")]),
    chunk("", "openai", [next_call('{"reason"')]),
    chunk("", "openai", [next_call(': "twice"}')]),
]
DEEPSEEK = [
    chunk("", "deepseek", reasoning_content="He was "),
    chunk("", "deepseek", reasoning_content="charged."),
    *OPENAI_CHAT,
]


def summary(text: str) -> dict[str, Any]:
    piece = {"type": "summary_text", "text": text, "index": 0}
    return {"type": "reasoning", "id": "rs_1", "index": 0, "summary": [piece]}


RESPONSES = [
    chunk([summary("He was ")], "openai"),
    chunk([summary("charged.")], "openai"),
    chunk(
        [
            {
                "type": "function_call",
                "name": "refund",
                "arguments": "",
                "call_id": "c1",
                "id": "fc_1",
                "index": 1,
            }
        ],
        "openai",
        [first_call("", 1)],
    ),
    chunk(
        [{"type": "function_call", "arguments": '{"reason"', "index": 1}],
        "openai",
        [next_call('{"reason"', 1)],
    ),
    chunk(
        [{"type": "function_call", "arguments": ': "twice"}', "index": 1}],
        "openai",
        [next_call(': "twice"}', 1)],
    ),
]
ANTHROPIC = [
    chunk([{"type": "thinking", "thinking": "He was ", "index": 0}], "anthropic"),
    chunk([{"type": "thinking", "thinking": "charged.", "index": 0}], "anthropic"),
    chunk([{"type": "thinking", "signature": "sig", "index": 0}], "anthropic"),
    chunk(
        [{"type": "tool_use", "id": "c1", "name": "refund", "input": {}, "index": 1}],
        "anthropic",
        [first_call("", 1)],
    ),
    chunk(
        [{"type": "input_json_delta", "partial_json": '{"reason"', "index": 1}],
        "anthropic",
        [next_call('{"reason"', 1)],
    ),
    chunk(
        [{"type": "input_json_delta", "partial_json": ': "twice"}', "index": 1}],
        "anthropic",
        [next_call(': "twice"}', 1)],
    ),
]


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk("", "google_genai", [first_call('{"reason": "twice"}')])],
        [
            chunk("", "openai", [first_call("")]),
            chunk("", "openai", [next_call('{"reason": "twice"}')]),
        ],
    ],
    ids=["with the name", "after the name"],
)
async def test_a_call_that_is_given_at_once_has_no_pieces(chunks: list[AIMessageChunk]) -> None:
    events = await told(Agent("desk", model=Chunked(chunks=chunks, asked=[]), tools=[refund]))

    assert not [e for e in events if isinstance(e, ToolArgsEvent)]
    assert len([e for e in events if isinstance(e, ToolUsageEvent)]) == 1


@pytest.mark.parametrize(
    ("chunks", "thought"),
    [
        (OPENAI_CHAT, ""),
        (DEEPSEEK, "He was charged."),
        (RESPONSES, "He was charged."),
        (ANTHROPIC, "He was charged."),
    ],
    ids=["openai chat", "deepseek", "openai responses", "anthropic"],
)
async def test_the_pieces_of_each_provider_are_read(
    chunks: list[AIMessageChunk], thought: str
) -> None:
    events = await told(Agent("desk", model=Chunked(chunks=chunks, asked=[]), tools=[refund]))

    assert thoughts(events) == thought
    pieces = [e for e in events if isinstance(e, ToolArgsEvent)]
    assert [piece.delta for piece in pieces] == ['{"reason"', ': "twice"}']
    assert {(piece.tool, piece.call_id) for piece in pieces} == {("refund", "c1")}
    (used,) = [e for e in events if isinstance(e, ToolUsageEvent)]
    assert dict(used.args) == {"reason": "twice"}
