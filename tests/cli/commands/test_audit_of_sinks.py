"""`agentgraph audit` of a sink: the runs of agents that are in no session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgraph import Agent, Guards
from agentgraph.guards import JSONLSink, SQLiteSink
from agentgraph.testing import ScriptedModel, call
from tests.cli.conversations import run


def pay(item: str) -> str:
    """Pay."""
    return f"paid for {item}"


def agent(sink: Any) -> Agent:
    model = ScriptedModel([call("pay", item="tea"), "Done.", "Hi."])
    guards = Guards(audit=sink, interrupt_on={"pay": True})
    return Agent("clerk", model=model, tools=[pay], guards=guards)


async def work(sink: Any) -> None:
    clerk = agent(sink)
    [question] = (await clerk.ainvoke("buy tea", thread_id="t")).interrupts
    await clerk.aresume("t", {question.id: {"type": "reject", "message": "too dear"}})
    await clerk.ainvoke("hello", thread_id="u")
    sink.close()


KINDS = {
    "audit.jsonl": (JSONLSink, "{}"),
    "audit.db": (SQLiteSink, "{}"),
    "audit.sqlite": (SQLiteSink, "sqlite:///{}"),
}


@pytest.fixture(params=KINDS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The name of a sink's file, which has two runs."""
    make: Callable[[Path], Any]
    make, form = KINDS[request.param]
    path = tmp_path / request.param
    asyncio.run(work(make(path)))
    return form.format(path)


def test_the_runs_of_a_sink_are_listed(file: str) -> None:
    lines = run("audit", file).stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["t", "u"]
    assert [line.split()[-1] for line in lines] == ["answered", "answered"]


def test_a_thread_is_told_with_the_decisions_of_guards_and_humans(file: str) -> None:
    result = run("audit", file, "t")
    assert result.exit_code == 0, result.stderr
    text = result.stdout
    assert "   1 user says: buy tea" in text
    assert "clerk interrupt_on: escalate: `pay` runs only after a human has decided" in text
    assert "clerk a human decides: reject: too dear" in text
    assert "path       clerk" in text and "steps      2 model calls, 0 hops" in text
    assert "decisions  1 by guards, 1 by humans" in text
    assert "hello" not in text


def test_a_run_is_found_by_its_id_and_printed_as_json(file: str) -> None:
    last = run("audit", file).stdout.splitlines()[-1].split()[0]
    *records, total = map(json.loads, run("audit", file, last, "--json").stdout.splitlines())
    assert {record["run"] for record in records} == {last}
    assert total["usage"]["by_agent"]["clerk"]["total_tokens"] == total["spend"]["total_tokens"] > 0


def test_what_is_not_there_is_told_in_a_line(file: str, tmp_path: Path) -> None:
    result = run("audit", file, "nobody")
    assert result.exit_code == 2
    assert "'nobody'" in result.stderr and result.stderr.count("\n") == 1
    result = run("audit", str(tmp_path / "none.jsonl"))
    assert result.exit_code == 2 and "give the session beside its store" in result.stderr


def test_nothing_is_written_to_the_file(file: str) -> None:
    path = Path(file.removeprefix("sqlite:///"))
    before = path.read_bytes()
    run("audit", file, "t")
    assert path.read_bytes() == before
