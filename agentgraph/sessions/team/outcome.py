"""What a session has come to, for whoever holds it inside of something else."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgraph.running import current_run, inside_part
from agentgraph.sessions.state.envelope import EV_ROUND_FAILED, Envelope


@dataclass(frozen=True, slots=True)
class Outcome:
    """The last words that were said in answer, what was used for them, and what ended it."""

    last: Envelope | None
    used: Mapping[str, Mapping[str, Any]]
    """Tokens by agent."""
    stopped_by: str | None
    """The guard that has ended it, if one has."""

    def charge(self, place: str) -> None:
        """Have what was used in the account of the run around it, where nobody else says so."""
        run = current_run()
        if run is not None:
            with inside_part(place):
                for path, used in self.used.items():
                    run.record_figures(path, used)


def outcome_of(envelopes: Sequence[Envelope], people: Collection[str]) -> Outcome:
    """Sum up what was done; what people have said is no answer of the team's."""
    said = [one for one in envelopes if one.is_substantive and one.sender_id not in people]
    return Outcome(said[-1] if said else None, _used(envelopes), _stopped_by(envelopes))


def _used(envelopes: Sequence[Envelope]) -> dict[str, dict[str, Any]]:
    parts: dict[str, dict[str, Any]] = {}
    for used in (one.event_data.get("usage") or {} for one in envelopes):
        for path, figures in used.items():
            part = parts.setdefault(path, {})
            for name, figure in figures.items():
                part[name] = part.get(name, 0) + figure if isinstance(figure, int) else figure
    return parts


def _stopped_by(envelopes: Sequence[Envelope]) -> str | None:
    last = envelopes[-1].event_data if envelopes else {}
    failures = (one.event_data for one in envelopes if one.event_type == EV_ROUND_FAILED)
    guards = [one["message"] for one in failures if one["code"] == "guard"]
    return guards[-1] if guards and last.get("reason") == guards[-1] else None
