"""`agentgraph graph`: text on standard output, or a picture in a file."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conversations import DESK, run


def test_graph_is_printed_as_mermaid_text() -> None:
    result = run("graph", DESK)

    assert result.exit_code == 0
    assert "subgraph billing" in result.stdout


def test_graph_is_written_as_a_picture(folder: Path) -> None:
    result = run("graph", "agents", "--svg", "clerk.svg")

    assert (result.exit_code, result.stdout) == (0, "")
    assert (folder / "clerk.svg").read_text("utf-8").startswith("<svg")


def test_graph_of_a_flow_is_printed_too(folder: Path) -> None:
    source = "from agentgraph import Agent, Flow\nwork = Flow('work', work=[Agent('a')])\n"
    (folder / "a_flow.py").write_text(source)

    result = run("graph", "a_flow.py")

    assert result.exit_code == 0
    assert "validate_gate" in result.stdout


def test_picture_that_cannot_be_written_is_told(folder: Path) -> None:
    result = run("graph", "agents", "--svg", "nowhere/clerk.svg")

    assert result.exit_code == 2
    assert result.stderr.startswith("agentgraph: cannot write nowhere/clerk.svg: No such file")
