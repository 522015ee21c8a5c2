"""A registry from the scheme of a URL to the function that opens its store.

There is one registry of checkpoint savers (`agentgraph.storage`) and one of session logs
(`agentgraph.sessions.log`). Both read a URL in the same way, and refuse one in the same words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from agentgraph.errors import ConfigurationError

T = TypeVar("T")

MEMORY: Final = "memory"
"""The only store whose name is no URL: the memory of this process."""

_SQLITE = "sqlite:///"
_BUILT_IN = frozenset({"memory", "sqlite", "postgres", "postgresql"})
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


class SchemeRegistry(Generic[T]):
    """The openers for one kind of store, by the scheme of the URL.

        logs: SchemeRegistry[Log] = SchemeRegistry(MemoryLog, SQLiteLog, PostgresLog)
        logs.register("redis", RedisLog)
        logs.open("redis://localhost")

    An opener makes the object of a store and does not connect: the store connects on first use.
    """

    def __init__(
        self, memory: Callable[[], T], sqlite: Callable[[str], T], postgres: Callable[[str], T]
    ) -> None:
        self._memory = memory
        self._sqlite = sqlite
        self._openers: dict[str, Callable[[str], T]] = {
            "postgresql": postgres,
            "postgres": postgres,
        }

    def register(self, scheme: str, opener: Callable[[str], T]) -> None:
        """Register `opener` for each URL that begins with `scheme://`.

        A second registration of a scheme replaces its opener. Raises `ConfigurationError` for an
        invalid scheme, and for one that is built in.
        """
        if scheme in _BUILT_IN or not _SCHEME.fullmatch(scheme):
            raise ConfigurationError(
                f"the scheme {scheme!r} cannot be registered: use a name of your own, of "
                "a-z, 0-9, +, . and -, as in 'redis'"
            )
        self._openers[scheme] = opener

    def open(self, url: str) -> T:
        """Return the store of a URL; raise `ConfigurationError` for a URL without a known store.

        An opener gets the whole URL, except that of SQLite, which gets the file's path.
        """
        if not isinstance(url, str):
            raise self._unknown_scheme("", f", and no {type(url).__name__}")
        if url == MEMORY:
            return self._memory()
        if url.startswith(_SQLITE):
            return self._sqlite(url.removeprefix(_SQLITE))
        scheme, separator, _ = url.partition("://")
        opener = self._openers.get(scheme) if separator else None
        if opener is None:
            raise self._unknown_scheme(scheme if separator else "")
        return opener(url)

    def _unknown_scheme(self, scheme: str, contrast: str = "") -> ConfigurationError:
        # Only the scheme is named: the rest of the URL may contain a password.
        fault = f"a store is a URL{contrast}"
        if scheme:
            fault = f"a store with the scheme {scheme!r} is not known"
        more = [f" or {name}://…" for name in self._openers if name not in _BUILT_IN]
        forms = f"{MEMORY}, {_SQLITE}file.db or postgresql://…{''.join(more)}"
        return ConfigurationError(f"{fault}: write {forms}")
