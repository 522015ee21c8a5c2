"""Opening a session: its record, made from the team and the caller's values.

All faults of the caller's values are raised at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentgraph.clock import clock, new_id
from agentgraph.errors import ConfigurationError
from agentgraph.graphs.run_context import plain_context
from agentgraph.guards import Default
from agentgraph.phases import ConversationPipeline
from agentgraph.routing.protocols import HUMAN
from agentgraph.routing.values import short
from agentgraph.sessions.envelopes.payload import canonical, encode_json
from agentgraph.sessions.state.expectations import (
    DEFAULT_EXPECTATIONS,
    Expectation,
    ends_in_time,
    read_expectations,
)
from agentgraph.sessions.state.record import (
    DEFAULT_TENANT,
    TENANT_NAME,
    Parent,
    SessionRecord,
    seconds_of,
)
from agentgraph.sessions.team.spec import TeamSpec

T = TypeVar("T")

_MOST_METADATA = 32
_MAX_METADATA_BYTES = 8_000
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,52}")


def new_record(
    team: TeamSpec,
    session_id: str,
    *,
    creator: str,
    humans: Sequence[str] = (),
    context: Mapping[str, Any] | None = None,
    expectations: Sequence[Expectation | Mapping[str, Any]] | None = None,
    ttl: str | float | None = None,
    invite_timeout: str | float | None = None,
    required_acks: int | None = None,
    parent: Parent | None = None,
    tenant: str = DEFAULT_TENANT,
    metadata: Mapping[str, Any] | None = None,
    run_context: object = None,
) -> SessionRecord:
    """Return the record of a new session; `expectations` default to those of the team.

    Raises `ConfigurationError` with every fault of the values.
    """
    # The checks of names and rules need values of the right types, so these are read first.
    reader = FaultReader()
    guests = tuple(humans) if _is_list(humans) else ()
    people = (*team.humans, *guests)
    reader.faults += _people_faults(team, creator, people)
    is_readable = not reader.faults and _is_list(humans)
    names = (name for name in (*team.names, *people, creator) if isinstance(name, str))
    members = tuple(dict.fromkeys(names))
    reader.faults += _value_faults(session_id, tenant, humans, required_acks)
    if expectations is None:
        own = team.expectations
        expectations = DEFAULT_EXPECTATIONS if isinstance(own, Default) else own
    variables = reader.read(lambda: canonical({} if context is None else context, "the context"))
    notes = reader.read(lambda: read_metadata(metadata))
    runs = reader.read(lambda: read_run_context(run_context))
    checks = reader.read(lambda: read_expectations(expectations, members))
    ttl_s = reader.read(lambda: seconds_of("ttl", ttl))
    timeout_s = reader.read(lambda: seconds_of("invite_timeout", invite_timeout))
    if is_readable:
        is_limited = ttl_s is not None or ends_in_time(checks or ())
        findings = team.check_rules((*people, creator), is_limited=is_limited)
        reader.faults += [fault.message for fault in findings if fault.severity == "error"]
    if reader.faults:
        raise ConfigurationError(dict.fromkeys(reader.faults), code="session")
    people = tuple(dict.fromkeys(people))
    pipeline = team.routing if isinstance(team.routing, ConversationPipeline) else None
    return SessionRecord(
        session_id,
        team.name,
        creator,
        team.names,
        people,
        team.stored_rules,
        clock().wall(),
        phase=pipeline.initial_state().phase if pipeline is not None else "intake",
        context=variables or {},
        invited=tuple(name for name in people if name != creator),
        required_acks=required_acks,
        invite_timeout_s=timeout_s,
        ttl_s=ttl_s,
        expectations=tuple(expectation.to_dict() for expectation in checks or ()),
        supervisor=team.supervisor_name if team.supervising_agent is not None else None,
        parent=parent,
        secret=new_id(),
        tenant=tenant,
        metadata=notes or {},
        run_context=runs,
    )


@dataclass(slots=True)
class FaultReader:
    """Reads values one by one, and collects the faults of those that cannot be read."""

    faults: list[str] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    """The codes of the errors that these faults are of."""

    def read(self, make: Callable[[], T]) -> T | None:
        """Return a value, None if it has faults."""
        try:
            return make()
        except ConfigurationError as error:
            self.faults += error.faults
            self.codes.add(error.code)
            return None

    def error(self, code: str) -> ConfigurationError:
        """Return the error with each fault once; with the code of those read, if they have one."""
        own_code = next(iter(self.codes)) if len(self.codes) == 1 else code
        return ConfigurationError(dict.fromkeys(self.faults), code=own_code)


def _value_faults(
    session_id: object, tenant: object, humans: object, required_acks: object
) -> Iterator[str]:
    """Yield the values of a wrong type: callers may ignore the annotations."""
    if not isinstance(session_id, str) or not session_id:
        yield f"id={short(session_id)}: give a string"
    yield from tenant_faults(tenant)
    if not _is_list(humans):
        yield f"participants={short(humans)}: give a list of names"
    if required_acks is not None and (type(required_acks) is not int or required_acks < 1):
        yield f"required_acks={short(required_acks)}: give a number from 1 on, or None for all"


def read_metadata(metadata: object) -> Mapping[str, Any]:
    """Return the metadata of a session as JSON; every list of sessions shows them."""
    if metadata is None:
        return {}
    values = canonical(metadata, "metadata")
    size = len(encode_json(values))
    if len(values) > _MOST_METADATA or size > _MAX_METADATA_BYTES:
        raise ConfigurationError(
            f"metadata has {len(values)} entries of {size} bytes: at most {_MOST_METADATA} entries "
            f"of {_MAX_METADATA_BYTES} bytes are listed with a session, so keep them elsewhere"
        )
    return values


def read_run_context(context: object) -> Mapping[str, Any] | None:
    """Return LangGraph's context of a session's runs as JSON, None for none."""
    return None if context is None else canonical(plain_context(context), "run_context")


def tenant_faults(tenant: object) -> Iterator[str]:
    """Yield what is wrong with the name of a tenant."""
    if not isinstance(tenant, str) or not TENANT_NAME.fullmatch(tenant):
        yield f"tenant={short(tenant)}: use 1 to 52 of a-z, A-Z, 0-9, _ and -"


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def _people_faults(team: TeamSpec, creator: object, people: Sequence[object]) -> Iterator[str]:
    """Yield names that people cannot have; two names must not differ by case alone."""
    agents = (*team.names, *filter(None, (team.supervisor_name,)))
    by_lower = {name.lower(): name for name in agents}
    names: set[str] = set()
    for name in (*people, *([] if creator in team.names else [creator])):
        if isinstance(name, str) and name.lower() == HUMAN:
            yield f"nobody can be called {name!r}, which means whoever is no agent: give a name"
        elif not isinstance(name, str) or not _NAME.fullmatch(name):
            yield f"nobody can be called {short(name)}: use 1 to 52 of a-z, A-Z, 0-9, _ and -"
        elif name in names:
            continue
        elif name in agents:
            yield f"{name!r} is an agent, which takes part anyway: give the names of people"
        elif name.lower() in by_lower:
            yield f"{name!r} and {by_lower[name.lower()]!r} are one name: case does not count"
        else:
            by_lower[name.lower()] = name
            names.add(name)
