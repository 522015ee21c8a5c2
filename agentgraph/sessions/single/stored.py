"""Messages and channels of a run in the data of an envelope; what is large is stored beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgraph.graphs.memory import StoredValue
from agentgraph.sessions.log import Log
from agentgraph.sessions.single.messages import Change, encode_message, encode_value
from agentgraph.sessions.state.blobs import take_out


async def stored_messages(log: Log, session_id: str, messages: Sequence[Change]) -> dict[str, Any]:
    """Return messages for the data of an envelope, nothing if there are none."""
    if not messages:
        return {}
    parts, blobs = take_out([encode_message(message) for message in messages], "messages")
    if blobs:
        await log.store_blobs(session_id, blobs)
    return {"messages": parts}


async def stored_channels(
    log: Log, session_id: str, channels: Mapping[str, StoredValue]
) -> dict[str, Any]:
    """Return serialised channels for the data of an envelope, nothing if there are none."""
    if not channels:
        return {}
    parts, blobs = take_out([encode_value(value) for value in channels.values()], "channels")
    if blobs:
        await log.store_blobs(session_id, blobs)
    return {"channels": dict(zip(channels, parts, strict=True))}
