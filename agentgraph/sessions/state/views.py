"""Views: what a speaker's model sees of a session, as messages that every provider accepts.

A speaker's own packets become its own messages, with tool calls and their results. The envelopes of
other senders become lines of human messages, each with its sender's name; images and files follow
the line of their envelope. Human and own messages alternate, and the first and the last one are
human, also if an agent speaks twice in a row or first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from agentgraph.errors import ConfigurationError
from agentgraph.routing.frozen_json import thaw
from agentgraph.sessions.envelopes.envelope import (
    EV_CANCELLED,
    EV_PACKET,
    EV_TEXT,
    Envelope,
    visible_to,
)
from agentgraph.sessions.state.fold import decision_of
from agentgraph.sessions.state.parallel import STAMP, in_list_order, round_of
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.visibility import visible_counts

Block: TypeAlias = dict[str, Any]
"""A content block in LangChain's form."""

CONTINUE = "Continue."
_LINE_START = r"(^|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])([\s\u200b-\u200f\u2060\ufeff]*)"
_NAME_MARK = re.compile(_LINE_START + r"\[([^\]\n]*)\](?=\s*[:\uff1a])")
_NOTICE = re.compile(
    _LINE_START + r"\[(Earlier in this conversation[^\]\n]*|"
    r"[^\]\n]* (?:handed over to [^\]\n]*|was interrupted))\]"
)


class View(Protocol):
    """How far a speaker looks back: `FullTranscript`, `WindowedSummary`, or a class of your own."""

    def reach(self, state: SessionState) -> int | None:
        """Return how many of the last messages are shown unchanged; None shows all."""
        ...


@dataclass(frozen=True, slots=True)
class FullTranscript:
    """Show all messages; the cost of a turn grows with the length of the session."""

    def reach(self, state: SessionState) -> int | None:
        return None


@dataclass(frozen=True, slots=True)
class WindowedSummary:
    """Show the last messages, and one line about the earlier ones.

        Team([ann, bob], rules, view=WindowedSummary(6))

    By default, two messages for each participant are shown, but at least four.
    """

    recent_n: int | None = None

    def __post_init__(self) -> None:
        if self.recent_n is not None and self.recent_n < 1:
            raise ConfigurationError(f"WindowedSummary({self.recent_n}): show at least one message")

    def reach(self, state: SessionState) -> int | None:
        return self.recent_n or max(4, 2 * len(state.participant_order))


def render_view(
    envelopes: Sequence[Envelope], reader: str, state: SessionState, *, sees_all: bool = False
) -> list[AnyMessage]:
    """Return envelopes as messages for the model of `reader`.

    The envelopes must be such as views show, and in order; for those before the first one that the
    reader may see, a summary line is shown. `sees_all` is for a supervisor, who also sees envelopes
    that are not addressed to it.
    """
    envelopes = in_list_order(envelopes)
    visible = [envelope for envelope in envelopes if sees_all or visible_to(envelope, reader)]
    transcript = _Transcript(reader)
    counts = state.said if sees_all else visible_counts(state, reader)
    first_id = envelopes[0].envelope_id if envelopes else 0
    transcript.add_line(f"before_{first_id}", _summary_line(visible, counts, state))
    latest = next((item for item in reversed(visible) if decision_of(item) is not None), None)
    for envelope in visible:
        if envelope.event_type == EV_CANCELLED:
            transcript.add_cancelled(envelope)
        elif envelope.sender_id == reader:
            transcript.add_own(envelope)
        else:
            line = _line(envelope, reader, gives_floor=_gives_floor(envelope, latest))
            transcript.add_line(envelope.envelope_id, line, _attachments(envelope))
    return transcript.finish(envelopes[-1].envelope_id if envelopes else "nothing")


def _gives_floor(envelope: Envelope, latest: Envelope | None) -> bool:
    """Tell whether an envelope's handoff has given the floor: in a round of several, whose did."""
    stamp = latest.event_data.get(STAMP) if latest is not None else None
    if latest is not None and isinstance(stamp, Mapping) and STAMP in envelope.event_data:
        return (
            round_of(envelope) == round_of(latest) and stamp.get("decided_by") == envelope.sender_id
        )
    return envelope is latest


def _summary_line(
    envelopes: Sequence[Envelope], counts: Mapping[str, int], state: SessionState
) -> str:
    """Return the line about what was said before the first envelope.

    `counts` are those of all messages that the reader may see, by sender.
    """
    summary = state.summary
    text = str(summary.get("text") or "") if summary is not None else ""
    earlier = dict(counts)
    for envelope in envelopes:
        earlier[envelope.sender_id] = earlier.get(envelope.sender_id, 0) - 1
    total = sum(count for count in earlier.values() if count > 0)
    # Not in the order of their first messages: in a parallel round that is the order of the clock.
    order = {name: place for place, name in enumerate(state.participant_order)}
    senders = [name for name, count in earlier.items() if count > 0]
    names = ", ".join(sorted(senders, key=lambda name: order.get(name, -1)))
    if total <= 0:
        return ""
    notice = f"[Earlier in this conversation: {total} messages from {names}]"
    return f"{notice}\n{text}".strip()


def _line(envelope: Envelope, reader: str, *, gives_floor: bool) -> str:
    name = envelope.sender_id
    text = _without_marks(envelope.text)
    lines = [f"[{name}]: {text}"] if text.strip() else []
    if not lines and _attachments(envelope):
        lines = [f"[{name}]:"]
    routing = envelope.event_data.get("routing")
    if envelope.event_type == EV_PACKET and isinstance(routing, Mapping) and routing.get("target"):
        reason = " ".join(str(routing.get("reason") or "").split())
        target = f"{routing['target']}: {reason}" if reason else routing["target"]
        lines.append(f"[{name} handed over to {target}]")
        if gives_floor and routing["target"] == reader and routing.get("summary"):
            lines.append(f"[Context from {name}]: {_without_marks(str(routing['summary']))}")
    return "\n".join(lines)


def _attachments(envelope: Envelope) -> list[Block]:
    """Return the content blocks of a text that are not its text: images, files, audio."""
    content = envelope.event_data.get("content") if envelope.event_type == EV_TEXT else None
    blocks = content if isinstance(content, list) else ()
    return [
        thaw(block)
        for block in blocks
        if isinstance(block, Mapping) and block.get("type") not in ("text", None)
    ]


def _without_marks(text: str) -> str:
    """Return a text that cannot be taken for another speaker's line, or for one of our notices."""
    for pattern in (_NAME_MARK, _NOTICE):
        text = pattern.sub(r"\1\2(\3)", text)
    return text


@dataclass(slots=True)
class _Transcript:
    """Builds messages: lines of other senders are collected into one human message."""

    reader: str
    messages: list[AnyMessage] = field(default_factory=list)
    parts: list[str | Block] = field(default_factory=list)
    """The lines of the human message, and the content blocks that follow them."""
    first_line_id: str = ""

    def add_line(self, message_id: str, line: str, blocks: Sequence[Block] = ()) -> None:
        if line:
            self.first_line_id = self.first_line_id if self.parts else message_id
            self.parts += [line, *blocks]

    def add_own(self, envelope: Envelope) -> None:
        own = _own_messages(envelope, self.reader)
        if own:
            self._end_human_turn(f"before_{envelope.envelope_id}")
            self.messages += own

    def add_cancelled(self, envelope: Envelope) -> None:
        """Add that a round was cancelled, and to the reader what its own turn had come to."""
        speakers = envelope.event_data["speakers"]
        lines = [f"[{name} was interrupted]" for name in speakers if name != self.reader]
        self.add_line(envelope.envelope_id, "\n".join(lines))
        if self.reader in speakers:
            self.add_own(envelope)

    def finish(self, last_id: str) -> list[AnyMessage]:
        self._end_human_turn(f"after_{last_id}")
        return self.messages

    def _end_human_turn(self, default_id: str) -> None:
        """Make one human message of the lines; without lines, of a neutral text."""
        content = _content_of(self.parts) or CONTINUE
        self.messages.append(HumanMessage(content, id=self.first_line_id or default_id))
        self.parts, self.first_line_id = [], ""


def _content_of(parts: Sequence[str | Block]) -> str | list[str | Block]:
    """Return the content of a message: one text, or content blocks where there is more."""
    content: list[str | Block] = []
    for is_text, group in groupby(parts, key=lambda part: isinstance(part, str)):
        if is_text:
            content.append({"type": "text", "text": "\n\n".join(map(str, group))})
        else:
            content += group
    has_blocks = any(not isinstance(part, str) for part in parts)
    return content if has_blocks else "\n\n".join(map(str, parts))


def _own_messages(envelope: Envelope, reader: str) -> list[AnyMessage]:
    key = envelope.envelope_id
    is_cancelled = envelope.event_type == EV_CANCELLED
    steps = envelope.event_data.get("steps") if envelope.event_type != EV_TEXT else None
    if is_cancelled and isinstance(steps, Mapping):
        steps = steps.get(reader)
    messages: list[AnyMessage] = []
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        messages += _step_messages(step, f"{key[-20:]}_{number}", reader)
    text = envelope.text.strip()
    if is_cancelled:
        text = "[I was interrupted]"
    elif messages and not text:
        text = _closing_words(envelope)
    if text:
        messages.append(AIMessage(text, id=key, name=reader))
    return messages


def _step_messages(step: Mapping[str, Any], key: str, reader: str) -> list[AnyMessage]:
    calls = step.get("calls") or ()
    tool_calls = [
        {"id": f"{key}_{n}", "name": call["tool"], "args": thaw(call["args"]), "type": "tool_call"}
        for n, call in enumerate(calls)
    ]
    answers = [
        ToolMessage(
            call["result"],
            id=f"answer_{key}_{n}",
            tool_call_id=f"{key}_{n}",
            name=call["tool"],
            status=call["status"],
        )
        for n, call in enumerate(calls)
    ]
    return [AIMessage(step.get("text") or "", id=key, name=reader, tool_calls=tool_calls), *answers]


def _closing_words(envelope: Envelope) -> str:
    """Return a text for a turn without one: providers want a text after the result of a tool."""
    routing = envelope.event_data.get("routing") or {}
    target = routing.get("target")
    return f"[I handed over to {target}]" if target else "[I have finished my turn]"
