"""`Agent`, the class that users write: a specification that compiles on first use, and its runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import StateSnapshot
from typing_extensions import Unpack

from agentgraph.agents.build import PRIVATE_CHANNELS, compile_in_team, compile_root
from agentgraph.agents.picture import mermaid_of, mimebundle_of, picture_of, visible_graph
from agentgraph.agents.run.inputs import Continuation, Decisions, Input
from agentgraph.agents.run.recovery import Answers, Journal
from agentgraph.agents.run.remains import remains_of_run
from agentgraph.agents.run.reply import Output, Reply, output_of
from agentgraph.agents.run.runner import Runner
from agentgraph.agents.spec.agent_spec import AgentChanges, AgentFields, AgentSpec
from agentgraph.agents.spec.checks import faults_of, faults_under, gates_under
from agentgraph.agents.spec.output import Form, StoredAnswer, Strategy
from agentgraph.agents.spec.tools import AgentTool, agent_tool
from agentgraph.agents.spec.toolset import tool_names_of
from agentgraph.agents.spec.tree import history_sizes_of, names_of
from agentgraph.blocking import iterate_sync, run_sync
from agentgraph.errors import ConfigurationError, suggestion
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.graphs.public_graph import PublicGraph, with_substitute
from agentgraph.guards import Effect, Guards
from agentgraph.guards.checks import GateAt
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.enclosure import current_enclosure
from agentgraph.interception import outer_call
from agentgraph.outcomes import Interrupt
from agentgraph.participant import Membership, Remains, ToolNames, provide_agents
from agentgraph.storage import default_saver, open_saver, with_async_methods
from agentgraph.stream import AnyEvent


@dataclass(frozen=True, eq=False, repr=False)
class Agent(AgentSpec, Generic[Output]):
    """A model with tools and sub-agents.

    `handoff="sticky"` moves the conversation to a sub-agent, which keeps it; `"delegate"` runs the
    transfers of one message in parallel and brings their answers back to this agent's model.
    Only its guards retry a failed model call: the retries of the model's own client are switched
    off, or a warning reports them where that is impossible.

        support = Agent("support", "Front desk", model=model, agents=[billing], tools=[look_up])
        reply = support.invoke("I was charged twice", thread_id="42")

    An agent never changes, and runs on any number of threads at a time. Raises
    `ConfigurationError` with all faults of its tree at once.
    """

    if TYPE_CHECKING:  # `dataclass` makes it; this says which `response_format` makes which type

        @overload
        def __init__(
            self: Agent[None],
            name: str,
            description: str = "",
            *,
            response_format: None = None,
            **fields: Unpack[AgentFields],
        ) -> None: ...
        @overload
        def __init__(
            self: Agent[dict[str, Any]],
            name: str,
            description: str = "",
            *,
            response_format: Mapping[str, Any],
            **fields: Unpack[AgentFields],
        ) -> None: ...
        @overload
        def __init__(
            self: Agent[Form],
            name: str,
            description: str = "",
            *,
            response_format: type[Form] | Strategy[Form],
            **fields: Unpack[AgentFields],
        ) -> None: ...
        @overload
        def __init__(
            self,
            name: str,
            description: str = "",
            *,
            response_format: UnionType,
            **fields: Unpack[AgentFields],
        ) -> None: ...
        def __init__(
            self,
            name: str,
            description: str = "",
            *,
            response_format: object = None,
            **fields: Unpack[AgentFields],
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigurationError(f"name={self.name!r}: an agent's name is a string")
        faults = [*self._normalize(), *faults_of(self)]
        if faults:
            raise ConfigurationError(dict.fromkeys(faults))

    def __deepcopy__(self, memo: dict[int, object]) -> Agent[Output]:
        return self  # immutable; what it has compiled holds locks that cannot be copied

    def __repr__(self) -> str:
        below = ", ".join(participant.name for participant in self.sub_agents)
        return f"Agent({self.name!r}{f', agents=[{below}]' if below else ''})"

    async def ainvoke(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> Reply[Output]:
        """Answer, on a thread of the conversation or on a new one.

            reply = await agent.ainvoke("I was charged twice", thread_id="42")

        A run on a busy thread waits until the thread is free. `context` is LangGraph's runtime
        context. `Reply.interrupts` has the questions that a human must answer before the run goes
        on, `Reply.close_reason` the guard that has ended it. Raises `ModelError` where a model
        fails.
        """
        return await self._runner.answer(input, thread_id, context, config)

    async def astream(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> AsyncGenerator[AnyEvent, None]:
        """Answer, and yield all that happens as events; closing the iterator ends the run.

            async for event in agent.astream("and my invoice?", thread_id="42"):
                print(event.type, event.to_dict())

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
        sender: str | None = None,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> Reply[Output]:
        """Go on with a run that waits for decisions, given by the ids of its interrupts.

        It works in any process, with nothing but the thread's checkpoint. A decision is stored, as
        that of `sender`, before the run goes on. The same one once more goes on with a run that was
        cut off since; another one raises `AlreadyDecided`, as does any once the run has gone on to
        its end. Raises `RoutingError` for a decision on an interrupt that is not open.
        """
        answers = Decisions(decisions, sender)
        return await self._runner.answer(answers, thread_id, context, config)

    async def acontinue(
        self,
        thread_id: str,
        *,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> Reply[Output]:
        """Go on with a run that was cut off, without a new message.

            reply = await agent.acontinue("42")  # after a crash, a cancellation or a `ModelError`

        What finished before does not run again; a tool call that was under way does, and an
        `@effect` whose outcome is unknown is looked up or reported as unknown. Decisions that were
        given before count. Raises
        `RoutingError` where no run was cut off, or where it waits for decisions.
        """
        return await self._runner.answer(Continuation(), thread_id, context, config)

    async def ahistory(self, thread_id: str) -> list[AnyMessage]:
        """Return the messages of a thread, those of an unfinished run included.

        A call that runs, or waits for a decision, has no answer yet.
        """
        return await self._runner.history(thread_id)

    async def ainterrupts(self, thread_id: str) -> tuple[Interrupt, ...]:
        """Return the open questions of a thread."""
        return await self._runner.interrupts(thread_id)

    async def aforget(self, thread_id: str) -> None:
        """Delete a thread, with its messages and everything that an unfinished run left on it.

        The threads of its remote agents are deleted on their servers too. Where a server cannot be
        reached or refuses, a warning is logged: delete them there. The thread itself is deleted all
        the same.
        """
        await self._runner.forget(thread_id)

    def invoke(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> Reply[Output]:
        """Answer; works in a notebook as well as in a script."""
        return run_sync(self.ainvoke(input, thread_id=thread_id, context=context, config=config))

    def stream(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> Iterator[AnyEvent]:
        """Answer, and yield all that happens as events."""
        return iterate_sync(self._runner.stream(input, thread_id, context, config))

    def resume(
        self,
        thread_id: str,
        decisions: Mapping[str, object],
        *,
        sender: str | None = None,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> Reply[Output]:
        """Go on with a run that waits for decisions."""
        return run_sync(
            self.aresume(thread_id, decisions, sender=sender, context=context, config=config)
        )

    def as_tool(self) -> AgentTool:
        """Return a tool that asks this agent; the agent gets the request and nothing else."""
        return agent_tool(self)

    @overload
    def replace(self, *, deep: bool = False, **changes: Unpack[AgentChanges]) -> Agent[Output]: ...
    @overload
    def replace(
        self, *, deep: bool = False, response_format: None, **changes: Unpack[AgentChanges]
    ) -> Agent[None]: ...
    @overload
    def replace(
        self,
        *,
        deep: bool = False,
        response_format: Mapping[str, Any],
        **changes: Unpack[AgentChanges],
    ) -> Agent[dict[str, Any]]: ...
    @overload
    def replace(
        self,
        *,
        deep: bool = False,
        response_format: type[Form] | Strategy[Form],
        **changes: Unpack[AgentChanges],
    ) -> Agent[Form]: ...
    @overload
    def replace(
        self, *, deep: bool = False, response_format: UnionType, **changes: Unpack[AgentChanges]
    ) -> Agent[Any]: ...
    def replace(self, *, deep: bool = False, **changes: Any) -> Agent[Any]:
        """Return a changed agent; `deep=True` changes all agents below it too.

            offline = support.replace(deep=True, model=ScriptedModel(["hello"]))

        Name and description are changed here only. Raises `ConfigurationError` as `Agent` does.
        """
        names = [field.name for field in fields(self) if not field.name.startswith("_")]
        surplus = sorted(set(changes) - set(names))
        if surplus:
            raise ConfigurationError(
                [f"an Agent has no field {name!r}: {suggestion(name, names)}" for name in surplus]
            )
        values = {field.name: getattr(self, field.name) for field in fields(self)} | changes
        if deep:
            below = {k: v for k, v in changes.items() if k not in ("name", "description")}
            for key in {"tools", "agents"} - changes.keys():
                values[key] = [_replaced_member(member, below) for member in values[key]]
        name, description = values.pop("name"), values.pop("description")
        return type(self)(name, description, **values)

    def mermaid(self) -> str:
        """Draw the tree's graph, as Mermaid text; guards are drawn where a run may come to them."""
        return mermaid_of(visible_graph(self, self.graph))

    def svg(self) -> str:
        """Draw the tree's graph, as a self-contained SVG picture."""
        return picture_of(visible_graph(self, self.graph))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return mimebundle_of(self, lambda: visible_graph(self, self.graph))

    @property
    def graph(self) -> AnyCompiledGraph:
        """The graph with this agent as its root: an ordinary one, for all of LangGraph's tools.

        It has a saver only where the agent has a `checkpointer`: whoever runs the graph brings one.
        Two agents whose graphs one node's function calls need names of their own: by its name each
        finds in the messages which of its sub-agents has the conversation.
        """
        return self._graph

    def graph_in_team(self, membership: Membership, guards: Guards | None) -> AnyCompiledGraph:
        """Compile for a place in a team; the run carries the team's history."""
        return compile_in_team(self, membership, guards)

    @property
    def private_channels(self) -> frozenset[str]:
        """The channels of the graph that last no longer than a turn, or that a session has."""
        return PRIVATE_CHANNELS

    @property
    def history_sizes(self) -> frozenset[int] | None:
        """How many messages the agents of the tree look back; None where one needs all of them."""
        return history_sizes_of(self)

    def load_output(self, answer: Mapping[str, Any], path: str | None) -> object:
        """Return the object of a stored answer, in the form of the agent at a path below this."""
        return output_of(self, cast(StoredAnswer, answer), path)

    def remains_of(
        self,
        snapshot: StateSnapshot,
        journal: Journal,
        *,
        is_over: bool,
        answers: Answers = MappingProxyType({}),
    ) -> Remains:
        """Return what an unfinished run leaves to the next one of its session."""
        return remains_of_run(self, snapshot, journal, is_over=is_over, answers=answers)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The names of all agents of the tree."""
        return names_of(self)

    def faults_under(self, guards: Guards) -> list[str]:
        """Return the faults of the tree under a team's guards."""
        return list(faults_under(self, self.guards_within(guards, self.name)))

    def gates_under(self, guards: Guards) -> list[GateAt]:
        """Return the gates with schemas by tool that apply to the tree under a team's guards."""
        return list(gates_under(self, self.guards_within(guards, self.name)))

    @property
    def tool_names(self) -> ToolNames | None:
        """The names of all tools of the tree, None if they are not all known."""
        return tool_names_of(self)

    @cached_property
    def _graph(self) -> AnyCompiledGraph:
        # Apart from `graph`: type checkers do not take this decorator for `Participant.graph`.
        graph = self._own_graph
        if self.guards is None:
            with_substitute(graph, self._graph_in_tool)
        return graph if self.checkpointer is not None else graph.copy({"checkpointer": None})

    def _graph_in_tool(self) -> PublicGraph | None:
        """Return the graph under the guards of the tool around this code, None where it has none.

        Only for an agent without guards.
        """
        enclosure = None if outer_call() is None else current_enclosure()
        if enclosure is None:
            return None
        return cast("PublicGraph", self._runner_under(enclosure.policy).graph)

    @cached_property
    def _saver(self) -> BaseCheckpointSaver[Any]:
        if self.checkpointer is None:
            return default_saver()
        if isinstance(self.checkpointer, str):
            return open_saver(self.checkpointer)
        return with_async_methods(self.checkpointer)

    @cached_property
    def _own_graph(self) -> AnyCompiledGraph:
        """The graph of the agent's own runs, with the environment's saver where it has none."""
        return compile_root(self, self._saver, self._effects)

    @cached_property
    def _effects(self) -> dict[str, Effect]:
        """The effects of the tree's tools by path and name, once its graph is compiled."""
        return {}

    @property
    def _runner(self) -> Runner:
        """The runner; in a tool of a guarded agent, an agent without guards is under its guards."""
        if self.guards is not None or outer_call() is None:
            return self._own_runner
        enclosure = current_enclosure()
        return self._own_runner if enclosure is None else self._runner_under(enclosure.policy)

    @cached_property
    def _own_runner(self) -> Runner:
        return Runner(self, self._own_graph, self._saver, self._effects)

    def _runner_under(self, policy: Policy) -> Runner:
        latest = self.__dict__.get("_enclosed_runner")
        if latest is None or latest[0] is not policy:
            # Not by `replace`: the tree has been checked, and would give its warnings again.
            agent = object.__new__(type(self))
            for field in fields(self):
                object.__setattr__(agent, field.name, getattr(self, field.name))
            object.__setattr__(agent, "guards", policy)
            effects: dict[str, Effect] = {}
            graph = compile_root(agent, self._saver, effects)
            runner = Runner(agent, graph, self._saver, effects)
            latest = self.__dict__["_enclosed_runner"] = policy, runner
        runner_under: Runner = latest[1]
        return runner_under


def _replaced_member(member: Any, changes: Mapping[str, Any]) -> Any:
    if isinstance(member, Agent):
        return member.replace(deep=True, **changes)
    if isinstance(member, AgentTool) and isinstance(member.agent, Agent):
        return member.agent.replace(deep=True, **changes).as_tool()
    return member


def _plain_agent(name: str, model: Any, system_prompt: str) -> Agent[None]:
    return Agent(name, model=model, system_prompt=system_prompt, default_tools=False)


provide_agents(_plain_agent)
