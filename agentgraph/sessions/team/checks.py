"""The checks of a team: all faults and warnings at once, each with a hint how to fix it.

The checks compile nothing, so that a mistake shows where the team is written.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from langgraph.store.base import BaseStore

from agentgraph.errors import ConfigurationError, RoutingWarning
from agentgraph.guards import Default, Guards
from agentgraph.guards.checks import schema_faults, stage_faults
from agentgraph.participant import (
    LEGAL_NAME,
    as_participant,
    naming_fault,
    static_interrupts_faults,
)
from agentgraph.phases import ConversationPipeline
from agentgraph.phases.handoff import Escalation
from agentgraph.routing import Finding, TransitionGraph
from agentgraph.routing.protocols import HUMAN
from agentgraph.sessions.rounds.questions import judge_of, model_of
from agentgraph.sessions.state.expectations import (
    DEFAULT_EXPECTATIONS,
    ends_in_time,
    read_expectations,
)
from agentgraph.sessions.team.graph import ADMIT, ASK_HUMAN
from agentgraph.sessions.team.spec import Durability, Routing, TeamSpec

_RESERVED_NAMES = {ADMIT, ASK_HUMAN, HUMAN, "__start__", "__end__"}


def faults_of(team: TeamSpec) -> list[str]:
    """Return every fault of a team."""
    # A value that cannot take part has no name and no guards to check.
    members, types, values = _member_faults(team), _type_faults(team), [*_value_faults(team)]
    if faults := [*members, *types]:
        return [*faults, *values]
    return [
        *values,
        *_name_faults(team),
        *_rule_faults(team),
        *_expectation_faults(team),
        *_handoff_faults(team),
        *_guard_faults(team),
    ]


def warn_of_rules(team: TeamSpec) -> None:
    """Warn where rules can be run, but hardly do what their author means.

    A router and a pipeline make their own rules, and check what is written of them.
    """
    if isinstance(team.routing, TransitionGraph):
        for item in _findings(team):
            text = f"team {team.name!r}: {item.message} [{item.code}]"
            warnings.warn(text, RoutingWarning, stacklevel=_caller_level())


def _caller_level() -> int:
    """Return the `stacklevel`, in the caller's caller, of the code outside of this package."""
    package = __name__.partition(".")[0]
    level, frame = 0, sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] == package and frame.f_back:
        level, frame = level + 1, frame.f_back
    return level + 1


def _findings(team: TeamSpec) -> tuple[Finding, ...]:
    return team.check_rules(_people(team), is_limited=_is_limited(team))


def _is_limited(team: TeamSpec) -> bool:
    """Tell whether an expectation closes each session of the team in time."""
    if isinstance(team.expectations, Default):
        return ends_in_time(DEFAULT_EXPECTATIONS)
    try:
        return ends_in_time(read_expectations(team.expectations, None))
    except ConfigurationError:  # which is a fault of its own
        return True


def _member_faults(team: TeamSpec) -> Iterator[str]:
    """Yield the members that cannot take part, and why."""
    if not isinstance(team.agents, tuple) or not team.agents:
        yield "agents: give a list of at least one agent"
        return
    members = [*team.agents]
    if team.supervisor is not None and not isinstance(team.supervisor, str):
        members.append(team.supervisor)
    for member in members:
        participant = as_participant(member)
        if participant is None:
            yield f"{member!r} cannot take part: give an Agent, a Team or a compiled graph"
        elif getattr(member, "checkpointer", None) is True:
            yield (
                f"the graph {participant.name!r} is compiled with checkpointer=True and would "
                "keep a history of its own beside the session's: compile it without"
            )
        else:
            yield from static_interrupts_faults(participant)
    if not isinstance(team.routing, Routing):
        yield (
            f"routing={team.routing!r}: give a TransitionGraph, a ConversationRouter or a "
            "ConversationPipeline"
        )


def _type_faults(team: TeamSpec) -> Iterator[str]:
    """Yield the values of a wrong type without which the other checks cannot be made."""
    if not isinstance(team.humans, tuple):
        yield f"humans={team.humans!r}: give a list of names"
    else:
        strange = [name for name in team.humans if not isinstance(name, str)]
        yield from (f"humans: {name!r} is no name: give strings" for name in strange)
    if not isinstance(team.failure_target, str | None):
        yield f"failure_target={team.failure_target!r}: give the name of one of the team"
    if not isinstance(team.escalations, Mapping):
        yield f"escalations={team.escalations!r}: give a mapping"


def _value_faults(team: TeamSpec) -> Iterator[str]:
    if team.durability not in get_args(Durability):
        yield f"durability={team.durability!r}: use 'round' or 'step'"
    if not isinstance(team.guards, Guards | Default | None):
        yield f"guards={team.guards!r}: give Guards, or None"
    if not isinstance(team.store, BaseStore | None):
        yield f"store={team.store!r}: give a LangGraph store"
    if team.view is not None and not callable(getattr(team.view, "reach", None)):
        yield f"view={team.view!r}: give FullTranscript() or WindowedSummary(n)"
    if team.summarize is not None and not callable(team.summarize):
        yield f"summarize={team.summarize!r} cannot be called"


def _name_faults(team: TeamSpec) -> Iterator[str]:
    """Yield names that are illegal, reserved, or used twice in any letter case."""
    names: list[Any] = []
    for participant in team.participants:
        if fault := naming_fault(participant):
            yield fault
        else:
            names.append(participant.name)
    if not isinstance(team.supervisor, str | None):
        names.append(team.supervisor_name)
    names += team.humans
    for name in [*names, team.name] if team.name else names:
        if not isinstance(name, str) or not LEGAL_NAME.fullmatch(name):
            yield f"the name {name!r} is not legal: use 1 to 52 of a-z, A-Z, 0-9, _ and -"
        elif name in _RESERVED_NAMES:
            yield f"nobody can be called {name!r}: the team's graph uses it"
    yield from _supervisor_faults(team)
    for name, count in Counter(str(name).lower() for name in names).items():
        if count > 1:
            yield f"{count} in the team are called {name!r} (case does not count): rename one"


def _supervisor_faults(team: TeamSpec) -> Iterator[str]:
    """Yield a supervisor whose name is nobody's, and one of the routing that is not the team's."""
    names = [*(participant.name for participant in team.participants), *team.humans]
    if isinstance(team.supervisor, str) and team.supervisor not in names:
        yield f"supervisor={team.supervisor!r} is none of the agents"
    routing = team.routing
    name = None if isinstance(routing, TransitionGraph) else routing.supervisor_id
    if name is None or (team.supervisor is None and name in names):
        return
    if team.supervisor is None:
        yield (
            f"supervisor_id={name!r} of the routing is none of the agents: add that agent, or give "
            "it as supervisor="
        )
    elif name != team.supervisor_name:
        yield f"the routing has supervisor_id={name!r}, and the team {team.supervisor_name!r}"


def _rule_faults(team: TeamSpec) -> Iterator[str]:
    """Yield errors of the rules; `warn_of_rules` gives their warnings."""
    try:
        rules = team.rules
    except ConfigurationError as error:
        yield from error.faults
        return
    yield from _model_faults(rules)
    if isinstance(team.routing, ConversationPipeline):
        agents = [stage.agent_id for stage in team.routing.stages]
        absent_names = [name for name in agents if name not in team.names]
        yield from (f"the stage agent {name!r} is none of the agents" for name in absent_names)
    yield from (item.message for item in _findings(team) if item.severity == "error")


def _model_faults(rules: TransitionGraph) -> Iterator[str]:
    """Yield the models that the rules ask and that cannot be one."""
    for name, model in rules.models.items():
        try:
            judge_of(model_of(name, model))
        except ConfigurationError as error:
            yield from (f"the rules ask {name!r}: {fault}" for fault in error.faults)


def _guard_faults(team: TeamSpec) -> Iterator[str]:
    """Yield the agents, stages and tools that the guards name but the team does not have."""
    if not isinstance(team.guards, Guards):
        return
    yield from stage_faults(team.guards, team.agent_names)
    yield from team.faults_under(team.guards)
    yield from schema_faults(team.gates_under(team.guards))


def _present(team: TeamSpec) -> tuple[str, ...]:
    # The creator's name is known when a session is opened; "user" is the usual one.
    return (*team.names, *_people(team))


def _people(team: TeamSpec) -> tuple[str, ...]:
    return (*team.humans, "user")


def _expectation_faults(team: TeamSpec) -> Iterator[str]:
    if not isinstance(team.expectations, Default):
        try:
            read_expectations(team.expectations, _present(team))
        except ConfigurationError as error:
            yield from error.faults


def _handoff_faults(team: TeamSpec) -> Iterator[str]:
    """Yield names in aliases, phases and targets that the team does not have."""
    members = (*team.names, *team.humans, HUMAN)
    for field in ("aliases", "phase_map"):
        value = getattr(team, field)
        if value is not None and not isinstance(value, Mapping):
            yield f"{field}={value!r}: give a mapping"
    if isinstance(team.aliases, Mapping):
        for alias, name in team.aliases.items():
            if name not in members:
                yield f"the alias {alias!r} stands for {name!r}, who is none of the team"
    if isinstance(team.phase_map, Mapping):
        for name in team.phase_map:
            if name not in members:
                yield f"phase_map has {name!r}, who is none of the team"
    if team.failure_target is not None and team.failure_target not in members:
        yield f"failure_target={team.failure_target!r} is none of the team"
    yield from _escalation_faults(team)


def _escalation_faults(team: TeamSpec) -> Iterator[str]:
    ways = get_args(Escalation)[1:]
    for way, handler in team.escalations.items():
        if way not in ways:
            yield f"escalations: no handoff can wish for {way!r}: there are {', '.join(ways)}"
        elif not callable(handler):
            yield f"escalations: {way}={handler!r} cannot be called"
