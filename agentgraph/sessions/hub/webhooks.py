"""Webhooks: addresses that are told how a run has ended, by whichever hub of the store.

What was accepted is stored, so it is called after a restart too: at least once, and again with
pauses that grow until somebody answers with success. No round waits for a webhook.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from pydantic_core import to_json

from agentgraph.clock import clock
from agentgraph.errors import AgentGraphError, ConfigurationError, SessionError, kind_of
from agentgraph.sessions.hub.hub import Hub
from agentgraph.sessions.hub.run import Run
from agentgraph.sessions.hub.session import Session
from agentgraph.sessions.log.live import LiveNotice
from agentgraph.sessions.log.protocol import is_unknown
from agentgraph.sessions.log.webhooks import Webhook, WebhookTable
from agentgraph.sessions.state.record import id_of, tenant_of

logger = logging.getLogger("agentgraph")

Post: TypeAlias = Callable[[str, str, bytes], Awaitable[int]]
"""Sends a body to a URL, at an IP address of its host, and returns the status of the answer."""

MOST_TRIES = 12
"""How often a webhook is tried, in somewhat more than five hours."""
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 3_600.0
_TIMEOUT_S = 10.0
_POLL_S = 5.0
"""How often all that wait are looked at: other processes accept and run too."""
_MOST_AT_ONCE = 16
_PAGE = 1_000


class Webhooks:
    """Accepts webhooks for a hub, and calls those that are due.

        webhooks = Webhooks(hub, hosts=["hooks.example.com"])
        webhooks.start()
        await webhooks.add(session, receipt.id, "https://hooks.example.com/runs", reader="ann")

    Without `hosts`, webhooks may be at any host whose addresses are public. A host that is named
    may have a private address.
    """

    def __init__(self, hub: Hub, *, hosts: Collection[str] = (), post: Post | None = None) -> None:
        self._hub = hub
        self._table: WebhookTable | None = getattr(hub.log, "webhooks", None)
        self._hosts = frozenset(host.lower() for host in hosts)
        self._post = post or _post
        self._news = asyncio.Event()
        self._changed_ids: set[str] = set()
        """The sessions in which a run may have ended since the last look."""
        self._under_way: set[tuple[str, str]] = set()
        self._room = asyncio.Semaphore(_MOST_AT_ONCE)
        self._unsubscribe: Callable[[], None] = lambda: None
        self._has_any = True
        """Whether the table may have webhooks: if not, appends are no news."""

    def start(self) -> None:
        """Call webhooks for as long as the hub is open."""
        if self._table is not None:
            self._unsubscribe = self._hub.log.subscribe(self._on_changed)
            self._hub.spawn(self._run(self._table))

    def stop(self) -> None:
        """Be notified of no more changes; what is under way ends with the hub."""
        self._unsubscribe()

    def check(self, url: str) -> None:
        """Raise `ConfigurationError` if nothing may be sent to a URL."""
        parts = _parts_of(url)
        if not url.isascii() or not url.isprintable():
            raise _refusal(url, "write its address in ASCII")
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise _refusal(url, "give an address that begins with https:// or http://")
        if parts.username is not None or parts.password is not None:
            raise _refusal(url, "it has a password, which would be stored: leave it out")
        if self._hosts and parts.hostname.lower() not in self._hosts:
            raise _refusal(url, f"webhooks may be at {', '.join(sorted(self._hosts))} only")
        if not self._hosts and _is_private(parts.hostname):
            raise _refusal(url, "that address is private: have the operator allow the host")
        if self._table is None:
            raise _refusal(url, "this store keeps no webhooks")

    async def add(self, session: Session, run_id: str, url: str, *, reader: str | None) -> None:
        """Have a URL told how a run has ended, as a reader may see it; durable when it returns."""
        self.check(url)
        if self._table is not None:
            await self._table.add(Webhook(session.key, run_id, url, reader))
            self._has_any = True
            self._on_changed(session.key)

    def _on_changed(self, notice: str | None) -> None:
        if self._has_any and notice and not isinstance(notice, LiveNotice):
            self._changed_ids.add(str(notice))
            self._news.set()

    async def _run(self, table: WebhookTable) -> None:
        poll = asyncio.ensure_future(clock().sleep(0))
        while True:
            news = asyncio.ensure_future(self._news.wait())
            try:
                await asyncio.wait({news, poll}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
            is_poll = poll.done()
            if is_poll:
                poll = asyncio.ensure_future(clock().sleep(_POLL_S))
            self._news.clear()
            changed_ids, self._changed_ids = self._changed_ids, set()
            try:
                webhooks = await table.due(clock().wall(), _PAGE)
            except AgentGraphError as error:
                logger.warning("webhooks cannot be read: %s", kind_of(error))
                continue
            self._has_any = bool(webhooks)
            for webhook in webhooks:
                key = (webhook.session_id, webhook.run_id)
                is_news = is_poll or webhook.session_id in changed_ids
                if is_news and key not in self._under_way:
                    self._under_way.add(key)
                    self._hub.spawn(self._call(table, webhook))

    async def _call(self, table: WebhookTable, webhook: Webhook) -> None:
        """Call a webhook if its run has ended; else there will be news."""
        try:
            async with self._room:
                await self._call_if_ended(table, webhook)
        except AgentGraphError as error:
            logger.warning("webhook of run %s: %s", webhook.run_id, kind_of(error))
        finally:
            self._under_way.discard((webhook.session_id, webhook.run_id))

    async def _call_if_ended(self, table: WebhookTable, webhook: Webhook) -> None:
        run = await self._run_of(webhook)
        if run is None:
            await table.remove(webhook)
            return
        pause_s = min(_FIRST_PAUSE_S * 2**webhook.tries, _LONGEST_PAUSE_S)
        # Put off before it is called: another process, or the next one after a kill, tries later.
        if not run.has_ended or not await table.put_off(webhook, clock().wall() + pause_s):
            return
        fault = await self._send(webhook, run)
        if fault is None:
            await table.remove(webhook)
        elif webhook.tries + 1 >= MOST_TRIES:
            logger.error("webhook of run %s is given up: %s", webhook.run_id, fault)
            await table.remove(webhook)
        else:
            logger.warning("webhook of run %s is tried again: %s", webhook.run_id, fault)

    async def _run_of(self, webhook: Webhook) -> Run | None:
        """Return the run of a webhook, None if it is gone."""
        key = webhook.session_id
        try:
            session = await self._hub.get(id_of(key), tenant=tenant_of(key))
            return await session.run(webhook.run_id, reader=webhook.reader)
        except SessionError as error:
            if is_unknown(error) or error.code == "unknown_run":
                return None
            raise

    async def _send(self, webhook: Webhook, run: Run) -> str | None:
        """Send a run; return what is wrong, in words without the URL, which may be secret."""
        fields = {name: value for name, value in run.to_dict().items() if name != "sequence"}
        try:
            self.check(webhook.url)
            address = await self._address_of(webhook.url)
            async with asyncio.timeout(_TIMEOUT_S):
                status = await self._post(webhook.url, address, to_json(fields))
        except AgentGraphError as error:
            return str(error)
        except Exception as error:
            return kind_of(error)
        return None if 200 <= status < 300 else f"it answered with {status}"

    async def _address_of(self, url: str) -> str:
        """Return an IP address of a URL's host; the connection is made to that, and to no other."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(info[4][0]) for info in infos]
        if not self._hosts and any(map(_is_private, addresses)):
            raise _refusal(url, "its host has a private address: have the operator allow the host")
        return addresses[0]


def _parts_of(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no number
    except ValueError:
        return None
    return parts


def _is_private(host: str) -> bool:
    """Tell whether a host is an IP address that is not of the public internet."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
    ipv4 = getattr(address, "ipv4_mapped", None)
    return not (ipv4 or address).is_global or address.is_multicast


def _refusal(url: str, reason: str) -> ConfigurationError:
    parts = _parts_of(url)
    host = parts.hostname if parts is not None else None
    return ConfigurationError(f"webhook at {host or 'no host'}: {reason}", code="webhook")


async def _post(url: str, address: str, body: bytes) -> int:
    import httpx  # only who uses webhooks waits for its import

    parts = httpx.URL(url)
    headers = {"Host": parts.netloc.decode(), "Content-Type": "application/json"}
    extensions = {"sni_hostname": parts.host} if parts.scheme == "https" else {}
    async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
        target = parts.copy_with(host=address)
        answer = await client.post(target, content=body, headers=headers, extensions=extensions)
    return answer.status_code
