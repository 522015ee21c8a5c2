"""Every notebook runs, and shows what is stored in it; run as a program, this stores it anew."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


Outputs: TypeAlias = dict[str, list[Any]]  # of the cells, by their ids


def read(path: Path) -> Any:
    return nbformat.read(path, 4)  # type: ignore[no-untyped-call]  # nbformat has no annotations


async def executed(path: Path, cwd: Path) -> Any:
    """Run a notebook's cells in a kernel of its own; an error in one of them is raised."""
    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=50,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,  # else a print may come in two parts
        resources={"metadata": {"path": str(cwd)}},
    )
    return await client.async_execute()


def outputs_of(notebook: Any) -> Outputs:
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def kinds_of(outputs: list[Any]) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (output.output_type, (output.name,) if "name" in output else tuple(sorted(output.data)))
        for output in outputs
    ]


def claims_of_agents(shown: Outputs) -> None:
    [graph] = shown["graph"]
    assert {"image/svg+xml", "text/vnd.mermaid", "text/plain"} == set(graph.data)
    assert "billing:call_tools → billing:call_model" in graph.data["image/svg+xml"]
    [first], [second] = shown["first-turn"], shown["second-turn"]
    assert "<b>support/billing</b>" in first.data["text/html"]
    assert second.text.startswith("support/billing says ")
    *events, told = shown["stream"]
    html = "".join(event.data["text/html"] for event in events)
    kinds = re.findall(r"<code[^>]*>(\w+)</code> <span", html)
    assert kinds == ["routing", "tool_usage", "tool_response", "ai_message", "message"]
    assert "password" in told.text
    assert "{&quot;pay&quot;: 5}" in shown["asked"][0].data["text/html"]
    answered = shown["answered"][0].data["text/html"]
    assert "The bill is paid." in answered and "→ paid" in answered
    assert len(shown["history"][0].text.splitlines()) > 6


def claims_of_routing(shown: Outputs) -> None:
    [graph] = shown["write"]
    assert {"image/svg+xml", "text/vnd.mermaid", "text/plain"} == set(graph.data)
    assert shown["clean"][0].data["text/plain"] == "()"
    assert "'suport'" not in shown["misspelt"][0].text and "'support'" in shown["misspelt"][0].text
    assert {"endless_cycle", "shadowed"} <= set(
        re.findall(r"(?:error|warning) (\w+):", shown["trapped"][0].text)
    )
    assert shown["played"][0].text.rstrip().endswith("closed: solved")
    assert shown["escalated"][0].text.rstrip().endswith("closed: escalated")
    assert "'solved' is 'almost'" in shown["why"][0].text
    assert "transitions[0].when.args.conditions[0]: " in shown["faults"][0].text
    assert shown["phases"][0].text.rstrip().endswith("closed: pipeline_complete")
    assert "'review': {" in shown["pipeline"][0].data["text/plain"]


def claims_of_sessions(shown: Outputs) -> None:
    [team] = shown["team"]
    assert {"image/svg+xml", "text/vnd.mermaid", "text/plain"} == set(team.data)
    [result] = shown["run"]
    assert "Good." in result.data["text/html"] and "pipeline_complete" in result.data["text/html"]
    assert types_of(shown["log"]) == [
        "ag.session.opened",
        "ag.msg.text",
        *("ag.packet", "ag.phase"),
        *("ag.packet", "ag.handoff", "ag.phase"),
        *("ag.packet", "ag.phase"),
        *("ag.packet", "ag.session.closed"),
    ]
    *streamed, told = shown["stream"]
    assert types_of(streamed) == [
        *("ag.session.opened", "ag.msg.text"),
        *("ai_message", "tool_usage", "ag.interrupt"),
    ]
    assert told.text == "5 tokens: That is 20. One moment.\n"
    decided = shown["decide"][0].data["text/html"]
    assert "waiting_human" in decided and "platinum" in decided and "paid" in decided
    assert shown["reopen"][0].text.startswith("waiting_human for user after ")
    assert types_of(shown["release"]) == ["ag.session.released", "ag.packet", "ag.session.closed"]
    assert "It is at your door." in shown["release"][1].data["text/html"]
    assert "context_equals('paid', True)" in shown["why"][0].text
    assert set(shown["drawn"][0].data) == {"image/svg+xml", "text/plain"}
    assert "courier: It is with your neighbour.\n" in shown["fork"][0].text
    assert shown["replay"][0].data["text/plain"] == "True"


def claims_of_guards(shown: Outputs) -> None:
    tiers = {name: tuple(map(_last_steps, shown[name])) for name in _MET}
    assert tiers == {name: (steps,) for name, steps in _MET.items()}
    assert "answers 'The small model answers.'" in shown["provider"][0].text
    blocked, _, answered = shown["unsafe"][0].text.partition("\n\nwith a safe answer beside it\n")
    assert [line.rpartition(" → ")[2] for line in blocked.splitlines()] == [*_MET["gate"]]
    assert "answers 'I must not tell.'" in answered
    assert shown["breaker"][0].text == "open: deny; half open: allow, then deny; closed: allow\n"
    assert "spec_malformed" in shown["spec"][1].data["text/html"]
    assert "the critic gave 0.4; 0.8 is needed" in shown["ask"][0].data["text/html"]
    assert "You have two rooms." in shown["approve"][0].data["text/html"]
    assert shown["reject"][0].text == "closed by escalation and given back: ['14', '12']\n"
    assert shown["audit"][0].text.count("compensated host:book compensated") == 2
    assert "3 steps" in shown["trail"][0].data["text/html"]


_ASKED = "a human is asked"
_MET = {
    "loop": ("closed by loop_detector", "closed by loop_detector", _ASKED),
    "cost": ("closed by cost_budget", "closed by cost_budget", _ASKED),
    "gate": ("closed by gate", "closed by gate", _ASKED),
    "progress": ("closed by gate", _ASKED, _ASKED),
    "deadlock": ("deadlock_monitor", "deadlock_monitor", "waiting_decision"),
}
"""How each failure ends, by tier."""


def claims_of_flows(shown: Outputs) -> None:
    [flow] = shown["write"]
    assert {"image/svg+xml", "text/vnd.mermaid", "text/plain"} == set(flow.data)
    assert "validate_gate → plan: new plan" in flow.data["image/svg+xml"]
    result = shown["run"][0].data["text/html"]
    assert "flow finished" in result and "<svg" in result
    assert "1 validate  ['name a source']\n" in shown["read"][0].text
    assert "finished 1 title='Tides'" in shown["read"][0].text
    assert "1 validate  replanned ['name a source']\n" in shown["stream"][0].text
    assert [line.split()[:3] for line in shown["gates"][0].text.splitlines()] == [
        ["interactive", "aborted,", "1"],
        ["batch", "aborted,", "2"],
        ["regulated", "waiting,", "0"],
    ]
    assert "the confidence is 0.4, and 0.7 is needed" in shown["human"][0].data["text/html"]
    assert "Four metres, at the pier." in shown["answer"][0].data["text/html"]
    undone = "finished, seats booked: ['12A']\naborted, seats booked: []\n"
    assert shown["undo"][0].text == undone
    assert shown["debate"][0].text.endswith("optimist 5 days\npessimist 5 days\n")
    assert "desk/guide/fan_out/librarian" in shown["place"][0].text


def _last_steps(output: Any) -> tuple[str, ...]:
    return tuple(line.rpartition(" → ")[2] for line in output.text.splitlines())


def types_of(outputs: list[Any]) -> list[str]:
    """Return the types of the envelopes and events that are shown."""
    html = "".join(output.data["text/html"] for output in outputs)
    return re.findall(r"<code[^>]*>(?:\d+ )?([\w.]+)</code> <span", html)


CLAIMS: dict[str, Callable[[Outputs], None]] = {
    "01_agents": claims_of_agents,
    "02_routing": claims_of_routing,
    "03_sessions": claims_of_sessions,
    "04_guards": claims_of_guards,
    "05_flows": claims_of_flows,
}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("POSTGRES_URL", "AGENTGRAPH_MODEL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    return tmp_path


def test_every_notebook_has_claims_that_are_checked() -> None:
    assert {path.stem for path in NOTEBOOKS} == CLAIMS.keys()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
async def test_a_notebook_runs_and_shows_what_is_stored_in_it(path: Path, alone: Path) -> None:
    stored = outputs_of(read(path))

    shown = outputs_of(await executed(path, alone))

    assert {id: kinds_of(outputs) for id, outputs in shown.items()} == {
        id: kinds_of(outputs) for id, outputs in stored.items()
    }
    assert not [o for outputs in shown.values() for o in outputs if o.get("name") == "stderr"]
    CLAIMS[path.stem](stored)
    CLAIMS[path.stem](shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_says_nothing_of_where_it_was_run(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)

    assert notebook.metadata == METADATA
    assert not [cell.id for cell in notebook.cells if cell.metadata]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not re.search(r"/home/|/root|/tmp|/work|/Users/|site-packages", path.read_text("utf-8"))


async def _store_anew() -> None:
    for name in ("POSTGRES_URL", "AGENTGRAPH_MODEL"):
        os.environ.pop(name, None)
    for path in NOTEBOOKS:
        notebook = await executed(path, ROOT)
        notebook.metadata = METADATA
        for cell in notebook.cells:
            cell.metadata = {}
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]  # as above


if __name__ == "__main__":
    asyncio.run(_store_anew())
