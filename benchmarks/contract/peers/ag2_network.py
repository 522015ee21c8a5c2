"""AG2: a workflow channel of a hub on `SqliteKnowledgeStore`, by its pages on the network ("Hub",
"Workflow", "Human participants").

Its record is the packet of a turn, so each step is an agent whose model calls one tool, and the
question is the turn of a human. After a kill the hub is opened on the store again, the agents are
attached, and `resume_pending_turns` gives them their turns.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path
from typing import Any

from ag2 import Agent
from ag2.events import ToolCallEvent
from ag2.knowledge import SqliteKnowledgeStore
from ag2.network import (
    EV_TEXT,
    Envelope,
    Hub,
    HubClient,
    LocalLink,
    Passport,
    Resume,
    TransitionGraph,
)
from ag2.testing import TestConfig

from benchmarks.contract.scenario import STEPS, NotOffered, Outcome, astep, job, play

logging.disable(logging.CRITICAL)
WORKERS = (*STEPS, "pay")
_POLL_S = 0.005
_LIMIT_S = 20


class AG2:
    def __init__(self) -> None:
        self._db = Path(job().store) / "hub.db"
        self._hub: Any = None
        self._clients: dict[str, Any] = {}
        self._channel = ""

    async def begin(self) -> Outcome:
        if job().misfit:
            raise NotOffered("a channel's context variables have no schema")
        await self._open()
        client = HubClient(LocalLink(self._hub), hub=self._hub)
        people = [await client.register_human(Passport(name=name)) for name in ("boss", "approver")]
        order = ["boss", *STEPS, "approver", "pay"]
        ids = [str(self._hub.find_agent_id(name)) for name in order]
        knobs: Any = {"graph": TransitionGraph.sequence(ids).to_dict()}
        channel = await people[0].open(type="workflow", target=order[1:], knobs=knobs)
        self._channel = channel.channel_id
        await people[0].send(self._channel, "pay the bill")
        return await self._settle()

    async def resume(self) -> Outcome:
        await self._open()
        if not self._channel:
            raise LookupError("the hub has no channel")
        clients = list(self._clients.values())
        # Who has no turn now may get one while another works: asked then, it would take it twice.
        pending = [one for one in clients if await self._hub.pending_turns_for(one.agent_id)]
        for client in pending:
            await client.resume_pending_turns()
        return await self._settle()

    async def answer(self) -> Outcome:
        if job().barrier:
            raise NotOffered("a store has one hub; other processes answer through its server")
        await self._open()
        approver = str(self._hub.find_agent_id("approver"))
        await self._hub.post_envelope(
            Envelope(self._channel, approver, None, EV_TEXT, {"text": job().value})
        )
        return await self._settle()

    async def state(self) -> Outcome:
        await self._open()
        return await self._outcome()

    async def fork(self) -> Outcome:
        raise NotOffered("a channel cannot be forked")

    async def tear(self) -> Outcome:
        query = (
            "UPDATE entries SET content = substr(content, 1, length(content) - 40) "
            "WHERE path LIKE '%wal.jsonl'"
        )
        with sqlite3.connect(self._db) as file:
            count = file.execute(query).rowcount
        assert count == 1, count
        return Outcome("torn")

    async def _open(self) -> None:
        """Open the hub, and register or attach those who work."""
        store = SqliteKnowledgeStore(str(self._db))
        self._hub = await Hub.open(store, ttl_sweep_interval=0, expectation_sweep_interval=0)
        for name in WORKERS:
            client = HubClient(LocalLink(self._hub), hub=self._hub)
            self._clients[name] = await client.attach(
                self._agent(name), name, passport=Passport(name=name), resume=Resume()
            )
        channels = await self._hub.list_channels()
        self._channel = channels[0].channel_id if channels else ""

    def _agent(self, name: str) -> Agent:
        async def work() -> str:
            """Do the step."""
            if name != "pay" or await self._decision() == "yes":
                await astep(name)
            return name

        return Agent(name, config=TestConfig(ToolCallEvent("work"), f"{name} done"), tools=[work])

    async def _decision(self) -> str:
        approver = self._hub.find_agent_id("approver")
        texts = [
            str(envelope.event_data["text"])
            for envelope in await self._hub.read_wal(self._channel)
            if envelope.event_type == EV_TEXT and envelope.sender_id == approver
        ]
        return texts[-1] if texts else ""

    async def _settle(self) -> Outcome:
        """Wait until a human has the turn, or nobody."""
        async with asyncio.timeout(_LIMIT_S):
            # The hub tells nobody whose turn it is, so it has to be asked.
            while (outcome := await self._outcome()).status == "open":  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
        return outcome

    async def _outcome(self) -> Outcome:
        if not self._channel:
            return Outcome("none")
        names = {str(self._hub.find_agent_id(name)): name for name in WORKERS}
        done = [
            names[envelope.sender_id]
            for envelope in await self._hub.read_wal(self._channel)
            if envelope.sender_id in names and str(envelope.event_type) == "ag2.packet"
        ]
        turn = getattr(self._hub.adapter_state(self._channel), "expected_next_speaker", None)
        asks = turn == self._hub.find_agent_id("approver")
        paid = "paid" if await self._decision() == "yes" else "refused"
        ended = "pay" in done
        status = "asks" if asks else "ended" if ended else "open"
        return Outcome(status, {"done": done}, paid if ended else "")


if __name__ == "__main__":
    play(AG2)
