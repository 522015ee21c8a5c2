"""What envelopes tell of the account of an input: what was used for it, and what was done.

These are steps of the fold, and as pure and total as that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as changed
from typing import Any, TypeGuard

from agentgraph.guards.mechanisms.spending.input_spend import ALL
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.state import SessionState


def begun(state: SessionState, envelope: Envelope) -> Mapping[str, Any]:
    """Return the accounts as they are when something has come from outside."""
    empty: dict[str, Any] = {"used": {}, "account": {}, "held": {}, **_of_the_round(state)}
    return {**empty, "hops": 0, "input": envelope.sequence}


def _of_the_round(state: SessionState) -> Mapping[str, Any]:
    """Return what a round has done that is to run again: it is not to be done again."""
    if set(state.due).issubset(state.humans):
        return {"effects": {}, "undoing": {}}
    now = state.round
    return {
        "effects": {key: one for key, one in state.effects.items() if one.get("round") == now},
        "undoing": state.undoing if state.undoing.get("round") == now else {},
    }


def paid(state: SessionState, speaker: str, envelope: Envelope) -> Mapping[str, Any]:
    """Return what a turn has used, in place of what it may have."""
    update: dict[str, Any] = {}
    told = envelope.event_data if envelope.event_type != ev.EV_TEXT else {}
    usage, hops = told.get("usage"), told.get("hops")
    if usage and isinstance(usage, Mapping):
        update["used"] = _added(state.used, usage)
    account, lost = envelope.event_data.get("account"), envelope.event_data.get("lost")
    if isinstance(account, Mapping):
        update["account"] = account
        if speaker in state.held:
            update["held"] = {
                name: shares for name, shares in state.held.items() if name != speaker
            }
    elif _is_share(lost):
        update["held"] = _holding(state, speaker, ALL, lost)
    if isinstance(hops, int) and hops > 0:
        update["hops"] = state.hops + hops
    return update


def _holding(
    state: SessionState, speaker: str, of: str, share: float
) -> Mapping[str, Mapping[str, float]]:
    shares = state.held.get(speaker, {})
    return {**state.held, speaker: {**shares, of: shares.get(of, 0.0) + share}}


def _is_share(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _added(
    used: Mapping[str, Mapping[str, Any]], usage: Mapping[str, Any]
) -> Mapping[str, Mapping[str, Any]]:
    total = dict(used)
    for path, figures in usage.items():
        if isinstance(figures, Mapping):
            known = total.get(path, {})
            total[path] = {
                key: figure + (had if _is_count(had := known.get(key)) else 0)
                if _is_count(figure)
                else figure
                for key, figure in figures.items()
            }
    return total


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def audited(state: SessionState, envelope: Envelope) -> SessionState:
    """Return the state after a record of what is about to be spent, done or undone."""
    data = envelope.event_data
    match data.get("kind"):
        case "reserved":
            speaker, share = str(data.get("speaker")), data.get("share")
            if _is_share(share):
                held = _holding(state, speaker, str(data.get("of") or ""), share)
                return changed(state, held=held)
        case "effect":
            entry = data.get("entry")
            if isinstance(entry, Mapping) and isinstance(entry.get("key"), str):
                return changed(state, effects=_done(state, entry, data.get("round")))
        case "undoing":
            told = {"round": data.get("round"), "reason": str(data.get("reason") or "")}
            return changed(state, undoing=told)
    return state


def _done(
    state: SessionState, entry: Mapping[str, Any], round: object
) -> Mapping[str, Mapping[str, Any]]:
    """Return the actions with one more, or with what has become of one."""
    known = state.effects.get(entry["key"], {})
    if "args" not in entry and "args" not in known:
        return state.effects
    return {**state.effects, entry["key"]: {"round": round, **known, **entry}}
