"""A policy: which guards hold for an agent or a team, and with which limits.

This is the data that guards read. Users write the subclass `Guards`, see `patcher`, which also
guards graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self, Unpack

from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import TIERS, Tier
from agentgraph.guards.guard import Guard, GuardAt, guards_at, replaced_guards, tighter_guards
from agentgraph.guards.mechanisms.breaker import CircuitBreaker, unused_fallback
from agentgraph.guards.mechanisms.limits import Progress, StepLimit
from agentgraph.guards.mechanisms.retry import RetryBudget
from agentgraph.guards.mechanisms.spending.budget import CostBudget
from agentgraph.guards.mechanisms.spending.prices import Prices
from agentgraph.guards.overrides import (
    Overrides,
    PolicyGuards,
    guard_classes,
    guard_of,
    guards_of_user,
    policy_faults,
)
from agentgraph.guards.process import ModelKey, process_breaker, process_retry
from agentgraph.guards.table import DecisionTable, with_fallback


class Policy(PolicyGuards):
    """Which guards hold, and with which limits.

    It owns its circuit breakers and retry budgets, one for each provider and model: all runs under
    one policy share them. Those of the default policy are the process's.
    """

    extra: tuple[Guard[Any], ...]
    stages: Mapping[str, Self]

    def __init__(self, tier: Tier | None = None, **overrides: Unpack[Overrides[Any]]) -> None:
        self._names_tier = tier is not None
        tier = "interactive" if tier is None else tier
        faults: list[str] = []
        if tier not in TIERS:
            faults.append(f"tier={tier!r}: there are {', '.join(TIERS)}")
            tier = "interactive"
        values: dict[str, Any] = dict.fromkeys(overrides)
        for name, value in overrides.items():
            try:
                values[name] = _value_of(name, value, tier)
            except ConfigurationError as error:
                faults += error.faults
        faults += policy_faults(tier, values)
        if faults:
            raise ConfigurationError(faults)
        self.tier: Tier = tier
        self.override_names = frozenset(values)
        """The guards that were given in place of the tier's own."""
        self._levels: dict[str, Self] = {}
        """The policy at each agent that is a stage, by the agent's path."""
        self._outermost: Self | None = None
        """The policy around this one, None where it is the outermost."""
        self._origin: Self | None = None
        """The policy that this one was derived from for a number of turns, None for any other."""
        self.run_limits: tuple[tuple[StepLimit, Progress], ...] = ()
        """The step limits of the runs in tools around its agents, each with the run's progress."""
        self._inner: tuple[tuple[str, CostBudget], ...] = ()
        """The budgets of inner policies and of stages, by their paths."""
        self._budgets: tuple[tuple[str, CostBudget], ...] | None = None
        self._prices: Prices | None = None
        self._table: DecisionTable | None = None
        self._of_process: tuple[object, ...] = ()
        """The breaker and the retry budget in whose place the process's own are used."""
        for name, guard in guard_classes().items():
            setattr(self, name, values[name] if name in values else guard.of_tier(tier))
        self.stages = values.get("stages", MappingProxyType({}))
        self._take_extra(guards_at("", values.get("extra", ())))
        if self._names_tier and (fault := unused_fallback(self.table, tier, self.breaker)):
            raise ConfigurationError([f"breaker: {fault}"])

    @property
    def outermost(self) -> Self:
        """Return the policy for the whole input: the outermost one around this policy."""
        return self if self._outermost is None else self._outermost

    @property
    def budgets(self) -> tuple[tuple[str, CostBudget], ...]:
        """Return the budgets that pay for a call, by path; "" is the path of the whole input's."""
        if self._budgets is None:
            run = self.outermost.budget
            self._budgets = self._inner if run is None else (("", run), *self._inner)
        return self._budgets

    @property
    def table(self) -> DecisionTable:
        """Return the decision table in force: a fallback that was given answers in batch too."""
        if self._table is None:
            has_fallback = self.breaker is not None and self.breaker.fallback is not None
            self._table = with_fallback(self.decisions) if has_fallback else self.decisions
        return self._table

    def share_with_process(self) -> Self:
        """Use the breakers and retry budgets of the process; return the policy itself."""
        self._of_process = (self.breaker, self.retry)
        return self

    def breaker_of(self, model: ModelKey, *, is_known: bool = True) -> CircuitBreaker | None:
        """Return the breaker of a model; of one that is not known, the process has none."""
        if self.breaker is None:
            return None
        if is_known and any(self.breaker is guard for guard in self._of_process):
            return process_breaker(model)
        return self.breaker.for_key(*model)

    def retry_of(self, model: ModelKey, *, is_known: bool = True) -> RetryBudget | None:
        """Return the retry budget of a model; of one that is not known, the process has none."""
        if self.retry is None:
            return None
        if is_known and any(self.retry is guard for guard in self._of_process):
            return process_retry(model)
        return self.retry.for_key(*model)

    def agent_breaker(self, path: str) -> CircuitBreaker | None:
        """Return the breaker of an agent, which its answers open that fail a gate for good."""
        return None if self.breaker is None else self.breaker.for_key(f"agent:{path}")

    @property
    def judges(self) -> bool:
        """Whether a gate, a critic or a user's guard judges the answers of models."""
        return (
            bool(self.escalation.critic)
            or any(gate.judges_work for gate in self.gates)
            or any(hasattr(guard, "after_model") for _, guard in self.extra_guards)
        )

    @property
    def limits_tools(self) -> bool:
        """Whether a guard may refuse the call of a tool for what it is."""
        return bool(self.gates) or self.tool_limit is not None or self.interrupt_on is not None

    @property
    def judges_input(self) -> bool:
        """Whether a gate judges what a user says."""
        return any(gate.judges_input for gate in self.gates)

    @property
    def prices(self) -> Prices:
        """Return the prices that its budgets were given."""
        if self._prices is None:
            price_lists = (budget.price_list for _, budget in self.budgets)
            self._prices = {name: price for prices in price_lists for name, price in prices.items()}
        return self._prices

    def for_turns(self, turns: int) -> Self:
        """Return this policy for a team of so many turns: its own steps do not end it before.

        A step limit that was given holds as it is. Breakers, budgets and the audit are shared.
        """
        if self.steps is None or "steps" in self.override_names:
            return self
        policy = self._copy()
        policy.steps = self.steps.times(max(turns, 1))
        policy._origin = self
        return policy

    def for_run(self, steps: StepLimit | None, own: Policy, progress: Progress) -> Self:
        """Return this policy for a run in a tool: its own steps are counted by its `progress`.

        `steps` is the limit of the tool's agent, and `own` the policy of the run before it was put
        inside of that agent's.
        """
        policy = self._copy()
        policy.steps = steps
        if own.steps is not None and "steps" in own.override_names:
            policy.run_limits = (*self.run_limits, (own.steps, progress))
        return policy

    def with_guard(self, name: str, guard: object) -> Self:
        """Return this policy with a guard under the name of its setting, as if it had been given.

        guards.with_guard("budget", CostBudget(usd=1))
        """
        policy = self._copy()
        setattr(policy, name, guard)
        policy.override_names = self.override_names | {name}
        return policy

    def within(self, outer: Self | None, path: str = "") -> Self:
        """Return the policy that applies where this one is inside of `outer`.

        This policy may tighten the outer one, never loosen it. Its own budget is counted at `path`
        for all agents below, in addition to the budget of the outer policy.
        """
        if outer is None or outer is self:
            return self
        if outer._origin is self:
            return outer
        inner = outer._copy()
        inner._outermost = outer.outermost
        if self.budget is not None and "budget" in self.override_names:
            inner._inner = (*outer._inner, (path, self.budget))
        inner.tier = max(self.tier, outer.tier, key=TIERS.index)
        names = self.override_names if inner.tier == outer.tier else self._stated_names
        for name in names - {"extra", "stages"}:
            setattr(inner, name, _tighter(getattr(self, name), getattr(outer, name)))
        inner._take_extra(tighter_guards(self._extra, outer._extra, path))
        if inner.tier != outer.tier and "decisions" not in self.override_names:
            inner.decisions = self.decisions
        inner.override_names = outer.override_names | self.override_names
        if self.stages:
            self._add_stages(inner, outer)
        return inner

    def _add_stages(self, inner: Self, outer: Self) -> None:
        """Give the stages of both to `inner`, which is this policy within `outer`."""
        own, shared_names = self.stages, self.stages.keys() & outer.stages.keys()
        stages = {name: own[name].within(outer.stages[name]) for name in shared_names}
        inner.stages = MappingProxyType({**outer.stages, **own, **stages})
        # A stage that only this policy names must not loosen the outer limits either.
        alone = {
            name: stage.within(inner) for name, stage in own.items() if name not in shared_names
        }
        inner.stages = MappingProxyType({**inner.stages, **alone})

    def at(self, path: str) -> Self:
        """Return the policy of the agent with this path: that of its stage, else this one."""
        if not self.stages:
            return self
        stage = self.stages.get(path.rpartition("/")[2])
        if stage is None:
            return self
        if path not in self._levels:
            self._levels[path] = self.at_stage(stage, path)
        return self._levels[path]

    def at_stage(self, stage: Self, path: str) -> Self:
        """Return the policy of a stage at a path, which inherits from this one what it lacks.

        Its own budget counts in addition to that of the run.
        """
        level = self._copy()
        level._outermost = self.outermost
        is_other = stage._names_tier and stage.tier != self.tier
        names = stage._stated_names if is_other else stage.override_names
        for name in names - {"stages", "extra"}:
            setattr(level, name, getattr(stage, name))
        level.override_names = self.override_names | names
        level._take_extra(replaced_guards(stage._extra, self._extra, path))
        if level.budget is not None and level.budget is not self.budget:
            level._inner = (*self._inner, (path, level.budget))
        if is_other:
            level.tier = stage.tier
            if "decisions" not in stage.override_names:
                level.decisions = stage.decisions
        return level

    def _take_extra(self, guards: tuple[GuardAt, ...]) -> None:
        """Take the guards that users have brought, each with the key of its memory."""
        self._extra, self.extra = guards, tuple(guard for _, guard in guards)
        own_guards = [getattr(self, name) for name in guard_classes()]
        with_hooks = [guard for guard in own_guards if hasattr(guard, "fold")]
        # No property: each step of a run reads it.
        self.extra_guards: tuple[GuardAt, ...] = (*guards_at("", with_hooks), *guards)
        """The guards that are asked by their hooks: built-in ones that have them, and users'."""

    @property
    def _stated_names(self) -> frozenset[str]:
        """The names of the guards that were given, or that come with a tier that was given."""
        if not self._names_tier:
            return self.override_names
        with_tier = (name for name, guard in guard_classes().items() if guard.comes_with_tier)
        return self.override_names.union(with_tier)

    def recursion_limit(self, nodes: int) -> int:
        """Return a super-step limit that a graph of `nodes` nodes cannot reach within its steps."""
        limit = self.steps
        steps = 1_000 if limit is None else max(limit.total or 1_000, limit.steps)
        return 20 + (6 + nodes) * steps * 4

    def _copy(self) -> Self:
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        clone._levels, clone._budgets, clone._prices, clone._table = {}, None, None, None
        return clone


def _value_of(name: str, value: object, tier: Tier) -> object:
    """Return what a user gives for a setting, as the policy has it."""
    match name:
        case "extra":
            return guards_of_user(value)
        case "stages":
            return _stages(value)
    return guard_of(name, value, tier)


def _stages(value: object) -> Mapping[str, Policy]:
    """Return the policies of stages that a user gives; raises `ConfigurationError` for others."""
    if isinstance(value, Mapping) and all(isinstance(stage, Policy) for stage in value.values()):
        return MappingProxyType(dict(value))
    raise ConfigurationError(f"stages={value!r}: give Guards by the names of agents")


def _tighter(own: BuiltInGuard | None, outer: BuiltInGuard | None) -> BuiltInGuard | None:
    """Return the guard that applies where one policy is inside of another."""
    if own is None or outer is None:
        return own if outer is None else outer
    return own.tighter(outer)
