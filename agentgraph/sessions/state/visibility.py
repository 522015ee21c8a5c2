"""Who may see what: the audience of a round, and what each agent may see of what was said.

A round has the audience of the envelope whose decision gave the floor, and its sender. So what
answers a private message is private too, from packet to packet, until somebody says something to
all.

As long as all is said to all there is nothing to count. From the first private message on, the
state has for each agent the spans of sequences in which it may see all that is said, and how many
messages it may not see, by sender. With these a view finds the last messages that its agent may
see without reading the others, however many they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from agentgraph.routing import TransitionDecision
from agentgraph.sessions.envelopes.envelope import SYSTEM, Envelope, visible_to
from agentgraph.sessions.state.state import SessionState

Audience: TypeAlias = tuple[str, ...] | None
"""The names of those who may see something; None means everybody."""
Span: TypeAlias = Sequence[int]
"""The sequences of the first and the last message of a span."""

_MAX_SPANS = 64
"""The most spans that a state keeps for an agent, as each append stores the state. The oldest two
become one: in that one the agent may see only some messages."""


def with_names(audience: Audience, names: Iterable[str]) -> Audience:
    """Return an audience with some more names in it."""
    return None if audience is None else tuple(dict.fromkeys((*audience, *names)))


def round_audience(state: SessionState, speaker: object) -> Audience:
    """Return the audience of what the session notes about a speaker's turn in the present round.

    The speaker itself is in it: the notes have the session as their sender.
    """
    return with_names(state.audience, (speaker,) if isinstance(speaker, str) else ())


def next_audience(
    state: SessionState, envelope: Envelope, decision: TransitionDecision
) -> Audience:
    """Return the audience of the round that the decision on an envelope begins.

    `state` has the envelope's event, and not its decision yet. Where the decision joins several
    speakers, all of them are senders, also one that has failed: who of them was the last is a
    matter of time. Who gets a handoff joins the audience.
    """
    sender = envelope.sender_id
    is_join = sender == SYSTEM or sender in state.spoken
    receivers = decision.speakers if decision.rule == "handoff" else ()
    names = (*(state.spoken if is_join else (sender,)), *receivers)
    return with_names(envelope.audience, names)


def visibility_after(state: SessionState, envelope: Envelope) -> Mapping[str, Mapping[str, Any]]:
    """Return `visibility` after an envelope that views show; `state` is the state before it."""
    if envelope.audience is None and not state.visibility:
        return state.visibility
    visibility = state.visibility or _visibility_of_all(state)
    return {
        name: _with_visible(share, envelope, state.spoke)
        if visible_to(envelope, name)
        else _with_hidden(share, envelope)
        if envelope.is_substantive
        else share
        for name, share in visibility.items()
    }


def spans_of(state: SessionState, reader: str) -> Sequence[Span]:
    """Return the spans of sequences, the oldest first, outside of which a reader sees nothing."""
    share = state.visibility.get(reader)
    return [[1, state.sequence]] if share is None else share["spans"]


def visible_counts(state: SessionState, reader: str) -> Mapping[str, int]:
    """Return how many texts and packets a reader may see, by sender.

    Nothing for a reader who is no agent of the session, if there was anything private.
    """
    if not state.visibility:
        return state.said
    if reader not in state.visibility:
        return {}
    hidden_counts = state.visibility[reader]["hidden"]
    counts = {name: count - hidden_counts.get(name, 0) for name, count in state.said.items()}
    return {name: count for name, count in counts.items() if count > 0}


def _visibility_of_all(state: SessionState) -> Mapping[str, Mapping[str, Any]]:
    """Return the visibility of a session in which all was said to all."""
    spans = [[1, state.spoke]] if state.spoke else []
    agents = (name for name in state.participant_order if name not in state.humans)
    return {name: {"spans": spans, "hidden": {}} for name in agents}


def _with_visible(share: Mapping[str, Any], envelope: Envelope, previous: int) -> Mapping[str, Any]:
    """Return an agent's share after a message that it may see; `previous` is the message before."""
    spans = share["spans"]
    if spans and spans[-1][1] == previous:
        return {**share, "spans": [*spans[:-1], [spans[-1][0], envelope.sequence]]}
    spans = [*spans, [envelope.sequence, envelope.sequence]]
    if len(spans) > _MAX_SPANS:
        spans = [[spans[0][0], spans[1][1]], *spans[2:]]
    return {**share, "spans": spans}


def _with_hidden(share: Mapping[str, Any], envelope: Envelope) -> Mapping[str, Any]:
    counts = share["hidden"]
    count = counts.get(envelope.sender_id, 0) + 1
    return {**share, "hidden": {**counts, envelope.sender_id: count}}
