"""What a session is opened with: read, and all that is wrong with it told at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.phases import ConversationPipeline
from agentgraph.routing.protocols import HUMAN
from agentgraph.routing.values import short
from agentgraph.sessions.state.expectations import Expectation, read_expectations
from agentgraph.sessions.state.payload import canonical
from agentgraph.sessions.state.record import Parent, SessionRecord, seconds_of

if TYPE_CHECKING:
    from agentgraph.sessions.team.team import Team


T = TypeVar("T")

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,52}")


def new_record(
    team: Team,
    session_id: str,
    *,
    creator: str,
    humans: Sequence[str] = (),
    context: Mapping[str, Any] | None = None,
    expectations: Sequence[Expectation | Mapping[str, Any]],
    ttl: str | float | None = None,
    invite_timeout: str | float | None = None,
    required_acks: int | None = None,
    parent: Parent | None = None,
) -> SessionRecord:
    """Return what is stored of a new session."""
    reading = _Reading()
    reading.faults += _value_faults(session_id, humans, required_acks)
    people = (*team.humans, *([] if reading.faults else humans))
    reading.faults += _people_faults(team, creator, people)
    here = tuple(dict.fromkeys((*team.names, *people, creator))) if not reading.faults else ()
    if not reading.faults:
        found = team.rules.check(here)
        reading.faults += [one.message for one in found if one.severity == "error"]
    held = reading.read(lambda: canonical({} if context is None else context, "the context"))
    expected = reading.read(lambda: read_expectations(expectations, here or None))
    ttl_s = reading.read(lambda: seconds_of("ttl", ttl))
    timeout_s = reading.read(lambda: seconds_of("invite_timeout", invite_timeout))
    if reading.faults:
        raise ConfigurationError(reading.faults, code="session")
    people = tuple(dict.fromkeys(people))
    pipeline = team.routing if isinstance(team.routing, ConversationPipeline) else None
    return SessionRecord(
        session_id,
        team.name,
        creator,
        team.names,
        people,
        canonical(team.rules.to_dict(), "the graph"),
        clock().wall(),
        phase=pipeline.initial_state().phase if pipeline is not None else "intake",
        context=held or {},
        invited=tuple(name for name in people if name != creator),
        required_acks=required_acks,
        invite_timeout_s=timeout_s,
        ttl_s=ttl_s,
        expectations=tuple(one.to_dict() for one in expected or ()),
        supervisor=team.supervisor_name if team.watcher is not None else None,
        parent=parent,
    )


@dataclass(slots=True)
class _Reading:
    """Several things to be read, and what is wrong with them."""

    faults: list[str] = field(default_factory=list)

    def read(self, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except ConfigurationError as error:
            self.faults += error.faults
            return None


def _value_faults(session_id: object, humans: object, required_acks: object) -> Iterator[str]:
    if not isinstance(session_id, str) or not session_id:
        yield f"id={short(session_id)}: give a string"
    if isinstance(humans, str) or not isinstance(humans, Iterable):
        yield f"participants={short(humans)}: give a list of names"
    if required_acks is not None and (type(required_acks) is not int or required_acks < 1):
        yield f"required_acks={short(required_acks)}: give a number from 1 on, or None for all"


def _people_faults(team: Team, creator: object, people: Sequence[object]) -> Iterator[str]:
    """Say who cannot be called so: nobody may be taken for somebody else."""
    taken = {name.lower(): name for name in (*team.names, team.supervisor_name or HUMAN)}
    known: set[str] = set()
    for name in (*people, *([] if creator in team.names else [creator])):
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name.lower() == HUMAN:
            yield f"nobody can be called {short(name)}: use 1 to 52 of a-z, A-Z, 0-9, _ and -"
        elif name in known:
            continue
        elif name.lower() in taken:
            yield f"{name!r} and {taken[name.lower()]!r} are one name: case does not count"
        else:
            taken[name.lower()] = name
            known.add(name)
