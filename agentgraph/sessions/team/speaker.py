"""Somebody who speaks: run on what it is shown, and read for what it says and decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.errors import GraphBubbleUp, GraphInterrupt, GraphRecursionError

from agentgraph.clock import clock
from agentgraph.errors import (
    AgentGraphError,
    ConfigurationError,
    GuardStopped,
    ModelError,
    RoundConflict,
    StaleOwner,
    kind_of,
)
from agentgraph.guards import AuditTrail
from agentgraph.history import repair
from agentgraph.interception import recorded_in
from agentgraph.participant import Graph
from agentgraph.routing.protocols import HUMAN
from agentgraph.running import Run, current_run, handed_over, inside_part, inside_round
from agentgraph.sessions.hub.ledger import RoundLedger
from agentgraph.sessions.hub.round import Round, inside
from agentgraph.sessions.log import Log
from agentgraph.sessions.state.packet import TurnOutput, is_silent, is_storable, packet_of
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.views import View, render_view
from agentgraph.sessions.team.input_records import begin_input, end_input
from agentgraph.sessions.team.summary import Summarize, summarise, unsummarised
from agentgraph.stream import ErrorEvent, emit

T = TypeVar("T")

_GRACE_S = 5.0
"""How long what is broken off may put things away, by the loop's own time."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """A participant in its place."""

    name: str
    graph: Graph
    view: View
    is_seated: bool
    """Whether the history is handed over with the run, and not as input."""
    deadline_s: float | None = None
    sees_all: bool = False
    summarize: Summarize | None = None
    audit: AuditTrail | None = None

    async def speak(self, round: Round) -> None:
        """Run a round and commit what it comes to; whatever goes wrong with it, it is told."""
        ledger = RoundLedger(round)
        begin_input(self.audit, round)
        around = round.live.around
        part = inside_part(around.place if around is not None else "")
        with inside(round), inside_round(round.key), recorded_in(ledger), part:
            try:
                with ledger.intact():
                    spoken = await within(self.deadline_s, self.run(round))
            except GraphInterrupt as asked:
                if is_storable(asked):
                    raise
                told = "what it asks a human cannot be stored: ask with what JSON has"
                await _tell(round, "payload", told)
                await round.live.fail(round, "payload", told, self._usage(()))
                end_input(self.audit, round)
                return
            except (GraphBubbleUp, StaleOwner, RoundConflict):
                raise
            except Exception as error:
                if error is ledger.lost:  # the store is away: that is no failure of the round
                    raise
                code, message = _failure(error)
                await _tell(round, code, message)
                await round.live.fail(round, code, message, self._usage(()))
                end_input(self.audit, round)
                return
        await self._commit(round, spoken)
        end_input(self.audit, round)

    async def run(self, round: Round) -> TurnOutput:
        """Run the participant on what it is shown."""
        live = round.live
        reach = self.view.reach(round.state)
        if self.summarize is not None and reach is not None:
            await summarise(live, self.summarize, reach)
        shown = await view_of(live.log, self, round)
        if not self.is_seated:
            return await self._run_foreign(shown, live.listeners())
        active = live.state.active.get(self.name)
        given: dict[str, Any] = {"messages": [], "current_active_agent": active}
        with handed_over(shown):
            result = await self.graph.ainvoke(given, heard_by(live.listeners()))
        known = {message.id for message in shown}
        own = [*(result.get("past") or ()), *result["messages"]]
        fresh = [m for m in own if m.id not in known and isinstance(m, AIMessage | ToolMessage)]
        return TurnOutput(
            list({m.id: m for m in fresh}.values()),
            result.get("notes") or (),
            result.get("current_active_agent"),
            result.get("output"),
            (result.get("turn") or {}).get("closed"),
            self._usage(fresh),
            _transfers(result, round),
        )

    async def _run_foreign(
        self, shown: Sequence[AnyMessage], listeners: Sequence[BaseCallbackHandler]
    ) -> TurnOutput:
        messages = repair(shown)
        known = {message.id for message in messages}
        with handed_over(()):
            result = await self.graph.ainvoke({"messages": messages}, heard_by(listeners))
        fresh = [
            message
            for message in result["messages"]
            if message.id not in known and isinstance(message, AIMessage | ToolMessage)
        ]
        notes, guard = result.get("notes") or (), result.get("stopped_by")
        return TurnOutput(fresh, notes, stopped_by=guard, usage=self._usage(fresh))

    async def _commit(self, round: Round, spoken: TurnOutput) -> None:
        live = round.live
        if spoken.stopped_by is not None:
            await live.fail(round, "guard", spoken.stopped_by, spoken.usage)
            return
        tools = live.rules.graph.routing_tools
        packet = packet_of(spoken, tools, round.number, round.attempt)
        if is_silent(packet):
            told = f"{self.name} said nothing and decided nothing"
            await _tell(round, "silent", told)
            await live.fail(round, "silent", told, spoken.usage)
            return
        rejected = [note for note in spoken.notes if note["kind"] == "rejected"]
        try:
            await live.commit(round, packet, rejected)
        except ConfigurationError as error:  # what no log can hold
            await _tell(round, "payload", str(error))
            await live.fail(round, "payload", str(error), spoken.usage)

    def _usage(self, fresh: Sequence[AnyMessage]) -> Mapping[str, Any]:
        """Return what this round has used, by agent, and begin a new account."""
        run = current_run()
        if run is None:
            return {}
        used = _popped(run, self.name)
        if not used and not self.is_seated:  # somebody else's graph, which keeps no account
            for message in fresh:
                if isinstance(message, AIMessage) and message.usage_metadata:
                    model = str(message.response_metadata.get("model_name") or "")
                    run.record_usage(self.name, message.usage_metadata, model)
            used = _popped(run, self.name)
        return used


def spent_by(run: Run, participants: Sequence[str], speaker: str) -> Mapping[str, Any]:
    """Return what a speaker who waits for a human has used, and begin a new account.

    What agents of no name here have used, those of a team have that speaks here.
    """
    used = _popped(run, speaker)
    within = [path for path in run.usage if path.partition("/")[0] not in participants]
    heads = dict.fromkeys(path.partition("/")[0] for path in within)
    inner = [_popped(run, head) for head in heads]
    return {**used, **{f"{speaker}/{path}": one for part in inner for path, one in part.items()}}


def _popped(run: Run, name: str) -> dict[str, Any]:
    return {path: _plain(figures) for path, figures in run.take_usage(name).items()}


def _transfers(result: Mapping[str, Any], round: Round) -> int:
    """Return how often the conversation moved within the participant itself."""
    notes = result.get("notes") or ()
    people = (HUMAN, *round.state.humans)
    targets = [note["value"]["target"] for note in notes if note["kind"] == "handoff"]
    handed_over = sum(target not in people for target in targets)
    moved = (result.get("guarded") or {}).get("moved") or {"now": {}}
    return max(0, int(moved["now"].get(round.speaker, 0)) - handed_over)


def heard_by(listeners: Sequence[BaseCallbackHandler]) -> RunnableConfig | None:
    """Return the config of a turn with listeners, beside those around it."""
    if not listeners:
        return None
    around: RunnableConfig = {"callbacks": ensure_config().get("callbacks")}
    return {"callbacks": merge_configs(around, {"callbacks": [*listeners]})["callbacks"]}


async def view_of(log: Log, speaker: Speaker, round: Round) -> list[AnyMessage]:
    """Return what a speaker is shown: it ends where its round began, however often it runs."""
    state = replace(round.state, summary=round.live.state.summary)
    reach = speaker.view.reach(state)
    if reach is not None and speaker.summarize is not None:
        # What no summary has yet is shown, also where a summariser fails; but not without end.
        reach = min(max(reach, unsummarised(state)), 2 * reach)
    if reach is None:
        said = [one for one in await log.read(state.session_id) if one.is_substantive]
        envelopes = [one for one in said if one.sequence <= state.round_began]
    else:
        envelopes = await log.tail(state.session_id, reach, state.round_began)
    shown = await _as_it_began(log, state)
    return render_view(envelopes, speaker.name, shown, sees_all=speaker.sees_all)


async def _as_it_began(log: Log, state: SessionState) -> SessionState:
    """Return a state that has not counted what was said since its round began."""
    if not state.spoken:
        return state
    said = dict(state.said)
    for one in await log.read(state.session_id, state.round_began):
        if one.is_substantive and one.sequence <= state.sequence:
            said[one.sender_id] -= 1
    return replace(state, said=said)


async def broken_off(work: asyncio.Future[Any]) -> None:
    """Cancel work and wait for its end, but not for ever: a tool may swallow the cancellation."""
    if not work.done():
        work.cancel()
        await asyncio.wait({work}, timeout=_GRACE_S)
    work.add_done_callback(lambda done: done.cancelled() or done.exception())


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """Wait for work as long as it may take; then it is cut off, and that is a `TimeoutError`."""
    if seconds is None:
        return await work
    working = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock().sleep(seconds))
    try:
        await asyncio.wait({working, timer}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise TimeoutError(f"cut off after {seconds:g} s by the deadline of the stage")
    finally:
        timer.cancel()
        await broken_off(working)


def _plain(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if isinstance(value, int | str)}


def _failure(error: Exception) -> tuple[str, str]:
    """Name a failure; the text of a stranger's error may hold what nobody is to read."""
    match error:
        case TimeoutError():
            return "deadline", str(error)
        case GraphRecursionError():
            return "recursion_limit", str(error)
        case GuardStopped():
            return "guard", str(getattr(error.decision, "reason", "guard"))
        case ModelError():
            return "model", str(error)
        case AgentGraphError():
            return error.code, str(error)
        case _:
            return "error", kind_of(error)


async def _tell(round: Round, code: str, message: str) -> None:
    if code != "model":  # its node has told it
        await emit(ErrorEvent(agent=round.speaker, code=code, message=message))
