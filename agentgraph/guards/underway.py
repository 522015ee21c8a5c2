"""What this process knows of the actions of an input, beyond what is stored of them."""

from __future__ import annotations

from agentgraph.guards.side_notes import SideNotes

__all__ = ["Underway"]


class Underway:
    """The actions that are about to run, that run, and that have failed here, by their keys."""

    def __init__(self) -> None:
        self.registered: set[str] = set()
        """Those that are stored, and are to run now."""
        self.promises: dict[str, SideNotes] = {}
        """Where it is to be noted that one begins, which was registered before a pause."""
        self.running: set[str] = set()
        """Those that this process has begun, and that have not come to an end."""
        self.tried: set[str] = set()
        """Those that have failed here: whoever tries them again knows of it."""

    def promise(self, key: str, notes: SideNotes) -> None:
        """Have an action run that has not begun, and have it noted first that it begins."""
        self.registered.add(key)
        self.promises[key] = notes

    async def unbegun(self) -> set[str]:
        """Return the registered ones that no other process has begun meanwhile."""
        return {
            key
            for key in self.registered
            if (notes := self.promises.get(key)) is None or not await notes.has_begun(key)
        }

    def forget(self) -> None:
        """Leave to be found out what came of those that were about to run, or have failed."""
        self.registered.clear()
        self.tried.clear()
