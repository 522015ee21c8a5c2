"""The memory of a session of one: what a thread's checkpoint would have, read from the log.

The state counts the messages and knows which envelope last changed each channel, so a turn reads
the end of the log only, where the agents' `history=` lets it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, RemoveMessage

from agentgraph.graphs.memory import StoredValue
from agentgraph.history import unknown_outcomes, window
from agentgraph.routing.frozen_json import thaw
from agentgraph.sessions.envelopes.envelope import EV_DECISION, EV_INTERRUPT, EV_TEXT, Envelope
from agentgraph.sessions.log import Log
from agentgraph.sessions.log.blobs import with_blobs
from agentgraph.sessions.rounds.branch import Branch
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.single.messages import (
    Change,
    conversation_of,
    decode_message,
    decode_value,
)
from agentgraph.sessions.state.fold import WITHDRAWAL
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.thread import RUN_ENDS


@dataclass(frozen=True, slots=True)
class Memory:
    """The conversation of a session of one, and the channels of its graph."""

    messages: Sequence[AnyMessage] = ()
    channels: Mapping[str, StoredValue] = field(default_factory=dict)
    """The channels that any run has changed, serialised."""


async def read_memory(
    session: OwnedSession, state: SessionState, sizes: Collection[int] | None
) -> Memory:
    """Return the memory as of the begin of the present round, which is in `state`.

    `sizes` are the agents' `history=`: of a longer conversation only the end is read, from a place
    at which their windows are the same as in the whole. None reads all.
    """
    reader = _LogReader(session, state)
    messages = await (reader.whole_conversation() if sizes is None else reader.end(sizes))
    return Memory(messages, await reader.channels())


async def messages_in(log: Log, session_id: str, envelopes: Sequence[Envelope]) -> list[AnyMessage]:
    """Return the conversation in envelopes, which must not leave out any between two of them."""
    whole_envelopes = await with_blobs(log, session_id, envelopes)
    return conversation_of(_with_unknown_outcomes(_batches(whole_envelopes)))


@dataclass(slots=True)
class _LogReader:
    """Reads the log of one session, up to the envelope that began the present round."""

    session: OwnedSession
    state: SessionState

    @property
    def thread(self) -> Mapping[str, Any]:
        return self.state.thread or {}

    @property
    def first(self) -> int:
        """The sequence of the first envelope that counts: nothing before it is left."""
        return int(self.thread.get("since", 0)) or 1

    async def whole_conversation(self) -> list[AnyMessage]:
        """Return the whole conversation."""
        return await self._messages(await self._read(self.first))

    async def end(self, sizes: Collection[int]) -> list[AnyMessage]:
        """Return the end of the conversation, as far as windows of these sizes reach."""
        total, block = int(self.thread.get("count", 0)), lcm(*sizes)
        reach = 2 * max(sizes)
        while (begin := max(total - reach, 0) // block * block) > 0:
            envelopes = await self._last(total - begin)
            messages = await self._messages(envelopes)
            surplus = len(messages) - (total - begin)
            if envelopes[0].sequence <= self.first or surplus < 0:
                break  # the log's begin; or messages were removed, so that counts tell no place
            messages = messages[surplus:]
            if all(_is_whole(messages, size) for size in sizes):
                return messages
            reach *= 2
        return await self.whole_conversation()

    async def channels(self) -> dict[str, StoredValue]:
        """Return the channels of the graph that any run has changed, serialised."""
        places: dict[int, list[str]] = {}
        for name, sequence in self.thread.get("channels", {}).items():
            places.setdefault(sequence, []).append(name)
        values: dict[str, StoredValue] = {}
        for sequence, names in places.items():
            envelopes = await self.session.read(sequence - 1, sequence)
            (envelope,) = await with_blobs(self.session.log, self.session.id, envelopes)
            parts = envelope.event_data["channels"]
            values |= {name: decode_value(parts[name]) for name in names}
        return values

    async def _last(self, count: int) -> list[Envelope]:
        """Return the envelopes with at least the last `count` messages, or those from the first."""
        branch = self.branch
        envelopes = [] if self.state.live else self._from_memory(count)
        position, size = self.state.round_began, count // 2 + 1
        while position >= self.first and sum(map(_message_count, envelopes)) < count:
            position = envelopes[0].sequence - 1 if envelopes else position
            if not (batch := await branch.tail(size, position, self.first)):
                break
            envelopes = [*batch, *envelopes]
        # What cut-off runs have left stands in envelopes that `tail` does not return.
        if envelopes and int(self.thread.get("partial", 0)) > envelopes[0].sequence:
            return await self._read(envelopes[0].sequence)
        return [item for item in envelopes if item.sequence >= self.first]

    def _from_memory(self, count: int) -> list[Envelope]:
        """Return the envelopes with the last `count` messages from memory, or none of them."""
        envelopes = self.session.recent.last(self.state.round_began)
        for place in range(len(envelopes) - 1, -1, -1):
            count -= _message_count(envelopes[place])
            if count <= 0:
                return envelopes[place:]
        return []

    async def _read(self, first: int) -> list[Envelope]:
        if self.state.live:
            return await self.branch.read(first - 1, self.state.round_began)
        return await self.session.read(first - 1, self.state.round_began)

    @property
    def branch(self) -> Branch:
        return Branch(self.session.log, self.state)

    async def _messages(self, envelopes: Sequence[Envelope]) -> list[AnyMessage]:
        return await messages_in(self.session.log, self.session.id, envelopes)


def _is_whole(messages: list[AnyMessage], size: int) -> bool:
    """Tell whether the window of a size begins inside of messages, and not before them."""
    visible_messages = window(messages, size)
    return len(visible_messages) < len(messages) and isinstance(visible_messages[0], HumanMessage)


def _message_count(envelope: Envelope) -> int:
    parts = envelope.event_data.get("messages")
    if isinstance(parts, list) and envelope.event_type in RUN_ENDS:
        return len(parts)
    return int(envelope.event_type == EV_TEXT)


def _with_unknown_outcomes(batches: Iterable[list[Change]]) -> Iterator[list[Change]]:
    """Yield batches of messages, and before each input the answers that a cut-off run owes it."""
    since_input: list[Change] = []
    for batch in batches:
        if isinstance(batch[0], HumanMessage):
            answers = unknown_outcomes([m for m in since_input if not isinstance(m, RemoveMessage)])
            ids = [f"answer_{answer.tool_call_id}" for answer in answers]
            yield [m.model_copy(update={"id": i}) for m, i in zip(answers, ids, strict=True)]
            since_input = []
        since_input += batch
        yield batch


def _batches(envelopes: Sequence[Envelope]) -> Iterable[list[Change]]:
    """Return the messages of each envelope that has any.

    Those of a question hold until the run that asked has ended, or begins anew.
    """
    batches: dict[int, list[Change]] = {}
    provisional: int | None = None
    for envelope in envelopes:
        if provisional is not None and _supersedes(envelope):
            batches.pop(provisional, None)
            provisional = None
        if messages := _messages_of(envelope):
            batches[envelope.sequence] = messages
            if envelope.event_type == EV_INTERRUPT:
                provisional = envelope.sequence
    return batches.values()


def _supersedes(envelope: Envelope) -> bool:
    """Tell whether what an earlier question tells of a run is told anew, or is void."""
    if envelope.event_type == EV_INTERRUPT:
        return "messages" in envelope.event_data
    if envelope.event_type == EV_DECISION:
        return envelope.event_data.get("type") == WITHDRAWAL
    return envelope.event_type in RUN_ENDS


def _messages_of(envelope: Envelope) -> list[Change]:
    parts = envelope.event_data.get("messages")
    is_of_run = envelope.event_type in RUN_ENDS or envelope.event_type == EV_INTERRUPT
    if isinstance(parts, list) and is_of_run:  # in others it is the sender's own
        return [decode_message(part) for part in parts]
    if not envelope.is_substantive:
        return []
    content: Any = envelope.event_data.get("content")
    if isinstance(content, list):
        content = thaw(content)
    return [HumanMessage(content or envelope.text, id=envelope.envelope_id)]
