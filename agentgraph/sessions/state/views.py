"""What a speaker is shown of a session: a bounded look back, legal for every provider.

Its own packets are its messages, tool calls with their answers; what others said are lines of one
human message, each with its speaker's name. So it begins and ends with a human message, and the two
alternate, also where an agent speaks twice in a row or before anybody else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from agentgraph.errors import ConfigurationError
from agentgraph.sessions.state.envelope import EV_PACKET, Envelope, visible_to
from agentgraph.sessions.state.fold import decision_of
from agentgraph.sessions.state.state import SessionState

CONTINUE = "Continue."
_BEGINS = r"(^|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])([\s\u200b-\u200f\u2060\ufeff]*)"
_MARK = re.compile(_BEGINS + r"\[([^\]\n]*)\](?=\s*[:\uff1a])")
_NOTICE = re.compile(
    _BEGINS + r"\[(Earlier in this conversation[^\]\n]*|[^\]\n]* handed over to [^\]\n]*)\]"
)


class View(Protocol):
    """How far a speaker looks back."""

    def reach(self, state: SessionState) -> int | None:
        """Return how many of the last messages are shown as they are; None shows all."""
        ...


@dataclass(frozen=True, slots=True)
class FullTranscript:
    """All that was ever said; its cost grows with the session."""

    def reach(self, state: SessionState) -> int | None:
        return None


@dataclass(frozen=True, slots=True)
class WindowedSummary:
    """The last messages, and a line about those before; by default two for each participant."""

    recent_n: int | None = None

    def __post_init__(self) -> None:
        if self.recent_n is not None and self.recent_n < 1:
            raise ConfigurationError(f"WindowedSummary({self.recent_n}): show at least one message")

    def reach(self, state: SessionState) -> int | None:
        return self.recent_n or max(4, 2 * len(state.participant_order))


def rendered(
    envelopes: Sequence[Envelope], reader: str, state: SessionState, *, sees_all: bool = False
) -> list[AnyMessage]:
    """Return envelopes, which are substantive and in order, as messages to a reader's model."""
    shown = [one for one in envelopes if sees_all or visible_to(one, reader)]
    page = _Page(reader)
    page.hear(*_before(envelopes, state))
    giving = next((one for one in reversed(envelopes) if decision_of(one) is not None), None)
    for envelope in shown:
        if envelope.sender_id == reader:
            page.speak(envelope)
        else:
            page.hear(envelope.envelope_id, _line(envelope, reader, is_giving=envelope is giving))
    return page.closed(envelopes[-1].envelope_id if envelopes else "nothing")


def _before(envelopes: Sequence[Envelope], state: SessionState) -> tuple[str, str]:
    """Say in a line what came before the first of the envelopes."""
    summary = state.summary
    text = str(summary.get("text") or "") if summary is not None else ""
    earlier = dict(state.said)
    for envelope in envelopes:
        earlier[envelope.sender_id] = earlier.get(envelope.sender_id, 0) - 1
    total = sum(count for count in earlier.values() if count > 0)
    names = ", ".join(name for name, count in earlier.items() if count > 0)
    if total <= 0:
        return "", ""
    told = f"[Earlier in this conversation: {total} messages from {names}]"
    return f"before_{envelopes[0].envelope_id if envelopes else 0}", f"{told}\n{text}".strip()


def _line(envelope: Envelope, reader: str, *, is_giving: bool) -> str:
    name = envelope.sender_id
    text = _own_words(envelope.text)
    lines = [f"[{name}]: {text}"] if text.strip() else []
    routing = envelope.event_data.get("routing")
    if envelope.event_type == EV_PACKET and isinstance(routing, Mapping) and routing.get("target"):
        reason = " ".join(str(routing.get("reason") or "").split())
        told = f"{routing['target']}: {reason}" if reason else routing["target"]
        lines.append(f"[{name} handed over to {told}]")
        if is_giving and routing["target"] == reader and routing.get("summary"):
            lines.append(f"[Context from {name}]: {_own_words(str(routing['summary']))}")
    return "\n".join(lines)


def _own_words(text: str) -> str:
    """Return a text in which nobody speaks in another's name, or in the session's."""
    for marked in (_MARK, _NOTICE):
        text = marked.sub(r"\1\2(\3)", text)
    return text


@dataclass(slots=True)
class _Page:
    """Messages in the making."""

    reader: str
    messages: list[AnyMessage] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    heard_id: str = ""

    def hear(self, message_id: str, line: str) -> None:
        if line:
            self.heard_id = self.heard_id if self.heard else message_id
            self.heard.append(line)

    def speak(self, envelope: Envelope) -> None:
        own = _own(envelope, self.reader)
        if own:
            self._turn_over(f"before_{envelope.envelope_id}")
            self.messages += own

    def closed(self, last: str) -> list[AnyMessage]:
        self._turn_over(f"after_{last}")
        return self.messages

    def _turn_over(self, otherwise: str) -> None:
        """Let the others have said what was heard; where that is nothing, the turn goes on."""
        text = "\n\n".join(self.heard) or CONTINUE
        self.messages.append(HumanMessage(text, id=self.heard_id or otherwise))
        self.heard, self.heard_id = [], ""


def _own(envelope: Envelope, reader: str) -> list[AnyMessage]:
    key = envelope.envelope_id
    steps = envelope.event_data.get("steps") if envelope.event_type == EV_PACKET else None
    messages: list[AnyMessage] = []
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        messages += _step(step, f"{key[-20:]}_{number}", reader)
    said = envelope.text.strip() or (_silent(envelope) if messages else "")
    if said:
        messages.append(AIMessage(said, id=key, name=reader))
    return messages


def _step(step: Mapping[str, Any], key: str, reader: str) -> list[AnyMessage]:
    calls = step.get("calls") or ()
    asked = [
        {"id": f"{key}_{n}", "name": call["tool"], "args": call["args"], "type": "tool_call"}
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
    return [AIMessage(step.get("text") or "", id=key, name=reader, tool_calls=asked), *answers]


def _silent(envelope: Envelope) -> str:
    """Say what a turn without words came to: after an answer of a tool the assistant speaks."""
    routing = envelope.event_data.get("routing") or {}
    target = routing.get("target")
    return f"[I handed over to {target}]" if target else "[I have finished my turn]"
