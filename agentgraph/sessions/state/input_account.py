"""The account of an input in the state: usage, reservations and effects.

An input comes from outside; all rounds up to the next input serve it. The state's fields `used`,
`account`, `held`, `effects`, `undoing`, `hops` and `input` belong to the present input. The
functions here are the steps of the fold that change them, as pure and total as the fold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from agentgraph.guards.mechanisms.spending.tool_limit import earlier_calls
from agentgraph.remote.principal import PRINCIPAL_KEY
from agentgraph.routing.frozen_json import FrozenDict
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.state.state import SessionState, with_fields

ALL_BUDGETS: Final = "*"
"""Means every budget in a reservation, as in the guards."""


def begin_input(state: SessionState, envelope: Envelope) -> dict[str, Any]:
    """Return the changes to the account when an input comes from outside.

    Effects of the present round stay if its agents run again, as they must not happen a second
    time. Effects of an input that was cut off stay too: they are undone with those of this one.
    """
    tool_calls = state.account.get("called")
    earlier = earlier_calls(tool_calls) if isinstance(tool_calls, Mapping) else {}
    account = {"called": {"earlier": earlier}} if earlier else {}
    changes: dict[str, Any] = {"used": {}, "account": account, "held": {}}
    changes.update(_effects_of_round(state))
    changes["hops"], changes["input"] = 0, envelope.sequence
    changes["principal"] = principal_in(envelope)
    return changes


def principal_in(envelope: Envelope) -> Mapping[str, Any] | None:
    """Return the principal that has sent an envelope, None if no server knows that."""
    principal = envelope.metadata.get(PRINCIPAL_KEY) if envelope.metadata else None
    return principal if isinstance(principal, Mapping) else None


def charge_turn(state: SessionState, speaker: str, envelope: Envelope) -> dict[str, Any]:
    """Return the changes to the account when a turn has ended, failed or been suspended.

    The turn's usage replaces what was reserved for it.
    """
    changes: dict[str, Any] = {}
    data = envelope.event_data if envelope.event_type != ev.EV_TEXT else FrozenDict()
    usage, hops = data.get("usage"), data.get("hops")
    if usage and isinstance(usage, dict):
        changes["used"] = add_usage(state.used, usage)
    account, lost_share = envelope.event_data.get("account"), envelope.event_data.get("lost")
    if isinstance(account, dict):
        changes["account"] = account
        if speaker in state.held:
            changes["held"] = {
                name: shares for name, shares in state.held.items() if name != speaker
            }
    elif lost_share is not None and _is_share(lost_share):
        changes["held"] = _reserve(state, speaker, ALL_BUDGETS, lost_share)
    if isinstance(hops, int) and hops > 0:
        changes["hops"] = state.hops + hops
    return changes


def apply_audit(state: SessionState, envelope: Envelope) -> SessionState:
    """Return the state after an audit record: a reservation, an effect, or the begin of undoing."""
    data = envelope.event_data
    match data.get("kind"):
        case "reserved":
            speaker, share = str(data.get("speaker")), data.get("share")
            if _is_share(share):
                shares = _reserve(state, speaker, str(data.get("of") or ""), share)
                return with_fields(state, held=shares)
        case "effect":
            entry = data.get("entry")
            if isinstance(entry, Mapping) and isinstance(entry.get("key"), str):
                return with_fields(state, effects=_add_effect(state, entry, data.get("round")))
        case "memory":
            memories = data.get("memories")
            if isinstance(memories, Mapping):
                return with_fields(state, account={**state.account, "extra": memories})
        case "undoing":
            undo = {"round": data.get("round"), "reason": str(data.get("reason") or "")}
            return with_fields(state, undoing=undo)
    return state


def add_usage(
    totals: Mapping[str, Mapping[str, Any]], usage: Mapping[str, Any]
) -> Mapping[str, Mapping[str, Any]]:
    """Return the sums of usage by the path of an agent."""
    sums = dict(totals)
    for path, figures in usage.items():
        if isinstance(figures, Mapping):
            before = sums.get(path, {})
            sums[path] = {
                key: figure + (previous if _is_count(previous := before.get(key)) else 0)
                if _is_count(figure)
                else figure
                for key, figure in figures.items()
            }
    return sums


def cut_off(state: SessionState) -> Mapping[str, Any]:
    """Return the changes to the account when an input ends without an answer, and not undone."""
    if not state.effects:
        return {}
    effects = {
        key: {**entry, _CUT_OFF: True} if entry.get("state") in _MAY_HAVE_HAPPENED else entry
        for key, entry in state.effects.items()
    }
    return {"effects": effects}


def without_marks(state: SessionState) -> Mapping[str, Any]:
    """Return the changes to the account when an input of which a part was cut off is answered."""
    if not any(_CUT_OFF in entry for entry in state.effects.values()):
        return {}
    effects = {
        key: {name: value for name, value in entry.items() if name != _CUT_OFF}
        for key, entry in state.effects.items()
    }
    return {"effects": effects}


_CUT_OFF = "cut_off"
"""Marks the effects of an input that was cut off; those of the next one are counted with them."""
_MAY_HAVE_HAPPENED = frozenset({"started", "waiting", "done"})


def _effects_of_round(state: SessionState) -> Mapping[str, Any]:
    """Return the effects of the present round; nothing if only humans are due in it."""
    if not state.effects and not state.undoing:
        return {}
    number = state.round
    effects: dict[str, Mapping[str, Any]] = {
        key: {name: value for name, value in entry.items() if name != _CUT_OFF}
        | {"round": number + 1}
        for key, entry in state.effects.items()
        if entry.get(_CUT_OFF)
    }
    if set(state.due).issubset(state.humans):
        return {"effects": effects, "undoing": {}}
    effects |= {key: entry for key, entry in state.effects.items() if entry.get("round") == number}
    undo = state.undoing if state.undoing.get("round") == number else {}
    return {"effects": effects, "undoing": undo}


def _reserve(
    state: SessionState, speaker: str, budget: str, share: float
) -> Mapping[str, Mapping[str, float]]:
    shares = state.held.get(speaker, {})
    return {**state.held, speaker: {**shares, budget: shares.get(budget, 0.0) + share}}


def _is_share(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _add_effect(
    state: SessionState, entry: Mapping[str, Any], round: object
) -> Mapping[str, Mapping[str, Any]]:
    """Return the effects with a new one, or with a new status of a known one."""
    earlier = state.effects.get(entry["key"], {})
    if "args" not in entry and "args" not in earlier:
        return state.effects
    return {**state.effects, entry["key"]: {"round": round, **earlier, **entry}}
