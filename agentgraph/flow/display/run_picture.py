"""What a notebook shows of a flow's run: its stages as a table, and as a graph with them lit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentgraph.display import escaped, table
from agentgraph.drawing import Edge, Node, draw
from agentgraph.flow.audit.stage_report import StageReport
from agentgraph.flow.stage import STAGES

_HEAD = ("stage", "attempt", "worker", "seconds", "tokens", "checks")


def table_of_stages(reports: Sequence[StageReport]) -> str:
    """Show the runs of the stages in their order."""
    return table(_HEAD, map(_cells, reports))


def picture_of_stages(reports: Sequence[StageReport], replans: int, *, is_aborted: bool) -> str:
    """Draw the stages and the workers of a run; lit are those that ran, the failed ones marked.

    A stage that has failed in one attempt and passed in the next is not marked; the way back to the
    plan shows that.
    """
    last = {(report.stage, report.worker): report for report in reports}
    nodes = [_node(stage, last.get((stage, ""))) for stage in STAGES]
    workers = [(place, report) for place, report in last.items() if place[1]]
    nodes[2:2] = [_node(f"{stage}/{name}", report) for (stage, name), report in workers]
    names = [f"{stage}/{name}" for (stage, name), _ in workers]
    lit = {node.id for node in nodes if node.highlighted}
    edges = [
        Edge(source, target, label, highlighted=bool(label) or {source, target} <= lit)
        for source, target, label in (*_ways(names), *_ways_back(reports, replans, is_aborted))
    ]
    return draw([Node("start", "start", "start"), *nodes, Node("end", "end", "end")], edges)


def _node(name: str, report: StageReport | None) -> Node:
    ran = report is not None
    label = name.rpartition("/")[2]
    return Node(name, label, highlighted=ran, failed=report is not None and not report.passed)


def _ways(workers: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the ways of a run without a failure."""
    yield "start", "plan", ""
    yield "plan", "fan_out", ""
    for worker in workers:
        yield "fan_out", worker, ""
        yield worker, "fan_in", ""
    if not workers:
        yield "fan_out", "fan_in", ""
    yield "fan_in", "validate", ""
    yield "validate", "finalize", ""
    yield "finalize", "end", ""


def _ways_back(
    reports: Sequence[StageReport], replans: int, is_aborted: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield the ways from the stages that have failed: to a new plan, or to the end."""
    failed_stages: dict[int, str] = {}
    for report in reports:
        if not report.passed and not report.worker:
            failed_stages[report.attempt] = report.stage
    for attempt, stage in failed_stages.items():
        if attempt <= replans:
            yield stage, "plan", f"replan {attempt}"
        elif is_aborted:
            yield stage, "end", "aborted"


def _cells(report: StageReport) -> Sequence[str]:
    problems = [verdict.check for verdict in report.verdicts if not verdict.passed]
    return [
        escaped(report.stage),
        str(report.attempt),
        escaped(report.worker),
        f"{report.seconds:.1f}",
        str(report.usage.total_tokens),
        escaped(f"failed: {', '.join(problems)}" if problems else "passed"),
    ]
