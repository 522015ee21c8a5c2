"""The reply of an agent: its answer, its questions and its cost, read from the end of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.types import Interrupt as RawInterrupt
from pydantic_core import to_json
from typing_extensions import TypeVar

from agentgraph.agents.nodes.call_model import Citation, citations_of
from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.agents.spec.output import StoredAnswer
from agentgraph.display import code, escaped, panel, prose, row, shortened, signature
from agentgraph.outcomes import Interrupt
from agentgraph.participant import Participant, sentence_of_stop
from agentgraph.running import Run
from agentgraph.stream import Event, FinalStateEvent, InterruptEvent
from agentgraph.usage import Usage

Output = TypeVar("Output", covariant=True, default=object)
"""The type of the objects in which an agent answers: its `response_format`, or None without one."""


@dataclass(frozen=True, slots=True)
class Reply(Generic[Output]):
    """An agent's answer, the agent that gave it, and the usage of the run.

    reply = support.invoke("I was charged twice", thread_id="42")
    reply.text, reply.agent          # the answer, "support/billing"
    reply.output                     # the object of the `response_format`, of its type
    for question in reply.interrupts:
        support.resume("42", {question.id: decision})
    """

    text: str
    """The last text of the run; where it has none, its output as JSON, or why a guard ended it. It
    is empty while the run waits for a decision."""
    agent: str
    """The path of the agent that has the conversation."""
    thread_id: str
    output: Output | None = None
    """The answer as an object; a sub-agent that answered gives one in its own form."""
    messages: list[AnyMessage] = field(default_factory=list)
    """The messages that the run has added to the thread."""
    usage: Usage = field(default_factory=Usage)
    interrupts: tuple[Interrupt, ...] = ()
    close_reason: str | None = None
    citations: tuple[Citation, ...] = ()

    def _repr_html_(self) -> str:
        parts = [prose(self.text)] if self.text else []
        parts += [interrupt._repr_html_() for interrupt in self.interrupts]
        parts += [
            row("called", f"{code(call)} {escaped(shortened(answer))}")
            for call, answer in self._calls()
        ]
        if self.output is not None:
            parts.append(row("output", code(repr(self.output))))
        if self.close_reason is not None:
            parts.append(row("closed", code(self.close_reason)))
        if self.usage.total_tokens:
            parts.append(row("used", escaped(self.usage.summary())))
        return panel(self.agent, *parts)

    def _calls(self) -> Iterator[tuple[str, str]]:
        """Yield the tool calls with their answers, also those from before a human's decision."""
        messages = [m for m in self.messages if isinstance(m, AIMessage)]
        calls = {c["id"]: signature(c["name"], c["args"]) for m in messages for c in m.tool_calls}
        answers = {
            m.tool_call_id: (calls.get(m.tool_call_id) or m.name or "a tool", f"→ {m.text}")
            for m in self.messages
            if isinstance(m, ToolMessage)
        }
        yield from ({key: (call, "") for key, call in calls.items()} | answers).values()


RESULT_KEYS = ("messages", "turn", "current_active_agent", "output")
"""The channels of an agent's graph from which its reply is read."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run: its state and its open questions."""

    values: Mapping[str, Any]
    interrupts: Sequence[RawInterrupt]
    agents: Mapping[str, str] = field(default_factory=dict)
    """The path of the agent that asks, by the id of its question."""
    active: str | None = None
    """The path of the agent that has the conversation, while the run waits."""


def reply_to(
    agent: AgentSpec, run: Run, outcome: Outcome, known_ids: Collection[str | None]
) -> Reply[Any]:
    """Read an agent's answer; `known_ids` are the ids of messages from before the run."""
    values = outcome.values
    new_messages = _new_messages(values.get("messages") or [], known_ids)
    texts = [m for m in new_messages if isinstance(m, AIMessage) and m.text]
    path = outcome.active or values.get("current_active_agent")
    interrupts = questions_of((outcome.agents.get(i.id, ""), i) for i in outcome.interrupts)
    output = output_of(agent, values.get("output"), path)
    guard = (values.get("turn") or {}).get("closed")
    text = _text_of(texts, run, output, guard)
    return Reply(
        text="" if interrupts else text,
        agent=f"{agent.name}/{path}" if path else agent.name,
        thread_id=run.thread_id,
        output=output,
        messages=new_messages,
        usage=Usage.of_run(run),
        interrupts=interrupts,
        close_reason=guard,
        citations=tuple(citations_of(texts[-1])) if texts else (),
    )


def _text_of(texts: Sequence[AIMessage], run: Run, output: object | None, guard: str | None) -> str:
    """Return the last text; if it stood beside a tool call, why a guard then ended the run too."""
    if not texts:
        return _text_of_end(run, output, guard)
    text = str(texts[-1].text)
    is_answer = not guard or not texts[-1].tool_calls
    return text if is_answer else f"{text}\n\n{_text_of_end(run, None, guard)}"


def _text_of_end(run: Run, output: object | None, guard: str | None) -> str:
    """Return what a run that said nothing answers: its output, or why a guard ended it."""
    if output is not None:
        return to_json(output, fallback=str).decode()
    if not guard:
        return ""
    # The cause is unknown where another process made the decision.
    return sentence_of_stop(guard, run.causes.get(guard, ""))


def questions_of(raw: Iterable[tuple[str, RawInterrupt]]) -> tuple[Interrupt, ...]:
    """Return LangGraph's interrupts, each with the path of its agent, as questions."""
    return tuple(
        Interrupt(i.id, i.value, getattr(i, "response_schema", None), agent) for agent, i in raw
    )


def _new_messages(
    messages: Sequence[AnyMessage], known_ids: Collection[str | None]
) -> list[AnyMessage]:
    """Return the messages after the last one that is known."""
    start = 0
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].id in known_ids:
            start = position + 1
            break
    return [message for message in messages[start:] if message.id not in known_ids]


def output_of(agent: AgentSpec, answer: StoredAnswer | None, path: str | None) -> object | None:
    """Return the answer's object, in the form of the agent at the end of the path."""
    if answer is None:
        return None
    speaker: Participant | AgentSpec = agent
    for name in path.split("/") if path else ():
        members = speaker.sub_agents if isinstance(speaker, AgentSpec) else ()
        speaker = next(member for member in members if member.name == name)
    form = speaker.output_format if isinstance(speaker, AgentSpec) else None
    return answer["value"] if form is None else form.load(answer)


def closing_events(reply: Reply[object]) -> Iterator[Event]:
    """Yield the events at the end of a run: its questions, then its final state."""
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
