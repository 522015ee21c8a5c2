"""The webhooks that wait to be called: which run they are of, and when they are tried next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that is to be told how a run has ended."""

    session_id: str
    """The session's key in the log."""
    run_id: str
    url: str
    reader: str | None
    """Whose view of the run is sent; None is all."""
    tries: int = 0
    due_at: float = 0.0
    """When it is tried next, once the run has ended."""


class WebhookTable(Protocol):
    """What a log offers as `webhooks`, so that they outlive the process that has accepted them.

    A log may have none: then messages with a webhook are refused.
    """

    async def add(self, webhook: Webhook) -> None:
        """Store a webhook, durably; one of the same run stays."""
        ...

    async def due(self, now: float, limit: int) -> list[Webhook]:
        """Return the webhooks that are due at an instant, the one that waits longest first."""
        ...

    async def put_off(self, webhook: Webhook, due_at: float) -> bool:
        """Count a try, and set the next one; False if another process has done so meanwhile."""
        ...

    async def remove(self, webhook: Webhook) -> None:
        """Forget a webhook that was called, or never will be."""
        ...


class MemoryWebhookTable:
    """The webhooks of a memory log."""

    def __init__(self, sessions: Mapping[str, object]) -> None:
        self._sessions = sessions
        self._webhooks: dict[tuple[str, str], Webhook] = {}

    async def add(self, webhook: Webhook) -> None:
        self._webhooks.setdefault((webhook.session_id, webhook.run_id), webhook)

    async def due(self, now: float, limit: int) -> list[Webhook]:
        for key in [*self._webhooks]:
            if key[0] not in self._sessions:  # it was forgotten
                del self._webhooks[key]
        due = [webhook for webhook in self._webhooks.values() if webhook.due_at <= now]
        return sorted(due, key=lambda webhook: webhook.due_at)[:limit]

    async def put_off(self, webhook: Webhook, due_at: float) -> bool:
        key = (webhook.session_id, webhook.run_id)
        if self._webhooks.get(key) != webhook:
            return False
        self._webhooks[key] = replace(webhook, tries=webhook.tries + 1, due_at=due_at)
        return True

    async def remove(self, webhook: Webhook) -> None:
        self._webhooks.pop((webhook.session_id, webhook.run_id), None)
