"""`agentgraph serve`: what is served, where and to whom."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentgraph_server
from agentgraph import Agent
from tests.cli.conversations import DESK, run


def test_agents_are_served_where_it_was_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[object] = []

    def serve(*agents: Agent, **where: object) -> None:
        served.extend([[agent.name for agent in agents], where])

    monkeypatch.setattr(agentgraph_server, "serve", serve)
    result = run("serve", "agents:clerk", DESK, "--port", "9000", "--store", "memory")

    assert result.exit_code == 0
    assert served == [
        ["clerk", "support"],
        {"host": "127.0.0.1", "port": 9000, "store": "memory", "engine": None},
    ]


def test_server_that_is_stopped_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(*agents: Agent, **where: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(agentgraph_server, "serve", serve)

    assert run("serve", DESK).exit_code == 0


def test_agents_are_not_served_to_others_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTGRAPH_API_KEYS", raising=False)

    result = run("serve", DESK, "--host", "0.0.0.0")

    assert result.exit_code == 2
    assert "AGENTGRAPH_API_KEYS" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "store", ["sqlite:////nowhere/desk.db", "postgresql://ada:swordfish@127.0.0.1:1/desk"]
)
def test_store_out_of_reach_is_told_in_a_line(store: str) -> None:
    result = run("serve", DESK, "--port", "0", "--store", store)

    assert result.exit_code == 2
    assert result.stderr.startswith("agentgraph: cannot ")
    assert len(result.stderr.splitlines()) == 1
    assert "swordfish" not in result.output


def test_all_bad_targets_are_told_at_once(folder: Path) -> None:
    result = run("serve", "nowhere:a", "agents:clerk", "agents:clark")

    assert result.exit_code == 2
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith("agentgraph: nowhere:a: there is no module nowhere")
    assert second == ("agentgraph: agents:clark: there is no 'clark' in it; its agents are: clerk")
