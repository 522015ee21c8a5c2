"""The toolset of one agent in its place: the names that its model may call, by kind of call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.tools import BaseTool

from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.agents.spec.default_tools import default_tools
from agentgraph.agents.spec.output import OutputFormat
from agentgraph.agents.spec.tools import (
    REQUEST_HELP,
    as_base_tool,
    help_tool,
    transfer_tool,
    transfer_tool_name,
)
from agentgraph.participant import TEAM_TOOLS, HasTools, ToolNames


@dataclass(frozen=True, slots=True)
class Toolset:
    """Every name that the model of an agent may call, by kind of call."""

    ordinary: Mapping[str, BaseTool] = field(default_factory=dict)
    """The tools that this process runs."""
    native: Sequence[Mapping[str, Any]] = ()
    """The tools that the provider runs."""
    transfers: Mapping[str, str] = field(default_factory=dict)
    """The sub-agents that a transfer enters, by tool name."""
    agents: Mapping[str, str] = field(default_factory=dict)
    """The sub-agents that answer like tools, by tool name."""
    signals: Sequence[BaseTool] = ()
    """The tools that the model sees for transfers, agents and `request_help`."""
    output: OutputFormat | None = None
    moves: frozenset[str] = field(init=False)
    """The names of calls that move the conversation instead of running a tool."""
    offers_help: bool = field(init=False)
    """Whether the model may return the conversation to a supervisor."""

    def __post_init__(self) -> None:
        offers_help = any(signal.name == REQUEST_HELP for signal in self.signals)
        object.__setattr__(self, "offers_help", offers_help)
        help_names = [REQUEST_HELP] if offers_help else []
        object.__setattr__(self, "moves", frozenset([*self.transfers, *help_names]))

    @property
    def specs(self) -> list[Any]:
        """Return all tools to bind to the model, without those of the answer's form."""
        return [*self.ordinary.values(), *self.signals, *self.native]


def native_name(native: Mapping[str, Any]) -> str:
    """Return the name of a provider's native tool, or its text where it has none."""
    return str(native.get("name") or native.get("function", {}).get("name") or native)


def toolset_of(
    agent: AgentSpec,
    supervisor: str | None,
    additions: Sequence[BaseTool | Callable[..., Any]] = (),
) -> Toolset:
    """Sort the tools that the model of an agent may call.

    `supervisor` names the agent above it, None at a root; `additions` are the tools that its
    middleware and its team bring. One of these tools replaces the default tool of its name.
    """
    own = [as_base_tool(tool) for tool in (*agent.own_tools, *additions)]
    transfers = {transfer_tool_name(p.name): p.name for p in agent.sub_agents}
    signals: list[BaseTool] = [transfer_tool(p.name, p.description) for p in agent.sub_agents]
    names = {tool.name for tool in (*own, *agent.agent_tools)}
    names |= {native_name(native) for native in agent.native_tools}
    if agent.default_tools:
        defaults = default_tools(
            name=agent.name,
            supervisor=supervisor,
            tools=[(tool.name, tool.description) for tool in own],
            agents=[
                *((p.name, p.description) for p in agent.sub_agents),
                *((tool.name, tool.description) for tool in agent.agent_tools),
            ],
            intents=agent.intents,
        )
        own += [tool for tool in defaults if tool.name not in names]
    if supervisor is not None and REQUEST_HELP not in names:
        signals.append(help_tool(supervisor))
    return Toolset(
        ordinary={tool.name: tool for tool in own},
        native=agent.native_tools,
        transfers=transfers,
        agents={tool.name: tool.name for tool in agent.agent_tools},
        signals=[*signals, *agent.agent_tools],
        output=agent.output_format,
    )


def tool_names_of(agent: AgentSpec) -> ToolNames | None:
    """Return the tools of a tree of agents in any place; None if some of them are not known.

    Middleware and patchers may add tools, and a graph that was built elsewhere has its own.
    """
    if agent.middleware or agent.patchers:
        return None
    below = [
        tool_names_of(child) if isinstance(child, AgentSpec) else _tool_names_in(child)
        for child in agent.children
    ]
    known_names = [names for names in below if names is not None]
    if len(known_names) < len(below):
        return None
    toolset = toolset_of(agent, _ANY_SUPERVISOR)
    own = {tool.name for tool in agent.own_tools} | {native_name(n) for n in toolset.native}
    default = {*toolset.ordinary, *(tool.name for tool in toolset.signals), *TEAM_TOOLS} - own
    return ToolNames(
        frozenset(own).union(*(names.own for names in known_names)),
        frozenset(default).union(*(names.default for names in known_names)),
    )


def _tool_names_in(participant: object) -> ToolNames | None:
    return participant.tool_names if isinstance(participant, HasTools) else None


_ANY_SUPERVISOR = "supervisor"
"""As if the agent had a supervisor, so that it may ask for help."""
