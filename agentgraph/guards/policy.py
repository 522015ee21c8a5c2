"""All the guards of an agent or a team, composed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypedDict, Unpack

from agentgraph.guards.deadlines import Deadlines
from agentgraph.guards.hops import HopLimit
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
    hops: HopLimit
    deadlines: Deadlines


@dataclass(frozen=True, slots=True)
class Guards:
    """A policy: which guards hold, and with which limits."""

    steps: StepLimit = field(default_factory=StepLimit)
    hops: HopLimit = field(default_factory=HopLimit)
    deadlines: Deadlines = field(default_factory=Deadlines)

    @classmethod
    def interactive(cls, **overrides: Unpack[_Overrides]) -> Guards:
        """Return the policy for somebody who waits for the answer."""
        return replace(cls(), **overrides)

    def within(self, outer: Guards | None) -> Guards:
        """Return this policy inside of another one: it may tighten it, never lift it."""
        if outer is None:
            return self
        return replace(self, steps=min(self.steps, outer.steps, key=lambda limit: limit.steps))

    def recursion_limit(self, nodes: int) -> int:
        """Return a super-step limit that no run of so many nodes reaches within its steps."""
        return 20 + (4 + nodes) * self.steps.steps
