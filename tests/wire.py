"""The OpenAI API on loopback, each answer or fault scripted: what a provider really sends.

    with serve() as wire:
        wire.script(call("refund", reason="charged twice"), rate_limit(2), text("Done."))
        model = chat_openai(wire)

One entry answers one request, in order; a request too many is answered 400.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from langchain_openai import ChatOpenAI
from llmock.scenarios import (
    Delay,
    Fail,
    Plan,
    Reply,
    RequestInfo,
    ScenarioQueue,
    StreamFault,
    ToolCall,
    ToolFault,
)
from llmock.testing import LLMockServer

_PATIENCE_S = 2.0


def text(said: str) -> Plan:
    """Say a text, streamed by word."""
    return Plan(reply=Reply(said))


def call(name: str, /, **args: object) -> Plan:
    """Call one tool; streamed, its arguments come in fragments."""
    return calls(ToolCall(name, args))


def calls(*made: ToolCall, said: str | None = None) -> Plan:
    """Call several tools at once, after a text if there is one."""
    return Plan(reply=Reply(said, tool_calls=made))


def malformed(name: str) -> Plan:
    """Call a tool with arguments that are no JSON object, streamed or not."""
    # LangChain mends a streamed object that is cut off; it cannot make an object of a list.
    arguments: Any = ["this", "is", "no", "object"]
    cut = ToolFault("malformed_arguments")
    return Plan(reply=Reply(tool_calls=(ToolCall(name, arguments),)), tool_fault=cut)


def cut_off(name: str, /, **args: object) -> Plan:
    """Call a tool with arguments cut in half: invalid, but LangChain mends it in a stream."""
    return replace(call(name, **args), tool_fault=ToolFault("malformed_arguments"))


def rate_limit(retry_after_s: float = 1.0) -> Plan:
    """Answer 429 with Retry-After."""
    return Plan(fail=Fail(429, retry_after=retry_after_s))


def fail(status: int = 500) -> Plan:
    """Answer an HTTP error."""
    return Plan(fail=Fail(status))


def delayed(plan: Plan, seconds: float) -> Plan:
    """Hold the whole answer back; the server waits that long before it stops, so keep it short."""
    return replace(plan, delay=Delay(seconds))


def stalled(plan: Plan, *, after_chunks: int = 2, seconds: float = 30.0) -> Plan:
    """Stop sending in mid-stream, with the connection open."""
    return replace(plan, stream_fault=StreamFault("stall", after_chunks, stall_seconds=seconds))


def disconnected(plan: Plan, *, after_chunks: int = 2) -> Plan:
    """Drop the connection in mid-stream."""
    return replace(plan, stream_fault=StreamFault("disconnect", after_chunks))


def truncated(plan: Plan, *, after_chunks: int = 2) -> Plan:
    """End the stream early, but cleanly: no finish reason, no usage."""
    return replace(plan, stream_fault=StreamFault("truncate", after_chunks))


class Wire:
    """A server, its script and what it was asked."""

    def __init__(self, server: LLMockServer) -> None:
        self._server = server
        self._queue = _Queue()
        server.state.scenarios = self._queue

    @property
    def base_url(self) -> str:
        """Where the OpenAI API is."""
        return self._server.base_url("openai")

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Return the bodies received so far, in order."""
        return [record.body for record in self._server.state.journal.records(wait=_PATIENCE_S)]

    @property
    def left(self) -> int:
        """Return how many entries no request has used."""
        return len(self._queue.plans)

    def script(self, *plans: Plan) -> None:
        """Add the answers to the next requests."""
        self._queue.plans.extend(plans)


class _Queue(ScenarioQueue):
    """One plan per request; llmock's own queue is one per kind of behaviour."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: deque[Plan] = deque()

    def plan_for(self, info: RequestInfo) -> Plan:
        try:
            return self.plans.popleft()
        except IndexError:
            return Plan(fail=Fail(400, message="The script has no answer left."))


@contextmanager
def serve() -> Iterator[Wire]:
    """Run a server in a thread of this process."""
    with LLMockServer() as server:
        yield Wire(server)


def chat_openai(wire: Wire, **fields: Any) -> ChatOpenAI:
    """Make a ChatOpenAI that talks to the server and does not retry by itself."""
    defaults = {"model": "gpt-4o", "api_key": "test", "max_retries": 0, "stream_usage": True}
    return ChatOpenAI(**{**defaults, "base_url": wire.base_url, **fields})
