"""Functions that hear of a session's envelopes: of each one once, in order, whoever appends it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agentgraph.sessions.state.envelope import EV_SESSION_CLOSED, Envelope

log = logging.getLogger("agentgraph")

Handler: TypeAlias = Callable[[Envelope], Any]
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]


@dataclass(slots=True)
class _Ear:
    """Those who listen to one session, and how far they have been told."""

    told: int
    entries: list[tuple[str, Handler]] = field(default_factory=list)


class Handlers:
    """The handlers of a hub; `spawn` runs what they return, if that is to be awaited."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._ears: dict[str, _Ear] = {}

    def add(self, session_id: str, event_type: str, handler: Handler, after: int) -> None:
        """Let a handler hear of what comes after a sequence."""
        ear = self._ears.setdefault(session_id, _Ear(after))
        ear.entries.append((event_type, handler))

    def remove(self, session_id: str, event_type: str, handler: Handler) -> None:
        """Let it hear no more."""
        ear = self._ears.get(session_id)
        if ear is not None and (event_type, handler) in ear.entries:
            ear.entries.remove((event_type, handler))
            if not ear.entries:
                del self._ears[session_id]

    @property
    def sessions(self) -> Sequence[str]:
        """The sessions that somebody listens to."""
        return [*self._ears]

    def told(self, session_id: str) -> int | None:
        """Return the sequence up to which handlers have heard, None where there are none."""
        ear = self._ears.get(session_id)
        return None if ear is None else ear.told

    def tell(self, session_id: str, envelopes: Sequence[Envelope]) -> None:
        """Call the handlers with the envelopes that they have not heard of."""
        ear = self._ears.get(session_id)
        fresh = [one for one in envelopes if ear is not None and one.sequence > ear.told]
        if ear is None or not fresh:
            return
        ear.told = fresh[-1].sequence
        for envelope in fresh:
            for event_type, handler in list(ear.entries):
                if event_type in (envelope.event_type, "*"):
                    self.call(handler, envelope)
        if fresh[-1].event_type == EV_SESSION_CLOSED:
            self._ears.pop(session_id, None)

    def call(self, handler: Handler, envelope: Envelope) -> None:
        """Call a handler, which cannot stop the session."""

        async def finish(result: Any) -> None:
            try:
                await result
            except Exception:
                log.exception("a handler of %s failed", envelope.event_type)

        try:
            result = handler(envelope)
        except Exception:
            log.exception("a handler of %s failed", envelope.event_type)
            return
        if inspect.isawaitable(result):
            self._spawn(finish(result))
