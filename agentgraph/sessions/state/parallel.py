"""Parallel speakers: their turns take effect at the join, in the order in which they were named.

Each packet of such a round is stamped with its speaker's place. The one that is committed last also
carries the context updates of all of them. So nothing depends on who was faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgraph.routing.frozen_json import FrozenDict
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.state.state import SessionState

STAMP = "parallel"
"""The key of the stamp in the data of an envelope; nobody outside can write it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of one of several speakers, as rules see it at the join."""

    sender_id: str
    event_data: Mapping[str, Any]
    envelope_id: str = ""
    event_type: str = ev.EV_PACKET
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict)

    @property
    def kind(self) -> object:
        """Return whether the turn hands over, finishes, or does neither."""
        return self._routing.get("kind")

    @property
    def handoff_target(self) -> str | None:
        """Return to whom the turn hands over, None if it does not."""
        target = self._routing.get("target")
        return target if self.kind == "handoff" and isinstance(target, str) else None

    @property
    def _routing(self) -> Mapping[str, Any]:
        routing = self.event_data.get("routing")
        return routing if isinstance(routing, Mapping) else {}


def stamp_of(state: SessionState, speaker: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the stamp for the end of a speaker's turn, with which the data say what it updates.

    Empty if the speaker is alone in its round, or has no turn in it.
    """
    if len(state.speakers) < 2 or speaker not in state.due:
        return {}
    stamp: dict[str, Any] = {"place": state.speakers.index(speaker), "of": len(state.speakers)}
    if state.rewound_round is not None:
        stamp["round"] = state.rewound_round
    if len(state.due) == 1:
        turns = {**state.turns, speaker: {"context_updates": data.get("context_updates")}}
        stamp["context_updates"] = _merge_updates(
            turns[name] for name in state.speakers if name in turns
        )
    return {STAMP: stamp}


def stamp_in(state: SessionState, envelope: Envelope) -> Mapping[str, Any] | None:
    """Return the stamp of an envelope that ends a turn of a parallel round, None without one."""
    stamp = envelope.event_data.get(STAMP) if len(state.speakers) > 1 else None
    return stamp if isinstance(stamp, Mapping) else None


def turn_data(envelope: Envelope) -> Mapping[str, Any]:
    """Return what the state keeps of a turn until the join."""
    keys: tuple[str, ...] = ("routing", "body")
    if envelope.event_type != ev.EV_PACKET:
        return {"event_type": envelope.event_type, "envelope_id": envelope.envelope_id}
    if STAMP in envelope.event_data:  # the updates of earlier versions took effect at once
        keys = (*keys, "context_updates")
    data = {key: envelope.event_data[key] for key in keys if key in envelope.event_data}
    return {**data, "envelope_id": envelope.envelope_id}


def updates_so_far(state: SessionState) -> Mapping[str, Any]:
    """Return the context updates of a round that ends before all have spoken, in list order."""
    return _merge_updates(state.turns[name] for name in state.speakers if name in state.turns)


def turns_of(state: SessionState) -> list[Turn]:
    """Return the turns of the present round, in the order in which the speakers were named."""
    return [_turn(name, state.turns[name]) for name in state.speakers if _has_turn(state, name)]


def in_list_order(envelopes: Sequence[Envelope]) -> list[Envelope]:
    """Return substantive envelopes with those of each parallel round in the speakers' order."""
    result: list[Envelope] = []
    group: list[Envelope] = []
    for envelope in envelopes:
        place = _place(envelope)
        if place is None:
            result += sorted(group, key=_key)
            group = []
            result.append(envelope)
            continue
        if group and round_of(group[0]) != round_of(
            envelope
        ):  # a reader may not see all of a round
            result += sorted(group, key=_key)
            group = []
        group.append(envelope)
        if "context_updates" in envelope.event_data[STAMP]:  # the last of its round
            result += sorted(group, key=_key)
            group = []
    return result + sorted(group, key=_key)


def speakers_of(envelope: Envelope) -> int:
    """Return how many speak in the round of an envelope, 1 if its sender is alone."""
    count = 1 if _place(envelope) is None else envelope.event_data[STAMP].get("of")
    return count if isinstance(count, int) else 1


def round_of(envelope: Envelope) -> object:
    """Return the number under which the speakers of an envelope's round got the floor."""
    data, stamp = envelope.event_data, envelope.event_data.get(STAMP)
    return (
        stamp.get("round", data.get("round")) if isinstance(stamp, Mapping) else data.get("round")
    )


def _has_turn(state: SessionState, name: str) -> bool:
    return name in state.turns and "failed" not in state.turns[name]


def _turn(speaker: str, data: Mapping[str, Any]) -> Turn:
    event_type = str(data.get("event_type") or ev.EV_PACKET)
    return Turn(speaker, data, str(data.get("envelope_id") or ""), event_type)


def _merge_updates(turns: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the updates of several turns as those of one: of two for one key the later stands."""
    values: dict[str, Any] = {}
    deletions: dict[str, None] = {}
    for turn in turns:
        updates = turn.get("context_updates")
        if not isinstance(updates, Mapping):
            continue
        lost_keys, new_values = updates.get("delete"), updates.get("set")
        for key in lost_keys if isinstance(lost_keys, list) else ():
            if isinstance(key, str):
                values.pop(key, None)
                deletions[key] = None
        for key, value in new_values.items() if isinstance(new_values, Mapping) else ():
            deletions.pop(key, None)
            values[key] = value
    return {"set": values, "delete": list(deletions)}


def _place(envelope: Envelope) -> int | None:
    stamp = envelope.event_data.get(STAMP)
    is_stamp = isinstance(stamp, Mapping) and isinstance(stamp.get("place"), int)
    return int(stamp["place"]) if is_stamp and stamp is not None else None


def _key(envelope: Envelope) -> int:
    return _place(envelope) or 0
