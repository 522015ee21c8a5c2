"""An agent: an immutable specification, compiled on first use, run on any number of threads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from langgraph.types import Command

from agentgraph.agents.build import compile_root, compile_seated
from agentgraph.agents.nodes.prompt import SystemPrompt
from agentgraph.agents.run.reply import Interrupt, Reply
from agentgraph.agents.run.runner import Input, Runner
from agentgraph.agents.spec.intents import Intent
from agentgraph.agents.spec.names import faults_of, faults_under, gated_under, names_of
from agentgraph.agents.spec.output import ResponseFormat
from agentgraph.agents.spec.picture import drawn, mimebundle_of, picture_of
from agentgraph.agents.spec.toolset import AgentTool, ToolLike, agent_tool, as_base_tool
from agentgraph.agents.spec.values import (
    FORM_ADVICE,
    Durability,
    HandoffMode,
    is_form,
    member_fault,
    value_faults,
)
from agentgraph.errors import ConfigurationError
from agentgraph.guards import DEFAULT, Default, Guards
from agentgraph.guards.checks import GateAt
from agentgraph.history import HistoryPolicy
from agentgraph.participant import Graph, Participant, Seat, as_participant
from agentgraph.patching import AnyCompiledGraph, Patch
from agentgraph.running import run_sync
from agentgraph.storage import default_saver, open_saver
from agentgraph.stream import Event

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware


Member: TypeAlias = Participant | AgentTool | Graph


@dataclass(frozen=True, eq=False, repr=False)
class Agent:
    """A model with tools and sub-agents.

    `handoff="sticky"` moves the conversation to a sub-agent, which keeps it; `"delegate"` runs the
    transfers of one message in parallel and brings their answers back to this agent's model.
    Its guards alone ask a model again that has failed: the retries of a model's own client are
    switched off, or told of where they cannot be.
    """

    name: str
    description: str = ""
    _: KW_ONLY
    model: BaseChatModel | str | None = None
    system_prompt: SystemPrompt = ""
    tools: Sequence[ToolLike | Member] = ()
    agents: Sequence[Member] = ()
    intents: Sequence[Intent] = ()
    handoff: HandoffMode = "sticky"
    history: HistoryPolicy = None
    middleware: Sequence[AgentMiddleware[Any, Any]] = ()
    patcher: Patch | Sequence[Patch] = ()
    guards: Guards | Default | None = DEFAULT
    checkpointer: BaseCheckpointSaver[Any] | str | None = None
    store: BaseStore | None = None
    durability: Durability = "async"
    response_format: ResponseFormat | None = None
    context_schema: type | None = None
    default_tools: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigurationError(f"name={self.name!r}: an agent's name is a string")
        if callable(self.patcher):
            object.__setattr__(self, "patcher", (self.patcher,))
        faults = [*self._as_tuples(), *self._without_strangers(), *value_faults(self)]
        faults += faults_of(self)
        if faults:
            raise ConfigurationError(dict.fromkeys(faults))

    def __deepcopy__(self, memo: dict[int, object]) -> Agent:
        return self  # immutable; what it has compiled holds locks that cannot be copied

    def __repr__(self) -> str:
        below = ", ".join(participant.name for participant in self.sub_agents)
        return f"Agent({self.name!r}{f', agents=[{below}]' if below else ''})"

    async def ainvoke(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: Any = None,
        config: RunnableConfig | None = None,
    ) -> Reply:
        """Answer, on a thread of the conversation or on a new one."""
        return await self._runner.answer(input, thread_id, context, config)

    async def astream(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: Any = None,
        config: RunnableConfig | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Answer, telling all that happens; closing the iterator ends the run.

        `Command(resume={interrupt.id: decision})` as the input goes on with a run that waits.
        """
        stream = self._runner.stream(input, thread_id, context, config)
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()

    async def aresume(
        self,
        thread_id: str,
        decisions: Mapping[str, object],
        *,
        context: Any = None,
        config: RunnableConfig | None = None,
    ) -> Reply:
        """Go on with a run that waits for decisions, given by the ids of its interrupts."""
        given: Command[Any] = Command(resume=decisions)
        return await self._runner.answer(given, thread_id, context, config)

    async def ahistory(self, thread_id: str) -> list[AnyMessage]:
        """Return the messages of a thread, those of an unfinished run included."""
        return await self._runner.history(thread_id)

    async def ainterrupts(self, thread_id: str) -> tuple[Interrupt, ...]:
        """Return the questions that a thread waits for."""
        return await self._runner.interrupts(thread_id)

    async def aforget(self, thread_id: str) -> None:
        """Delete a thread."""
        await self._runner.forget(thread_id)

    def invoke(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: Any = None,
        config: RunnableConfig | None = None,
    ) -> Reply:
        """Answer; works in a notebook as well as in a script."""
        return run_sync(self.ainvoke(input, thread_id=thread_id, context=context, config=config))

    def stream(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: Any = None,
        config: RunnableConfig | None = None,
    ) -> Iterator[Event]:
        """Answer, telling all that happens."""
        events = self._runner.stream(input, thread_id, context, config)

        async def following() -> Event | None:
            return await anext(events, None)

        async def close() -> None:
            await events.aclose()

        try:
            while (event := run_sync(following())) is not None:
                yield event
        finally:
            run_sync(close())

    def resume(
        self,
        thread_id: str,
        decisions: Mapping[str, object],
        *,
        context: Any = None,
        config: RunnableConfig | None = None,
    ) -> Reply:
        """Go on with a run that waits for decisions."""
        return run_sync(self.aresume(thread_id, decisions, context=context, config=config))

    def as_tool(self) -> AgentTool:
        """Return a tool that asks this agent: it is given the request and nothing else."""
        return agent_tool(self)

    def replace(self, *, deep: bool = False, **changes: Any) -> Agent:
        """Return a changed agent; `deep=True` changes all agents below it too."""
        unknown = sorted(set(changes) - {field.name for field in fields(self)})
        if unknown:
            raise ConfigurationError([f"an Agent has no {name!r}" for name in unknown])
        values = {field.name: getattr(self, field.name) for field in fields(self)} | changes
        if deep:
            below = {k: v for k, v in changes.items() if k not in ("name", "description")}
            for key in {"tools", "agents"} - changes.keys():
                values[key] = [_changed(member, below) for member in values[key]]
        name, description = values.pop("name"), values.pop("description")
        return type(self)(name, description, **values)

    def mermaid(self) -> str:
        """Draw the tree's graph, as Mermaid text; guards are drawn where a run may come to them."""
        return drawn(self).draw_mermaid()

    def svg(self) -> str:
        """Draw the tree's graph, as an SVG picture that stands by itself."""
        return picture_of(drawn(self))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return mimebundle_of(self)

    @cached_property
    def graph(self) -> AnyCompiledGraph:
        """The graph with this agent as its root: an ordinary one, for all of LangGraph's tools."""
        return compile_root(self, self._saver)

    def seated(self, seat: Seat, guards: Guards | None) -> AnyCompiledGraph:
        """Compile for a place in a team, whose history comes with the run."""
        return compile_seated(self, seat, guards)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The names of all agents of the tree."""
        return names_of(self)

    def faults_under(self, guards: Guards) -> list[str]:
        """Return what is wrong with the tree where a team's guards hold for it."""
        return list(faults_under(self, self._held_to(guards)))

    def gated_under(self, guards: Guards) -> list[GateAt]:
        """Return the gates that look at tools by name where a team's guards hold for the tree."""
        return list(gated_under(self, self._held_to(guards)))

    def _held_to(self, guards: Guards) -> Guards:
        return self.guards.within(guards, self.name) if isinstance(self.guards, Guards) else guards

    @cached_property
    def patchers(self) -> tuple[Patch, ...]:
        """The patchers in their order."""
        return (self.patcher,) if callable(self.patcher) else tuple(self.patcher)

    @cached_property
    def own_tools(self) -> tuple[BaseTool, ...]:
        """The tools that run here."""
        return tuple(
            as_base_tool(tool)  # type: ignore[arg-type]  # what is left is a tool or a function
            for tool in self.tools
            if not isinstance(tool, Mapping | AgentTool) and as_participant(tool) is None
        )

    @cached_property
    def native_tools(self) -> tuple[Mapping[str, Any], ...]:
        """The provider's own tools: bound, never run here."""
        return tuple(tool for tool in self.tools if isinstance(tool, Mapping))

    @cached_property
    def sub_agents(self) -> tuple[Participant, ...]:
        """Those to whom the conversation can be passed."""
        found = [as_participant(member) for member in (*self.agents, *self.tools)]
        return tuple(participant for participant in found if participant is not None)

    @cached_property
    def agent_tools(self) -> tuple[AgentTool, ...]:
        """Those who are called and answer like tools."""
        return tuple(t for t in (*self.agents, *self.tools) if isinstance(t, AgentTool))

    @cached_property
    def _saver(self) -> BaseCheckpointSaver[Any]:
        if self.checkpointer is None:
            return default_saver()
        if isinstance(self.checkpointer, str):
            return open_saver(self.checkpointer)
        return self.checkpointer

    @cached_property
    def _runner(self) -> Runner:
        return Runner(self, self.graph, self._saver)

    def _as_tuples(self) -> Iterator[str]:
        """Keep tuples of our own: what the caller does to its lists later is not to reach us."""
        for name in ("tools", "agents", "intents", "middleware", "patcher"):
            given = getattr(self, name)
            is_list = isinstance(given, Iterable) and not isinstance(given, str | Mapping)
            object.__setattr__(self, name, tuple(given) if is_list else ())
            if not is_list:
                yield f"{name}={given!r}: give a list"

    def _without_strangers(self) -> Iterator[str]:
        """Leave out what cannot be a member at all, so that the others are checked all the same."""
        for name in ("agents", "tools", "intents", "patcher", "middleware"):
            found = [(member, member_fault(name, member)) for member in getattr(self, name)]
            object.__setattr__(self, name, tuple(m for m, fault in found if fault is None))
            yield from (fault for _, fault in found if fault is not None)
        if self.response_format is not None and not is_form(self.response_format):
            yield f"response_format={self.response_format!r}: {FORM_ADVICE}"
            object.__setattr__(self, "response_format", None)


def _changed(member: Any, changes: Mapping[str, Any]) -> Any:
    if isinstance(member, Agent):
        return member.replace(deep=True, **changes)
    if isinstance(member, AgentTool) and isinstance(member.agent, Agent):
        return member.agent.replace(deep=True, **changes).as_tool()
    return member
