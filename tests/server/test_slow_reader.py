"""A reader that stops reading holds the run back, and loses nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from agentgraph import Agent
from agentgraph.clock import clock
from agentgraph.stream import TokenEvent
from agentgraph.testing import ScriptedModel, call
from tests.server.live_server import PATIENCE_S, serving

QUEUE = 64
HIGH_WATER = 65_536  # what uvicorn keeps for a connection before it waits
BUFFER = 16_384  # Linux doubles what is asked for
TOKENS = 6_000


class Talkative(BaseChatModel):
    """A model that counts the tokens which somebody has taken from it."""

    tokens: int = TOKENS
    _made: list[int] = PrivateAttr(default_factory=lambda: [0])

    @property
    def made(self) -> int:
        return self._made[0]

    @property
    def _llm_type(self) -> str:
        return "talkative"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Talkative:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for index in range(self.tokens):
            self._made[0] += 1
            message = AIMessageChunk(content=f"{index:5d}", id="talk")
            yield ChatGenerationChunk(message=message)


class Reader:
    """A client with a small buffer, which reads when it is told to."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self._socket.setblocking(False)
        self.taken = b""

    async def ask(self, client: httpx.AsyncClient, path: str, **body: object) -> None:
        host, port = client.base_url.host, client.base_url.port
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, (host, port))
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        head += f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
        await loop.sock_sendall(self._socket, head.encode() + content)

    async def take(self, count: int) -> bytes:
        """Read some of what is there, nothing at the end."""
        loop = asyncio.get_running_loop()
        read = await asyncio.wait_for(loop.sock_recv(self._socket, count), PATIENCE_S)
        self.taken += read
        return read

    async def take_all(self) -> None:
        taken = [self.taken]
        while read := await self.take(1 << 20):
            taken.append(read)
        self.taken = b"".join(taken)

    def close(self) -> None:
        self._socket.close()

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what came, out of the chunks of HTTP/1.1."""
        _, _, rest = self.taken.partition(b"\r\n\r\n")
        body = b""
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        frames = [frame.splitlines() for frame in body.decode().split("\r\n\r\n") if frame]
        return [(one[0][len("event: ") :], json.loads(one[1][len("data: ") :])) for one in frames]


async def standstill(model: Talkative) -> int:
    """Wait until a model makes nothing more for a while, and return how much it has made."""
    made, quiet = -1, 0
    while quiet < 20:
        made, quiet = (made, quiet + 1) if model.made == made else (model.made, 0)
        await clock().sleep(0.01)
    return made


def size_of_frame() -> int:
    """Return the least that a token of this model takes on the wire."""
    event = {"agent": "Solo", "thread_id": "t", "run_id": "0" * 32, "sequence": 1}
    event |= {"text": "12345", "message_id": "talk"}
    data = json.dumps(event, separators=(",", ":"))
    return len(f"event: token\r\ndata: {data}\r\n\r\n")


async def test_stalled_reader_holds_the_model_back_and_gets_all_in_the_end() -> None:
    model = Talkative()
    reader = Reader()
    async with serving(Agent("Solo", model=model), sndbuf=BUFFER) as client:
        await reader.ask(client, "/agents/Solo/stream-completion", prompt="hi", thread_id="t")
        first = await standstill(model)
        again = await standstill(model)
        health = await client.get("/health")
        await reader.take(4_096)
        await reader.take_all()
    reader.close()

    on_the_way = HIGH_WATER + 2 * 2 * BUFFER + 4_096
    assert 0 < first == again <= on_the_way // size_of_frame() + QUEUE + 4
    assert health.status_code == 200
    assert model.made == TOKENS
    events = reader.events()
    tokens = [data["text"] for name, data in events if name == "token"]
    assert [int(text) for text in tokens] == list(range(TOKENS))
    assert [data["sequence"] for _, data in events] == list(range(1, len(events) + 1))
    assert [name for name, _ in events[TOKENS:]] == ["ai_message", "message", "done"]


async def test_stalled_reader_that_goes_away_frees_its_thread() -> None:
    model = Talkative()
    reader = Reader()
    async with serving(Agent("Solo", model=model), sndbuf=BUFFER) as client:
        await reader.ask(client, "/agents/Solo/stream-completion", prompt="hi", thread_id="t")
        held = await standstill(model)
        reader.close()
        answer = await client.delete("/agents/Solo/threads/t")
        while answer.status_code == 409:
            answer = await client.delete("/agents/Solo/threads/t")
        made = model.made

    assert answer.status_code == 204
    assert made <= held + QUEUE + 4


async def test_reader_of_a_stream_in_this_process_holds_the_model_back() -> None:
    model = Talkative()
    stream = Agent("Solo", model=model).astream("hi", thread_id="t")

    await anext(stream)
    held = await standstill(model)
    texts = [event.text async for event in stream if isinstance(event, TokenEvent)]

    assert held <= QUEUE + 4
    assert len(texts) == TOKENS - 1


@pytest.mark.parametrize("workers", [2, 5])
async def test_parallel_delegates_are_told_in_order_to_a_slow_reader(workers: int) -> None:
    models = [Talkative(tokens=200) for _ in range(workers)]
    names = [f"worker{n}" for n in range(workers)]
    boss = Agent(
        "Boss",
        model=ScriptedModel([[call(f"transfer_to_{name}") for name in names], "all are done"]),
        agents=[Agent(name, model=model) for name, model in zip(names, models, strict=True)],
        handoff="delegate",
    )
    stream = boss.astream("hi")

    events = [await anext(stream) for _ in range(workers + 1)]
    for model in models:
        await standstill(model)
    held = sum(model.made for model in models)
    async for event in stream:
        events.append(event)
        await clock().sleep(0)

    assert held <= QUEUE + 2 * workers + 2
    assert [e.sequence for e in events] == list(range(1, len(events) + 1))
    for name in names:
        told = [e for e in events if isinstance(e, TokenEvent) and e.agent == f"Boss/{name}"]
        assert [int(e.text) for e in told] == list(range(200))
    assert events[-1].type == "message"
