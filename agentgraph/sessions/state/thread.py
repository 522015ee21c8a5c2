"""What the state of a session of one keeps of its conversation: where it stands in the log.

A session of one keeps what a thread of LangGraph keeps. Its messages and channels stand in the
log's envelopes; the state only counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.graph.message import REMOVE_ALL_MESSAGES

from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.envelope import Envelope

NEW_THREAD: Mapping[str, Any] = {
    "count": 0,
    "since": 0,
    "open": 0,
    "partial": 0,
    "channels": {},
}
"""Of an empty conversation: `count` messages, from the sequence `since` on, `open` of them by the
round under way; `partial` is the last envelope that a cut-off run has left, and `channels` has for
each channel of the graph the envelope with its value."""


def thread_after(
    thread: Mapping[str, Any], envelope: Envelope, *, is_agent: bool
) -> Mapping[str, Any]:
    """Return what is kept after an envelope; `is_agent` tells whether the agent has sent it."""
    kind, data = envelope.event_type, envelope.event_data
    if kind == ev.EV_ROUND_FAILED and data.get("code") == "checkpoint_lost":
        return {**thread, "count": thread["count"] - thread["open"], "open": 0}
    if envelope.is_substantive and not is_agent:
        return {**thread, "count": thread["count"] + 1, "open": 0}
    if kind not in _WITH_MESSAGES:
        return thread
    after = {**thread, **_counts(thread, envelope)}
    channels = data.get("channels")
    if isinstance(channels, Mapping) and channels:
        places = dict.fromkeys(channels, envelope.sequence)
        after["channels"] = {**thread["channels"], **places}
    return after


def _counts(thread: Mapping[str, Any], envelope: Envelope) -> Mapping[str, int]:
    messages = envelope.event_data.get("messages")
    messages = messages if isinstance(messages, list) else []
    count = thread["count"]
    since = thread["since"]
    for message in messages:
        if not isinstance(message, Mapping) or message.get("type") != "remove":
            count += 1
        elif message.get("id") == REMOVE_ALL_MESSAGES:
            count, since = 0, envelope.sequence
    is_end = envelope.event_type == ev.EV_PACKET
    counts = {
        "count": count,
        "since": since,
        "open": 0 if is_end else thread["open"] + len(messages),
    }
    return counts if is_end or not messages else {**counts, "partial": envelope.sequence}


_WITH_MESSAGES = frozenset({ev.EV_PACKET, ev.EV_INTERRUPT, ev.EV_ROUND_FAILED, ev.EV_DECISION})
"""The types whose `messages` belong to the conversation."""
