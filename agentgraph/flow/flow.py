"""`Flow`, the class that users write: work in five stages, with a gate between every two."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.graph import Graph
from langgraph.checkpoint.base import BaseCheckpointSaver
from pydantic import BaseModel
from typing_extensions import Unpack

from agentgraph.agents.picture import mermaid_of, mimebundle_of, picture_of
from agentgraph.agents.run.inputs import Continuation, Decisions, Input
from agentgraph.agents.spec.tools import AgentTool, agent_tool
from agentgraph.blocking import iterate_sync, run_sync
from agentgraph.flow.build import PRIVATE_CHANNELS, FlowInPlace, compile_flow
from agentgraph.flow.display.flow_picture import picture_graph
from agentgraph.flow.result import FlowResult
from agentgraph.flow.runs import FlowRuns
from agentgraph.flow.spec import FlowFields, FlowSpec
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.guards import Effect, Guards
from agentgraph.outcomes import Interrupt
from agentgraph.participant import RunEnd
from agentgraph.storage import default_saver, open_saver, with_async_methods
from agentgraph.stream import AnyEvent

T = TypeVar("T")
Form = TypeVar("Form", bound=BaseModel)


@dataclass(frozen=True, eq=False, repr=False)
class Flow(FlowSpec, Generic[T]):
    """Work in five stages: plan, fan-out, fan-in, validate, finalize.

        flow = Flow("report", "Researches and writes", supervisor=lead, work=[searcher, writer])
        result = await flow.ainvoke("A page on tides")
        print(result.text, result.usage.total_tokens)

    The supervisor plans, aggregates, validates and finalizes; `plan=`, `aggregate=`, `validate=`
    and `finalize=` replace a part, each by an agent or a function. Without any of them there is one
    brief for each worker, the summaries are joined, and nothing asks a model that was not given
    one. Each stage has a gate before and after it, see `Stage`; what fails is decided by the
    decision table of `guards`, which are `Guards.batch()` unless others are given.

    With a `checkpointer` that lasts, another process goes on with what was killed, by `acontinue`.
    Under `durability="sync"` no finished worker works again; under `"async"` the last ones may;
    under `"exit"` nothing is stored before a run ends or waits, and a killed one begins anew.

    A flow never changes, and runs on any number of threads. It is a participant as an agent is: it
    can be served, sit in a Team, be a tool, or the worker of another flow. Raises
    `ConfigurationError` with all faults at once.
    """

    if TYPE_CHECKING:  # `dataclass` makes it; this says which `outcome` makes which type

        @overload
        def __init__(
            self: Flow[Any],
            name: str,
            description: str = "",
            *,
            outcome: None = None,
            **fields: Unpack[FlowFields],
        ) -> None: ...
        @overload
        def __init__(
            self: Flow[Form],
            name: str,
            description: str = "",
            *,
            outcome: type[Form],
            **fields: Unpack[FlowFields],
        ) -> None: ...
        def __init__(
            self,
            name: str,
            description: str = "",
            *,
            outcome: type[BaseModel] | None = None,
            **fields: Unpack[FlowFields],
        ) -> None: ...

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, work=[{', '.join(self.workers)}])"

    def __deepcopy__(self, memo: dict[int, object]) -> Flow[T]:
        return self

    # Runs.

    async def ainvoke(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> FlowResult[T]:
        """Run a task to its outcome, on a thread or on a new one.

        `FlowResult.interrupts` has the questions that a human must answer before it goes on.

        A thread has one flow at a time. Where the one before was aborted and is not undone yet, it
        is undone first; a question that nobody has answered in time counts as rejected. Where it
        was cut off, or waits, the new task takes its place: the thread's messages say so, and what
        it has done stays, but is undone with the new task's own actions should that be aborted. Go
        on with it by `acontinue` or `aresume` instead, if that is not what you want.
        """
        return await self._runs.answer(input, thread_id, context, config)

    async def astream(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> AsyncGenerator[AnyEvent, None]:
        """Run a task, and yield all that happens as events; closing the iterator ends the run."""
        stream = self._runs.stream(input, thread_id, context, config)
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
    ) -> FlowResult[T]:
        """Go on with a flow that waits for decisions, given by the ids of its interrupts.

        Each question takes one decision, that of whichever process comes first. It is stored, as
        that of `sender`, before the flow goes on. The same one once more goes on with a flow that
        was cut off since; another one raises `AlreadyDecided`. Raises
        `RoutingError("unknown_interrupt")` for a question that is not open.
        """
        return await self._runs.answer(Decisions(decisions, sender), thread_id, context, config)

    async def acontinue(
        self,
        thread_id: str,
        *,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> FlowResult[T]:
        """Go on with a flow that was cut off; no worker that has finished works again.

        One that waits asks its questions once more, in `FlowResult.interrupts`. Raises
        `RoutingError("not_cut_off")` where nothing was cut off.
        """
        return await self._runs.answer(Continuation(), thread_id, context, config)

    async def aresult(self, thread_id: str) -> FlowResult[T]:
        """Return the result of the last run on a thread; "waiting" while it is not over.

        Its usage is that of its stages. Raises `RoutingError` for an unknown thread.
        """
        return await self._runs.result(thread_id)

    async def ainterrupts(self, thread_id: str) -> tuple[Interrupt, ...]:
        """Return the open questions of a thread."""
        return await self._runs.questions(thread_id)

    def judged(self, thread_id: str, success: bool) -> None:
        """Record the oracle's answer on the last outcome of a thread, where it comes later.

        `agentgraph audit --flows` counts it. Raises `ConfigurationError` without an audit trail,
        and `RoutingError` where the audit has no end of this flow on the thread.
        """
        self._runs.judge(thread_id, success)

    async def ahistory(self, thread_id: str) -> list[AnyMessage]:
        """Return the messages of a thread: the tasks and the outcomes."""
        return await self._runs.history(thread_id)

    async def aforget(self, thread_id: str) -> None:
        """Delete a thread, with all that is stored of it."""
        await self._runs.forget(thread_id)

    arun = ainvoke

    def invoke(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> FlowResult[T]:
        """Run a task to its outcome; works in a notebook as well as in a script."""
        return run_sync(self.ainvoke(input, thread_id=thread_id, context=context, config=config))

    run = invoke

    def stream(
        self,
        input: Input,
        *,
        thread_id: str | None = None,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> Iterator[AnyEvent]:
        """Run a task, and yield all that happens as events."""
        return iterate_sync(self._runs.stream(input, thread_id, context, config))

    def resume(
        self,
        thread_id: str,
        decisions: Mapping[str, object],
        *,
        sender: str | None = None,
        context: object = None,
        config: RunnableConfig | None = None,
    ) -> FlowResult[T]:
        """Go on with a flow that waits for decisions."""
        return run_sync(
            self.aresume(thread_id, decisions, sender=sender, context=context, config=config)
        )

    def history(self, thread_id: str) -> list[AnyMessage]:
        """Return the messages of a thread."""
        return run_sync(self.ahistory(thread_id))

    def replace(self, **changes: Any) -> Flow[T]:
        """Return a changed flow."""
        return replace(self, **changes)

    def as_tool(self) -> AgentTool:
        """Return a tool that runs this flow on a request."""
        return agent_tool(self)

    # Its graph.

    @property
    def graph(self) -> AnyCompiledGraph:
        """The graph of the flow: an ordinary one, whose nodes are the stages and the workers.

        It has a saver only where the flow has a `checkpointer`: whoever runs the graph brings one.
        """
        return self._graph if self.checkpointer is not None else self._graph_without_saver

    @property
    def private_channels(self) -> frozenset[str]:
        """The channels of its graph that last no longer than an input: all but the messages."""
        return PRIVATE_CHANNELS

    @property
    def end_channels(self) -> Sequence[str]:
        """The channels that say how a run has ended."""
        return ("end",)

    def end_in(self, values: Mapping[str, Any]) -> RunEnd:
        """Return how the run has ended that has left these values."""
        end: Mapping[str, Any] = values.get("end") or {}
        is_aborted = end.get("status") == "aborted"
        value = end.get("outcome")
        output = None if value is None else {"form": "outcome", "value": value}
        return RunEnd(output, str(end.get("reason", "")) if is_aborted else None)

    def load_output(self, answer: Mapping[str, Any], path: str | None) -> object:
        """Return the outcome of a stored answer, as an object of its form."""
        value = answer.get("value")
        return value if self.outcome is None else self.outcome.model_validate(value)

    def under_guards(self, guards: Guards | None, path: str) -> FlowInPlace:
        """Return this flow for a place at `path`, under the guards around it."""
        effects: dict[str, Effect] = {}
        return FlowInPlace(self.in_place(guards, path, effects), effects)

    def in_place(
        self, guards: Guards | None, path: str, effects: MutableMapping[str, Effect]
    ) -> AnyCompiledGraph:
        """Return the graph of this flow for a place at `path`, under the guards around it.

        Its effects are added to `effects`, by which all that is done around it is undone too.
        """
        own = self.guards
        inner = own.within(guards, path) if isinstance(own, Guards) else guards
        return compile_flow(self, inner, path, effects)

    def mermaid(self) -> str:
        """Draw the flow, as Mermaid text."""
        return mermaid_of(self._picture)

    def svg(self) -> str:
        """Draw the flow, as a self-contained SVG picture."""
        return picture_of(self._picture)

    @property
    def _picture(self) -> Graph:
        name, has_guards = self.work_topology.name, self.policy is not None
        return picture_graph([*self.workers], name, asks_humans=has_guards)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        def compiled_picture() -> Graph:
            self._graph  # noqa: B018  # a flow that cannot be compiled says why
            return self._picture

        return mimebundle_of(self, compiled_picture)

    @cached_property
    def _graph(self) -> AnyCompiledGraph:
        return compile_flow(self, self.policy, self.name, self._effects, self._saver)

    @cached_property
    def _effects(self) -> dict[str, Effect]:
        """How the actions of all members are undone, once the graph is compiled."""
        return {}

    @cached_property
    def _graph_without_saver(self) -> AnyCompiledGraph:
        return self._graph.copy({"checkpointer": None})

    @cached_property
    def _saver(self) -> BaseCheckpointSaver[Any]:
        if self.checkpointer is None:
            return default_saver()
        if isinstance(self.checkpointer, str):
            return open_saver(self.checkpointer)
        return with_async_methods(self.checkpointer)

    @cached_property
    def _runs(self) -> FlowRuns:
        return FlowRuns(self, self._graph, self._saver, self._effects)
