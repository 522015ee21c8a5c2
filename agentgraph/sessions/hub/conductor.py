"""The conductor: has the rounds of one session run, one after the other, while it owns it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from agentgraph.clock import clock, new_id
from agentgraph.errors import Quarantined, RoundConflict, SessionClosed, StaleOwner, kind_of
from agentgraph.routing import TransitionGraph
from agentgraph.running import Run, inside_run
from agentgraph.sessions.hub.lease import is_gone
from agentgraph.sessions.hub.live import ATTEMPTS, LiveSession, load_state
from agentgraph.sessions.log import StoredSession
from agentgraph.sessions.state.envelope import EV_ROUND_FAILED, Envelope
from agentgraph.sessions.state.page import Rules
from agentgraph.sessions.state.questions import questions
from agentgraph.sessions.state.record import Parent
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.team.nested import inner_ids
from agentgraph.sessions.team.private_session import at_table
from agentgraph.sessions.team.speaker import broken_off, spent_by
from agentgraph.sessions.team.supervisor import Watch

if TYPE_CHECKING:
    from agentgraph.sessions.hub.hub import Hub


log = logging.getLogger("agentgraph")

_STEPS = 1_000_000
"""LangGraph's own limit per run; the session's rules and guards end it long before."""
_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


class Conductor:
    """One session of a hub."""

    def __init__(self, hub: Hub, session_id: str) -> None:
        self._hub = hub
        self._id = session_id
        self._again = asyncio.Event()
        self._driving: asyncio.Task[None] | None = None
        self._answered: set[str] = set()
        self._looked_back = False
        self._broke_off = False
        self._is_clean = False
        self._lease: int | None = None
        self._stopped = False
        self._is_over = False
        self._watch: Watch | None = None
        self.live: LiveSession | None = None
        self.quarantine: Quarantined | None = None
        self.failures = 0

    def wake(self) -> None:
        """Look at the session: something may have come in, or come due."""
        if self.live is not None:
            self.live.has_mail = True
        self._again.set()
        if self.is_resting and not self._stopped:
            self._driving = self._hub.spawn(self._drive())
            self._driving.add_done_callback(lambda _: self._rested())

    def _rested(self) -> None:
        if self._is_over and self.is_resting:
            self._hub.dismiss(self._id)
        self._hub.audience.tell_change(self._id)

    def try_again(self) -> None:
        """Look again at a session that could not run here."""
        if self.quarantine is not None:
            self.quarantine = None
            self.wake()

    @property
    def is_resting(self) -> bool:
        """Whether nothing is under way."""
        return self._driving is None or self._driving.done()

    async def stop(self) -> None:
        """Break off; what is begun is begun again by whoever comes next."""
        self._stopped = True
        was_running = not self.is_resting and self.live is not None and self.live.is_running
        if self._driving is not None and not self._driving.done():
            self._driving.cancel()
            await asyncio.wait({self._driving})
        if self._watch is not None:
            await self._watch.stop()
        if self.live is not None:
            # To stop on purpose is no failure of the round.
            attempts = max(self.live.attempts - 1, 0) if was_running else None
            await self._hub.log.release(self._id, self._hub.owner, attempts=attempts)
            self.live = None

    async def _drive(self) -> None:
        while self._again.is_set():
            self._again.clear()
            try:
                live = self.live or await self._taken()
                if live is not None:
                    await self._work(live)
                self.failures = 0
            except RoundConflict:
                # An append whose outcome nobody knew has got there after all: see what it came to.
                await self._lost()
                self._again.set()
            except (StaleOwner, SessionClosed):
                await self._lost()
            except Quarantined as fault:
                await self._lost()
                if str(fault) != str(self.quarantine):  # once, though it is looked at again
                    log.error("session %s is quarantined: %s", self._id, fault)
                self.quarantine = fault
                await self._hub.log.release(self._id, self._hub.owner)
            except Exception as error:
                # The store may be away for a while; whatever it was, the session must go on.
                await self._lost()
                log.error("session %s is tried again: %s", self._id, kind_of(error), exc_info=error)
                self.failures += 1
                await clock().sleep(min(_PAUSE_S * 2**self.failures, _LONGEST_PAUSE_S))
                self._again.set()

    async def _lost(self) -> None:
        watch, self._watch = self._watch, None
        self.live = None
        self._looked_back = False
        self._is_clean = False
        self._answered.clear()
        if watch is not None:
            await watch.stop()

    async def _taken(self) -> LiveSession | None:
        """Take the session, if nobody else has it."""
        hub = self._hub
        known = await hub.log.load(self._id)
        if known is None:
            self._is_over = True
            return None
        if known.state is not None and known.state.is_ended:
            self._is_over = True
            await self._tidy(known)
            return None
        if known.record.serves:
            await self._close_orphan(known)
            return None  # it runs within a round of its outer session
        team = hub.team_of(known.record)
        rules = team.rules_of(known.record)
        epoch = await self._claimed()
        if epoch is None:
            return None
        stored = await hub.log.load(self._id)
        if stored is None:
            return None
        live = LiveSession(
            hub.log,
            stored.record,
            rules,
            await load_state(hub.log, stored),
            epoch,
            stored.attempts,
            appended=hub.on_appended,
            owner=hub.owner,
            handle=hub.handle(stored.record),
            guards=team.in_force,
            effects=team.effects,
        )
        if team.watcher is not None:
            self._watch = Watch(live, team.watcher, live.handle.interject, hub.spawn)
        self._broke_off = live.is_running
        self.live, self.quarantine = live, None
        return live

    async def _claimed(self) -> int | None:
        hub, self._lease = self._hub, self._hub.pulse.lease
        return await hub.log.claim(self._id, hub.owner, clock().wall(), is_gone=is_gone)

    async def _tidy(self, ended: StoredSession) -> None:
        """Clear away what an owner has left that died as soon as the session had ended."""
        if ended.owner is not None and await self._claimed() is not None:
            await self._hub.saver.adelete_thread(self._id)
            await self._hub.log.release(self._id, self._hub.owner)

    async def _close_orphan(self, known: StoredSession) -> None:
        """Close a session whose outer one is no longer in the round that it serves."""
        parent = known.record.parent
        outer = await self._hub.log.load(parent.session_id) if parent is not None else None
        if parent is not None and outer is not None and _serves_still(parent, outer.state):
            return
        epoch = await self._claimed()
        if epoch is not None:
            # No rule is asked any more, and the inner team may be unknown here.
            rules = Rules(TransitionGraph(known.record.creator))
            state = await load_state(self._hub.log, known)
            await LiveSession(self._hub.log, known.record, rules, state, epoch).close("round_over")
            await self._hub.log.release(self._id, self._hub.owner)
            self._is_over = True
            self._wake_inner(known.record.agents, state.round)

    def _wake_inner(self, names: Sequence[str], round: int) -> None:
        """Have the sessions looked at that were opened for a round which is over."""
        for session_id in (key for name in names for key in inner_ids(self._id, round, name)):
            self._hub.conductor(session_id).wake()

    def _wake_inside(self, live: LiveSession) -> None:
        """Have those sessions looked at that agents of this one have opened for their teams."""
        for session_id in live.inside:
            self._hub.conductor(session_id).wake()

    async def _verify(self, live: LiveSession) -> None:
        """Raise `StaleOwner` where the session was taken over: a lease that has lapsed tells."""
        lease = self._hub.pulse.lease
        if lease is None or lease != self._lease:
            stored = await self._hub.log.load(self._id)
            if stored is None or stored.epoch != live.epoch:
                raise StaleOwner(f"session {self._id!r} has another owner by now")
            self._lease = lease

    async def _forget(self, live: LiveSession) -> None:
        """Delete the checkpoints, unless they are another owner's by now."""
        await self._verify(live)
        await self._hub.saver.adelete_thread(live.id)
        self._is_clean = True

    async def _work(self, live: LiveSession) -> None:
        """Do all that there is to do."""
        while True:
            await self._verify(live)
            await live.land()
            if live.state.status == "closing":
                await live.conclude()
            if live.state.is_ended:
                await self._ended(live)
                return
            given = await self._next(live)
            if given is not None:
                await self._run(live, given)
            elif live.state.is_ended:
                continue
            elif not self._again.is_set():
                return
            else:
                self._again.clear()

    async def _next(self, live: LiveSession) -> Any:
        """Return what the graph is to be run with, None where there is nothing to do."""
        if not self._looked_back:
            self._looked_back = True
            resumed = await self._look_back(live)
            if resumed is not None:
                return resumed
        if live.state.status == "waiting_decision":
            given = live.state.decisions
            decided = {key: one for key, one in given.items() if key not in self._answered}
            self._answered |= decided.keys()
            return Command(resume=decided) if decided else None
        await live.admit()
        return {"round": live.state.round} if live.due else None

    async def _look_back(self, live: LiveSession) -> Any:
        """See what an owner before this one has left: the log decides, a checkpoint is a hint."""
        if not live.due and live.state.status != "waiting_decision":
            return None
        if self._broke_off and live.is_running and not await self._may_try_again(live):
            return None
        snapshot = await self._graph(live).aget_state(self._config(live))
        if not snapshot.config["configurable"].get("checkpoint_id"):
            if live.state.status == "waiting_decision":
                await self._ask_anew(live)
            return None
        is_current = snapshot.values.get("round") == live.state.round
        asked = questions(snapshot, live.state.round)
        if is_current and any(one["speaker"] in live.due for one in asked):
            await live.interrupted(asked)  # asked, and not yet written
            return None
        if is_current and live.due and snapshot.next and self._team(live).durability == "step":
            return _GO_ON
        if not is_current or live.due:
            await self._forget(live)
            if live.state.status == "waiting_decision":
                await self._ask_anew(live)
        return None

    async def _may_try_again(self, live: LiveSession) -> bool:
        await live.count_attempt()
        if live.attempts <= ATTEMPTS:
            return True
        self._graph(live)  # with it comes how what was done is undone
        told = f"the process died {ATTEMPTS} times in this round"
        await live.give_up("crashed", told)
        return False

    async def _ask_anew(self, live: LiveSession) -> None:
        """Run a round again whose questions have no checkpoint any more."""
        for asked in {one["speaker"] for one in live.state.interrupts.values()}:
            round = live.begin(str(asked))
            if round is not None:
                await live.fail(round, "checkpoint_lost", "what was asked is asked again", {})

    async def _run(self, live: LiveSession, given: Any) -> None:
        graph = self._graph(live)
        team = self._team(live)
        run = Run(new_id(), live.id, fence=lambda: self._verify(live))
        run.is_resumed = isinstance(given, Command)
        config = self._config(live)
        self._hub.audience.connect(live, run)
        durability: Any = "exit" if team.durability == "round" else "sync"
        if durability == "exit" and isinstance(given, dict):
            self._hub.held.hold(live.id)
        else:
            self._is_clean = False
        with inside_run(run), at_table(live):
            running = asyncio.ensure_future(
                graph.ainvoke(
                    None if given is _GO_ON else given,
                    config,
                    durability=durability,
                    version="v2",
                )
            )
        try:
            result = await self._accompany(live, running)
            if result is not None and result.interrupts:
                self._is_clean = False
                await self._verify(live)
                await self._hub.held.keep(live.id)
        finally:
            self._hub.held.drop(live.id)
            run.has_ended = True
            live.busy.clear()
        if result is None:
            self._answered.clear()  # what was decided is still to be told to those who asked
            return
        if result.interrupts:
            snapshot = await graph.aget_state(config)
            used = partial(spent_by, run, live.state.participant_order)
            await live.interrupted(questions(snapshot, live.state.round), used)
        else:
            self._answered.clear()
            if not self._is_clean:
                await self._forget(live)

    async def _accompany(self, live: LiveSession, running: asyncio.Future[Any]) -> Any:
        """Wait for a run; meanwhile let in what need not wait, and break off where that ends it."""
        waking = asyncio.ensure_future(self._again.wait())
        try:
            while not running.done():
                await asyncio.wait({running, waking}, return_when=asyncio.FIRST_COMPLETED)
                if waking.done() and not running.done():
                    self._again.clear()
                    await self._verify(live)
                    await live.land()
                    if live.state.is_ended or any(who not in live.state.due for who in live.busy):
                        return None
                    waking = asyncio.ensure_future(self._again.wait())
            return running.result()
        finally:
            waking.cancel()
            await broken_off(running)

    async def _ended(self, live: LiveSession) -> None:
        await self._forget(live)
        await self._hub.log.release(live.id, self._hub.owner)
        self._is_over = True
        self._wake_inner(self._team(live).teams, live.state.round)
        self._wake_inside(live)
        await self._lost()

    def look(self, envelopes: Sequence[Envelope]) -> None:
        """Let the supervisor see what was said, and end what served a turn that is over."""
        if self._watch is not None:
            self._watch.look(envelopes)
        for failed in (one for one in envelopes if one.event_type == EV_ROUND_FAILED):
            if failed.event_data.get("final") is True:
                self._wake_inner([failed.event_data["speaker"]], failed.event_data["round"])
                if self.live is not None:
                    self._wake_inside(self.live)

    def _team(self, live: LiveSession) -> Any:
        return self._hub.team_of(live.record)

    def _graph(self, live: LiveSession) -> Any:
        return self._hub.graph_of(live.record)

    def _config(self, live: LiveSession) -> RunnableConfig:
        return {"configurable": {"thread_id": live.id}, "recursion_limit": _STEPS}


def _serves_still(parent: Parent, outer: SessionState | None) -> bool:
    if outer is None:
        return True  # its log alone knows
    is_now = outer.round == parent.round and parent.speaker in outer.due
    return is_now and not outer.is_ended


_GO_ON = object()
"""Go on from the last step."""
