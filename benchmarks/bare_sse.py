"""The endpoints we compare with: sse-starlette as its README writes it, on FastAPI.

Events are dicts, which it encodes; their `data` is ready text, so no model and no JSON is paid for.
Bytes that are encoded beforehand would be quicker, but only a recording has those.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from functools import cache
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from sse_starlette import EventSourceResponse

from benchmarks.streams import STREAMS, StreamModel, TokenStream

__all__ = ["bare_app", "frames_of"]

Frame = dict[str, str]

TEXT = '"text":"'


class Prompt(BaseModel):
    prompt: str


def bare_app(recorded: dict[str, list[Frame]]) -> FastAPI:
    """Make an application that sends again what was recorded, or new tokens in its frames."""
    app = FastAPI()

    @app.post("/agents/{name}/stream-completion")
    async def stream(name: str, body: Prompt) -> EventSourceResponse:
        if name in recorded:
            return EventSourceResponse(_replayed(recorded[name]))
        return EventSourceResponse(_retold(STREAMS[name], recorded["short"]))

    @app.post("/graphs/{name}/stream-completion")
    async def stream_graph(name: str, body: Prompt) -> EventSourceResponse:
        return EventSourceResponse(_told(_graph(STREAMS[name]), body.prompt))

    return app


def frames_of(body: bytes) -> list[Frame]:
    """Read the events of a chunked response, written one `data` line each."""
    lines = [line for line in body.decode().split("\r\n") if line.startswith(("event:", "data:"))]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return [
        {"event": name[len("event: ") :], "data": data[len("data: ") :]} for name, data in pairs
    ]


async def _replayed(frames: Sequence[Frame]) -> AsyncIterator[Frame]:
    for frame in frames:
        yield frame


async def _retold(source: TokenStream, frames: Sequence[Frame]) -> AsyncIterator[Frame]:
    before, after = frames[0]["data"].split(f"{TEXT}{STREAMS['short'].text}")
    async for text in source.texts():
        yield {"event": "token", "data": f"{before}{TEXT}{text}{after}"}
    yield frames[-1]


async def _told(graph: Any, prompt: str) -> AsyncIterator[Frame]:
    given = {"messages": [("user", prompt)]}
    async for message, _ in graph.astream(given, stream_mode="messages"):
        said = {"text": message.text, "message_id": message.id}
        yield {"event": "token", "data": json.dumps(said)}
    yield {"event": "done", "data": "{}"}


@cache
def _graph(source: TokenStream) -> Any:
    from benchmarks.peers import bare_chat

    return bare_chat(StreamModel(source=source))
