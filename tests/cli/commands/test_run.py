"""`agentgraph run`: a flow, an agent or a team at work, on a terminal, piped, and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conversations import run
from tests.cli.pseudo_terminal import Terminal, terminal

FLOWS = """
from agentgraph import Agent, Team, sequence
from agentgraph.flow import Flow, Verdict
from agentgraph.testing import ScriptedModel, call


def worker(name):
    return Agent(name, model=ScriptedModel(lambda messages: f"{name} is done"), default_tools=False)


def judged(aggregate):
    return Verdict(accepted="bad" not in aggregate, confidence=0.9, problems=["it is bad"])


inner = Flow("inner", work=[worker("c")])
report = Flow("report", work=[worker("a"), worker("b"), inner])
weak = Flow("weak", work=[worker("bad")], validate=judged)
unsure = Flow("unsure", work=[worker("a")], validate=lambda a: Verdict(accepted=True, confidence=0))


def broken(task):
    raise SystemError("\\x1b[2Jthe planner is broken")


failing = Flow("failing", work=[worker("a")], plan=broken, guards=None)
clerk = Agent("clerk", model=ScriptedModel(lambda messages: "I am the clerk."))
dead = Agent("dead", model=ScriptedModel([ValueError("the line is dead")]))
team = Team([worker("one"), worker("two")], sequence(["one", "two"]))
"""


@pytest.fixture
def flows(folder: Path) -> Path:
    (folder / "flows.py").write_text(FLOWS)
    return folder


def events(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run a target with --json; return the exit status and the lines."""
    result = run("run", *arguments, "--json")
    assert result.stderr == ""
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def piped(flows: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentgraph", "run", *arguments]
    return subprocess.run(command, cwd=flows, capture_output=True, text=True, timeout=50)


def on_terminal(flows: Path, *arguments: str) -> AbstractContextManager[Terminal]:
    return terminal(["-m", "agentgraph", "run", *arguments], cwd=flows)


# JSON.


def test_events_and_the_result_are_lines_of_json(flows: Path) -> None:
    status, [*told, result] = events("flows:report", "go", "--thread", "t")
    assert status == 0
    stages = [(e["stage"], e["worker"], e["status"]) for e in told if e["type"] == "stage"]
    assert stages[:2] == [("plan", "", "started"), ("plan", "", "finished")]
    assert ("fan_out", "a", "finished") in stages
    assert {event["type"] for event in told} >= {"stage", "ai_message"}
    assert (result["type"], result["status"], result["thread_id"]) == ("result", "finished", "t")
    assert result["text"] == "a is done\n\nb is done\n\nc is done"
    assert result["usage"]["total_tokens"] > 0
    assert {report["stage"] for report in result["stages"]} >= {"plan", "fan_out", "finalize"}


def test_aborted_flow_ends_with_1_and_its_class(flows: Path) -> None:
    status, [*told, result] = events("flows:weak", "go")
    assert status == 1
    assert (result["status"], result["failure_class"]) == ("aborted", "schema_failure")
    assert [e["status"] for e in told if e["type"] == "stage"].count("replanned") == 2


def test_flow_that_waits_ends_with_3_and_its_question(flows: Path) -> None:
    status, [*told, result] = events("flows:unsure", "go")
    assert status == 3
    [asked] = [event for event in told if event["type"] == "interrupt"]
    assert [question["id"] for question in result["interrupts"]] == [asked["id"]]


def test_agent_and_team_are_run_too(flows: Path) -> None:
    status, [*_, result] = events("flows:clerk", "hello")
    assert (status, result["status"], result["text"]) == (0, "finished", "I am the clerk.")
    status, [*told, result] = events("flows:team", "hello")
    assert (status, result["status"], result["text"]) == (0, "finished", "two is done")
    assert "ag.packet" in {event["type"] for event in told}


def test_run_that_fails_ends_with_1(flows: Path) -> None:
    status, [*told, result] = events("flows:dead", "hello", "--store", "memory")
    assert (status, result["status"]) == (1, "failed")
    assert "the line is dead" in json.dumps(told)


# Piped.


def test_progress_is_on_stderr_where_the_outcome_is_piped(flows: Path) -> None:
    done = piped(flows, "flows:report", "go", "--store", "memory")
    assert (done.returncode, done.stdout) == (0, "a is done\n\nb is done\n\nc is done\n")
    lines = done.stderr.splitlines()
    assert lines[:2] == ["plan started", "plan finished"]
    assert "fan_out/a finished" in lines
    assert "fan_out/inner/fan_out/c finished" in lines
    assert lines[-1].endswith(" left") and " tokens, " in lines[-1]


def test_abort_is_told_with_its_reason(flows: Path) -> None:
    done = piped(flows, "flows:weak", "go", "--store", "memory")
    assert done.returncode == 1
    assert "validate replanned, attempt 2: it is bad" in done.stderr
    assert "agentgraph: aborted: validate" in done.stderr
    assert "it is bad" in done.stdout


def test_waiting_run_names_its_thread(flows: Path) -> None:
    done = piped(flows, "flows:unsure", "go", "--thread", "t7")
    assert (done.returncode, done.stdout) == (3, "")
    assert "waits for a decision on " in done.stderr
    assert done.stderr.endswith("thread t7\n")


def test_controls_of_an_error_do_not_reach_the_terminal(flows: Path) -> None:
    done = piped(flows, "flows:failing", "go", "--store", "memory")
    assert done.returncode == 1
    assert "the planner is broken" in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr


# Calls that are wrong.


def test_wrong_targets_and_stores_are_told(flows: Path) -> None:
    result = run("run", "flows:nothing", "go")
    assert result.exit_code == 2
    assert "its agents, flows and teams are: clerk, dead, failing, inner, report" in result.stderr
    result = run("run", "flows:FLOWS", "go")
    assert result.exit_code == 2
    result = run("run", "flows:team", "go", "--store", "memory")
    assert result.exit_code == 2
    assert "a team runs in memory" in result.stderr


def test_only_flow_of_a_module_is_meant_rather_than_its_agents(flows: Path) -> None:
    source = FLOWS.partition("inner =")[0] + 'a = worker("a")\nonly = Flow("only", work=[a])\n'
    (flows / "one_flow.py").write_text(source)
    assert piped(flows, "one_flow.py", "go", "--store", "memory").stdout == "a is done\n"


# On a terminal.


def test_tree_grows_on_a_terminal(flows: Path) -> None:
    with on_terminal(flows, "flows:report", "go", "--store", "memory") as screen:
        assert screen.status() == 0
        text = screen.text
    tree = text[text.rindex("report  ") :]
    assert tree.split("\n")[0].endswith(" left") and " tokens, 5:59:" in tree
    for part in ("✓ plan finished", "✓ a finished", "✓ inner finished", "✓ c finished"):
        assert part in tree
    assert tree.count("tokens") >= 4
    assert "a is done\n\nb is done\n\nc is done\n" in tree


def test_attempts_and_problems_are_in_the_tree(flows: Path) -> None:
    with on_terminal(flows, "flows:weak", "go", "--store", "memory") as screen:
        assert screen.status() == 1
        tree = screen.text[screen.text.rindex("weak  ") :]
    assert "attempt 1" in tree and "attempt 3" in tree
    assert "↻ validate replanned" in tree and "■ validate aborted" in tree
    assert "it is bad" in tree


def test_person_at_the_terminal_decides(flows: Path) -> None:
    with on_terminal(flows, "flows:unsure", "go", "--store", "memory") as screen:
        screen.expect("A decision is needed:")
        screen.expect("decision> ")
        screen.say("approve")
        screen.expect("✓ finalize finished")
        screen.expect("a is done")
        assert screen.status() == 0


def test_question_that_is_left_open_ends_with_3(flows: Path) -> None:
    with on_terminal(flows, "flows:unsure", "go", "--store", "memory") as screen:
        screen.expect("decision> ")
        screen.send("\x04")
        assert screen.status() == 3
