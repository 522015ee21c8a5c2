"""The threads of an agent: one run at a time on each, and what unfinished runs left on them.

Runs in one process wait for a thread in a queue, first come first served; then they compete with
other processes for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import Command, StateSnapshot
from langgraph.types import Interrupt as RawInterrupt

from agentgraph.agents.run.cut_off_effects import CutOffEffects, is_cut_off, look_up_all
from agentgraph.agents.run.decisions import DecisionLog, decisions_in, reachable_questions
from agentgraph.agents.run.recovery import (
    Recovery,
    active_path,
    compensation_state,
    is_finished,
    recover,
    with_orphans,
)
from agentgraph.agents.run.remains import messages_so_far
from agentgraph.agents.run.waits import LOCK, Place, Queue, begin_wait, end_wait
from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.agents.spec.tree import remote_members
from agentgraph.clock import clock
from agentgraph.errors import AgentGraphError
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.graphs.public_graph import whole_state
from agentgraph.guards import Effect
from agentgraph.guards.nodes.agent_graph import COMPENSATE
from agentgraph.guards.records.effect_log import EffectLog
from agentgraph.running import Journal, Run, inside_run
from agentgraph.storage import LazySaver, original_of

log = logging.getLogger("agentgraph")


class Threads:
    """The threads on which an agent's graph runs."""

    def __init__(
        self,
        agent: AgentSpec,
        graph: AnyCompiledGraph,
        saver: object,
        effects: Mapping[str, Effect],
    ) -> None:
        self._agent = agent
        self._effects = effects
        self._graph = graph
        self._saver = saver
        # By saver: all agents on one saver wait for each other's threads.
        self.queues = queues_of(saver)

    @property
    def saver(self) -> Any:
        """Return the saver that the graph was compiled with."""
        return self._graph.checkpointer

    @asynccontextmanager
    async def hold(self, run: Run) -> AsyncIterator[None]:
        """Wait for the thread and own it in here; the run gets the work of the attempt before."""
        async with self.queues.take(run.thread_id, self._saver, run):
            run.began_at = clock().wall()  # the wait for other runs does not count
            earlier = self.queues.unfinished_runs.get(run.thread_id)
            if earlier is not None:
                run.journal = {call_id: list(new) for call_id, new in earlier.journal.items()}
                run.results = dict(earlier.results)
            with inside_run(run):
                try:
                    yield
                except BaseException:
                    self.queues.keep(run)
                    raise
                finally:
                    run.has_ended = True
                    run.outer = None  # a run that is kept must not keep those around it

    async def forget(self, thread_id: str) -> None:
        """Delete a thread, with the threads of its remote agents as far as servers answer."""
        async with self.queues.take(thread_id, self._saver):
            await self._forget_remotely(thread_id)
            self.queues.unfinished_runs.pop(thread_id, None)
            await self.saver.adelete_thread(thread_id)

    async def _forget_remotely(self, thread_id: str) -> None:
        members = remote_members(self._agent, self._agent.name)
        if not members:
            return
        ids = {message.id for message in await self.messages(thread_id)}
        for path, member in members.items():
            try:
                await member.forget(thread_id, path, ids)
            except AgentGraphError as error:  # what is here is deleted all the same
                log.warning("the threads of %s on its server are not deleted: %s", path, error)

    async def messages(self, thread_id: str) -> list[AnyMessage]:
        """Return the messages of a thread, with those of an unfinished run."""
        latest = await self.checkpoint(thread_id)
        earlier = self.queues.unfinished_runs.get(thread_id)
        journal = {} if earlier is None else earlier.journal
        is_whole = not journal and (latest is None or is_finished(latest))
        config = thread_config(thread_id) if latest is None else latest.config
        if is_whole:
            return messages_so_far(await whole_state(self._graph, config), journal)
        return messages_so_far(await self._unfinished_state(config), journal)

    async def snapshot(self, thread_id: str) -> StateSnapshot:
        """Return the state of a thread, with the states of all unfinished levels."""
        return await self._unfinished_state(thread_config(thread_id))

    async def _unfinished_state(self, config: RunnableConfig) -> StateSnapshot:
        """Return a state with all unfinished levels, those of removed agents too."""
        snapshot = await whole_state(self._graph, config, subgraphs=True)
        return await with_orphans(self._graph, self.saver, snapshot)

    async def questions(self, thread_id: str) -> list[tuple[str, RawInterrupt]]:
        """Return the open questions of a thread, each with the path of its agent."""
        questions = self._questions_in(await self.snapshot(thread_id))
        if questions:
            decisions = decisions_in(await self.saver.aget_tuple(thread_config(thread_id)))
            questions = [
                (path, question) for path, question in questions if question.id not in decisions
            ]
        return questions

    async def reopen(self, thread_id: str, ids: Collection[str]) -> None:
        """Open those questions again that are still asked after a run that had their decisions."""
        if ids:
            latest = await self.saver.aget_tuple(thread_config(thread_id))
            log = DecisionLog(thread_id, self.saver, latest)
            await log.reopen(ids, await self.snapshot(thread_id))

    async def new_questions(
        self, thread_id: str
    ) -> tuple[list[tuple[str, RawInterrupt]], str | None]:
        """Return the questions with which a run has just ended, by agents of this tree.

        Also the path of the agent that has the conversation, which levels store when they return.
        """
        config = thread_config(thread_id)
        snapshot = await whole_state(self._graph, config, subgraphs=True)
        return self._questions_in(snapshot), active_path(snapshot)

    def _questions_in(self, snapshot: StateSnapshot) -> list[tuple[str, RawInterrupt]]:
        return list(reachable_questions(snapshot, self._agent, self._agent.name))

    async def checkpoint(self, thread_id: str, run: Run | None = None) -> CheckpointTuple | None:
        """Return the last checkpoint of a thread, and note it in the run that goes on with it.

        Where another process has deleted or continued the thread, the unfinished run in this
        process is forgotten: its messages may contradict what the model has seen there.
        """
        earlier = self.queues.unfinished_runs.get(thread_id)
        last_id = earlier.checkpoint_id if earlier else None
        latest: CheckpointTuple | None = await self.saver.aget_tuple(thread_config(thread_id))
        turn_id = turn_id_of(latest)
        has_moved_on = (
            earlier is not None and bool(earlier.turn_ids) and turn_id not in earlier.turn_ids
        )
        is_deleted = last_id and (
            not latest or await self.saver.aget_tuple(thread_config(thread_id, last_id)) is None
        )
        if has_moved_on or is_deleted:
            self.queues.drop(earlier)
            if run is not None:
                run.journal.clear()
                run.results.clear()
        if run is not None:
            run.turn_ids |= {turn_id, run.id}
        for noting_run in (earlier, run):
            if noting_run is not None and latest is not None:
                noting_run.note_stored(latest.config)
        return latest

    async def cut_off_effects(
        self, thread_id: str, latest: CheckpointTuple | None
    ) -> CutOffEffects | None:
        """Return what the last run of a thread has done if it was cut off, None without actions."""
        log = EffectLog(self.saver, thread_id)
        first = await log.first_part()
        if first is None or not is_cut_off(first, latest, turn_id_of(latest)):
            return None
        record = await log.read() or first
        return await look_up_all(record, self._effects, self.queues.unfinished_runs.get(thread_id))

    async def recovery(
        self, thread_id: str, latest: CheckpointTuple | None, effects: CutOffEffects | None = None
    ) -> Recovery:
        """Return what an unfinished run leaves to the next turn."""
        earlier = self.queues.unfinished_runs.get(thread_id)
        journal: Journal = {} if earlier is None else earlier.journal
        if not journal and effects is not None:
            journal = effects.journal
        if not journal and (latest is None or is_finished(latest)):
            return Recovery()
        # By the checkpoint's id: without it the state would contain the writes of tasks that have
        # finished since, although new input drops them.
        config = thread_config(thread_id) if latest is None else latest.config
        answers = {} if effects is None else effects.answers
        return recover(await self._unfinished_state(config), journal, answers)

    async def prepare_compensation(
        self, thread_id: str, latest: CheckpointTuple | None, effects: CutOffEffects | None
    ) -> bool:
        """Return whether a broken-off run must be undone next; if so, set its state to do so."""
        is_under_way = latest is not None and not is_finished(latest)
        if not is_under_way and (effects is None or not effects.is_undoing):
            return False
        snapshot = await self.snapshot(thread_id)
        if COMPENSATE in snapshot.next:
            return True
        recovery = await self.recovery(thread_id, latest, effects)
        account = None if effects is None else effects.account()
        state = await compensation_state(self.saver, snapshot, recovery, account)
        if state is not None:
            state["turn"].setdefault("agent", self._agent.name)
            step = Command(goto=COMPENSATE, update=state)
            await self._graph.aupdate_state(thread_config(thread_id), step, as_node="call_model")
        return state is not None

    async def log_again(self, run: Run, effects: CutOffEffects) -> None:
        """Log the effects of a run that was cut off as those of the run that takes it over."""
        journal = {} if self._agent.durability == "sync" else run.journal
        record = effects.logged_for(run.id, run.turn_ids - {run.id}, journal)
        await EffectLog(self.saver, run.thread_id).store(record)

    def keep_unmet(
        self, run: Run, earlier: Sequence[AnyMessage], messages: Sequence[AnyMessage]
    ) -> None:
        """Keep for the next turn the messages of an earlier attempt that this one does not have."""
        if not earlier:
            return
        ids = {message.id for message in messages}
        unmet = [message for message in earlier if message.id not in ids]
        if unmet:
            run.journal = {None: unmet}
            self.queues.keep(run)


_MOST_UNFINISHED = 1_000
_POLL_S = 0.05


class ThreadQueues:
    """The queues of all threads of one checkpointer; a queue exists only while it is used.

    The waiters may be on different event loops: `invoke` runs on a loop of its own.
    """

    def __init__(self) -> None:
        self._queues: dict[str, Queue] = {}
        self.unfinished_runs: dict[str, Run] = {}
        """By thread, the last run that was cut off or waits for a decision; at most 1,000."""

    @asynccontextmanager
    async def take(
        self, thread_id: str, saver: object, run: Run | None = None
    ) -> AsyncIterator[None]:
        """Wait until the thread is free in this process and in all others; free it at the end.

        A cancelled waiter leaves the queue, even if it has just got the thread. Raises
        `AgentGraphError("inside_run")` where the wait would never end.
        """
        await self._enter(thread_id, run)
        try:
            async with _claim(saver, thread_id):
                yield
        finally:
            self._leave(thread_id)

    def keep(self, run: Run) -> None:
        """Keep an unfinished run; the oldest one is dropped when there are too many."""
        self.unfinished_runs.pop(run.thread_id, None)
        self.unfinished_runs[run.thread_id] = run
        while len(self.unfinished_runs) > _MOST_UNFINISHED:
            del self.unfinished_runs[next(iter(self.unfinished_runs))]

    def drop(self, run: Run | None) -> None:
        """Forget a run of a thread that was deleted elsewhere."""
        if run is not None and self.unfinished_runs.get(run.thread_id) is run:
            del self.unfinished_runs[run.thread_id]

    async def _enter(self, thread_id: str, run: Run | None) -> None:
        place = Place(thread_id, run)
        with LOCK:
            queue = self._queues.setdefault(thread_id, deque())
            if not queue:
                queue.append(place)
                return
            begin_wait(place, queue)
        try:
            await place.turn
        except asyncio.CancelledError:
            with LOCK:
                is_first = queue[0] is place
                if not is_first:
                    end_wait(place)
                    queue.remove(place)
            if is_first:  # we got the thread at the moment of the cancellation
                self._leave(thread_id)
            raise

    def _leave(self, thread_id: str) -> None:
        with LOCK:
            queue = self._queues[thread_id]
            queue.popleft()
            while queue:
                end_wait(queue[0])
                if queue[0].wake():
                    return
                queue.popleft()
            del self._queues[thread_id]


@asynccontextmanager
async def _claim(saver: object, thread_id: str) -> AsyncIterator[None]:
    """Wait until no other process runs the thread, if the store has locks."""
    if not isinstance(saver, LazySaver):
        yield
        return
    while (claim := await saver.atake(thread_id)) is None:
        await clock().sleep(_POLL_S)
    try:
        yield
    finally:
        await claim.release()


_queues_by_saver: WeakKeyDictionary[object, ThreadQueues] = WeakKeyDictionary()


def queues_of(saver: object) -> ThreadQueues:
    """Return the queues of a saver's threads: all agents and flows on it share them."""
    return _queues_by_saver.setdefault(original_of(saver), ThreadQueues())


def thread_config(thread_id: str, checkpoint_id: str | None = None) -> RunnableConfig:
    """Return the config of a thread, or of one of its checkpoints."""
    at = {"checkpoint_ns": "", "checkpoint_id": checkpoint_id} if checkpoint_id else {}
    return {"configurable": {"thread_id": thread_id, **at}}


def turn_id_of(latest: CheckpointTuple | None) -> str | None:
    """Return the id of the turn that a checkpoint belongs to."""
    turn = latest.checkpoint["channel_values"].get("turn") if latest is not None else None
    return turn.get("id") if turn else None
