"""The record of a session: its rules and other facts that never change, stored once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

from agentgraph.errors import ConfigurationError
from agentgraph.routing.frozen_json import freeze, thaw

INNER_PREFIX = "ag.inner."
"""How the ids of inner sessions begin; those of earlier versions begin with their parent's."""
DEFAULT_TENANT = "default"
"""The tenant of sessions that were opened without one."""
TENANT_NAME = re.compile(r"[a-zA-Z0-9_-]{1,52}")

_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


@dataclass(frozen=True, slots=True)
class Parent:
    """The parent of a session: the round that it serves, or the session that it is a fork of."""

    session_id: str
    """Its id; it is of the same tenant."""
    round: int = 0
    speaker: str | None = None
    at: int | None = None
    """For a fork, the sequence up to which both logs are equal."""
    path: str = ""
    """For an inner session, which part of the round it serves; "" in earlier versions' records."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """All that is needed to resume a session, except the code of its agents; it is immutable."""

    session_id: str
    team: str
    creator: str
    agents: tuple[str, ...]
    humans: tuple[str, ...]
    graph: Mapping[str, Any]
    created_at: float
    phase: str = "intake"
    context: Mapping[str, Any] = field(default_factory=dict)
    invited: tuple[str, ...] = ()
    required_acks: int | None = None
    invite_timeout_s: float | None = None
    ttl_s: float | None = None
    expectations: tuple[Mapping[str, Any], ...] = ()
    handoffs: Mapping[str, Any] = field(default_factory=dict)
    """No code reads this field, but stored records have it."""
    supervisor: str | None = None
    parent: Parent | None = None
    version: int = 1
    is_single: bool = False
    """Whether it is a session of one: whoever speaks is answered by its only agent."""
    secret: str = field(default="", repr=False)
    """What the ids of inner sessions follow from; "" in records of earlier versions."""
    tenant: str = DEFAULT_TENANT
    """Whose session it is: an id names one session of each tenant."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the caller notes about the session: lists show it, and select by it."""
    run_context: Mapping[str, Any] | None = field(default=None, repr=False)
    """LangGraph's context of each run of the session, None if it has none."""

    def __post_init__(self) -> None:
        names = ("graph", "context", "handoffs", "metadata", "run_context", "expectations")
        values = freeze({name: getattr(self, name) for name in names})
        for name in names[:-1]:
            object.__setattr__(self, name, values[name])
        object.__setattr__(self, "expectations", tuple(values["expectations"]))

    @property
    def key(self) -> str:
        """The key of the session in the log, and its thread id: unique among all tenants."""
        return session_key(self.tenant, self.session_id)

    @property
    def parent_key(self) -> str | None:
        """The key of the parent, None if there is no parent."""
        return None if self.parent is None else session_key(self.tenant, self.parent.session_id)

    @property
    def serves(self) -> bool:
        """Whether the session serves a round of an outer session."""
        return self.parent is not None and self.parent.speaker is not None

    @property
    def people(self) -> tuple[str, ...]:
        """All participants that are not agents, including the creator unless it is one."""
        own = () if self.creator in (*self.agents, *self.humans) else (self.creator,)
        return (*self.humans, *own)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a JSON object, which may be changed."""
        values: dict[str, Any] = thaw(asdict(self))
        return values

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SessionRecord:
        """Read a record; `ValueError` or `TypeError` if this version cannot read it."""
        if data.get("version") != 1:
            raise ValueError(f"version {data.get('version')!r} is newer than this agentgraph")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        if data.get("parent") is not None:
            values["parent"] = Parent(**data["parent"])
        return cls(**values)


def session_key(tenant: str, session_id: str) -> str:
    """Return the key of a session: `tenant/id`, or the id alone if it is of the default tenant.

    There too an id that itself looks like `tenant/id` has its tenant before it, so that no two
    sessions have one key.
    """
    if tenant == DEFAULT_TENANT and _tenant_in(session_id) is None:
        return session_id
    return f"{tenant}/{session_id}"


@lru_cache(maxsize=256)
def id_of(key: str) -> str:
    """Return the id of the session that has this key: the id within its tenant."""
    return key if _tenant_in(key) is None else key.partition("/")[2]


def tenant_of(key: str) -> str:
    """Return the tenant of the session that has this key."""
    return _tenant_in(key) or DEFAULT_TENANT


def _tenant_in(text: str) -> str | None:
    """Return what a text that looks like `tenant/…` has before its first slash, else None."""
    tenant, slash, _ = text.partition("/")
    return tenant if slash and TENANT_NAME.fullmatch(tenant) else None


def seconds_of(name: str, duration: str | float | None) -> float | None:
    """Return the seconds of a duration such as "30s", "2h" or 90; None for no limit, also for 0.

    `ConfigurationError`, which names the value by `name`, if it is not a duration.
    """
    if duration is None:
        return None
    if isinstance(duration, str):
        match = _DURATION.fullmatch(duration.strip())
        seconds = float(match[1]) * _UNITS[match[2]] if match else float("nan")
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = float(duration)
    else:
        seconds = float("nan")
    if not 0 <= seconds < 1e12:
        raise ConfigurationError(
            f"{name}={duration!r} is no duration: write '30s', '15m', '2h', '7d', or seconds"
        )
    return seconds or None
