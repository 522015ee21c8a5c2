"""What the state of a session of one keeps of its conversation: where it stands in the log.

A session of one keeps what a thread of LangGraph keeps. Its messages and channels stand in the
log's envelopes; the state only counts them. So a turn that looks back 20 messages finds their
envelopes from the end of the log, and a channel by the number of its envelope, however long the
session is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.graph.message import REMOVE_ALL_MESSAGES

from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope

NEW_THREAD: Mapping[str, Any] = {"count": 0, "since": 0, "partial": 0, "channels": {}}
"""Of an empty conversation: `count` messages, from the sequence `since` on; `partial` is the last
envelope with messages that is no text and no packet, and `channels` has for each channel of the
graph the envelope with its value."""


def thread_after(
    thread: Mapping[str, Any], envelope: Envelope, *, is_agent: bool
) -> Mapping[str, Any]:
    """Return what is kept after an envelope; `is_agent` tells whether the agent has sent it."""
    kind, data = envelope.event_type, envelope.event_data
    if envelope.is_substantive and not is_agent:
        return {**thread, "count": thread["count"] + 1}
    if kind == ev.EV_INTERRUPT:
        # What stands in it is provisional: the end of the run has all of it.
        return {**thread, "partial": envelope.sequence} if data.get("messages") else thread
    if kind not in RUN_ENDS:
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
    count, since = thread["count"], thread["since"]
    for message in messages:
        if not isinstance(message, Mapping) or message.get("type") != "remove":
            count += 1
        elif message.get("id") == REMOVE_ALL_MESSAGES:
            count, since = 0, envelope.sequence
    counts = {"count": count, "since": since}
    is_packet = envelope.event_type == ev.EV_PACKET
    return counts if is_packet or not messages else {**counts, "partial": envelope.sequence}


RUN_ENDS = frozenset({ev.EV_PACKET, ev.EV_ROUND_FAILED, ev.EV_CANCELLED, ev.EV_DECISION})
"""The types whose `messages` are all that a run has added; of a decision, if it is withdrawn."""
