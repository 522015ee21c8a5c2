"""The decision of a graph after a turn: who speaks, for whom it waits, or that the session ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Action: TypeAlias = Literal["speak", "wait", "close"]
Rule: TypeAlias = int | Literal["default", "handoff", "finish", "max_turns", "initial"]
"""What decided: a rule by its index, or what stands beside the rules."""


@dataclass(frozen=True, slots=True)
class TransitionDecision:
    """Who goes on, and which rule decided so.

    It is stored in the envelope of the turn. `trace` names the conditions and targets that failed
    before; it is neither compared nor stored.
    """

    action: Action
    speakers: tuple[str, ...] = ()
    phase: str | None = None
    close_reason: str = ""
    rule: Rule = "default"
    trace: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def speak(cls, *speakers: str) -> TransitionDecision:
        """Give the floor to one, or to several at once."""
        return cls("speak", speakers)

    @classmethod
    def wait(cls, human: str) -> TransitionDecision:
        """Wait for a human, who then has the floor."""
        return cls("wait", (human,))

    @classmethod
    def close(cls, reason: str) -> TransitionDecision:
        """End the session."""
        return cls("close", close_reason=reason)

    @property
    def next_speaker(self) -> str | None:
        """The only one who goes on, None where nobody does or several do."""
        return self.speakers[0] if len(self.speakers) == 1 else None

    def to_dict(self) -> dict[str, object]:
        """Return the decision as it is stamped on an envelope."""
        return {
            "action": self.action,
            "speakers": list(self.speakers),
            "rule": self.rule,
            "phase": self.phase,
            "close_reason": self.close_reason,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> TransitionDecision:
        """Read a stamped decision."""
        values: dict[str, object] = {**data, "speakers": tuple(data["speakers"])}  # type: ignore[arg-type]
        return cls(**values)  # type: ignore[arg-type]
