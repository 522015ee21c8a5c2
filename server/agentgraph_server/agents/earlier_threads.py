"""The threads that earlier versions have stored as checkpoints: read, resumed, and taken over.

With its first message such a thread becomes the begin of a session. Until then it is read, resumed
and deleted where it is, by its agent as it was then: on a saver.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from agentgraph import Agent, AgentGraphError, Flow
from agentgraph.agents.run.threads import thread_config
from agentgraph.graphs.public_graph import whole_state
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.single.team import SingleTeam
from agentgraph.storage import LazySaver, open_saver
from agentgraph.stream import Event, FinalStateEvent
from agentgraph.usage import Usage
from agentgraph_server.agents.schemas import Answer
from agentgraph_server.api.run_slots import RunSlot

ServedAgent: TypeAlias = Agent[Any] | Flow[Any]


class ThreadBusy(AgentGraphError):
    """A turn is under way on this thread."""

    code = "thread_busy"

    @classmethod
    def on(cls, thread_id: str) -> ThreadBusy:
        """Return the error for a thread."""
        return cls(f"a turn is under way on thread {thread_id!r}: wait for its end, or use another")


class EarlierThreads:
    """The threads of an agent on a checkpoint saver: its own, or that of the server's store."""

    def __init__(self, agent: ServedAgent, store: str) -> None:
        saver = agent.checkpointer or store
        self._saver: BaseCheckpointSaver[Any] = (
            saver if isinstance(saver, BaseCheckpointSaver) else open_saver(saver)
        )
        self.agent = agent.replace(checkpointer=self._saver)
        self._busy_ids: set[str] = set()

    async def open(self) -> None:
        """Connect, so that a server whose agents cannot reach their stores does not start."""
        if isinstance(self._saver, LazySaver):
            await self._saver.aopen()

    async def close(self) -> None:
        """Close what is open."""
        if isinstance(self._saver, LazySaver):
            await self._saver.aclose()

    async def has(self, thread_id: str) -> bool:
        """Tell whether there is a thread of this id."""
        return await self._saver.aget_tuple(thread_config(thread_id)) is not None

    def is_busy(self, thread_id: str) -> bool:
        """Tell whether this server resumes a thread."""
        return thread_id in self._busy_ids

    async def left_by(self, thread_id: str, team: SingleTeam) -> Draft | None:
        """Return what a thread has left, for the session that goes on with it; None without it.

        Raises `ThreadBusy` while it is resumed.
        """
        if not await self.has(thread_id):
            return None
        async with self.hold(thread_id):
            graph: Any = self.agent.graph
            return team.left_by(await whole_state(graph, thread_config(thread_id), subgraphs=True))

    @asynccontextmanager
    async def hold(self, thread_id: str) -> AsyncIterator[None]:
        """Let nobody else resume a thread; `ThreadBusy` if somebody does, on any server."""
        if thread_id in self._busy_ids:
            raise ThreadBusy.on(thread_id)
        self._busy_ids.add(thread_id)
        try:
            claim = None
            if isinstance(self._saver, LazySaver):
                claim = await self._saver.atake(thread_id)
                if claim is None:
                    raise ThreadBusy.on(thread_id)
            try:
                yield
            finally:
                if claim is not None:
                    await claim.release()
        finally:
            self._busy_ids.discard(thread_id)


class EarlierTurn:
    """The rest of a run that has waited for decisions since before there were sessions."""

    def __init__(
        self,
        threads: EarlierThreads,
        thread_id: str,
        decisions: Mapping[str, Any],
        slot: RunSlot,
    ) -> None:
        self.name, self.thread_id = threads.agent.name, thread_id
        self._threads = threads
        self._command: Command[Any] = Command(resume=decisions)
        self._slot, self._tokens = slot, 0
        slot.is_lent = True

    async def answer(self) -> Answer:
        """Run to the end, and return the answer."""
        async with self._threads.hold(self.thread_id):
            agent = self._threads.agent
            reply = await agent.ainvoke(self._command, thread_id=self.thread_id)
        self._tokens = reply.usage.total_tokens
        return Answer.of(reply, self.name)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield all that happens, as it happens; closing the generator cancels the run."""
        async with self._threads.hold(self.thread_id):
            events = self._threads.agent.astream(self._command, thread_id=self.thread_id)
            try:
                async for event in events:
                    if isinstance(event, FinalStateEvent):
                        self._tokens = Usage.from_dict(event.usage).total_tokens
                    yield event
            finally:
                await events.aclose()

    async def end(self) -> None:
        """Count the run as one that has ended: it ends with who waits for it."""
        if self._slot.is_lent:
            self._slot.is_lent = False
            self._slot.end(self._tokens)
