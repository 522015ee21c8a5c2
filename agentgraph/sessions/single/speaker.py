"""The speaker of a session of one: runs its graph as on a thread, whose memory is the log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.config import get_config
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from agentgraph.clock import new_id
from agentgraph.errors import ConfigurationError
from agentgraph.graphs.memory import LastingChannels, NestedMemories, StoredValue
from agentgraph.graphs.public_graph import run_whole, whole_state
from agentgraph.graphs.run_context import inherited_context
from agentgraph.history import repair, with_known_answers
from agentgraph.outcomes import NOTES
from agentgraph.participant import (
    HasMemory,
    HasOutcome,
    Participant,
    Remains,
    RunEnd,
    sentence_of_stop,
    split_stop,
)
from agentgraph.running import Run, current_run, handed_over
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.envelopes.envelope import EV_CANCELLED, SYSTEM
from agentgraph.sessions.envelopes.packet import (
    MAX_OUTPUT_BYTES,
    TurnOutput,
    cancelled_round,
    packet_of,
)
from agentgraph.sessions.log.blobs import NewBlobs
from agentgraph.sessions.rounds.ledger import look_up_actions
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.rounds.round import Round
from agentgraph.sessions.single.memory import Memory, read_memory
from agentgraph.sessions.single.messages import (
    Change,
    changes_between,
    conversation_of,
    stored_channels,
    stored_messages,
)
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.team.speaker import Speaker, config_with


@dataclass(frozen=True, slots=True)
class SingleTurn(TurnOutput):
    """The output of a run, with what it leaves to later runs."""

    changes: Sequence[Change] = ()
    """The messages and removals that the run adds to the conversation."""
    channels: Mapping[str, StoredValue] = field(default_factory=dict)
    """The channels that the run has changed, serialised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSpeaker(Speaker):
    """The only agent of a session, ready to run."""

    participant: Participant
    channels: LastingChannels | None
    """The channels of the graph that last; None for a remote graph, which keeps its own."""
    nested_memories: NestedMemories | None
    """The memories of graphs within the graph."""
    sizes: Collection[int] | None
    """The `history=` of all agents; None where one of them needs the whole conversation."""

    async def run(self, round: Round) -> SingleTurn:
        """Run the graph on the session's memory, and return what it adds to this memory."""
        session, run = round.session, current_run()
        if run is not None:
            run.journal.clear()  # of the round before: the same run may serve several inputs
        memory = await self._memory_of(session, round.state)
        with handed_over(()):
            result = await self._answer(round, memory)
        # A reducer of the user may leave messages without ids, by which the log tells them apart.
        messages = _with_ids(result["messages"])
        changes: list[Any] = changes_between(memory.messages, messages)
        own, guard = split_stop([m for m in changes if isinstance(m, AIMessage | ToolMessage)])
        changes, _ = split_stop(changes)
        end = self._end_in(result, guard)
        return SingleTurn(
            own,
            result.get(NOTES) or (),
            result.get("current_active_agent") if self.takes_history else None,
            end.output,
            end.reason,
            self._take_usage(own),
            changes=changes,
            channels=self._channel_changes(memory, result) | await self._nested_changes(memory),
        )

    def _end_in(self, result: Mapping[str, Any], guard: str | None) -> RunEnd:
        """Return how a run has ended; `guard` has ended that of a graph of others."""
        if self.takes_history:
            return RunEnd(result.get("output"), (result.get("turn") or {}).get("closed"))
        member = self.participant
        end = member.end_in(result) if isinstance(member, HasOutcome) else RunEnd(None, None)
        return end if guard is None else RunEnd(None, guard)

    async def _answer(self, round: Round, memory: Memory) -> Mapping[str, Any]:
        config = config_with(round.session.listeners())
        messages = memory.messages
        if self.channels is None:
            result = await self.graph.ainvoke({"messages": repair(messages)}, config)
            return {"messages": [*messages, *result["messages"]]}
        if self.channels.replaces_messages:  # then a thread would be given the input alone
            messages = messages[-1:]
        values = {**self.channels.as_input(memory.channels), "messages": messages}
        if self.nested_memories is not None and self.nested_memories.names:
            await self.nested_memories.put_back(get_config(), memory.channels)
        if self.takes_history:
            values["current_active_agent"] = round.session.state.active.get(self.name)
            result = await run_whole(self.graph, values, config)
            return result  # type: ignore[no-any-return]
        settings: Any = {
            **inherited_context(self.graph),
            "output_keys": ["messages", NOTES, *self.channels.names, *self._end_channels],
        }
        result = await self.graph.ainvoke(values, config, **settings)
        return result  # type: ignore[no-any-return]

    @property
    def _end_channels(self) -> Sequence[str]:
        member = self.participant
        return member.end_channels if isinstance(member, HasOutcome) else ()

    def _channel_changes(self, memory: Memory, values: Mapping[str, Any]) -> dict[str, StoredValue]:
        """Return the channels that the run has changed, serialised."""
        # Compared as they are stored: a tool may have changed a value in place.
        serialised_values = {} if self.channels is None else self.channels.to_store(values)
        return _unlike(serialised_values, memory.channels)

    async def _nested_changes(self, memory: Memory) -> dict[str, StoredValue]:
        """Return the memories of nested graphs that the run has changed, serialised."""
        if self.nested_memories is None or not self.nested_memories.names:
            return {}
        return _unlike(await self.nested_memories.read(get_config()), memory.channels)

    async def _commit(self, round: Round, turn: TurnOutput) -> None:
        """Commit a packet, also of a run that a guard has ended."""
        assert isinstance(turn, SingleTurn)
        packet = packet_of(turn, (), round.number, round.attempt, is_single=True)
        cause = ""
        if turn.stopped_by is not None:
            cause = turn.cause or round.ledger().cause_of(turn.stopped_by)
            packet["stopped_by"] = turn.stopped_by
            packet["body"] = packet["body"] or sentence_of_stop(turn.stopped_by, cause)
        rejections = [note for note in turn.notes if note["kind"] == "rejected"]
        try:
            if "output" in packet:
                outputs, blobs = [packet["output"]], round.session.blobs
                (packet["output"],) = blobs.take_out(outputs, "output", MAX_OUTPUT_BYTES)
            packet["messages"] = []
            packet |= stored_messages(round.session.blobs, turn.changes)
            packet |= stored_channels(round.session.blobs, turn.channels)
            await round.commit(packet, rejections)
        except ConfigurationError as error:  # the packet has values that no log can store
            return await self._fail(round, "payload", str(error), turn.usage)
        round.end_input(self.audit)

    async def _remains(self, round: Round) -> Mapping[str, Any]:
        snapshot = None
        if isinstance(self.graph, CompiledStateGraph):
            snapshot = await whole_state(self.graph, get_config(), subgraphs=True)
        return await self.remains(round.session, snapshot, is_over=True)

    async def remains(
        self, session: OwnedSession, snapshot: StateSnapshot | None, *, is_over: bool
    ) -> dict[str, Any]:
        """Return what the run around this code leaves, for the data of an envelope.

        `snapshot` is the state of the speaker's graph, None where no checkpoint has it. `is_over`
        tells whether the run will not go on.
        """
        answers: Mapping[str, ToolMessage] = {}
        if is_over and session.state.effects:
            attempt = max(session.attempts, 1)
            round = Round(session, self.name, session.state.round, attempt, session.state)
            answers = await look_up_actions(round.ledger())
        remains = self._remains_of(snapshot, current_run(), is_over=is_over, answers=answers)
        memory = await self._memory_of(session, session.state)
        messages = (
            remains.messages
            if remains.values
            else conversation_of([memory.messages, remains.messages])
        )
        changes = changes_between(memory.messages, messages)
        data = stored_messages(session.blobs, changes)
        data |= stored_channels(session.blobs, self._channel_changes(memory, remains.values))
        return data | {"active": remains.active}

    def left_by(self, snapshot: StateSnapshot) -> Draft:
        """Return what a thread of its agent has left, as the begin of a session's log."""
        remains = self._remains_of(snapshot, None, is_over=True, answers={})
        channels = self._channel_changes(Memory(), remains.values)
        blobs = NewBlobs()
        data = stored_messages(blobs, remains.messages) | stored_channels(blobs, channels)
        active = remains.active or remains.values.get("current_active_agent")
        about = cancelled_round({}, 0, 0, "the session goes on with what was a thread", SYSTEM)
        return Draft(EV_CANCELLED, {**about, **data, "active": active}, blobs=blobs.texts)

    def _remains_of(
        self,
        snapshot: StateSnapshot | None,
        run: Run | None,
        *,
        is_over: bool,
        answers: Mapping[str, ToolMessage],
    ) -> Remains:
        journal = run.journal if run is not None else {}
        if snapshot is None or not isinstance(snapshot.values, Mapping) or not snapshot.values:
            return Remains(with_known_answers(journal.get(None, ()), answers))
        if isinstance(self.participant, HasMemory):
            return self.participant.remains_of(snapshot, journal, is_over=is_over, answers=answers)
        results = [task.result or {} for task in snapshot.tasks]
        batches = [values.get("messages") or [] for values in (snapshot.values, *results)]
        return Remains(conversation_of(batches), None, snapshot.values)

    async def _memory_of(self, session: OwnedSession, state: SessionState) -> Memory:
        return await read_memory(session, state, self.sizes)


def _unlike(
    values: Mapping[str, StoredValue], earlier: Mapping[str, StoredValue]
) -> dict[str, StoredValue]:
    return {name: value for name, value in values.items() if earlier.get(name) != value}


def _with_ids(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    return [m if m.id else m.model_copy(update={"id": new_id()}) for m in messages]
