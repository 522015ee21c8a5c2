"""The members of a flow: agents, graphs and functions, made ready for their places in it.

A member that is a graph runs as a graph within the node of its stage, with a run and an account of
its own that are parts of the flow's: the flow's guards hold over it, and where one of them ends the
member, the flow goes on and decides what that means.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessage, HumanMessage, UsageMetadata
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json, to_jsonable_python
from typing_extensions import TypeIs

from agentgraph.agents import Agent
from agentgraph.agents.build import compile_root
from agentgraph.agents.run.inputs import Block
from agentgraph.agents.spec.output import json_in
from agentgraph.agents.spec.tools import transfer_tool_name
from agentgraph.blocking import in_thread
from agentgraph.errors import ConfigurationError
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.graphs.public_graph import run_inside
from agentgraph.guards import Effect, Guards
from agentgraph.guards.nodes.foreign.graph import guarded_copy
from agentgraph.outcomes import Finish
from agentgraph.participant import (
    Graph,
    HasGuards,
    Participant,
    as_participant,
    split_stop,
)
from agentgraph.remote.thread import read_messages
from agentgraph.running import Run, current_run, handed_over, inside_round, inside_run
from agentgraph.stream import Event
from agentgraph.usage import Usage

M = TypeVar("M", bound=BaseModel)

Function: TypeAlias = Callable[..., Any]
_RESULT_KEYS = ("messages", "turn", "output", "current_active_agent", "guarded")
_NO_USAGE = UsageMetadata(input_tokens=0, output_tokens=0, total_tokens=0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a member has answered."""

    text: str = ""
    output: Any = None
    """The answer in the form that it was asked for, as JSON; None without one."""
    closed_by: str = ""
    """The guard that has ended the member's run, "" where it came to its end."""
    cause: str = ""
    failure_class: str = ""
    """Of what class the failure was, "" where the guard's name says it."""
    is_rejected: bool = False
    """Whether a human has rejected it."""
    transfer: str = ""
    """The peer that it has handed the work over to."""
    account: Mapping[str, Any] | None = None
    """Its account, as its graph has stored it; None without guards."""


@dataclass(frozen=True, slots=True)
class Member:
    """A graph in its place in a flow, ready to be run by a node."""

    name: str
    description: str
    graph: Graph
    is_agent: bool
    schema: type[BaseModel] | None = None
    """The form in which a graph that is no agent of ours is asked to answer, as JSON."""

    async def ask(self, text: str, media: Sequence[Block], run: MemberRun) -> Answer:
        """Run the graph on one message, a text with images and files; return what it answers."""
        request = self._request(text)
        blocks = [*([{"type": "text", "text": request}] if request else ()), *media]
        content: Any = blocks if media else request
        message = HumanMessage(content, id=f"brief_{run.part.id}")
        try:
            # The key of a session's round is that of its speaker's turn, and of no member's.
            with inside_run(run.part), handed_over(()), inside_round(None):
                result = await run_inside(self.graph, {"messages": [message]}, self._result_keys)
            if run.part.is_resumed:
                self._add_earlier_usage(result, run.part)
            answer = self._answer_in(result, message.id, run.part)
            return replace(answer, is_rejected=run.part.is_rejected, account=result.get("guarded"))
        finally:  # what a run that fails has used is used
            run.end()

    @property
    def _result_keys(self) -> Sequence[str] | None:
        channels = getattr(self.graph, "channels", {})
        return [key for key in _RESULT_KEYS if key in channels] if self.is_agent else None

    def _add_earlier_usage(self, result: Mapping[str, Any], run: Run) -> None:
        """Record what an earlier process has used, as far as the results tell of it."""
        own_ids = {message.id for part in run.journal.values() for message in part}
        for message in result.get("messages") or () if self.is_agent else ():
            if isinstance(message, AIMessage) and message.id not in own_ids:
                run.record_usage_of(message.name or self.name, message)
        reports: Mapping[str, Any] = result.get("reports") or {}  # of a flow
        usages = [
            Usage.from_dict(report["usage"]).under(f"{self.name}/{report['stage']}/")
            for report in reports.values()
        ]
        for path, usage in Usage.sum(usages).by_agent.items():
            recorded_usage = run.usage.get(path, _NO_USAGE)
            rest = UsageMetadata(
                input_tokens=usage.input_tokens - recorded_usage["input_tokens"],
                output_tokens=usage.output_tokens - recorded_usage["output_tokens"],
                total_tokens=usage.total_tokens - recorded_usage["total_tokens"],
            )
            run.record_usage(path, rest, run.models.get(path, ""))

    def _request(self, text: str) -> str:
        if self.is_agent or self.schema is None:
            return text
        schema = to_json(self.schema.model_json_schema()).decode()
        return f"{text}\n\nAnswer with one JSON object of this schema, and nothing else:\n{schema}"

    def _answer_in(self, result: Mapping[str, Any], request_id: str | None, run: Run) -> Answer:
        # A team's result does not have the request.
        messages = [m for m in read_messages(result.get("messages") or ()) if m.id != request_id]
        new_messages, guard = split_stop(messages)
        end = result.get("end") if isinstance(result.get("turn"), Mapping) else None  # of a flow
        if isinstance(end, Mapping) and end.get("status") == "aborted":
            failure_class = str(end.get("failure_class") or "")
            cause = str(end.get("cause") or "")
            return Answer(closed_by=end["reason"], cause=cause, failure_class=failure_class)
        if not self.is_agent:
            self._record_usage(result, new_messages, run)
        texts = [m for m in new_messages if isinstance(m, AIMessage) and m.text]
        reason = (result.get("turn") or {}).get("closed") or result.get("stopped_by") or guard
        closed_by = str(reason or "")
        return Answer(
            str(texts[-1].text) if texts else "",
            self._output_in(result, end),
            closed_by=closed_by,
            cause=run.causes.get(closed_by, ""),
            failure_class=run.failure_classes.get(closed_by, ""),
            transfer=_transfer_in(new_messages),
        )

    def _output_in(self, result: Mapping[str, Any], end: Mapping[str, Any] | None) -> Any:
        """Return the answer that has a form: of an agent, of a flow, or of LangChain's agents."""
        if self.is_agent:
            output = result.get("output")
            return None if output is None else output["value"]
        if end is not None:
            return None if isinstance(end["outcome"], str) else end["outcome"]
        return as_json(result.get("structured_response"))

    def _record_usage(self, result: Mapping[str, Any], messages: Sequence[Any], run: Run) -> None:
        """Record the usage of a graph that no guards have counted; a team reports its own."""
        figures_by_agent = result.get("team_usage")
        if isinstance(figures_by_agent, Mapping):
            for name, figures in figures_by_agent.items():
                run.record_figures(f"{self.name}/{name}", figures)
        elif not run.usage:
            for message in messages:
                if isinstance(message, AIMessage):
                    run.record_usage_of(self.name, message)


_TRANSFER = transfer_tool_name("")


def _transfer_in(messages: Sequence[Any]) -> str:
    """Return the peer to which the last message hands over, "" where it answers."""
    answers = [m for m in messages if isinstance(m, AIMessage)]
    names = [call["name"] for call in answers[-1].tool_calls] if answers else []
    moves = [name.removeprefix(_TRANSFER) for name in names if name.startswith(_TRANSFER)]
    return moves[0] if moves else ""


def transfer_tool(peer: str, description: str) -> BaseTool:
    """Return the tool by which a worker hands the work over to a peer."""

    def transfer(reason: str = "") -> Finish:
        return Finish(reason="handoff")

    about = f" {peer}: {description}" if description else ""
    text = f"Hand the work over to {peer}, who goes on with it.{about}"
    return StructuredTool.from_function(transfer, name=transfer_tool_name(peer), description=text)


@dataclass(frozen=True, slots=True)
class MemberRun:
    """The run of a member, as a part of the flow's run."""

    part: Run
    outer: Run | None
    prefix: str
    """What stands before the paths of its agents, in events and in usage."""

    @classmethod
    def begin(cls, key: str, prefix: str) -> MemberRun:
        """Begin the run; `key` identifies it, and is the same when the node runs again."""
        outer = current_run()
        if outer is None:
            return cls(Run(key, ""), None, prefix)
        tell = outer.tell

        async def tell_with_prefix(event: Event) -> None:
            assert tell is not None
            await tell(replace(event, agent=f"{prefix}{event.agent}"))

        run = Run(key, outer.thread_id, outer.owner)
        run.is_resumed, run.turn_ids = outer.is_resumed, outer.turn_ids
        run.tell = None if tell is None else tell_with_prefix
        return cls(run, outer, prefix)

    def end(self) -> None:
        """Add what the run has used to the flow's run, and pass on that a human has rejected it."""
        if self.outer is not None:
            self.outer.is_rejected |= self.part.is_rejected
            for path, figures in self.part.usage.items():
                model = self.part.models.get(path, "")
                self.outer.record_usage(f"{self.prefix}{path}", figures, model)


# Making members ready.


def compile_member(
    participant: Participant,
    guards: Guards | None,
    path: str,
    effects: MutableMapping[str, Effect],
    schema: type[BaseModel] | None = None,
    tools: Sequence[BaseTool] = (),
) -> Member:
    """Compile a participant for its place in a flow, under the guards of its stage.

    With a `schema` it is asked to answer in that form; an agent gets these `tools` too. The effects
    of its tools are added to `effects`, by their paths from the flow.
    """
    name, description = participant.name, participant.description
    own_effects: dict[str, Effect] = {}
    graph: Graph
    if isinstance(participant, Agent):
        graph = _agent_graph(participant, guards, own_effects, schema, tools)
    elif guards is None:
        graph = participant.graph
    elif isinstance(participant, HasGuards):
        inner = participant.under_guards(guards, name)
        graph = inner.graph  # compiles, and only then are its effects complete
        own_effects.update(inner.effects_at(name))
    else:
        graph = guarded_copy(participant.graph, guards, name)
    effects.update({f"{path}/{key}": effect for key, effect in own_effects.items()})
    return Member(name, description, graph, isinstance(participant, Agent), schema)


def _agent_graph(
    agent: Agent[Any],
    guards: Guards | None,
    effects: dict[str, Effect],
    schema: type[BaseModel] | None,
    tools: Sequence[BaseTool],
) -> AnyCompiledGraph:
    own = agent.guards if isinstance(agent.guards, Guards) else guards
    changes: dict[str, Any] = {"guards": own, "checkpointer": None}
    if schema is not None:
        changes["response_format"] = schema
    if tools:
        changes["tools"] = [*agent.tools, *tools]
    return compile_root(agent.replace(**changes), None, effects)


def member_of(candidate: object, place: str) -> Participant | Function:
    """Return a participant or a function for a place; raises `ConfigurationError` for others."""
    participant = as_participant(candidate)
    if participant is not None:
        return participant
    if callable(candidate):
        return candidate
    raise ConfigurationError(
        f"{place}={candidate!r}: give an Agent, a Team, a Flow, a compiled graph or a function"
    )


def name_of(member: Participant | Function) -> str:
    """Return the name of a member: its own, or that of its function or of its class."""
    name = getattr(member, "name", None) or getattr(member, "__name__", None)
    if name is None and isinstance(member, partial):
        return name_of(member.func)
    return str(name or type(member).__name__)


def is_participant(part: Participant | Function) -> TypeIs[Participant]:
    """Tell whether a part of a flow is a participant, and no function."""
    return all(hasattr(part, name) for name in ("name", "description", "graph"))


async def call_function(function: Function, *arguments: object) -> Any:
    """Call a function of the user's, sync or async, with as many arguments as it takes.

    A sync one runs in a thread: it may block, and is left behind at the deadline of its stage.
    """
    count = _count_of_arguments(function)
    if _is_async(function):
        return await function(*arguments[:count])
    result = await in_thread(function, *arguments[:count])
    return await result if inspect.isawaitable(result) else result


def _is_async(function: Function) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - of an object that can be called
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _count_of_arguments(function: Function) -> int:
    try:
        if (count := _counts.get(function)) is None:
            count = _counts[function] = _inspected_count(function)
    except TypeError:  # it cannot be hashed, or not be referred to weakly
        return _inspected_count(function)
    return count


_counts: WeakKeyDictionary[Function, int] = WeakKeyDictionary()


def _inspected_count(function: Function) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    kinds = inspect.Parameter
    if any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        return 99
    positional = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional for p in parameters)


# Values in a form.


def read_as(schema: type[M], value: object) -> M:
    """Return a value in a form; raises `ValidationError` with all faults where it does not fit."""
    if isinstance(value, str):
        content = object_in(value)
        if content is value:
            return schema.model_validate_json(value)
        value = content
    if isinstance(value, BaseModel):
        return schema.model_validate(value.model_dump(mode="python", serialize_as_any=True))
    return schema.model_validate(value)


def faults_in(error: ValidationError) -> tuple[str, ...]:
    """Return the faults of a value, each with the place where it is."""
    return tuple(
        f"{'.'.join(map(str, fault['loc'])) or 'value'}: {fault['msg']}" for fault in error.errors()
    )


def as_json(value: object) -> Any:
    """Return a value as JSON has it."""
    return to_jsonable_python(value, fallback=str, inf_nan_mode="null")


_MOST_BRACES = 100
"""How many braces in a text are tried as the begin of a JSON object."""


def object_in(text: str) -> Any:
    """Return the JSON object in a text, else the text.

    Models write words around it, and braces into these.
    """
    try:
        return json_in(text)
    except ValueError:
        pass
    braces = (brace.start() for brace in re.finditer(r"\{", text))
    for start in islice(braces, _MOST_BRACES):
        try:
            return json.JSONDecoder().raw_decode(text, start)[0]
        except ValueError:
            continue
    return text
