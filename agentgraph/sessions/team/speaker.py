"""A speaker: runs a participant's graph on its view of the session, and commits one packet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.errors import GraphBubbleUp, GraphInterrupt, GraphRecursionError
from langgraph.graph.state import CompiledStateGraph

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
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.graphs.public_graph import run_whole
from agentgraph.graphs.run_context import given_context, inherited_context
from agentgraph.guards import AuditTrail
from agentgraph.history import repair
from agentgraph.interception import recorded_in
from agentgraph.outcomes import NOTES
from agentgraph.participant import Graph, split_stop
from agentgraph.remote.principal import AUTH_USER, AuthUser, current_principal, inside_principal
from agentgraph.routing.frozen_json import thaw
from agentgraph.routing.protocols import HUMAN
from agentgraph.running import (
    Journal,
    Run,
    current_run,
    handed_over,
    inside_part,
    inside_round,
)
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.envelopes.packet import (
    TurnOutput,
    handoffs_not_made,
    is_silent,
    is_storable,
    packet_of,
)
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.blobs import with_blobs
from agentgraph.sessions.log.protocol import DamagedSession
from agentgraph.sessions.rounds.branch import Branch
from agentgraph.sessions.rounds.ledger import RoundLedger
from agentgraph.sessions.rounds.owned_session import inside_session
from agentgraph.sessions.rounds.round import Round, inside
from agentgraph.sessions.state.rules import NeedsAnswer
from agentgraph.sessions.state.views import View, render_view
from agentgraph.sessions.team.summary import Summarize, summarise
from agentgraph.sessions.team.window import as_round_began, read_window, since_summary
from agentgraph.stream import ErrorEvent, emit

T = TypeVar("T")
logger = logging.getLogger("agentgraph")

_GRACE_S = 5.0
"""How long cancelled work may clean up, measured by the event loop's own time."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """A participant of a team, ready to run a turn."""

    name: str
    graph: Graph
    view: View
    takes_history: bool
    """Whether the run takes the history as an argument; else the history is the graph's input."""
    deadline_s: float | None = None
    sees_all: bool = False
    summarize: Summarize | None = None
    audit: AuditTrail | None = None

    async def speak(self, round: Round) -> None:
        """Run a round, and commit its packet or append its failure.

        Raises only control flow, cancellation and errors of the store: an error of a participant
        must not end the run of the team.
        """
        ledger = round.ledger()
        round.begin_input(self.audit)
        _, journal = round.session.journals[self.name]
        with _at_work(round, ledger, journal):
            try:
                with ledger.intact():
                    turn = await within(self.deadline_s, self.run(round))
            except GraphInterrupt as interrupt:
                if is_storable(interrupt):
                    raise
                text = "what it asks a human cannot be stored: ask with what JSON has"
                return await self._fail(round, "payload", text)
            except (GraphBubbleUp, StaleOwner, RoundConflict):
                raise
            except DamagedSession as damage:
                # The log is damaged, and the round has not failed. The id of an inner session
                # begins with the outer one's; damage of any other is the participant's error.
                if not damage.session_id.startswith(round.session.id):
                    return await self._fail(round, *_failure(damage))
                raise
            except Exception as error:
                if error is ledger.fault:  # the store is unreachable: the round has not failed
                    raise
                # The log of the session has no text of a foreign error, which may be a secret.
                code, message = _failure(error)
                level = logging.ERROR if code == "error" else logging.INFO
                place = (self.name, round.session.id)
                logger.log(level, "%s failed in session %s", *place, exc_info=error)
                return await self._fail(round, code, message, cause=_cause_in(error))
        await self._commit(round, turn)

    async def run(self, round: Round) -> TurnOutput:
        """Run the participant on its view of the session, and return the output of the turn.

        An agent of ours gets the history as an argument and stores none of it; a foreign graph gets
        the history as input, in a form that every provider accepts.
        """
        session = round.session
        reach = self.view.reach(round.state)
        if self.summarize is not None and reach is not None:
            await summarise(session, self.summarize, reach)
        history = await view_of(session.log, self, round)
        if not self.takes_history:
            return await self._run_on_input(repair(history), round)
        active = session.state.active.get(self.name)
        graph_input: dict[str, Any] = {"messages": [], "current_active_agent": active}
        with handed_over(history):
            config = config_with(session.listeners())
            result = await run_whole(self.graph, graph_input, config, **self.own_context(round))
        # `past` holds the participant's own messages that a middleware removed from the
        # conversation.
        known_ids = {message.id for message in history}
        own = [*(result.get("past") or ()), *result["messages"]]
        fresh = {message.id: message for message in _own_messages(own, known_ids)}
        return TurnOutput(
            list(fresh.values()),
            result.get(NOTES) or (),
            result.get("current_active_agent"),
            result.get("output"),
            (result.get("turn") or {}).get("closed"),
            self._take_usage([*fresh.values()]),
            _transfers(result, round),
        )

    def own_context(self, round: Round) -> dict[str, Any]:
        """Return the setting `context` of a run that no run of the session surrounds.

        Speakers inherit it from the team's graph; a supervisor runs beside that.
        """
        context = round.session.record.run_context
        return given_context(self.graph, thaw(context)) if self.sees_all else {}

    async def _run_on_input(self, messages: Sequence[AnyMessage], round: Round) -> TurnOutput:
        with handed_over(()):
            config = config_with(round.session.listeners())
            settings = self.own_context(round) or inherited_context(self.graph)
            if isinstance(self.graph, CompiledStateGraph):
                settings["output_keys"] = _output_keys(self.graph)
            result = await self.graph.ainvoke({"messages": messages}, config, **settings)
        fresh, guard = split_stop(
            _own_messages(result["messages"], {message.id for message in messages})
        )
        notes = result.get(NOTES) or ()
        return TurnOutput(fresh, notes, stopped_by=guard, usage=self._take_usage(fresh))

    async def _commit(self, round: Round, turn: TurnOutput) -> None:
        """Commit a packet; a round that was stopped, or has no output, fails."""
        if turn.stopped_by is not None:
            cause = turn.cause or round.ledger().cause_of(turn.stopped_by)
            await round.fail("guard", turn.stopped_by, turn.usage, cause)
            return round.end_input(self.audit)
        tools = round.session.rules.graph.routing_tools
        packet = packet_of(turn, tools, round.number, round.attempt)
        if is_silent(packet):
            text = f"{self.name} said nothing and decided nothing"
            return await self._fail(round, "silent", text, turn.usage)
        rejections = [*handoffs_not_made(turn, tools)] if turn.notes else []
        while True:
            try:
                await round.commit(packet, rejections)
                return round.end_input(self.audit)
            except NeedsAnswer as need:
                packet = await self._with_answer(round, packet, need)
            except ConfigurationError as error:  # the packet has values that no log can store
                return await self._fail(round, "payload", str(error), packet["usage"])

    async def _with_answer(
        self, round: Round, packet: Mapping[str, Any], need: NeedsAnswer
    ) -> dict[str, Any]:
        """Return a packet with the answer of a model that the rules need before its commit.

        The model is asked under the speaker's guards, as part of its turn.
        """
        ledger = round.ledger()
        with _at_work(round, ledger, {}), inside_part(self.name), ledger.intact():
            entry = await self._ask(round, need)
        usage = {**packet["usage"], **self._take_usage(())}
        return {**packet, "asked": [*packet.get("asked", ()), entry], "usage": usage}

    async def _ask(self, round: Round, need: NeedsAnswer) -> Mapping[str, Any]:
        try:
            return await within(self.deadline_s, round.session.ask(need))
        except TimeoutError:
            return need.question.entry(None, "the deadline of the stage has passed")

    async def _fail(
        self,
        round: Round,
        code: str,
        message: str,
        usage: Mapping[str, Any] | None = None,
        *,
        cause: str = "",
    ) -> None:
        """Emit a failure and append it; `usage` defaults to what the run has recorded."""
        if code not in ("model", "output"):  # the model's node has emitted its own event
            words = f"the run failed: {message}" if code == "error" else message
            await emit(ErrorEvent(agent=round.speaker, code=code, message=words))
        usage = self._take_usage(()) if usage is None else usage
        await round.fail(code, message, usage, cause, await self._remains(round))
        round.end_input(self.audit)

    async def _remains(self, round: Round) -> Mapping[str, Any]:
        """Return what a failed round leaves to later ones, for the data of its failure."""
        return {}

    def _take_usage(self, fresh: Sequence[AnyMessage]) -> Mapping[str, Any]:
        """Return what this round has used, by agent, and reset the run's account."""
        run = current_run()
        if run is None:
            return {}
        usage = _usage_of(run, self.name)
        if not usage and not self.takes_history:  # a foreign graph, which records no usage
            for message in fresh:
                if isinstance(message, AIMessage) and message.usage_metadata:
                    model = str(message.response_metadata.get("model_name") or "")
                    run.record_usage(self.name, message.usage_metadata, model)
            usage = _usage_of(run, self.name)
        return usage


def _output_keys(graph: AnyCompiledGraph) -> list[str]:
    """Return the channels of a foreign graph that its turn is made of."""
    return [key for key in ("messages", NOTES) if key in graph.channels]


@contextmanager
def _at_work(round: Round, ledger: RoundLedger, journal: Journal) -> Iterator[None]:
    """Make what runs in here part of a speaker's turn: its records, keys and usage.

    New messages are entered in the journal.
    """
    outer_input = round.session.outer_input
    part = inside_part(outer_input.path if outer_input is not None else "")
    key = inside_round(round.key, journal)
    # What serves a round of an outer session is done for the same principal as that round.
    serves = round.session.record.serves or outer_input is not None
    principal = current_principal() if serves else round.principal
    with (
        inside(round),
        inside_session(None),
        key,
        recorded_in(ledger),
        part,
        inside_principal(principal),
    ):
        yield


def _own_messages(
    messages: Sequence[AnyMessage], known_ids: Collection[str | None]
) -> list[AnyMessage]:
    """Return the messages that a participant's models and tools have added in this run."""
    fresh = (message for message in messages if message.id not in known_ids)
    return [message for message in fresh if isinstance(message, AIMessage | ToolMessage)]


def usage_of_waiting(run: Run, participants: Sequence[str], speaker: str) -> Mapping[str, Any]:
    """Return what a speaker who waits for a human has used, and reset the run's account.

    An agent name that no participant has belongs to an inner team: its usage is the speaker's.
    """
    usage = _usage_of(run, speaker)
    heads = dict.fromkeys(path.partition("/")[0] for path in run.usage)
    for head in heads:
        if head not in participants:
            inner = _usage_of(run, head).items()
            usage |= {f"{speaker}/{path}": figures for path, figures in inner}
    return usage


def _usage_of(run: Run, name: str) -> dict[str, Any]:
    taken_usage = run.take_usage(name).items()
    return {
        path: {key: value for key, value in figures.items() if isinstance(value, int | str)}
        for path, figures in taken_usage
    }


def _transfers(result: Mapping[str, Any], round: Round) -> int:
    """Return how often the conversation moved between agents within the participant."""
    notes = result.get(NOTES) or ()
    # The fold counts a handoff to a peer itself, from the packet's decision.
    people = (HUMAN, *round.state.humans)
    targets = [note["value"]["target"] for note in notes if note["kind"] == "handoff"]
    handoffs = sum(target not in people for target in targets)
    moves = (result.get("guarded") or {}).get("moved") or {"now": {}}
    return max(0, int(moves["now"].get(round.speaker, 0)) - handoffs)


def config_with(listeners: Sequence[BaseCallbackHandler]) -> RunnableConfig | None:
    """Return the config of a turn: what surrounds it, `listeners`, and who asks.

    A graph finds its user where it does on a LangGraph platform.
    """
    principal = current_principal()
    if not listeners and principal is None:
        return None
    # A new config would replace the surrounding callbacks and keys, so they are merged in.
    outer, config = ensure_config(), RunnableConfig()
    if listeners:
        own: RunnableConfig = {"callbacks": outer.get("callbacks")}
        config["callbacks"] = merge_configs(own, {"callbacks": [*listeners]})["callbacks"]
    if principal is not None:
        user = {AUTH_USER: AuthUser(principal)}
        config["configurable"] = {**outer.get("configurable", {}), **user}
    return config


async def view_of(log: Log, speaker: Speaker, round: Round) -> list[AnyMessage]:
    """Return a speaker's view of the session; in every attempt it ends where the round began."""
    state = replace(round.state, summary=round.session.state.summary)
    reach = speaker.view.reach(state)
    if reach is None:
        past = await Branch(log, state).read(upto=state.round_began)
        envelopes: Sequence[Envelope] = [envelope for envelope in past if envelope.is_in_views]
    else:
        # Messages without a summary yet are shown, also if a summariser fails; but not without
        # limit.
        count = reach if speaker.summarize is None else 2 * reach
        envelopes = await read_window(
            log,
            state,
            speaker.name,
            count,
            recent=round.session.recent,
            sees_all=speaker.sees_all,
        )
        envelopes = since_summary(envelopes, state, reach)
    envelopes = await with_blobs(log, state.key, envelopes)
    began = await as_round_began(log, state)
    return render_view(envelopes, speaker.name, began, sees_all=speaker.sees_all)


async def cancel_and_wait(work: asyncio.Future[Any]) -> None:
    """Cancel work and wait for its end, but not for ever: a tool may swallow the cancellation."""
    if not work.done():
        work.cancel()
        await asyncio.wait({work}, timeout=_GRACE_S)
    work.add_done_callback(lambda future: future.cancelled() or future.exception())


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """Wait for work for at most `seconds`; then cancel it and raise `TimeoutError`."""
    if seconds is None:
        return await work
    future = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock().sleep(seconds))
    try:
        await asyncio.wait({future, timer}, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        raise TimeoutError(f"cut off after {seconds:g} s by the deadline of the stage")
    finally:
        timer.cancel()
        await cancel_and_wait(future)


def _cause_in(error: Exception) -> str:
    """Return why a guard has raised, "" for any other error."""
    return str(getattr(getattr(error, "decision", None), "cause", ""))


def _failure(error: Exception) -> tuple[str, str]:
    """Return a failure's code and message: of a foreign error only the type (no secrets)."""
    match error:
        case TimeoutError():
            return "deadline", str(error)
        case GraphRecursionError():
            return "recursion_limit", str(error)
        case GuardStopped():
            return "guard", str(getattr(error.decision, "reason", "guard"))
        case ModelError():
            return "output" if error.code == "output" else "model", error.public
        case AgentGraphError():
            return error.code, error.public
        case _:
            return "error", kind_of(error)
