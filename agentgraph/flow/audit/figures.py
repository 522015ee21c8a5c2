"""What the runs of flows come to: how many succeed, what a success costs, where they fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from agentgraph.flow.audit.flow_run import flow_runs
from agentgraph.flow.result import FlowResult, Mast, mast_of
from agentgraph.guards import Record


@dataclass(frozen=True, slots=True)
class FlowFigures:
    """The runs of one flow: their number, the oracle's answers, their cost and their failures."""

    flow: str
    """The path of the flow, its name where it runs by itself."""
    runs: int = 0
    finished_runs: int = 0
    aborted_runs: int = 0
    judged_runs: int = 0
    """Those of which the oracle has said whether they succeeded."""
    successes: int = 0
    tokens: int = 0
    cost: Decimal | None = None
    """In US dollars, None as soon as the cost of one run is unknown."""
    failures: Mapping[Mast, Mapping[str, int]] = field(default_factory=dict)
    """How many runs were aborted, by the category in the MAST taxonomy and by the class."""
    failed_stages: Mapping[str, int] = field(default_factory=dict)
    """How often stages and workers have failed, also those that a new plan followed."""

    @property
    def open_runs(self) -> int:
        """The runs without an end: they wait, are under way, or were cut off."""
        return self.runs - self.finished_runs - self.aborted_runs

    @property
    def success_rate(self) -> float | None:
        """The share of successes among the runs that were judged, None without one."""
        return self.successes / self.judged_runs if self.judged_runs else None

    @property
    def cost_per_success(self) -> Decimal | None:
        """The cost of all runs by success, None without a success, or where it is unknown."""
        return None if self.cost is None or not self.successes else self.cost / self.successes

    @property
    def tokens_per_success(self) -> float | None:
        """The tokens of all runs by success, None without a success."""
        return self.tokens / self.successes if self.successes else None

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON-able values."""
        cost, per_success = self.cost, self.cost_per_success
        return {
            "flow": self.flow,
            "runs": self.runs,
            "finished": self.finished_runs,
            "aborted": self.aborted_runs,
            "open": self.open_runs,
            "judged": self.judged_runs,
            "successes": self.successes,
            "success_rate": self.success_rate,
            "tokens": self.tokens,
            "tokens_per_success": self.tokens_per_success,
            "cost": None if cost is None else str(cost),
            "cost_per_success": None if per_success is None else str(per_success),
            "failures": {mast: {**classes} for mast, classes in self.failures.items()},
            "failed_stages": {**self.failed_stages},
        }


def results_in(records: Iterable[Record]) -> list[tuple[str, FlowResult[Any]]]:
    """Return the result of each run of a flow, with the path of the flow, and all its spend."""
    runs = flow_runs(records)
    return [(run.flow, replace(FlowResult.of_run(run), usage=run.spend)) for run in runs]


def figures_of(results: Iterable[tuple[str, FlowResult[Any]]]) -> list[FlowFigures]:
    """Return what the runs of each flow come to, in the order of the flows' first runs."""
    by_flow: dict[str, list[FlowResult[Any]]] = {}
    for flow, result in results:
        by_flow.setdefault(flow, []).append(result)
    return [_figures(flow, own) for flow, own in by_flow.items()]


def _figures(flow: str, results: list[FlowResult[Any]]) -> FlowFigures:
    statuses = Counter(result.status for result in results)
    answers = [result.success for result in results if result.success is not None]
    costs = [result.usage.cost for result in results if result.usage.total_tokens]
    prices = [cost for cost in costs if cost is not None]
    return FlowFigures(
        flow,
        runs=len(results),
        finished_runs=statuses["finished"],
        aborted_runs=statuses["aborted"],
        judged_runs=len(answers),
        successes=sum(answers),
        tokens=sum(result.usage.total_tokens for result in results),
        cost=sum(prices, Decimal(0)) if prices and len(prices) == len(costs) else None,
        failures=_failures(results),
        failed_stages=_failed_stages(results),
    )


def _failures(results: Iterable[FlowResult[Any]]) -> Mapping[Mast, Mapping[str, int]]:
    failures: dict[Mast, Counter[str]] = {}
    for result in results:
        if result.status == "aborted" and (failure_class := result.failure_class) is not None:
            failures.setdefault(mast_of(failure_class), Counter())[failure_class] += 1
    return {mast: {**classes} for mast, classes in failures.items()}


def _failed_stages(results: Iterable[FlowResult[Any]]) -> Mapping[str, int]:
    names = (
        f"{report.stage}/{report.worker}".rstrip("/")
        for result in results
        for report in result.stages
        if not report.passed
    )
    return {**Counter(names)}
