"""What a call of an agent returns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.types import Interrupt as RawInterrupt

from agentgraph.agents.nodes.content import Citation, citations_of
from agentgraph.agents.spec.output import OutputFormat
from agentgraph.display import code, escaped, panel, prose, row, shortened, signature
from agentgraph.running import Run
from agentgraph.stream import Event, FinalStateEvent, InterruptEvent
from agentgraph.usage import Usage

if TYPE_CHECKING:
    from agentgraph.agents.spec.agent import Agent


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A question that a human must decide before the run goes on."""

    id: str
    payload: object
    response_schema: Mapping[str, object] | None = None
    agent: str = ""
    """The path of who asks."""

    def _repr_html_(self) -> str:
        return row("asked as", f"{code(self.id)}: {code(self.payload)}")


@dataclass(frozen=True, slots=True)
class Reply:
    """An agent's answer, who gave it, and what it took."""

    text: str
    agent: str
    thread_id: str
    output: object | None = None
    messages: tuple[AnyMessage, ...] = ()
    usage: Usage = field(default_factory=Usage)
    interrupts: tuple[Interrupt, ...] = ()
    close_reason: str | None = None
    citations: tuple[Citation, ...] = ()

    def _repr_html_(self) -> str:
        shown = [prose(self.text)] if self.text else []
        shown += [interrupt._repr_html_() for interrupt in self.interrupts]
        shown += [
            row("called", f"{code(call)} {escaped(shortened(answer))}")
            for call, answer in self._calls()
        ]
        if self.output is not None:
            shown.append(row("output", code(repr(self.output))))
        if self.close_reason is not None:
            shown.append(row("closed", code(self.close_reason)))
        if self.usage.total_tokens:
            shown.append(row("used", escaped(self.usage._told())))
        return panel(self.agent, *shown)

    def _calls(self) -> Iterator[tuple[str, str]]:
        """Return the tool calls, also those of a run before a decision, and their answers."""
        spoken = [m for m in self.messages if isinstance(m, AIMessage)]
        made = {c["id"]: signature(c["name"], c["args"]) for m in spoken for c in m.tool_calls}
        told = {
            m.tool_call_id: (made.get(m.tool_call_id) or m.name or "a tool", f"→ {m.text}")
            for m in self.messages
            if isinstance(m, ToolMessage)
        }
        yield from ({key: (call, "") for key, call in made.items()} | told).values()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left behind."""

    values: Mapping[str, Any]
    interrupts: Sequence[RawInterrupt]
    asked_by: Mapping[str, str] = field(default_factory=dict)


def reply_to(agent: Agent, run: Run, outcome: Outcome, known: Collection[str | None]) -> Reply:
    """Read an agent's answer; `known` are the ids of the messages that are not the run's own."""
    values = outcome.values
    fresh = _fresh(values.get("messages") or [], known)
    spoken = [m for m in fresh if isinstance(m, AIMessage) and m.text]
    path = values.get("current_active_agent")
    interrupts = questions_of((outcome.asked_by.get(i.id, ""), i) for i in outcome.interrupts)
    return Reply(
        text=str(spoken[-1].text) if spoken and not interrupts else "",
        agent=f"{agent.name}/{path}" if path else agent.name,
        thread_id=run.thread_id,
        output=_output(agent, values.get("output"), path),
        messages=tuple(fresh),
        usage=Usage.of_run(run),
        interrupts=interrupts,
        close_reason=(values.get("turn") or {}).get("closed"),
        citations=tuple(citations_of(spoken[-1])) if spoken else (),
    )


def questions_of(raw: Iterable[tuple[str, RawInterrupt]]) -> tuple[Interrupt, ...]:
    """Return LangGraph's interrupts as questions, each of whoever asks."""
    return tuple(
        Interrupt(i.id, i.value, getattr(i, "response_schema", None), agent) for agent, i in raw
    )


def _fresh(messages: Sequence[AnyMessage], known: Collection[str | None]) -> list[AnyMessage]:
    """Return what came after the last message that was there before."""
    start = 0
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].id in known:
            start = position + 1
            break
    return [message for message in messages[start:] if message.id not in known]


def _output(agent: Any, stored: object, path: str | None) -> object | None:
    """Return the answer's object, in the form of whoever gave it."""
    if stored is None:
        return None
    for name in path.split("/") if path else ():
        agent = next(p for p in agent.sub_agents if p.name == name)
    form = getattr(agent, "response_format", None)
    return stored if form is None else OutputFormat(form).load(stored)


def closing_events(reply: Reply) -> Iterator[Event]:
    """Yield what is told at the end of a run."""
    for question in reply.interrupts:
        yield InterruptEvent(
            agent=question.agent or reply.agent,
            id=question.id,
            payload=question.payload,
            response_schema=question.response_schema,
        )
    yield FinalStateEvent(
        agent=reply.agent,
        text=reply.text,
        usage=reply.usage.to_dict(),
        close_reason=reply.close_reason,
    )
