"""The instants at which a process of the matrix kills itself: by a real SIGKILL, without a pause.

Three of them are in the user's own code, and four are seen at the stores: at the savers' and the
log's own methods, as they return.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from agentgraph.sessions import EV_AUDIT, EV_PACKET, EV_SESSION_CLOSED, Envelope, Log
from tests.contract.cells import (
    AFTER_DISPATCH,
    AFTER_EFFECT,
    COMMITTED,
    INSIDE,
    RECORDED,
)
from tests.contract.ledger import Ledger

ITEM = "milk"
"""What is paid for when the kill comes."""


@dataclass
class Site:
    """Where a process is, and the instant at which it dies, "" for one that lives."""

    ledger: Ledger
    operation: str
    deadly: str = ""
    is_done: bool = False
    """Whether the effect under watch is over in this process."""
    place: str | None = None
    """The namespace in which its outcome was recorded, None before that."""

    def come_to(self, instant: str, item: str = ITEM) -> None:
        """Die here, if this is the instant."""
        if item == ITEM and instant == self.deadly:
            self.ledger.write("killed", instant)
            os.kill(os.getpid(), signal.SIGKILL)
        if item == ITEM and instant == AFTER_EFFECT:
            self.is_done = True


class Dispatches(AgentMiddleware[Any, Any]):
    """Comes to the instants before a tool or a model runs, by the wrapper nearest to it."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        if self._site.operation not in NOT_AT_TOOL:
            self._site.come_to(AFTER_DISPATCH, str(request.tool_call["args"].get("item")))
        return await handler(request)

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        if self._site.operation == "model call":
            self._site.come_to(AFTER_DISPATCH, next_item(request.messages))
        return await handler(request)


NOT_AT_TOOL = frozenset({"model call", "packet", "close", "compensation"})
"""The operations that are killed elsewhere than around the call of their tool."""
ITEMS = ("tea", "milk", "jam")
DELEGATED = "milk is paid"
"""The answer of whoever has paid for milk for somebody else."""


def next_item(messages: list[Any]) -> str:
    """Return what is to be paid for next, "" after all of it, by the answers that are there."""
    tools = [m for m in messages if m.type == "tool"]
    count = sum(m.name in ("pay", "note") or m.text == DELEGATED for m in tools)
    return ITEMS[count] if count < len(ITEMS) else ""


def watch_savers(site: Site) -> None:
    """Come to the instants after a record and after a commit, as LangGraph's savers return."""
    for saver in (AsyncSqliteSaver, AsyncPostgresSaver):
        cls: Any = saver
        cls.aput_writes = _after(cls.aput_writes, lambda *given: _recorded(site, *given))
        cls.aput = _after(cls.aput, lambda *given: _committed(site, *given))


def _after(method: Callable[..., Any], come: Callable[..., None]) -> Callable[..., Any]:
    async def method_then_instant(saver: Any, *given: Any, **named: Any) -> Any:
        result = await method(saver, *given, **named)
        come(*given)
        return result

    return method_then_instant


def _recorded(site: Site, config: Any, writes: Any, *_: Any) -> None:
    if site.is_done and site.place is None and ITEM in repr(writes):
        site.come_to(RECORDED)
        site.place = str(config["configurable"].get("checkpoint_ns", ""))


def _committed(site: Site, config: Any, checkpoint: Any, metadata: Any, *_: Any) -> None:
    namespace = str(config["configurable"].get("checkpoint_ns", ""))
    if site.is_done and namespace.startswith("agentgraph_"):  # a note: the effect log's
        site.come_to(RECORDED)
    elif site.place == namespace and metadata.get("source") == "loop":
        site.come_to(COMMITTED)


class WatchedLog:
    """A log that comes to the instants at its writes; all else is the log's own."""

    def __init__(self, log: Log, site: Site) -> None:
        self._log, self._site = log, site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, session_id: str, envelopes: Any, *given: Any, **named: Any) -> None:
        site, kinds = self._site, {one.event_type for one in envelopes}
        is_written_by_subject = any(_is_subject(site.operation, one) for one in envelopes)
        if is_written_by_subject:
            site.come_to(INSIDE)
        await self._log.append(session_id, envelopes, *given, **named)
        if is_written_by_subject:
            site.come_to(AFTER_EFFECT)
        elif site.is_done and site.operation not in ("packet", "close"):
            if EV_AUDIT in kinds:
                site.come_to(RECORDED)
            if EV_PACKET in kinds:
                site.come_to(COMMITTED)

    async def release(self, *given: Any, **named: Any) -> None:
        site = self._site
        is_closed = site.is_done and site.operation == "close"
        if is_closed:
            site.come_to(RECORDED)
        await self._log.release(*given, **named)
        if is_closed:
            site.come_to(COMMITTED)


def _is_subject(operation: str, envelope: Envelope) -> bool:
    if operation == "packet":
        return (envelope.event_type, envelope.sender_id) == (EV_PACKET, "bob")
    return operation == "close" and envelope.event_type == EV_SESSION_CLOSED
