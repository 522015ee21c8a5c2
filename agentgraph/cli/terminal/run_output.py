"""What `agentgraph run` shows: a tree or lines while it works, JSON lines, and the outcome."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import typer
from langgraph.types import Command
from rich.console import Console

from agentgraph.cli.target import Target
from agentgraph.cli.terminal.decisions import decision_of
from agentgraph.cli.terminal.flow_tree import FlowProgress, FlowTree
from agentgraph.cli.terminal.keyboard import at_terminal, line_reader
from agentgraph.cli.terminal.screen import Screen
from agentgraph.cli.terminal.text import clean
from agentgraph.flow import Flow
from agentgraph.outcomes import Interrupt
from agentgraph.sessions import Envelope
from agentgraph.stream import Event


class Progress(Protocol):
    """Shows a run while it is under way."""

    def start(self) -> None:
        """Begin, or go on after a human's decision."""
        ...

    def show(self, item: object) -> None:
        """Show an event or an envelope."""
        ...

    def stop(self) -> None:
        """End, or pause for a human's decision."""
        ...


@dataclass(slots=True)
class RunOutput:
    """The output of a run: its progress, its questions and its result."""

    progress: Progress
    console: Console
    as_json: bool
    callbacks: Sequence[Any] = ()
    """What has to hear of the run's models."""
    says_text: bool = True
    """Whether the end has to say the text: the progress has not."""

    @property
    def may_ask(self) -> bool:
        """Whether a person is there to answer questions."""
        return not self.as_json and at_terminal() and self.console.is_terminal

    def decisions_on(self, questions: Sequence[Interrupt]) -> Command[Any]:
        """Ask all questions, one after another, and return the decisions."""
        screen, read = Screen(self.console), line_reader(self.console)
        decisions: dict[str, object] = {}
        for number, question in enumerate(questions, 1):
            screen.ask(question, f" ({number} of {len(questions)})" if len(questions) > 1 else "")
            while not (line := read("decision> ")).strip():
                pass
            decisions[question.id] = decision_of(line, question)
        return Command(resume=decisions)

    def end(self, result: Mapping[str, Any]) -> None:
        """Print the result."""
        if self.as_json:
            typer.echo(json.dumps({"type": "result", **result}))
            return
        status = result["status"]
        if status == "waiting":
            for question in result["interrupts"]:
                typer.echo(clean(f"waits for a decision on {question['id']}"), err=True)
            typer.echo(clean(f"thread {result['thread_id']}"), err=True)
        elif status != "finished":
            typer.echo(clean(f"agentgraph: {status}: {result['reason']}"), err=True)
        if result.get("text") and (self.says_text or status == "failed"):
            typer.echo(clean(result["text"]), err=status == "failed")


def output_for(target: Target, *, as_json: bool) -> RunOutput:
    """Return the output of a run, with its progress on stderr where stdout is piped."""
    is_piped = not sys.stdout.isatty()
    console = Console(stderr=is_piped)
    if as_json:
        return RunOutput(JSONLines(), console, as_json=True)
    if isinstance(target, Flow):
        progress = FlowProgress(console, FlowTree(target.name, _time_limit(target)))
        return RunOutput(progress, console, as_json=False, callbacks=(progress.callbacks,))
    return RunOutput(ScreenLines(Screen(console)), console, as_json=False, says_text=is_piped)


@dataclass(frozen=True, slots=True)
class JSONLines:
    """Prints each event and each envelope as a line of JSON."""

    def start(self) -> None:
        """Begin."""

    def show(self, item: object) -> None:
        """Print an event, with its type, or an envelope."""
        if isinstance(item, Event):
            typer.echo(json.dumps({"type": item.type, **item.to_dict()}))
        elif isinstance(item, Envelope):
            typer.echo(json.dumps({"type": item.event_type, **item.to_dict()}))

    def stop(self) -> None:
        """End."""


@dataclass(frozen=True, slots=True)
class ScreenLines:
    """Shows an agent or a team as a conversation does."""

    screen: Screen

    def start(self) -> None:
        """Begin, or go on."""
        self.screen.start()

    def show(self, item: object) -> None:
        """Show an event."""
        if isinstance(item, Event):
            self.screen.show(item)

    def stop(self) -> None:
        """End the line that is being written."""
        self.screen.end_line()


def _time_limit(flow: Flow[Any]) -> float | None:
    policy = flow.policy
    return None if policy is None or policy.deadlines is None else policy.deadlines.workflow_s
