"""What may be sent from outside: made into a draft, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentgraph.errors import ConfigurationError
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.envelope import Draft, text_envelope, type_fault


def drafted(given: object, **fields: Any) -> Draft:
    """Make a draft of a text, or of a draft with more filled in."""
    named = {key: value for key, value in fields.items() if value is not None}
    if isinstance(given, Draft):
        return replace(given, **named)
    if not isinstance(given, str):
        raise ConfigurationError(
            f"{type(given).__name__} cannot be sent: give a text, or a Draft such as "
            "text_envelope(…) makes",
            code="draft",
        )
    return text_envelope(given, **named)


_OWN = ("decision",)


def draft_faults(draft: Draft) -> list[str]:
    """Return what is wrong with a draft from outside."""
    faults = [] if (fault := type_fault(draft.event_type)) is None else [fault]
    data = draft.event_data
    faults += [f"event_data: {key!r} is stamped by the session" for key in _OWN if key in data]
    if draft.event_type == ev.EV_TEXT and not isinstance(data.get("text"), str):
        faults.append("event_data: a text has a 'text'")
    if draft.event_type == ev.EV_PACKET:
        faults += _packet_faults(data)
    if draft.event_type == ev.EV_CONTEXT_SET:
        faults += _update_faults(data, "event_data")
    return faults


def _packet_faults(data: Mapping[str, Any]) -> list[str]:
    faults = []
    if not isinstance(data.get("body"), str):
        faults.append("event_data: a packet has a 'body'")
    if not isinstance(data.get("routing"), Mapping):
        faults.append("event_data: a packet has its 'routing'")
    unknown = sorted(set(data) - {"body", "routing", "context_updates"})
    faults += [f"event_data: {key!r} is filled in by rounds" for key in unknown if key not in _OWN]
    return faults + _update_faults(data.get("context_updates", {}), "context_updates")


def _update_faults(updates: Any, where: str) -> list[str]:
    if not isinstance(updates, Mapping):
        return [f"{where}: give an object with 'set' and 'delete'"]
    faults = []
    if not isinstance(updates.get("set", {}), Mapping):
        faults.append(f"{where}: 'set' is an object of values by key")
    deleted = updates.get("delete", [])
    if not isinstance(deleted, list) or not all(isinstance(key, str) for key in deleted):
        faults.append(f"{where}: 'delete' is a list of keys")
    return faults
