"""The decision on a turn: who speaks next, which human the session waits for, or that it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Action: TypeAlias = Literal["speak", "wait", "close"]
Rule: TypeAlias = int | Literal["default", "handoff", "finish", "max_turns", "initial"]
"""The index of the rule that decided, or a reason that is no rule."""


@dataclass(frozen=True, slots=True)
class TransitionDecision:
    """Who speaks next, and which rule has decided it.

    The envelope of the turn stores it. `trace` names the conditions and targets that failed before;
    it is neither compared nor stored.
    """

    action: Action
    speakers: tuple[str, ...] = ()
    phase: str | None = None
    close_reason: str = ""
    rule: Rule = "default"
    trace: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def speak(cls, *speakers: str) -> TransitionDecision:
        """Give the floor to one speaker, or to several at once."""
        return cls("speak", speakers)

    @classmethod
    def wait(cls, human: str) -> TransitionDecision:
        """Wait for a human, who gets the floor."""
        return cls("wait", (human,))

    @classmethod
    def close(cls, reason: str) -> TransitionDecision:
        """End the session."""
        return cls("close", close_reason=reason)

    @property
    def next_speaker(self) -> str | None:
        """The only next speaker, None if there is none or several."""
        return self.speakers[0] if len(self.speakers) == 1 else None

    def to_dict(self) -> dict[str, object]:
        """Return the decision as it is stored in an envelope."""
        return {
            "action": self.action,
            "speakers": list(self.speakers),
            "rule": self.rule,
            "phase": self.phase,
            "close_reason": self.close_reason,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> TransitionDecision:
        """Read a decision from an envelope."""
        values: dict[str, object] = {**data, "speakers": tuple(data["speakers"])}  # type: ignore[arg-type]
        return cls(**values)  # type: ignore[arg-type]
