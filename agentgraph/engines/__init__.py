"""Engines: who drives sessions, this process or others. `open_engine` makes one of its URL.

    hub = await Hub.open("postgresql://…", serve=[team], engine=open_engine("local"))

`local`, the default, is the hub itself, under its lease. An `Engine` of your own can be registered:

    register_engine("queue", QueueEngine)
    hub = await Hub.open("postgresql://…", engine=open_engine("queue://localhost"))

An engine decides only who drives. What was said, decided and done is in the log, whoever does.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agentgraph.driving.engine import Engine, LocalEngine
from agentgraph.errors import ConfigurationError

__all__ = ["Engine", "LocalEngine", "open_engine", "register_engine"]

LOCAL = "local"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_openers: dict[str, Callable[[str], Engine]] = {}


def open_engine(url: str) -> Engine:
    """Return the engine of a URL; it connects when a hub opens it.

    Raises `ConfigurationError` for a URL without a known engine.
    """
    if url == LOCAL:
        return LocalEngine()
    scheme, separator, _ = url.partition("://") if isinstance(url, str) else ("", "", "")
    opener = _openers.get(scheme) if separator else None
    if opener is not None:
        return opener(url)
    # Only the scheme is named: the rest of the URL may contain a password.
    what = f"an engine with the scheme {scheme!r} is not known" if separator else "unknown engine"
    forms = "".join(f" or {name}://…" for name in _openers)
    raise ConfigurationError(f"{what}: write {LOCAL}{forms}", code="engine")


def register_engine(scheme: str, opener: Callable[[str], Engine]) -> None:
    """Have `open_engine` call `opener` with each URL that begins with `scheme://`.

    A second registration of a scheme replaces its opener. Raises `ConfigurationError` for what
    cannot be a scheme.
    """
    if scheme == LOCAL or not isinstance(scheme, str) or not _SCHEME.fullmatch(scheme):
        raise ConfigurationError(
            f"the scheme {scheme!r} cannot be registered: use a name of your own, of a-z, 0-9, +, "
            ". and -, as in 'queue'",
            code="engine",
        )
    _openers[scheme] = opener
