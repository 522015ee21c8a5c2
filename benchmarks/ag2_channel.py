"""AG2's hub with one workflow channel of two, who take turns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

__all__ = ["Channel", "open_channel", "open_hub", "open_store"]


class Channel:
    """One channel, whose participants post in turn."""

    def __init__(self, hub: Any, channel_id: str, speakers: list[str]) -> None:
        self._hub = hub
        self._id = channel_id
        self._speakers = speakers

    async def post(self, number: int, packet: dict[str, Any]) -> None:
        """Have whose turn it is say something."""
        from ag2.network.envelope import EV_PACKET, Envelope

        sender = self._speakers[number % 2]
        await self._hub.post_envelope(Envelope(self._id, sender, None, EV_PACKET, packet))


def open_store(file: Path | None) -> Any:
    """Return a store of AG2's, in memory or in a SQLite file."""
    from ag2.knowledge import MemoryKnowledgeStore, SqliteKnowledgeStore

    return MemoryKnowledgeStore() if file is None else SqliteKnowledgeStore(str(file))


async def open_hub(store: Any) -> Any:
    """Open a hub, which folds all channels of its store; without what sweeps in between."""
    from ag2.network import Hub

    return await Hub.open(store, ttl_sweep_interval=0, expectation_sweep_interval=0)


@asynccontextmanager
async def open_channel(store: Any) -> AsyncIterator[Channel]:
    """Open a hub and a channel in it."""
    from ag2.network import (
        AgentTarget,
        FromSpeaker,
        HubClient,
        LocalLink,
        Passport,
        Transition,
        TransitionGraph,
    )

    hub = await open_hub(store)
    client = HubClient(LocalLink(hub), hub=hub)
    try:
        people = [await client.register_human(Passport(name=name)) for name in ("desk", "orders")]
        desk, orders = (str(one.agent_id) for one in people)
        chain = [
            Transition(FromSpeaker(desk), AgentTarget(orders)),
            Transition(FromSpeaker(orders), AgentTarget(desk)),
        ]
        rules = TransitionGraph(desk, chain).to_dict()
        opened = await people[0].open(type="workflow", target="orders", knobs={"graph": rules})
        yield Channel(hub, opened.channel_id, [desk, orders])
    finally:
        await client.close()
        await hub.close()
