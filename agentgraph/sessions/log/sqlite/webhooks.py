"""The webhooks that wait to be called, in a SQLite file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agentgraph.sessions.log import rows as r
from agentgraph.sessions.log.sqlite.file import SessionFile
from agentgraph.sessions.log.sqlite.live import Access, Submit
from agentgraph.sessions.log.webhooks import Webhook

T = TypeVar("T")

_ADD = """
INSERT INTO agentgraph_webhooks (session_id, run_id, url, reader, tries, due_at)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_DUE = """
SELECT session_id, run_id, url, reader, tries, due_at FROM agentgraph_webhooks
WHERE due_at <= ? ORDER BY due_at LIMIT ?
"""
_PUT_OFF = """
UPDATE agentgraph_webhooks SET tries = tries + 1, due_at = ?
WHERE session_id = ? AND run_id = ? AND tries = ?
"""
_REMOVE = "DELETE FROM agentgraph_webhooks WHERE session_id = ? AND run_id = ?"


class SQLiteWebhookTable:
    """The webhooks in a file."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit

    async def add(self, webhook: Webhook) -> None:
        await self._execute(_ADD, (*_key(webhook), *_rest(webhook)))

    async def due(self, now: float, limit: int) -> list[Webhook]:
        rows = await self._ask(lambda file: file.connection.execute(_DUE, (now, limit)).fetchall())
        return [read_webhook(row) for row in rows]

    async def put_off(self, webhook: Webhook, due_at: float) -> bool:
        return await self._execute(_PUT_OFF, (due_at, *_key(webhook), webhook.tries)) > 0

    async def remove(self, webhook: Webhook) -> None:
        await self._execute(_REMOVE, _key(webhook))

    async def _execute(self, query: str, values: tuple[object, ...]) -> int:
        def work(file: SessionFile) -> int:
            with file.own_transaction():
                return file.connection.execute(query, values).rowcount

        return await self._ask(work)

    async def _ask(self, work: Callable[[SessionFile], T]) -> T:
        def ask(access: Access) -> T:
            return access.ask(work)

        return await self._submit(ask, may_share=False)


def read_webhook(row: r.Row) -> Webhook:
    """Read a webhook from the columns of its row."""
    session_id, run_id, url, reader, tries, due_at = row
    reader = None if reader is None else r.from_ascii(reader)
    return Webhook(r.from_ascii(session_id), r.from_ascii(run_id), url, reader, tries, due_at)


def _key(webhook: Webhook) -> tuple[str, str]:
    return r.to_ascii(webhook.session_id), r.to_ascii(webhook.run_id)


def _rest(webhook: Webhook) -> tuple[object, ...]:
    reader = None if webhook.reader is None else r.to_ascii(webhook.reader)
    return webhook.url, reader, webhook.tries, webhook.due_at
