"""`agentgraph audit --flows`: what the runs of flows come to, from a sink's file or a store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgraph import Hub
from agentgraph.flow import Flow
from agentgraph.guards import AuditTrail, JSONLSink, SQLiteSink
from tests.cli.conversations import run
from tests.flow.planned_work import flow_of, guarded, plan, verdict, worker

BAD = verdict(False, 0.9, "wrong")
RUNS: tuple[tuple[Any, ...], ...] = (
    (plan("a"), "good", verdict()),
    (plan("a"), "good too", verdict()),
    (plan("a"), "not so good", verdict()),
    (plan("a"), "bad", BAD, plan("a", "b"), "bad", BAD, plan("b"), "bad", BAD),
    (plan("nobody"),),
)
TIERS = ("batch", "batch", "batch", "batch", "interactive")


def is_good(text: str) -> bool:
    return text.startswith("good")


async def work(sink: Any) -> None:
    """Run the flows, and say later which outcomes are successes."""
    for number, (turns, tier) in enumerate(zip(RUNS, TIERS, strict=True)):
        flow = flow_of(*turns, guards=guarded(tier, sink=sink))
        await flow.ainvoke("go", thread_id=f"t{number}")
        if number < 3:
            flow.judged(f"t{number}", number < 2)
    sink.close()


KINDS = {
    "audit.jsonl": (JSONLSink, "{}"),
    "audit.db": (SQLiteSink, "{}"),
    "audit.sqlite": (SQLiteSink, "sqlite:///{}"),
}


@pytest.fixture(params=KINDS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The name of a sink's file, which has the runs."""
    make: Callable[[Path], Any]
    make, form = KINDS[request.param]
    path = tmp_path / request.param
    asyncio.run(work(make(path)))
    return form.format(path)


def figures(url: str) -> list[dict[str, Any]]:
    result = run("audit", "--flows", url, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_runs_of_a_flow_are_counted_with_successes_and_failures(file: str) -> None:
    [own] = figures(file)
    assert own["flow"] == "report"
    assert (own["runs"], own["finished"], own["aborted"], own["open"]) == (5, 3, 2, 0)
    assert (own["judged"], own["successes"]) == (3, 2)
    assert own["success_rate"] == pytest.approx(2 / 3)
    assert own["tokens_per_success"] == own["tokens"] / 2 > 0
    assert own["failures"] == {
        "verification": {"schema_failure": 1},
        "specification": {"spec_malformed": 1},
    }
    assert own["failed_stages"] == {"validate": 3, "plan": 1}


def test_figures_are_printed_in_words(file: str) -> None:
    [own] = figures(file)
    lines = run("audit", file, "--flows").stdout.splitlines()
    assert lines == [
        "report: 5 runs: 3 finished, 2 aborted, 0 without an end",
        "  success   67% of the 3 that the oracle has judged",
        f"  cost      {own['tokens']:,} tokens, {own['tokens'] / 2:,.0f} tokens per success",
        "  failures  verification 1 (schema_failure 1), specification 1 (spec_malformed 1)",
        "  failed    validate 3, plan 1",
    ]


def test_runs_in_the_sessions_of_a_store_are_counted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"

    async def serve() -> None:
        for number, (turns, tier) in enumerate(zip(RUNS, TIERS, strict=True)):
            served = flow_of(*turns, oracle=is_good, guards=guarded(tier))
            async with await Hub.open(url, serve=[served]) as hub:
                await (await hub.session("report", id=f"s{number}")).ask("go")

    asyncio.run(serve())
    [own] = figures(url)
    assert (own["runs"], own["finished"], own["aborted"]) == (5, 3, 2)
    assert (own["judged"], own["successes"]) == (3, 2)
    assert own["failures"]["specification"] == {"spec_malformed": 1}
    assert own["tokens"] > 0


def test_runs_on_the_threads_of_a_store_are_counted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'threads.db'}"

    async def work() -> None:
        for turns, tier in zip(RUNS, TIERS, strict=True):
            flow = flow_of(*turns, checkpointer=url, guards=guarded(tier))
            await flow.ainvoke("go", thread_id="one")
        await flow_of(plan("a"), "unsure", verdict(True, 0.1), checkpointer=url).ainvoke("go")

    asyncio.run(work())
    [own] = figures(url)
    assert (own["runs"], own["finished"], own["aborted"], own["open"]) == (6, 3, 2, 1)
    assert own["failed_stages"]["validate"] == 4


def test_cost_of_a_run_that_waited_is_that_of_all_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def work() -> int:
        flow = flow_of(plan("a"), "ok", verdict(True, 0.1), guards=guarded(sink=JSONLSink(path)))
        waiting = await flow.ainvoke("go", thread_id="t")
        [question] = waiting.interrupts
        await flow.aresume("t", {question.id: {"type": "approve"}})
        return waiting.usage.total_tokens

    spent = asyncio.run(work())
    [own] = figures(str(path))
    assert (own["runs"], own["finished"], own["tokens"]) == (1, 1, spent)


def test_store_without_flows_has_none(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    result = run("audit", "--flows", str(tmp_path / "empty.jsonl"))
    assert (result.exit_code, result.stdout) == (0, "There are no runs of flows.\n")


def test_flows_of_one_session_are_not_asked_for(tmp_path: Path) -> None:
    result = run("audit", "--flows", str(tmp_path / "audit.jsonl"), "s")
    assert result.exit_code == 2
    assert "leave out the session" in result.stderr


def test_store_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run("audit", "--flows", f"sqlite:///{tmp_path / 'none.db'}")
    assert result.exit_code == 2
    assert "there is no file" in result.stderr


def test_audit_of_a_run_tells_its_stages(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    guards = guarded(audit=AuditTrail(JSONLSink(path), payloads=True))
    flow: Flow[Any] = Flow("small", work=[worker("a")], guards=guards)
    asyncio.run(flow.ainvoke("go", thread_id="t"))
    flow.judged("t", True)
    lines = [line[5:] for line in run("audit", str(path), "t").stdout.splitlines()]
    assert "small/plan started, attempt 1" in lines
    assert "small/finalize the flow is finished: finished" in lines
    assert "small the oracle says: a success" in lines
