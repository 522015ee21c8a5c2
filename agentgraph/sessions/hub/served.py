"""What a hub serves: teams, and agents and graphs, each of which has sessions of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from agentgraph.errors import ConfigurationError
from agentgraph.participant import Graph, Participant
from agentgraph.routing.values import short
from agentgraph.sessions.single.team import SingleTeam
from agentgraph.sessions.team.compiled import CompiledTeam

Served: TypeAlias = CompiledTeam | Participant | Graph
"""A team, an agent, or a compiled graph that has a name and `messages`."""


def team_of(served: object) -> CompiledTeam:
    """Return the team that holds the sessions of a value; `ConfigurationError` if none can."""
    return served if isinstance(served, CompiledTeam) else SingleTeam.of(served)


def teams_of(values: object) -> list[CompiledTeam]:
    """Return the teams that hold the sessions of values, or raise with all that have none."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigurationError(f"serve={short(values)}: give a list", code="served")
    teams: list[CompiledTeam] = []
    faults: list[str] = []
    for value in values:
        try:
            teams.append(team_of(value))
        except ConfigurationError as error:
            faults += error.faults
    if faults:
        raise ConfigurationError(faults, code="served")
    return teams
