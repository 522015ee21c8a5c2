"""The webhooks that wait to be called, in Postgres."""

from __future__ import annotations

from dataclasses import asdict

from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.postgres.connection import Values
from agentgraph.sessions.log.postgres.live import Ask
from agentgraph.sessions.log.webhooks import Webhook

_ADD = """
INSERT INTO agentgraph_webhooks (session_id, run_id, url, reader, tries, due_at)
SELECT %(session_id)s::text, %(run_id)s, %(url)s, %(reader)s, %(tries)s, %(due_at)s
WHERE EXISTS (SELECT 1 FROM agentgraph_sessions WHERE session_id = %(session_id)s)
ON CONFLICT DO NOTHING
"""
_DUE = """
SELECT session_id, run_id, url, reader, tries, due_at FROM agentgraph_webhooks
WHERE due_at <= %(now)s ORDER BY due_at LIMIT %(limit)s
"""
_PUT_OFF = """
UPDATE agentgraph_webhooks SET tries = tries + 1, due_at = %(next)s
WHERE session_id = %(session_id)s AND run_id = %(run_id)s AND tries = %(tries)s
RETURNING tries
"""
_REMOVE = """
DELETE FROM agentgraph_webhooks WHERE session_id = %(session_id)s AND run_id = %(run_id)s
"""


class PostgresWebhookTable:
    """The webhooks in a database."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def add(self, webhook: Webhook) -> None:
        await self._ask(_ADD, _values(webhook))

    async def due(self, now: float, limit: int) -> list[Webhook]:
        webhooks: list[Webhook] = []
        for session_id, run_id, url, reader, tries, due_at in await self._ask(
            _DUE, {"now": now, "limit": limit}
        ):
            name = None if reader is None else r.from_ascii(reader)
            ids = r.from_ascii(session_id), r.from_ascii(run_id)
            webhooks.append(Webhook(*ids, url, name, tries, due_at))
        return webhooks

    async def put_off(self, webhook: Webhook, due_at: float) -> bool:
        return bool(await self._ask(_PUT_OFF, {**_values(webhook), "next": due_at}))

    async def remove(self, webhook: Webhook) -> None:
        await self._ask(_REMOVE, _values(webhook))


def _values(webhook: Webhook) -> Values:
    values = asdict(webhook)
    for name in ("session_id", "run_id", "reader"):
        values[name] = None if values[name] is None else r.to_ascii(values[name])
    return values
