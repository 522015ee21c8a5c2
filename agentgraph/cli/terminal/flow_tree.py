"""The progress of a flow: a tree that is redrawn on a terminal, or a line for each event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from rich.console import Console
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from agentgraph.cli.terminal.text import clean, clip
from agentgraph.clock import clock
from agentgraph.stream import StageEvent, StageStatus
from agentgraph.usage import price_of

_MARKS: Mapping[StageStatus, tuple[str, str]] = {
    "started": ("▸", "cyan"),
    "finished": ("✓", "green"),
    "failed": ("✗", "red"),
    "replanned": ("↻", "yellow"),
    "escalated": ("?", "yellow"),
    "aborted": ("■", "red"),
}
_REDRAWS_PER_S = 4
_GATES = {"plan_gate": "plan", "validate_gate": "validate"}

_Place = tuple[str, int, str, str]
"""A flow's path, the attempt, the stage, and the worker."""


@dataclass(slots=True)
class _Row:
    """A stage or a worker."""

    status: StageStatus = "started"
    note: str = ""
    tokens: int = 0


@dataclass(slots=True)
class FlowTree:
    """A flow's stages and workers, with what they have come to and what they have used."""

    name: str
    time_limit_s: float | None = None
    began_at: float = field(default_factory=lambda: clock().monotonic())
    tokens: int = 0
    cost: Decimal | None = Decimal(0)
    _rows: dict[_Place, _Row] = field(default_factory=dict)

    def add(self, event: StageEvent) -> None:
        """Add what a stage has come to."""
        row = self._row(event.agent, event.attempt, event.stage, event.worker)
        row.status, row.note = event.status, note_of(event) or row.note

    def spend(self, node: str, tokens: int, cost: Decimal | None) -> None:
        """Add what a model call in a node of the flow's graph has used."""
        self.tokens += tokens
        self.cost = None if cost is None or self.cost is None else self.cost + cost
        stage = _GATES.get(node, node)
        for (flow, _, name, worker), row in reversed(self._rows.items()):
            if flow == self.name and stage in (worker or name,):
                row.tokens += tokens
                return

    def summary(self) -> str:
        """Return what the flow has used so far, and how much time it has."""
        cost = f", ${self.cost}" if self.cost else ""
        return f"{self.tokens:,} tokens{cost}{self._time_left()}"

    def __rich__(self) -> Tree:
        tree = Tree(Text(clean(self.name), "bold cyan") + Text(f"  {self.summary()}", "dim"))
        self._draw(tree, self.name)
        return tree

    def _draw(self, tree: Tree, flow: str) -> None:
        """Draw the stages of a flow, under their attempts where there are several."""
        attempts = sorted({attempt for path, attempt, *_ in self._rows if path == flow})
        for attempt in attempts:
            branch = tree if len(attempts) == 1 else tree.add(Text(f"attempt {attempt}", "dim"))
            stages = [place for place in self._rows if place[:2] == (flow, attempt)]
            for place in stages:
                if not place[3]:
                    below = branch.add(self._line(place))
                    for worker in (p for p in stages if p[2] == place[2] and p[3]):
                        line = below.add(self._line(worker))
                        if attempt == attempts[-1]:
                            self._draw(line, f"{flow}/{worker[2]}/{worker[3]}")

    def _line(self, place: _Place) -> Text:
        row = self._rows[place]
        mark, style = _MARKS[row.status]
        line = Text(f"{mark} ", style) + Text(clean(place[3] or place[2])) + Text(f" {row.status}")
        if row.tokens:
            line += Text(f"  {row.tokens:,} tokens", "dim")
        return line + Text(f"  {clean(clip(row.note))}", "dim") if row.note else line

    def _row(self, *place: Any) -> _Row:
        flow, attempt, stage, worker = place
        if worker:  # a stage stands above its workers
            self._rows.setdefault((flow, attempt, stage, ""), _Row())
        return self._rows.setdefault((flow, attempt, stage, worker), _Row())

    def _time_left(self) -> str:
        if self.time_limit_s is None:
            return ""
        seconds = max(0, int(self.time_limit_s - (clock().monotonic() - self.began_at)))
        return f", {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"


def note_of(event: StageEvent) -> str:
    """Return what is to be said of a verdict: its problems, or its confidence."""
    verdict = event.verdict or {}
    problems = verdict.get("problems")
    if isinstance(problems, list | tuple) and problems:
        return "; ".join(map(str, problems))
    confidence = verdict.get("confidence")
    return "" if confidence is None else f"confidence {confidence}"


class FlowProgress:
    """Shows a flow while it runs, and counts what its models use."""

    def __init__(self, console: Console, tree: FlowTree) -> None:
        self._console, self._tree = console, tree
        self._live: Live | None = None
        self.callbacks = SpendCallbacks(tree)

    def start(self) -> None:
        """Begin to show it."""
        if self._console.is_terminal:
            self._live = Live(self._tree, console=self._console, refresh_per_second=_REDRAWS_PER_S)
            self._live.start()

    def show(self, event: object) -> None:
        """Show an event."""
        if not isinstance(event, StageEvent):
            return
        self._tree.add(event)
        if self._live is None:
            for line in _lines(event):
                self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def stop(self) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        else:
            self._console.print(self._tree.summary(), soft_wrap=True, highlight=False)


def _lines(event: StageEvent) -> Iterator[str]:
    """Yield a line for an event, where no tree can be redrawn."""
    flow = event.agent.partition("/")[2]
    place = "/".join(part for part in (flow, event.stage, event.worker) if part)
    attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
    note = clip(note_of(event))
    yield clean(f"{place} {event.status}{attempt}{f': {note}' if note else ''}")


class SpendCallbacks(AsyncCallbackHandler):
    """Tells a tree what each model call has used."""

    run_inline = True
    ignore_chain = True

    def __init__(self, tree: FlowTree) -> None:
        self._tree = tree
        self._nodes: dict[UUID, str] = {}

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note which node of the flow's graph the call is made in."""
        namespace = str((metadata or {}).get("langgraph_checkpoint_ns") or "")
        self._nodes[run_id] = namespace.partition("|")[0].partition(":")[0]

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Add the usage of the call."""
        node = self._nodes.pop(run_id, "")
        for generation in (g for several in response.generations for g in several):
            message = generation.message if isinstance(generation, ChatGeneration) else None
            if isinstance(message, AIMessage) and (usage := message.usage_metadata):
                model = str(message.response_metadata.get("model_name") or "")
                self._tree.spend(node, usage["total_tokens"], price_of(model, usage))

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Forget a call that has failed."""
        self._nodes.pop(run_id, None)
