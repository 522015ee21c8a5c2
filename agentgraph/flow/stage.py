"""A stage of a flow: what users set for it, and the names of the stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from agentgraph.errors import ConfigurationError
from agentgraph.guards import CostBudget, Gate, Guards

StageName: TypeAlias = Literal["plan", "fan_out", "fan_in", "validate", "finalize"]
STAGES: tuple[StageName, ...] = get_args(StageName)


@dataclass(frozen=True, slots=True)
class Stage:
    """What holds at one stage, or for one worker, beside what holds for the whole flow.

        Flow("report", supervisor=lead, work=[searcher, writer], stages={
            "searcher": Stage(after=Gate(invariants=[cites_a_source]), budget=CostBudget(usd=1)),
            "validate": Stage(requires=("sources",)),
        })

    The gates judge the JSON of what goes into the stage, and of what comes out of it. `requires`
    are artifacts of summaries, or workers with a summary, which must be there before.
    """

    before: Gate | None = None
    after: Gate | None = None
    guards: Guards | None = None
    budget: CostBudget | None = None
    requires: Sequence[str] = ()

    def __post_init__(self) -> None:
        faults = [*self._faults()]
        if faults:
            raise ConfigurationError(faults)
        object.__setattr__(self, "requires", tuple(self.requires))

    def _faults(self) -> Iterator[str]:
        kinds: Mapping[str, type] = {
            "before": Gate,
            "after": Gate,
            "guards": Guards,
            "budget": CostBudget,
        }
        for name, kind in kinds.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                yield f"Stage({name}={value!r}): give a {kind.__name__}"
        names = self.requires
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            yield f"Stage(requires={names!r}): give the names of artifacts or workers as a list"
        if self.budget is not None and self.guards is not None and self._has_budget(self.guards):
            yield "Stage(budget=…, guards=…): both have a budget; give one of them"

    @staticmethod
    def _has_budget(guards: Guards) -> bool:
        return "budget" in guards.override_names

    @property
    def policy(self) -> Guards | None:
        """The guards of this stage: those given, with its budget."""
        if self.budget is None:
            return self.guards
        if self.guards is None:
            return Guards(budget=self.budget)
        return self.guards.with_guard("budget", self.budget)


NO_STAGE = Stage()
