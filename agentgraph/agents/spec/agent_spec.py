"""The specification of an agent: its fields, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from typing_extensions import TypedDict

from agentgraph.agents.spec.intents import Intent
from agentgraph.agents.spec.output import OutputFormat, ResponseFormat
from agentgraph.agents.spec.tools import AgentTool, ToolLike, as_base_tool
from agentgraph.agents.spec.values import (
    Durability,
    HandoffMode,
    SystemPrompt,
    form_fault,
    member_fault,
    value_faults,
)
from agentgraph.errors import ConfigurationError, suggestion
from agentgraph.guards import DEFAULT, Default, Guards
from agentgraph.history import HistoryPolicy
from agentgraph.participant import Graph, Participant, as_participant
from agentgraph.patching import Patch

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware


Member: TypeAlias = Participant | AgentTool | Graph


class AgentFields(TypedDict, total=False):
    """The fields of an agent that do not decide on its type, for the signatures of `Agent`."""

    model: BaseChatModel | str | None
    system_prompt: SystemPrompt
    tools: Sequence[ToolLike | Member]
    agents: Sequence[Member]
    intents: Sequence[Intent]
    handoff: HandoffMode
    history: HistoryPolicy
    middleware: Sequence[AgentMiddleware[Any, Any]]
    patcher: Patch | Sequence[Patch]
    guards: Guards | Default | None
    checkpointer: BaseCheckpointSaver[Any] | str | None
    store: BaseStore | None
    durability: Durability
    context_schema: type | None
    default_tools: bool


class AgentChanges(AgentFields, total=False):
    """The fields that `Agent.replace` changes without changing the agent's type."""

    name: str
    description: str


_LISTS = ("agents", "tools", "intents", "patcher", "middleware")


@dataclass(frozen=True, eq=False, repr=False)
class AgentSpec:
    """The specification of an agent: data, without a graph or a run.

    The nodes, the build and the runs of an agent are typed against this class. Users write its
    subclass `agentgraph.Agent`, which checks the whole tree and runs it.
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

    @overload
    def guards_within(self, outer: Guards, path: str = "") -> Guards: ...
    @overload
    def guards_within(self, outer: Guards | None, path: str = "") -> Guards | None: ...
    def guards_within(self, outer: Guards | None, path: str = "") -> Guards | None:
        """Return the policy for this agent: the outer one, tightened by the agent's own."""
        own = self.guards
        return own.within(outer, path) if isinstance(own, Guards) else outer

    @cached_property
    def policy(self) -> Guards | None:
        """The guards in force where this agent is the root of its tree, None without any."""
        return Guards.default() if isinstance(self.guards, Default) else self.guards

    def policy_at(self, path: str) -> Guards | None:
        """Return the guards in force at an agent of this tree, by its name or its path.

            desk.policy_at("billing")  # the desk's guards, tightened by those of billing

        Raises `ConfigurationError` where the tree has no such agent.
        """
        policies = dict(self._policies(self.policy, self.name))
        for place, policy in policies.items():
            if f"/{place}".lower().endswith(f"/{path.lower()}"):
                return None if policy is None else policy.at(place)
        raise ConfigurationError(f"there is no agent {path!r} here: {suggestion(path, policies)}")

    def _policies(self, guards: Guards | None, path: str) -> Iterator[tuple[str, Guards | None]]:
        """Yield the paths of all agents of the tree with the policies that hold there."""
        yield path, guards
        for child in self.children:
            below = f"{path}/{child.name}"
            if isinstance(child, AgentSpec):
                yield from child._policies(child.guards_within(guards, below), below)
            else:
                yield below, guards

    @cached_property
    def patchers(self) -> tuple[Patch, ...]:
        """The patchers in their order."""
        return (self.patcher,) if callable(self.patcher) else tuple(self.patcher)

    @cached_property
    def output_format(self) -> OutputFormat | None:
        """The forms that this agent's answers may have, None where any text is an answer."""
        return None if self.response_format is None else OutputFormat(self.response_format)

    @cached_property
    def own_tools(self) -> tuple[BaseTool, ...]:
        """The tools that this process runs."""
        return tuple(
            as_base_tool(tool)  # type: ignore[arg-type]  # all others are tools or functions
            for tool in self.tools
            if not isinstance(tool, Mapping | AgentTool) and as_participant(tool) is None
        )

    @cached_property
    def native_tools(self) -> tuple[Mapping[str, Any], ...]:
        """The provider's own tools: bound to the model, never run in this process."""
        return tuple(tool for tool in self.tools if isinstance(tool, Mapping))

    @cached_property
    def sub_agents(self) -> tuple[Participant, ...]:
        """The participants to which the conversation can move."""
        candidates = [as_participant(member) for member in (*self.agents, *self.tools)]
        return tuple(participant for participant in candidates if participant is not None)

    @cached_property
    def agent_tools(self) -> tuple[AgentTool, ...]:
        """The agents that the model calls like tools."""
        return tuple(t for t in (*self.agents, *self.tools) if isinstance(t, AgentTool))

    @property
    def children(self) -> tuple[Participant, ...]:
        """All participants directly below: first the sub-agents, then those called like tools."""
        return (*self.sub_agents, *(tool.agent for tool in self.agent_tools))

    def _normalize(self) -> Iterator[str]:
        """Make tuples of the lists, remove members that do not fit, and yield their faults.

        They are removed so that the checks of the tree can run on the rest, and all faults are
        reported at once.
        """
        if callable(self.patcher):
            object.__setattr__(self, "patcher", (self.patcher,))
        yield from self._as_tuples()
        for name in _LISTS:
            faults = [(member, member_fault(name, member)) for member in getattr(self, name)]
            object.__setattr__(self, name, tuple(m for m, fault in faults if fault is None))
            yield from (fault for _, fault in faults if fault is not None)
        fault = None if self.response_format is None else form_fault(self.response_format)
        if fault is not None:
            yield fault
            object.__setattr__(self, "response_format", None)
        yield from value_faults(vars(self))

    def _as_tuples(self) -> Iterator[str]:
        # Copies: the caller may change its lists later, and an agent never changes.
        for name in ("tools", "agents", "intents", "middleware", "patcher"):
            value = getattr(self, name)
            is_list = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
            object.__setattr__(self, name, tuple(value) if is_list else ())
            if not is_list:
                yield f"{name}={value!r}: give a list"
