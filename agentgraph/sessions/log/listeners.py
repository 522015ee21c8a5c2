"""Who is told of changes, each on the loop that asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from agentgraph.sessions.log.protocol import Changed


class Listeners:
    """The subscribers of one log; they may be told from any thread."""

    def __init__(self) -> None:
        self._listening: dict[object, tuple[asyncio.AbstractEventLoop | None, Changed]] = {}

    def __bool__(self) -> bool:
        return bool(self._listening)

    def add(self, changed: Changed) -> Callable[[], None]:
        """Have changes told on the running loop; the result ends it."""
        key = object()
        self._listening[key] = (_running(), changed)

        def end() -> None:
            self._listening.pop(key, None)

        return end

    def tell(self, session_id: str | None) -> None:
        """Tell everybody of a change."""
        if not self._listening:
            return
        here = _running()
        for key, (loop, _) in list(self._listening.items()):
            if loop is None or loop is here:
                self._tell(key, session_id)
            else:
                with suppress(RuntimeError):  # its loop was closed: nobody is there to be told
                    loop.call_soon_threadsafe(self._tell, key, session_id)

    def _tell(self, key: object, session_id: str | None) -> None:
        # Asked again: who has ended it in the meantime must not hear of it any more.
        listening = self._listening.get(key)
        if listening is not None:
            listening[1](session_id)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
