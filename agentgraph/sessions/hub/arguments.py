"""What callers give to a hub: what is wrong with it, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from langgraph.store.base import BaseStore

from agentgraph.driving.engine import ENGINE_METHODS
from agentgraph.errors import ConfigurationError
from agentgraph.routing.values import json_equal, short
from agentgraph.sessions.state.record import SessionRecord, session_key
from agentgraph.sessions.state.state import Status
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph.sessions.team.opening import tenant_faults


def differences(
    present: SessionRecord, record: SessionRecord, context: object, run_context: object
) -> Iterator[str]:
    """Yield how a session differs from what its caller asks for; values that are None ask nothing.

    The values of variables are not told: whoever asks may have no right to know them.
    """
    if present.serves:
        yield "serves a round of another session, which alone runs it"
    if present.team != record.team:
        yield f"is one of the team {present.team!r}"
    if present.creator != record.creator:
        yield f"has the creator {present.creator!r}"
    if not present.graph:
        return  # the record is damaged, and read in part
    if context is not None and not json_equal(present.context, record.context):
        yield "has another context"
    if run_context is not None and not json_equal(present.run_context, record.run_context):
        yield "has another run_context"


def check_store(store: object) -> None:
    """Raise `ConfigurationError` for what is no store of LangGraph's."""
    if not isinstance(store, BaseStore | None):
        raise ConfigurationError(f"store={store!r}: give a LangGraph store", code="store")


def driving_faults(clock: object, lease_s: object, engine: object) -> Iterator[str]:
    """Yield what is wrong with the values that say when a hub acts."""
    methods = ("wall", "monotonic", "sleep", "timeout", "random")
    if clock is not None and not all(callable(getattr(clock, name, None)) for name in methods):
        yield f"clock={short(clock)}: give None, or a clock such as agentgraph.testing.FakeClock()"
    is_engine = not isinstance(engine, type) and all(
        callable(getattr(engine, name, None)) for name in ENGINE_METHODS
    )
    if engine is not None and not (is_engine and isinstance(getattr(engine, "drives", None), bool)):
        yield f"engine={short(engine)}: give None, or what agentgraph.engines.open_engine returns"
    is_number = isinstance(lease_s, int | float) and not isinstance(lease_s, bool)
    if not is_number or not 0 < lease_s < 1e12:  # type: ignore[operator]  # it is a number
        yield f"lease_s={short(lease_s)}: give a number of seconds above 0"


def key_of(id: str, tenant: str) -> str:
    """Return the key of a tenant's session; `ConfigurationError` for what names none."""
    faults: list[str] = [] if isinstance(id, str) else [f"id={short(id)}: give a string"]
    faults += tenant_faults(tenant)
    if faults:
        raise ConfigurationError(faults, code="session")
    return session_key(tenant, id)


def filter_faults(
    status: object,
    served: object,
    people: tuple[object, object],
    tenant: object,
    limit: object,
    after: object,
) -> Iterator[str]:
    """Yield what is wrong with the filters of a list of sessions."""
    if status is not None and status not in get_args(Status):
        yield f"there is no status {short(status)}: there are {', '.join(get_args(Status))}"
    if not isinstance(served, CompiledTeam | str | None):
        yield f"served={short(served)}: give what is served, or its name"
    for label, name in zip(("creator", "person"), people, strict=True):
        if not isinstance(name, str | None):
            yield f"{label}={short(name)}: give a name"
    if tenant is not None:
        yield from tenant_faults(tenant)
    if limit is not None and (type(limit) is not int or limit < 1):
        yield f"limit={short(limit)}: give a number from 1 on"
    if not isinstance(after, str | None):
        yield f"after={short(after)}: give the id of a session"
