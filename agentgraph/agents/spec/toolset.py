"""The toolset of one agent in its place: the names its model may call, by what a call does."""

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


@dataclass(frozen=True, slots=True)
class Toolset:
    """Every name a model of this agent may call, by what happens to the call."""

    ordinary: Mapping[str, BaseTool] = field(default_factory=dict)
    """Run here."""
    native: Sequence[Mapping[str, Any]] = ()
    """Run by the provider."""
    transfers: Mapping[str, str] = field(default_factory=dict)
    """Tool name to the sub-agent that it enters."""
    agents: Mapping[str, str] = field(default_factory=dict)
    """Tool name to the sub-agent that answers it like a tool."""
    signals: Sequence[BaseTool] = ()
    """What the model is shown for transfers, agents and `request_help`."""
    output: OutputFormat | None = None
    moves: frozenset[str] = field(init=False)
    """The names of calls that move the conversation instead of running a tool."""

    def __post_init__(self) -> None:
        help_names = {signal.name for signal in self.signals if signal.name == REQUEST_HELP}
        object.__setattr__(self, "moves", frozenset(self.transfers) | help_names)

    @property
    def specs(self) -> list[Any]:
        """Return all that the model is bound to."""
        own = [*self.ordinary.values(), *self.signals, *self.native]
        return own if self.output is None else [*own, self.output.spec]

    @property
    def offers_help(self) -> bool:
        """Tell whether the model may give the conversation back."""
        return REQUEST_HELP in self.moves


def toolset_of(
    agent: AgentSpec,
    supervisor: str | None,
    additions: Sequence[BaseTool | Callable[..., Any]] = (),
) -> Toolset:
    """Sort what a model of this agent may call.

    `supervisor` names the agent above it, None at a root; `additions` are the tools that its
    middleware and its team bring.
    """
    own = [as_base_tool(tool) for tool in (*agent.own_tools, *additions)]
    transfers = {transfer_tool_name(p.name): p.name for p in agent.sub_agents}
    signals: list[BaseTool] = [transfer_tool(p.name, p.description) for p in agent.sub_agents]
    if agent.default_tools:
        own += default_tools(
            name=agent.name,
            supervisor=supervisor,
            tools=[(tool.name, tool.description) for tool in own],
            agents=[
                *((p.name, p.description) for p in agent.sub_agents),
                *((tool.name, tool.description) for tool in agent.agent_tools),
            ],
            intents=agent.intents,
        )
        if supervisor is not None:
            signals.append(help_tool(supervisor))
    return Toolset(
        ordinary={tool.name: tool for tool in own},
        native=agent.native_tools,
        transfers=transfers,
        agents={tool.name: tool.name for tool in agent.agent_tools},
        signals=[*signals, *agent.agent_tools],
        output=OutputFormat(agent.response_format) if agent.response_format is not None else None,
    )
