"""The engine of a hub: decides which process drives a session, and has it driven.

The log stays the truth, whoever drives. A hub puts what is sent into the log and wakes the session;
that it is only looked at wakes nobody.
"""

from __future__ import annotations

from typing import Protocol


class Engine(Protocol):
    """Decides who drives the sessions of a hub.

    An engine belongs to one hub, which opens and closes it. Its methods are called on the event
    loop of the hub.
    """

    @property
    def drives(self) -> bool:
        """Whether this hub itself drives the sessions that it wakes, under its lease."""
        ...

    async def open(self) -> None:
        """Connect; raise `AgentGraphError` if the engine cannot be used as it is configured."""
        ...

    def wake(self, key: str, *, is_new: bool) -> None:
        """Have a session driven that has something to do; only called where `drives` is False.

        `key` is that of the session in the log. It returns at once, and never raises: a wake that
        is lost is made up, as the hub looks for unfinished sessions every second and wakes them
        again with `is_new=False`. Of these an engine may leave out those that it has woken lately.
        """
        ...

    async def check(self) -> None:
        """Raise `AgentGraphError` if sessions cannot be driven at present."""
        ...

    async def aclose(self) -> None:
        """Disconnect; sessions that are driven elsewhere go on."""
        ...


class LocalEngine:
    """The hub drives its sessions itself, under its lease; any number of hubs share a store."""

    drives = True

    def __repr__(self) -> str:
        return "LocalEngine()"

    async def open(self) -> None:
        """Do nothing: the hub is all that it needs."""

    def wake(self, key: str, *, is_new: bool) -> None:
        """Raise: a hub that drives wakes its own drivers."""
        raise NotImplementedError(f"the hub itself drives {key!r}")

    async def check(self) -> None:
        """Do nothing: what the hub needs is the store, which is asked by itself."""

    async def aclose(self) -> None:
        """Do nothing."""


ENGINE_METHODS = ("open", "wake", "check", "aclose")
"""What an object needs beside `drives` to be an engine."""
