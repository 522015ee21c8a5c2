"""What a conversation looks like in a terminal: plain lines, written from the top to the bottom."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from rich.console import Console
from rich.text import Text

from agentgraph.agents.run.reply import Interrupt
from agentgraph.cli.terminal.decisions import advice_for, has_short_form
from agentgraph.cli.terminal.events import called, happened, named
from agentgraph.cli.terminal.text import Flow, clean, clip, pretty
from agentgraph.stream import AIMessageEvent, ErrorEvent, Event, FinalStateEvent, TokenEvent

YOU = "you> "

_INDENT = "  "
_SPEAKER, _ASIDE, _WRONG, _QUESTION = "bold cyan", "dim", "red", "yellow"
_HISTORY = 50
_CAUSES = 2

_Message: TypeAlias = tuple[str, str]
"""An agent, and the id of the text it writes."""


class Screen:
    """Show a conversation.

    One text is written live, token by token. What others say beside it, in parallel, is shown when
    it is whole.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._flow = Flow(console)
        self._live: _Message | None = None
        self._written = ""
        self._begun: set[_Message] = set()
        self._told: set[str] = set()

    def show(self, event: Event) -> None:
        """Show something that happened in a run."""
        match event:
            case TokenEvent():
                self._write(event)
            case AIMessageEvent():
                self._say(event.agent, event.text)
            case FinalStateEvent():
                self._close(event)
            case ErrorEvent():
                self._told.add(event.message)
                self.note(f"{event.agent}: {event.message}", _WRONG)
            case _:
                if line := happened(event):
                    self.note(line)

    def greet(self, name: str, place: str, *, thread_id: str, keys: bool) -> None:
        """Show who is talked to, where that is kept, and which keys there are."""
        place = f"  kept in {clean(place)}"
        self._console.print(Text(clean(name), _SPEAKER) + Text(place, _ASIDE), soft_wrap=True)
        self.note(f"thread {thread_id}")
        if keys:
            self.note("Ctrl-C stops an answer, Ctrl-D leaves.")

    def note(self, line: str, style: str = _ASIDE) -> None:
        """Show a remark beside the conversation, indented."""
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
        """End the line, and leave one empty."""
        self.end_line()
        self._console.out("")

    def farewell(self, again: str | None) -> None:
        """Show how to go on: in one line, however long, so that it can be copied."""
        if self._console.is_terminal:
            self.blank()
        self.note("Go on with:" if again else "It was kept in memory, and is gone.")
        if again:
            self._console.out(_INDENT + clean(again), highlight=False)

    def interrupted(self, remark: str) -> None:
        """Show a remark below the ^C that a terminal writes where the cursor is."""
        if self._flow.is_open:
            self.end_line()
        elif self._console.is_terminal:
            self._console.out("")
        self.note(remark)

    def fail(self, error: BaseException) -> None:
        """Show what ended a run, unless it was told already, and what was behind it."""
        if str(error) not in self._told:
            self.note(named(error), _WRONG)
        cause, depth = error.__cause__, 0
        while cause is not None and depth < _CAUSES:
            self.note(f"caused by {named(cause)}", _WRONG)
            cause, depth = cause.__cause__, depth + 1

    def ask(self, question: Interrupt, place: str) -> None:
        """Show a question that a human has to decide."""
        self.note(f"A decision is needed{place}:", _QUESTION)
        self.note(pretty(question.payload), _QUESTION)
        if question.response_schema and not has_short_form(question):
            self.note(f"It has to fit: {json.dumps(question.response_schema, default=str)}")
        self.note(f"Type {advice_for(question)}; Ctrl-C leaves it open.")

    def recall(self, messages: Sequence[AnyMessage]) -> None:
        """Show what was said on a thread before."""
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

    def _recall_answer(self, agent: str, message: AIMessage) -> None:
        if message.text:
            self._whole(agent, message.text)
        for call in message.tool_calls:
            self.note(called(agent, call["name"], call["args"]))

    def end_line(self) -> None:
        """End the line that is being written."""
        self._flow.end()

    def start(self) -> None:
        """Begin a run: nothing of the one before counts any more."""
        self.end_line()
        self._live = None
        self._begun.clear()
        self._told.clear()

    def _write(self, token: TokenEvent) -> None:
        message = (token.agent, token.message_id)
        if message not in self._begun and (self._live is None or self._live[0] == token.agent):
            self.end_line()
            self._live, self._written = message, ""
        self._begun.add(message)
        if message != self._live:
            return
        text = clean(token.text)
        if not self._flow.is_open:
            self._flow.begin(f"{clean(token.agent)}> ", _SPEAKER)
            text = text.lstrip()
        self._written += token.text
        self._flow.write(text)

    def _say(self, agent: str, text: str) -> None:
        self._told.add(text)
        if self._live is None or self._live[0] != agent:
            self._whole(agent, text)
            return
        is_written = self._written.strip() == text.strip()
        self.end_line()
        if is_written:
            self._begun.discard(self._live)
            self._live = None
        else:
            self._whole(agent, text)

    def _whole(self, agent: str, text: str) -> None:
        self.end_line()
        self._flow.begin(f"{clean(agent)}> ", _SPEAKER)
        self._flow.write(clean(text))
        self._flow.end()

    def _close(self, event: FinalStateEvent) -> None:
        self.end_line()
        if event.text and event.text not in self._told:
            self._whole(event.agent, event.text)
        if event.close_reason:
            self.note(f"The turn was ended: {event.close_reason}", _WRONG)
