"""Rewinds: the state of a session that has gone back, and which part of its log is live.

A rewind keeps the log up to some sequence, and goes on after itself. So each live range begins with
the envelope of a rewind, or is the first. A state has only the last ranges, as each append stores
the state; those before them are in the state that the rewind at the begin of the oldest one has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgraph.sessions.envelopes.envelope import EV_REWOUND, Envelope
from agentgraph.sessions.envelopes.payload import decode_json, encode_json
from agentgraph.sessions.state.input_account import principal_in
from agentgraph.sessions.state.state import Range, SessionState, state_fields, with_fields

_PRESENT = ("round", "used", "account", "held", "effects", "violated")
"""The fields that do not go back: no key is used twice, and nothing spent or done is forgotten."""
_SPENT = ("spends", "granted")
"""The parts of an account that the next one goes on with; the others count steps and time."""
_HAPPENED = ("started", "done", "compensation_failed")
WHOLE: tuple[Range, ...] = ((1, None),)
"""The live ranges of a log that was never rewound."""
_MAX_RANGES = 16


def rewound_data(now: SessionState, then: SessionState) -> dict[str, Any]:
    """Return what the envelope of a rewind has of two states: all of `then`, and some of `now`.

    Whatever the states hold: no limit of size applies to them.
    """
    present = {name: getattr(now, name) for name in _PRESENT}
    values = {"previous": now.rewound, "state": then.stored_fields(), "present": present}
    data: dict[str, Any] = decode_json(encode_json(values))  # as it is read back
    return data


def apply_rewind(state: SessionState, envelope: Envelope) -> SessionState:
    """Return the state after a rewind: the earlier one, in another round and for a new input."""
    data = envelope.event_data
    then, present, to = _state_in(data.get("state")), data.get("present"), data.get("to")
    if then is None or not isinstance(present, Mapping) or not isinstance(to, int):
        return state
    if not isinstance(present.get("round"), int) or len(present) != len(_PRESENT):
        return state
    at, sequence = envelope.created_at, envelope.sequence
    is_joint = len(then.speakers) > 1
    return with_fields(
        state,
        **{
            **{name: getattr(then, name) for name in state_fields()},
            "session_id": state.session_id,
            "tenant": state.tenant,
            "serves": state.serves,
            "round": present["round"] + 1,
            "rewound_round": (then.rewound_round or then.round) if is_joint else None,
            "failures": {},
            "input": sequence,
            "used": present["used"],
            "account": {
                key: present["account"][key] for key in _SPENT if key in present["account"]
            },
            "held": present["held"],
            "effects": {**then.effects, **present["effects"]},
            "undoing": {},
            "violated": tuple(present["violated"]),
            "live": ranges_after(then.live, to, sequence),
            "rewound": sequence,
            "principal": principal_in(envelope),
            # Times are as of now: nobody is late because of what was long ago.
            "floor_at": at if then.floor_at else "",
            "spoke_at": at if then.spoke_at else "",
            "asked_at": at if then.asked else "",
            "asked": sequence if then.asked else 0,
        },
    )


def is_live(state: SessionState, sequence: int | None) -> bool:
    """Tell whether an envelope may be live; what is before the ranges of a state may be."""
    live = state.live or WHOLE
    if sequence is None or sequence < live[0][0]:
        return True
    return any(start <= sequence <= (sequence if end is None else end) for start, end in live)


def ranges_after(live: Sequence[Range], to: int, sequence: int) -> tuple[Range, ...]:
    """Return the live ranges after a rewind; `live` are those of the state that it goes back to."""
    if sequence == to + 1:
        return tuple(live)
    return (*ranges_up_to(live, to), (sequence, None))[-_MAX_RANGES:]


def ranges_up_to(live: Sequence[Range], to: int) -> tuple[Range, ...]:
    """Return the live ranges of the state at a sequence, with that sequence as their end."""
    *earlier, (start, _) = live or WHOLE
    return (*earlier, (start, to))


def ranges_before(rewind: Envelope) -> tuple[Range, ...]:
    """Return the last live ranges before that which begins with a rewind."""
    data = rewind.event_data
    live = [(start, end) for start, end in data["state"].get("live", ())]
    return ranges_up_to(live, data["to"])


def live_envelopes(envelopes: Sequence[Envelope]) -> list[Envelope]:
    """Return the live ones of a log's envelopes; some may be missing, but no rewind."""
    newest_first: list[Envelope] = []
    end = envelopes[-1].sequence if envelopes else 0
    for envelope in reversed(envelopes):
        if envelope.sequence <= end:
            newest_first.append(envelope)
            to = envelope.event_data.get("to") if envelope.event_type == EV_REWOUND else None
            end = to if isinstance(to, int) else envelope.sequence - 1
    return newest_first[::-1]


def effect_list(envelopes: Sequence[Envelope]) -> list[dict[str, object]]:
    """Return key, tool and state of each effect in envelopes that has happened, or may have."""
    entries: dict[object, Mapping[str, object]] = {}
    for envelope in envelopes:
        entry = envelope.event_data.get("entry")
        if envelope.event_data.get("kind") == "effect" and isinstance(entry, Mapping):
            entries[entry.get("key")] = {**entries.get(entry.get("key"), {}), **entry}
    return [
        {name: entry.get(name) for name in ("key", "tool", "state")}
        for entry in entries.values()
        if entry.get("state") in _HAPPENED
    ]


def _state_in(value: object) -> SessionState | None:
    if not isinstance(value, Mapping):
        return None
    try:
        return SessionState.from_dict(value)
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
