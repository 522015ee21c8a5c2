"""All the guards of an agent or a team, composed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypedDict, Unpack

from agentgraph.guards.steps import StepLimit

__all__ = ["DEFAULT", "Default", "Guards"]


class Default(Enum):
    """The type of `DEFAULT`: whatever the library thinks best."""

    DEFAULT = "DEFAULT"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = Default.DEFAULT


class _Overrides(TypedDict, total=False):
    steps: StepLimit


@dataclass(frozen=True, slots=True)
class Guards:
    """A policy: which guards hold, and with which limits."""

    steps: StepLimit = field(default_factory=StepLimit)

    @classmethod
    def interactive(cls, **overrides: Unpack[_Overrides]) -> Guards:
        """Return the policy for somebody who waits for the answer."""
        return replace(cls(), **overrides)

    @property
    def recursion_limit(self) -> int:
        """Return a super-step limit that no run within the step limit reaches."""
        return 20 + 8 * self.steps.steps
