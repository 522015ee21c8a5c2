"""The subscribers of a log: callbacks, each called on the event loop that subscribed it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from agentgraph.sessions.log.protocol import ChangeListener

logger = logging.getLogger("agentgraph")


class Listeners:
    """The subscribers of one log; `notify` may be called from any thread.

    The object is false while there are no subscribers. A log of your own can keep its subscribers
    here: `subscribe` is the method of the `Log` protocol.
    """

    def __init__(self) -> None:
        self._subscribers: dict[
            object, tuple[asyncio.AbstractEventLoop | None, ChangeListener]
        ] = {}

    def __bool__(self) -> bool:
        return bool(self._subscribers)

    def subscribe(self, listener: ChangeListener) -> Callable[[], None]:
        """Call the listener with each change, on the running loop; the result unsubscribes."""
        key = object()
        self._subscribers[key] = (_running_loop(), listener)

        def unsubscribe() -> None:
            self._subscribers.pop(key, None)

        return unsubscribe

    def notify(self, session_id: str | None) -> None:
        """Notify all subscribers that a session has changed; None: any session may have."""
        if not self._subscribers:
            return
        here = _running_loop()
        for key, (loop, _) in list(self._subscribers.items()):
            if loop is None or loop is here:
                try:
                    self._call(key, session_id)
                except Exception:  # the change is made, and whoever made it goes on
                    logger.exception("a listener of the session log failed")
            else:
                with suppress(RuntimeError):  # that loop is closed, so its subscriber is gone too
                    loop.call_soon_threadsafe(self._call, key, session_id)

    def _call(self, key: object, session_id: str | None) -> None:
        # Looked up again: a listener that unsubscribed in the meantime must not be called.
        subscriber = self._subscribers.get(key)
        if subscriber is not None:
            _, listener = subscriber
            listener(session_id)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
