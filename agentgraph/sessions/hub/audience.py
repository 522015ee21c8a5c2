"""Who follows the sessions of a hub: those who wait for a change, and those who hear it live."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler

from agentgraph.errors import SessionError
from agentgraph.running import Run, current_run
from agentgraph.sessions.hub.round import current_place
from agentgraph.stream import Event
from agentgraph.telling import EventEmitter, ModelCallbacks, PutEvent

if TYPE_CHECKING:
    from agentgraph.sessions.hub.live import LiveSession


_ROOM = 64

Ear = asyncio.Queue[Event | None]


class Audience:
    """All who follow, by session."""

    def __init__(self) -> None:
        self._changes: dict[str, asyncio.Event] = {}
        self._ears: dict[str, set[Ear]] = defaultdict(set)
        self._closed = False

    async def until(self, session_id: str, ready: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Wait until something holds; it is asked again after each change of a session."""
        while True:
            # Before it is asked: what changes meanwhile is not missed.
            change = self._changes.setdefault(session_id, asyncio.Event())
            if await ready():
                self.tell_change(session_id)  # nothing is kept of a session that nobody waits for
                return
            if self._closed:
                raise SessionError("the hub is closed", code="hub_closed")
            await change.wait()

    def tell_change(self, session_id: str | None = None) -> None:
        """Wake all who wait for a change of a session, or of any."""
        for changed in [session_id] if session_id is not None else list(self._changes):
            change = self._changes.pop(changed, None)
            if change is not None:
                change.set()

    def listens(self, session_id: str) -> bool:
        """Tell whether anybody wants to hear the models of a session."""
        return bool(self._ears.get(session_id))

    def listen(self, session_id: str) -> Ear:
        """Return a queue for the live events of a session; what does not fit in is dropped."""
        ear: Ear = asyncio.Queue(_ROOM)
        self._ears[session_id].add(ear)
        return ear

    def unlisten(self, session_id: str, ear: Ear) -> None:
        """Stop listening."""
        self._ears[session_id].discard(ear)
        if not self._ears[session_id]:
            del self._ears[session_id]

    def mouth(self, session_id: str) -> PutEvent:
        """Return what hands live events to those who listen."""

        async def put(event: Event) -> None:
            for ear in self._ears.get(session_id, ()):
                _offer(ear, event)

        return put

    def connect(self, live: LiveSession, run: Run) -> None:
        """Tell the run's events while anybody listens, who may come and go; tokens turn by turn."""
        emitter = EventEmitter(run, live.record.team, self.mouth(live.id), current_place)

        async def tell(event: Event) -> None:
            if self.listens(live.id):
                await emitter.emit(event)

        def listeners() -> Sequence[BaseCallbackHandler]:
            hears = current_run() is run and self.listens(live.id)
            return [ModelCallbacks(emitter)] if hears else []

        run.tell, live.listeners = tell, listeners

    def close(self) -> None:
        """Let all of them go."""
        self._closed = True
        for ears in self._ears.values():
            for ear in ears:
                _offer(ear, None)
        self.tell_change()


def _offer(ear: Ear, event: Event | None) -> None:
    """Put an event, in place of the oldest where there is no room: what matters is in the log."""
    if ear.full():
        ear.get_nowait()
    ear.put_nowait(event)
