"""What the runs of flows come to, from an audit's file or from a store: `audit --flows`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentgraph.cli.stores import audit_sink, envelopes_of, log_reader, stored_session
from agentgraph.errors import Quarantined

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointTuple

    from agentgraph.flow.audit.figures import FlowFigures
    from agentgraph.flow.result import FlowResult
    from agentgraph.guards import Record
    from agentgraph.sessions.envelopes.envelope import Envelope

_DURABLE = ("sqlite:///", "postgresql://", "postgres://")


async def flows_at(url: str) -> list[FlowFigures]:
    """Return what the runs of each flow come to: those in a sink's file, in a store, or in both.

    A store has the runs in sessions, and the last ones of the threads of flows that ran by
    themselves. Raises `ConfigurationError` for a URL that is neither.
    """
    from agentgraph.flow.audit.figures import figures_of, results_in

    sink = audit_sink(url)
    records = [] if sink is None else [r for run in sink.runs() for r in sink.read(run)]
    results = results_in(records)
    if sink is None or url.startswith(_DURABLE):
        known_threads = {result.thread_id for _, result in results}
        in_sessions = results_in([record async for record in _session_records(url)])
        results += [(flow, r) for flow, r in in_sessions if r.thread_id not in known_threads]
        known_threads.update(result.thread_id for _, result in results)
        results += [(flow, r) for flow, r in await _on_threads(url, known_threads)]
    return figures_of(results)


async def _session_records(url: str) -> AsyncIterator[Record]:
    """Yield the records of all sessions of a store."""
    from agentgraph.sessions.audit import audit_of

    async with log_reader(url) as log:
        for summary in await log.sessions():
            snapshot = await stored_session(log, summary.key)
            envelopes: list[Envelope] = []
            with suppress(Quarantined):  # what comes before the damage counts
                async for envelope in envelopes_of(log, summary.key, upto=snapshot.head):
                    envelopes += [envelope]
            for record in audit_of(snapshot.record, envelopes).records:
                yield record


async def _on_threads(url: str, known_threads: set[str]) -> list[tuple[str, FlowResult[Any]]]:
    """Return the runs of flows on threads, with the names of the flows."""
    from agentgraph.storage import open_saver

    saver: Any = open_saver(url)
    try:
        checkpoints = [checkpoint async for checkpoint in saver.alist(None)]
    finally:
        await saver.aclose()
    latest = {
        key: checkpoint
        for checkpoint in sorted(checkpoints, key=lambda c: str(c.checkpoint["id"]))
        if (key := _run_of(checkpoint)) is not None and key[0] not in known_threads
    }
    return [_result_in(key, checkpoint) for key, checkpoint in latest.items()]


def _run_of(checkpoint: CheckpointTuple) -> tuple[str, str] | None:
    """Return the thread and the turn of a flow's own checkpoint, None for any other."""
    at, values = checkpoint.config["configurable"], checkpoint.checkpoint["channel_values"]
    turn, reports = values.get("turn"), values.get("reports")
    if at.get("checkpoint_ns") or not isinstance(turn, dict) or not isinstance(reports, dict):
        return None
    return str(at["thread_id"]), str(turn["id"])


def _result_in(key: tuple[str, str], checkpoint: CheckpointTuple) -> tuple[str, FlowResult[Any]]:
    from agentgraph.flow.result import FlowResult

    values = checkpoint.checkpoint["channel_values"]
    result = FlowResult.of_values(values, is_over=bool(values.get("end")), thread_id=key[0])
    return str(values["turn"]["agent"]), result


def lines_of(figures: FlowFigures) -> Iterator[str]:
    """Yield the lines on one flow."""
    yield (
        f"{figures.flow}: {figures.runs} runs: {figures.finished_runs} finished, "
        f"{figures.aborted_runs} aborted, {figures.open_runs} without an end"
    )
    yield f"  success   {_success(figures)}"
    cost = "" if figures.cost is None else f"${figures.cost} and "
    per_success = f", {_per_success(figures)} per success" if figures.successes else ""
    yield f"  cost      {cost}{figures.tokens:,} tokens{per_success}"
    failures = (f"{m} {_sum(classes)}" for m, classes in figures.failures.items())
    yield f"  failures  {', '.join(failures) or 'none'}"
    if figures.failed_stages:
        yield f"  failed    {_counts(figures.failed_stages)}"


def _success(figures: FlowFigures) -> str:
    rate = figures.success_rate
    if rate is None:
        return "the oracle has judged no run"
    return f"{rate:.0%} of the {figures.judged_runs} that the oracle has judged"


def _per_success(figures: FlowFigures) -> str:
    cost = figures.cost_per_success
    dollars = "" if cost is None else f"${cost:.4f} and "
    return f"{dollars}{figures.tokens_per_success or 0:,.0f} tokens"


def _sum(classes: Mapping[str, int]) -> str:
    return f"{sum(classes.values())} ({_counts(classes)})"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
