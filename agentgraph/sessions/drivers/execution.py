"""The execution of one session while a hub owns it: round after round, until there is no work."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command, StateSnapshot

from agentgraph.clock import new_id
from agentgraph.errors import StorageError
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.graphs.public_graph import run_whole, whole_state
from agentgraph.routing.frozen_json import thaw
from agentgraph.running import Ownership, Run, inside_ownership, inside_run
from agentgraph.sessions.drivers.checkpoints import BufferedSaver
from agentgraph.sessions.drivers.lease import Lease
from agentgraph.sessions.drivers.live import LiveEvents
from agentgraph.sessions.envelopes.envelope import EV_CANCELLED, EV_REWOUND
from agentgraph.sessions.envelopes.packet import UnfinishedTurn
from agentgraph.sessions.log import InboxEntry, Log
from agentgraph.sessions.log.protocol import DamagedSession
from agentgraph.sessions.log.rows import stale_owner
from agentgraph.sessions.rounds.owned_session import OwnedSession, inside_session
from agentgraph.sessions.rounds.round import ATTEMPTS, Round, give_up
from agentgraph.sessions.rounds.unfinished_turns import end_cancelled_input, unfinished_turn
from agentgraph.sessions.state.input_account import add_usage
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.team.compiled import CompiledTeam
from agentgraph.sessions.team.inner_session import usage_in_inner
from agentgraph.sessions.team.speaker import cancel_and_wait, usage_of_waiting
from agentgraph.sessions.team.supervisor import Supervisor
from agentgraph.storage.store import DAMAGED_THREAD

_STEPS = 1_000_000
"""LangGraph's limit per run; the session's rules and guards end a run long before."""

GraphInput: TypeAlias = dict[str, Any] | Command[Any] | Literal["next step"]
"""The input of the graph: a round, decisions, or "next step" to go on from the last checkpoint."""


class ExecutionHub(Protocol):
    """What an execution needs of its hub."""

    log: Log
    saver: BaseCheckpointSaver[Any]
    checkpoints: BufferedSaver
    lease: Lease
    live: LiveEvents

    def ownership(self, session_id: str, epoch: int) -> Ownership | None:
        """Return the ownership under which checkpoints are written; None if none is checked."""
        ...

    def graph_of(self, record: SessionRecord) -> AnyCompiledGraph:
        """Return the compiled graph that runs a session."""
        ...


class Execution:
    """Runs a session that its hub owns; each claim of a session gets a new execution.

    The log decides what to do next. A checkpoint is a hint that saves work: it may be behind the
    log, belong to an older round, or be missing.

    `news` is set when the inbox may have an entry, or a timer may be due.
    """

    def __init__(
        self,
        hub: ExecutionHub,
        session: OwnedSession,
        team: CompiledTeam,
        lease_number: int | None,
        news: asyncio.Event,
        supervisor: Supervisor | None,
    ) -> None:
        self.session = session
        self.team = team
        self.supervisor = supervisor
        self._hub = hub
        self._lease_number = lease_number
        self._news = news
        self._was_running = session.is_running
        """Whether the former owner left a round under way."""
        self._has_looked_back = False
        self._is_clean = session.state.round == 0
        """Whether the store is known to have no checkpoint of the session, as before any round."""
        self._cancelled_state: StateSnapshot | None = None
        """The state in which the last run was cancelled, of a session of one."""
        self._cancelled_run: Run | None = None
        """The last run that was cancelled: its journal has what it had come to."""
        self._answered_ids: set[str] = set()
        """The interrupts whose decisions have been given to the graph."""

    async def run(self) -> bool:
        """Run the session until there is no work; return whether the session has ended.

        Raises `StaleOwner` once another hub owns the session, and errors of the store.
        """
        session, epoch = self.session, self.session.epoch
        owner = None if epoch is None else self._hub.ownership(session.id, epoch)
        with inside_ownership(owner):
            return await self._run()

    async def begin(self, entries: Sequence[InboxEntry]) -> bool:
        """Append an input, or decisions, at once; False if something is under way or waits.

        An input takes open questions back. Raises `StaleOwner` or `RoundConflict` once another hub
        owns the session.
        """
        session, epoch = self.session, self.session.epoch
        owner = None if epoch is None else self._hub.ownership(session.id, epoch)
        with inside_ownership(owner):
            is_begun = await session.begin(entries, self._take_questions_back)
        if is_begun and entries[0].draft.event_type == EV_CANCELLED:
            self._is_clean = False  # the store has checkpoints of a thread with this id
        return is_begun

    async def _take_questions_back(self) -> Mapping[str, Any]:
        """Return what the run has left whose questions are taken back, which is over."""
        remains = await self._remains_of_questions()
        await self._delete_checkpoints()
        self._answered_ids.clear()
        return remains

    async def _run(self) -> bool:
        session = self.session
        while True:
            await self._verify()
            await session.catch_up()
            if session.state.status == "closing":
                await session.finish()
            if session.state.is_ended:
                await self._clear_away()
                return True
            if session.stop_request is not None:
                await self._stop_round()
                continue
            graph_input = await self._next_input()
            if graph_input is not None:
                await self._run_graph(graph_input)
            elif session.state.is_ended or session.stop_request is not None:
                continue
            elif not self._news.is_set():
                return False
            else:
                self._news.clear()

    async def _verify(self) -> None:
        """Raise `StaleOwner` if another hub owns the session; after a lapsed lease ask the log."""
        number = self._hub.lease.number
        if number is None or number != self._lease_number:
            stored_session = await self._hub.log.load(self.session.id)
            if stored_session is None or stored_session.epoch != self.session.epoch:
                raise stale_owner(self.session.id)
            self._lease_number = number

    async def _delete_checkpoints(self) -> None:
        """Delete the session's checkpoints, unless another hub owns them now."""
        await self._verify()
        await self._hub.saver.adelete_thread(self.session.id)
        self._is_clean = True

    async def _clear_away(self) -> None:
        await self._delete_checkpoints()
        await self._hub.log.release(self.session.id, self._hub.lease.owner)

    async def _next_input(self) -> GraphInput | None:
        """Return the next input of the graph, None if there is nothing to do."""
        session = self.session
        if not self._has_looked_back:
            self._has_looked_back = True
            graph_input = await self._look_back()
            if graph_input is not None:
                return graph_input
        if session.state.status == "waiting_decision" and await session.takes_question_back():
            await self._withdraw_questions()
        if session.state.status == "waiting_decision":
            decisions = session.state.decisions.items()
            new = {key: value for key, value in decisions if key not in self._answered_ids}
            self._answered_ids |= new.keys()
            return Command(resume=thaw(new)) if new else None
        # Admitted here to see whether an agent is due; the graph admits again at each later
        # boundary.
        if session.rules.asker is None:
            await session.admit()
        else:  # a model may be asked first, and the session may be stopped meanwhile
            await self._accompany(asyncio.ensure_future(session.admit()))
        return {"round": session.state.round} if session.due else None

    async def _look_back(self) -> GraphInput | None:
        """Return how to resume a former owner's round: the log decides, a checkpoint is a hint."""
        session = self.session
        is_waiting = session.state.status == "waiting_decision"
        if not session.due and not is_waiting:
            return None
        if self._was_running and session.is_running and not await self._may_try_again():
            return None
        # This reads the store, so it is done once, before the graph runs for the first time.
        graph, is_single = self._hub.graph_of(session.record), session.state.is_single
        snapshot = await self._stored_state(graph, subgraphs=is_single)
        if not snapshot.config["configurable"].get("checkpoint_id"):
            if session.state.status == "waiting_decision":
                await self._ask_again()
            return None
        is_current = snapshot.values.get("round") == session.state.round
        pending = self.team.questions_in(snapshot, session.state.round)
        if is_current and any(question["speaker"] in session.due for question in pending):
            # Interrupted, but the log does not have it yet.
            remains = await self.team.remains_of(session, snapshot, is_over=False)
            await session.write_interrupts(pending, remains=remains)
            return None
        if is_current and session.due and snapshot.next and self.team.durability == "step":
            return "next step"
        if not is_current or session.due:
            await self._delete_checkpoints()
            if session.state.status == "waiting_decision":
                await self._ask_again()
        return None

    async def _stored_state(self, graph: AnyCompiledGraph, *, subgraphs: bool) -> StateSnapshot:
        """Return the state of the last checkpoint; raise `DamagedSession` where it cannot be read.

        It is not deleted: whoever has the right key, or a backup, may still read it.
        """
        try:
            return await whole_state(graph, self._config, subgraphs=subgraphs)
        except StorageError as error:
            if error.code != DAMAGED_THREAD:
                raise
            id = self.session.record.session_id
            text = f"session {id!r} cannot go on with its round: {error}"
            raise DamagedSession(text, self.session.id) from error

    async def _withdraw_questions(self) -> None:
        """Take back what a human was asked, as there is a new input: that run is over."""
        session = self.session
        remains = await self._remains_of_questions()
        await session.write(lambda page: page.withdraw_questions(remains))
        await self._delete_checkpoints()
        self._answered_ids.clear()

    async def _remains_of_questions(self) -> Mapping[str, Any]:
        graph = self._hub.graph_of(self.session.record)
        snapshot = await self._stored_state(graph, subgraphs=True)
        return await self.team.remains_of(self.session, snapshot, is_over=True)

    async def _may_try_again(self) -> bool:
        session = self.session
        await session.count_attempt()
        await self._hub.live.restart(session)
        if session.attempts <= ATTEMPTS:
            return True
        # Compiled first: only compiling the graph registers how its actions are undone.
        self._hub.graph_of(session.record)
        await give_up(session, "crashed", f"the process died {ATTEMPTS} times in this round")
        return False

    async def _ask_again(self) -> None:
        """Run a round again whose interrupts have lost their checkpoint."""
        session = self.session
        for name in {question["speaker"] for question in session.state.interrupts.values()}:
            round = Round.begin(session, str(name))
            if round is not None:
                await round.fail("checkpoint_lost", "what was asked is asked again", {})

    async def _run_graph(self, graph_input: GraphInput) -> None:
        """Run the graph until no agent is due, or a human is asked."""
        hub, session, team = self._hub, self.session, self.team
        graph = hub.graph_of(session.record)
        # LangGraph's checkpoint writes call the fence first, so that a hub that was frozen beyond
        # its lease cannot write into the next owner's checkpoints.
        run = Run(new_id(), session.id, fence=self._verify)
        run.is_resumed = isinstance(graph_input, Command)
        await hub.live.relay.look_who_watches()  # a model that nobody hears need not stream
        hub.live.connect(session, run)
        durability = await self._prepare_checkpoints(graph_input)
        with inside_run(run), inside_session(session):
            task = asyncio.ensure_future(
                run_whole(
                    graph,
                    None if graph_input == "next step" else graph_input,
                    self._config,
                    durability=durability,
                    version="v2",
                    context=thaw(session.record.run_context),
                )
            )
        try:
            result = await self._accompany(task)
            if result is None and session.state.is_single:
                # What the run leaves to later ones is in its buffer, which is dropped here.
                self._cancelled_state = await whole_state(graph, self._config, subgraphs=True)
            # First the checkpoint, then the log: a question in the log can then always be answered.
            if result is not None and result.interrupts:
                self._is_clean = False
                await self._verify()
                await hub.checkpoints.flush(session.id)
        finally:
            hub.checkpoints.discard(session.id)
            run.has_ended = True  # late writes of cancelled tasks are refused
            session.busy_speakers.clear()
        if result is None:
            # The run was cancelled: its interrupted tasks have not received the decisions.
            self._answered_ids.clear()
            self._cancelled_run = run
            for name in session.state.due:
                usage = usage_of_waiting(run, session.state.participant_order, name)
                session.unfinished_usage[name] = usage
        elif result.interrupts:
            is_single = session.state.is_single
            snapshot = await whole_state(graph, self._config, subgraphs=is_single)
            usage_of = partial(usage_of_waiting, run, session.state.participant_order)
            pending = team.questions_in(snapshot, session.state.round)
            with inside_run(run):
                remains = await team.remains_of(session, snapshot, is_over=False)
            await session.write_interrupts(pending, usage_of, remains)
        else:
            self._answered_ids.clear()
            if not self._is_clean:
                await self._delete_checkpoints()

    async def _prepare_checkpoints(self, graph_input: GraphInput) -> Literal["exit", "sync"]:
        """Return when a run is to write its checkpoints, and decide where it does."""
        begins_round, is_buffered = isinstance(graph_input, dict), self.team.durability == "round"
        # A run that begins a round reads nothing from the store, and writes to it only if it is
        # interrupted. A resumed run reads its checkpoint from the store.
        if begins_round and is_buffered:
            self._hub.checkpoints.buffer(self.session.id)
        else:
            if begins_round and not self._is_clean:
                await self._delete_checkpoints()  # it would go on from those of an earlier thread
            self._is_clean = False
        return "exit" if is_buffered else "sync"

    async def _stop_round(self) -> None:
        """Carry out a stop request: what is known of the turns under way goes to the log."""
        session = self.session
        await self._verify()
        request = session.stop_request
        is_rewind = request is not None and request.draft.event_type == EV_REWOUND
        if is_rewind and self.supervisor is not None:
            await self.supervisor.forget()
        was_under_way, input = session.state.is_under_way, session.state.input
        turns = await self._unfinished_turns() if was_under_way else {}
        await session.stop_round(turns)
        end_cancelled_input(session, input)
        if was_under_way and not self._is_clean:
            await self._delete_checkpoints()

    async def _unfinished_turns(self) -> dict[str, UnfinishedTurn]:
        """Return what is known of the turns under way, by speaker."""
        session, snapshot = self.session, self._cancelled_state
        if snapshot is None and not self._is_clean:
            graph = self._hub.graph_of(session.record)
            snapshot = await self._stored_state(graph, subgraphs=True)
        if snapshot is not None and snapshot.values.get("round") != session.state.round:
            snapshot = None
        turns = {}
        for name in session.state.due:
            turn = await unfinished_turn(session, name, snapshot)
            inner_usage = await usage_in_inner(session.log, [*session.inner_ids], name)
            turns[name] = replace(turn, usage=add_usage(inner_usage, turn.usage))
        if session.state.is_single:  # its run leaves whole messages, and the channels of its graph
            run = self._cancelled_run or Run(new_id(), session.id)
            with inside_run(run):
                remains = await self.team.remains_of(session, snapshot, is_over=True)
            for name, turn in turns.items():
                turns[name] = replace(turn, messages=(), fields={**turn.fields, **remains})
        return turns

    async def _accompany(self, task: asyncio.Future[Any]) -> Any:
        """Wait for a run, or for the admission of texts; meanwhile admit what may enter.

        It is cancelled if that ends it; then None is returned.
        """
        session = self.session
        news = asyncio.ensure_future(self._news.wait())
        try:
            while not task.done():
                await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
                if news.done() and not task.done():
                    self._news.clear()
                    await self._verify()
                    await session.catch_up()
                    is_over = any(name not in session.state.due for name in session.busy_speakers)
                    if session.state.is_ended or is_over or session.stop_request is not None:
                        return None
                    news = asyncio.ensure_future(self._news.wait())
            return task.result()
        finally:
            news.cancel()
            await cancel_and_wait(task)

    @property
    def _config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.session.id}, "recursion_limit": _STEPS}
