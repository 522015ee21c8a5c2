"""A rule: when it fires, where it leads."""

from __future__ import annotations

from dataclasses import dataclass

from agentgraph.errors import ConfigurationError
from agentgraph.routing.protocols import TransitionCondition, is_condition
from agentgraph.routing.targets import Target, as_target
from agentgraph.routing.values import is_whole, short


@dataclass(frozen=True, slots=True)
class Transition:
    """A rule; the lower its priority, the earlier it is tried. A string is an agent's name."""

    when: TransitionCondition
    then: Target | str
    priority: int = 0

    def __post_init__(self) -> None:
        faults = []
        if not is_condition(self.when):
            faults.append(
                f"when={short(self.when)} is no condition: give one, Always() for instance"
            )
        if not is_whole(self.priority):
            faults.append(f"priority={short(self.priority)} is no whole number of 64 bits")
        try:
            object.__setattr__(self, "then", as_target(self.then))
        except ConfigurationError as error:
            faults += error.faults
        if faults:
            raise ConfigurationError(faults)
