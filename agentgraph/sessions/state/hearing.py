"""What each agent may hear of what is said, as the state counts it.

As long as all is said to all there is nothing to count. From the first private message on, the
state has for each agent the spans of sequences in which the agent hears all that is said, and how
many messages it does not hear, by sender. With these a view finds the last messages that its agent
may see without reading the others, however many they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from agentgraph.sessions.state.envelope import Envelope, visible_to
from agentgraph.sessions.state.state import SessionState

Span: TypeAlias = Sequence[int]
"""The sequences of the first and the last message of a span."""

_MAX_SPANS = 64
"""The most spans that a state keeps for an agent, as each append stores the state. The oldest two
become one: in that one the agent may hear only some messages."""


def after_message(state: SessionState, envelope: Envelope) -> Mapping[str, Mapping[str, Any]]:
    """Return `hearing` after a text or packet; `state` is the state before it."""
    if envelope.audience is None and not state.hearing:
        return state.hearing
    hearing = state.hearing or _hearing_of_all(state)
    return {
        name: _heard(own, envelope, state.spoke)
        if visible_to(envelope, name)
        else _missed(own, envelope)
        for name, own in hearing.items()
    }


def spans_of(state: SessionState, reader: str) -> Sequence[Span]:
    """Return the spans of sequences, the oldest first, outside of which a reader hears nothing."""
    own = state.hearing.get(reader)
    return [[1, state.sequence]] if own is None else own["spans"]


def counts_for(state: SessionState, reader: str) -> Mapping[str, int]:
    """Return how many texts and packets a reader hears, by sender.

    Nothing for a reader who is no agent of the session, if there was anything private.
    """
    if not state.hearing:
        return state.said
    if reader not in state.hearing:
        return {}
    hidden = state.hearing[reader]["hidden"]
    counts = {name: count - hidden.get(name, 0) for name, count in state.said.items()}
    return {name: count for name, count in counts.items() if count > 0}


def _hearing_of_all(state: SessionState) -> Mapping[str, Mapping[str, Any]]:
    """Return the hearing of a session in which all was said to all."""
    spans = [[1, state.spoke]] if state.spoke else []
    agents = (name for name in state.participant_order if name not in state.humans)
    return {name: {"spans": spans, "hidden": {}} for name in agents}


def _heard(own: Mapping[str, Any], envelope: Envelope, previous: int) -> Mapping[str, Any]:
    """Return an agent's hearing after a message that it hears; `previous` is the message before."""
    spans = own["spans"]
    if spans and spans[-1][1] == previous:
        return {**own, "spans": [*spans[:-1], [spans[-1][0], envelope.sequence]]}
    spans = [*spans, [envelope.sequence, envelope.sequence]]
    if len(spans) > _MAX_SPANS:
        spans = [[spans[0][0], spans[1][1]], *spans[2:]]
    return {**own, "spans": spans}


def _missed(own: Mapping[str, Any], envelope: Envelope) -> Mapping[str, Any]:
    hidden = own["hidden"]
    count = hidden.get(envelope.sender_id, 0) + 1
    return {**own, "hidden": {**hidden, envelope.sender_id: count}}
