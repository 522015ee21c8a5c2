"""The screen of a conversation: plain lines, written in order and never redrawn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from rich.console import Console
from rich.text import Text

from agentgraph.cli.terminal.decisions import advice_for, has_short_form
from agentgraph.cli.terminal.text import call_text, clean, clip, error_text, pretty
from agentgraph.cli.terminal.writer import WrappingWriter
from agentgraph.outcomes import Interrupt
from agentgraph.stream import (
    AIMessageEvent,
    ErrorEvent,
    Event,
    FinalStateEvent,
    GuardEvent,
    RoutingEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)

YOU = "you> "

_INDENT = "  "
_SPEAKER, _ASIDE, _WRONG, _QUESTION = "bold cyan", "dim", "red", "yellow"
_HISTORY = 50
_CAUSES = 2

_MessageKey: TypeAlias = tuple[str, str]
"""An agent, and the id of a message of that agent."""


class Screen:
    """Shows a conversation, event by event.

    One message is written live, token by token. If several agents write at the same time, the
    messages of the others are shown once they are complete: two texts cannot share a line.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._writer = WrappingWriter(console)
        self._live: _MessageKey | None = None
        """The message that is being written token by token, None if there is none."""
        self._live_text = ""
        self._started_messages: set[_MessageKey] = set()
        """The messages that have begun: one that did not become live must not do so later."""
        self._shown_texts: set[str] = set()
        """Texts and errors that this run has shown already: its final event repeats them."""

    def show(self, event: Event) -> None:
        """Show an event of a run."""
        match event:
            case TokenEvent():
                self._write(event)
            case AIMessageEvent():
                if event.text:
                    self._say(event.agent, event.text)
                for block in event.blocks:
                    self.note(f"{event.agent}: [{block['type']}]")
            case FinalStateEvent():
                self._close(event)
            case ErrorEvent():
                self._shown_texts.add(event.message)
                self.note(f"{event.agent}: {event.message}", _WRONG)
            case _:
                if line := _line_of(event):
                    self.note(line)

    def greet(self, name: str, store_name: str, *, thread_id: str, interactive: bool) -> None:
        """Show the agent's name, the store of the conversation, and the keys."""
        store = f"  kept in {clean(store_name)}"
        self._console.print(Text(clean(name), _SPEAKER) + Text(store, _ASIDE), soft_wrap=True)
        self.note(f"thread {thread_id}")
        if interactive:
            self.note("Ctrl-C stops an answer, Ctrl-D leaves.")

    def note(self, line: str, style: str = _ASIDE) -> None:
        """Show a remark about the conversation, indented."""
        self.end_line()
        text = Text(clean(line).expandtabs(4), style)
        if self._console.is_terminal:
            width = max(self._console.width - len(_INDENT), 1)
            lines = text.wrap(self._console, width)
        else:
            lines = text.split("\n", allow_blank=True)
        for part in lines:
            part.rstrip()
            self._console.print(Text(_INDENT) + part, soft_wrap=True)

    def blank(self) -> None:
        """End the line, and write an empty one."""
        self.end_line()
        self._console.out("")

    def farewell(self, command: str | None) -> None:
        """Show the command that resumes the conversation: in a single line, to be copied."""
        if self._console.is_terminal:
            self.blank()
        self.note("Go on with:" if command else "It was kept in memory, and is gone.")
        if command:
            self._console.out(_INDENT + clean(command), highlight=False)

    def note_interrupt(self, remark: str) -> None:
        """Show a remark below the ^C that the terminal has written at the cursor."""
        if self._writer.is_open:
            self.end_line()
        elif self._console.is_terminal:
            self._console.out("")
        self.note(remark)

    def fail(self, error: BaseException) -> None:
        """Show the error that ended a run, with its causes, unless an event has shown it."""
        if str(error) not in self._shown_texts:
            self.note(error_text(error), _WRONG)
        cause, depth = error.__cause__, 0
        while cause is not None and depth < _CAUSES:
            self.note(f"caused by {error_text(cause)}", _WRONG)
            cause, depth = cause.__cause__, depth + 1

    def ask(self, question: Interrupt, number: str) -> None:
        """Show a question for a human; `number` says which one of several it is."""
        self.note(f"A decision is needed{number}:", _QUESTION)
        self.note(pretty(question.payload), _QUESTION)
        if question.response_schema and not has_short_form(question):
            self.note(f"It has to fit: {json.dumps(question.response_schema, default=str)}")
        self.note(f"Type {advice_for(question)}; Ctrl-C leaves it open.")

    def recall(self, messages: Sequence[AnyMessage]) -> None:
        """Show the last messages of a thread."""
        if len(messages) > _HISTORY:
            self.note(f"… {len(messages) - _HISTORY} earlier messages")
        for message in messages[-_HISTORY:]:
            match message:
                case HumanMessage():
                    self.blank()
                    self._console.out(clean(YOU + message.text), highlight=False)
                case ToolMessage():
                    self.note(f"{message.name or 'a tool'}: {clip(message.text)}")
                case AIMessage():
                    self._recall_answer(message.name or "agent", message)

    def end_line(self) -> None:
        """End the line that is being written."""
        self._writer.end()

    def start(self) -> None:
        """Begin a run: forget which texts the previous run has shown."""
        self.end_line()
        self._live = None
        self._started_messages.clear()
        self._shown_texts.clear()

    def _recall_answer(self, agent: str, message: AIMessage) -> None:
        if message.text:
            self._show_text(agent, message.text)
        for call in message.tool_calls:
            self.note(call_text(agent, call["name"], call["args"]))

    def _write(self, token: TokenEvent) -> None:
        """Write a token of the live message; the first message that begins becomes live."""
        key = (token.agent, token.message_id)
        is_new = key not in self._started_messages
        if is_new and (self._live is None or self._live[0] == token.agent):
            self.end_line()
            self._live, self._live_text = key, ""
        self._started_messages.add(key)
        if key != self._live:
            return
        text = clean(token.text)
        if not self._writer.is_open:
            self._writer.begin(f"{clean(token.agent)}> ", _SPEAKER)
            text = text.lstrip()
        self._live_text += token.text
        self._writer.write(text)

    def _say(self, agent: str, text: str) -> None:
        """Show a complete message, unless its tokens have been shown already."""
        self._shown_texts.add(text)
        if self._live is None or self._live[0] != agent:
            self._show_text(agent, text)
            return
        is_shown = self._live_text.strip() == text.strip()
        self.end_line()
        if is_shown:
            self._started_messages.discard(self._live)
            self._live = None
        else:
            self._show_text(agent, text)

    def _show_text(self, agent: str, text: str) -> None:
        """Show a complete message, on lines of its own."""
        self.end_line()
        self._writer.begin(f"{clean(agent)}> ", _SPEAKER)
        self._writer.write(clean(text))
        self._writer.end()

    def _close(self, event: FinalStateEvent) -> None:
        """Show the end of a run: the answer, unless shown already, and why the run ended early."""
        self.end_line()
        if event.text and event.text not in self._shown_texts:
            self._show_text(event.agent, event.text)
        if event.close_reason:
            self.note(f"The turn was ended: {event.close_reason}", _WRONG)


def _line_of(event: Event) -> str | None:
    """Return the line for an event that is no message, None if there is nothing to show."""
    match event:
        case RoutingEvent():
            reason = f": {clip(event.reason)}" if event.reason else ""
            return f"{event.source} → {event.target} ({event.kind}{reason})"
        case ToolUsageEvent():
            return call_text(event.agent, event.tool, event.args)
        case ToolResponseEvent():
            failed = " failed" if event.status == "error" else ""
            return f"{event.tool}{failed}: {clip(event.content)}"
        case GuardEvent():
            decision = event.decision
            cause = f": {clip(decision['cause'])}" if decision.get("cause") else ""
            return f"guard {decision.get('guard')}: {decision.get('action')}{cause}"
        case _:
            return None
