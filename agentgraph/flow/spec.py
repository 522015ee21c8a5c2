"""The specification of a flow: its fields, their checks, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentgraph.agents.spec.values import value_faults
from agentgraph.errors import ConfigurationError
from agentgraph.flow.members import Function, is_participant, member_of, name_of
from agentgraph.flow.stage import STAGES, Stage
from agentgraph.flow.topology import Debate, Name, Topology, topology_of
from agentgraph.flow.values import Brief, Summary
from agentgraph.guards import DEFAULT, Default, Guards
from agentgraph.participant import LEGAL_NAME, Graph, Participant

Part: TypeAlias = Participant | Graph | Callable[..., Any]
"""Who does a part of a flow: an agent, a team, a flow, a compiled graph, or a function."""
_PARTS = ("plan", "critic", "aggregate", "validate", "finalize")
_NODES = frozenset({*STAGES, "plan_gate", "validate_gate", "escalate", "compensate"})


class FlowFields(TypedDict, total=False):
    """The fields of a flow that do not decide on its type, for the signatures of `Flow`."""

    supervisor: Part | None
    work: Sequence[Part]
    plan: Part | None
    critic: Part | None
    aggregate: Part | None
    validate: Part | None
    finalize: Part | None
    topology: Name | Debate
    brief: type[Brief]
    summary: type[Summary]
    stages: Mapping[str, Stage]
    oracle: Callable[[Any], Any] | None
    guards: Guards | Default | None
    checkpointer: BaseCheckpointSaver[Any] | str | None
    store: BaseStore | None
    durability: Literal["sync", "async", "exit"]


@dataclass(frozen=True, eq=False, repr=False)
class FlowSpec:
    """The specification of a flow: data, without a graph or a run.

    Users write its subclass `agentgraph.Flow`, which compiles and runs it.
    """

    name: str
    description: str = ""
    _: KW_ONLY
    supervisor: Part | None = None
    work: Sequence[Part] = ()
    plan: Part | None = None
    critic: Part | None = None
    aggregate: Part | None = None
    validate: Part | None = None
    finalize: Part | None = None
    topology: Name | Debate = "supervisor"
    brief: type[Brief] = Brief
    summary: type[Summary] = Summary
    outcome: type[BaseModel] | None = None
    stages: Mapping[str, Stage] = field(default_factory=dict)
    oracle: Callable[[Any], Any] | None = None
    guards: Guards | Default | None = DEFAULT
    checkpointer: BaseCheckpointSaver[Any] | str | None = None
    store: BaseStore | None = None
    durability: Literal["sync", "async", "exit"] = "sync"

    def __post_init__(self) -> None:
        faults = [*self._normalize(), *self._faults()]
        if faults:
            raise ConfigurationError(dict.fromkeys(faults))

    # What it consists of.

    @cached_property
    def workers(self) -> Mapping[str, Participant | Function]:
        """The workers by their names."""
        members = [member_of(candidate, "work") for candidate in self.work]
        return {name_of(member): member for member in members}

    @property
    def participants(self) -> tuple[Participant, ...]:
        """The workers that are agents, teams, flows or graphs; the others are functions."""
        return tuple(worker for worker in self.workers.values() if is_participant(worker))

    @cached_property
    def work_topology(self) -> Topology:
        """How the work stage is wired."""
        return topology_of(self.topology)

    @property
    def has_own_summary(self) -> bool:
        """Whether the summaries have a form of the user's, in which workers are asked to answer."""
        return self.summary is not Summary

    @cached_property
    def policy(self) -> Guards | None:
        """The guards in force where this flow runs by itself, None without any."""
        if isinstance(self.guards, Default):
            return Guards.batch().share_with_process()
        return self.guards

    # Checks.

    def _normalize(self) -> Iterator[str]:
        for name in ("supervisor", *_PARTS):
            value = getattr(self, name)
            if value is not None:
                try:
                    object.__setattr__(self, name, member_of(value, name))
                except ConfigurationError as error:
                    yield from error.faults
        try:
            object.__setattr__(self, "work", tuple(self.work))
            names = [name_of(member_of(worker, "work")) for worker in self.work]
        except ConfigurationError as error:
            yield from error.faults
            object.__setattr__(self, "work", ())
            return
        except TypeError:
            yield f"work={self.work!r}: give a list of workers"
            object.__setattr__(self, "work", ())
            return
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"two workers are called {name!r}: give them names of their own"

    def _faults(self) -> Iterator[str]:
        if not isinstance(self.name, str) or not LEGAL_NAME.fullmatch(self.name):
            yield f"name={self.name!r}: give a name of 1 to 52 of a-z, A-Z, 0-9, _ and -"
        if not self.work:
            yield f"the flow {self.name!r} has no workers: give work=[…]"
        for name in self.workers:
            if name in _NODES:
                yield f"a worker is called {name!r}, as a node of every flow is: rename it"
            elif not LEGAL_NAME.fullmatch(name):
                yield (
                    f"a worker is called {name!r}: give it a name of 1 to 52 of a-z, A-Z, 0-9, _ "
                    "and -, a function one by def or as its __name__"
                )
        try:
            self.work_topology  # noqa: B018
        except ConfigurationError as error:
            yield from error.faults
        yield from self._form_faults()
        yield from self._stage_faults()

    def _form_faults(self) -> Iterator[str]:
        kinds: Mapping[str, type[BaseModel]] = {"brief": Brief, "summary": Summary}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, type) or not issubclass(value, kind):
                yield f"{name}={value!r}: give a class that inherits from {kind.__name__}"
        yield from self._brief_faults()
        form = self.outcome
        if form is not None and not (isinstance(form, type) and issubclass(form, BaseModel)):
            yield f"outcome={form!r}: give a pydantic model, as a class"
        if self.oracle is not None and not callable(self.oracle):
            yield f"oracle={self.oracle!r}: give a function of the outcome"
        names = ("guards", "checkpointer", "store", "durability")
        yield from value_faults({name: getattr(self, name) for name in names})

    def _brief_faults(self) -> Iterator[str]:
        """Yield that nobody could fill the briefs: without a planner they have a task alone."""
        if self.plan is not None or self.supervisor is not None:
            return
        if not isinstance(self.brief, type) or not issubclass(self.brief, Brief):
            return
        names = [
            name
            for name, field in self.brief.model_fields.items()
            if field.is_required() and name not in ("worker", "task")
        ]
        if names:
            yield (
                f"brief={self.brief.__name__}: nobody fills {', '.join(names)}: "
                "give a supervisor, or plan="
            )

    def _stage_faults(self) -> Iterator[str]:
        if not isinstance(self.stages, Mapping):
            yield f"stages={self.stages!r}: give a mapping of stages and workers to a Stage"
            return
        names = [*STAGES, *self.workers]
        for name, stage in self.stages.items():
            if name not in names:
                yield f"stages: there is no stage {name!r}; there are {', '.join(names)}"
            if not isinstance(stage, Stage):
                yield f"stages: {name!r}: {stage!r}: give a Stage"
