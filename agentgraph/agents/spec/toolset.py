"""The tools of one agent in its place: what its model is told, and what each call stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.tools import tool as make_tool
from pydantic import BaseModel, Field
from pydantic_core import to_json

from agentgraph.agents.spec.output import OutputFormat

if TYPE_CHECKING:
    from agentgraph.agents.run.reply import Reply
    from agentgraph.agents.spec.agent import Agent


ToolLike: TypeAlias = BaseTool | Callable[..., Any] | Mapping[str, Any]

REQUEST_HELP = "request_help"


@dataclass(frozen=True, slots=True)
class Toolset:
    """Every name a model of this agent may call, by what happens to the call."""

    ordinary: Mapping[str, BaseTool] = field(default_factory=dict)
    """Run here."""
    native: Sequence[Mapping[str, Any]] = ()
    """Run by the provider."""
    transfers: Mapping[str, str] = field(default_factory=dict)
    """Tool name to the sub-agent that it enters."""
    errands: Mapping[str, str] = field(default_factory=dict)
    """Tool name to the sub-agent that answers it like a tool."""
    signals: Sequence[BaseTool] = ()
    """What the model is shown for transfers, errands and `request_help`."""
    output: OutputFormat | None = None

    @property
    def specs(self) -> list[Any]:
        """Return all that the model is bound to."""
        own = [*self.ordinary.values(), *self.signals, *self.native]
        return own if self.output is None else [*own, self.output.spec]

    def is_signal(self, name: str) -> bool:
        """Tell whether a call moves the conversation instead of running a tool."""
        return name in self.transfers or (name == REQUEST_HELP and self.offers_help)

    @property
    def offers_help(self) -> bool:
        """Tell whether the model may give the conversation back."""
        return any(signal.name == REQUEST_HELP for signal in self.signals)


class _Transfer(BaseModel):
    reason: str = Field("", description="Why the conversation moves.")
    summary: str = Field("", description="What the other needs to know of it so far.")


class _Help(BaseModel):
    reason: str = Field("", description="What you cannot do yourself.")


class _Errand(BaseModel):
    request: str = Field(description="The task, with all that is needed to do it.")


class AgentTool(BaseTool):
    """An agent, called and answered like a tool; in an Agent's tree it is a node of its own."""

    agent: Any
    args_schema: type[BaseModel] = _Errand

    def _run(self, request: str) -> str:
        return _answer(self.agent.invoke(request))

    async def _arun(self, request: str) -> str:
        return _answer(await self.agent.ainvoke(request))


def _answer(reply: Reply) -> str:
    return reply.text if reply.output is None else to_json(reply.output).decode()


def as_base_tool(candidate: BaseTool | Callable[..., Any]) -> BaseTool:
    """Return a tool for what may still be a plain function."""
    if isinstance(candidate, BaseTool):
        return candidate
    made: BaseTool = make_tool(candidate)
    return made


def transfer_tool_name(agent_name: str) -> str:
    """Return the name of the tool that moves the conversation to an agent."""
    return f"transfer_to_{agent_name}"


def transfer_tool(name: str, description: str) -> BaseTool:
    """Show a model that it may move the conversation to a sub-agent."""
    about = f"Transfer the conversation to {name}."
    if description:
        about = f"{about} {description}"
    return _signal(transfer_tool_name(name), about, _Transfer)


def help_tool(supervisor: str) -> BaseTool:
    """Show a model that it may give the conversation back to its supervisor."""
    about = f"Give the conversation back to {supervisor} when you cannot do what is asked."
    return _signal(REQUEST_HELP, about, _Help)


def needs_arguments(tool: BaseTool) -> bool:
    """Tell whether a tool has a parameter that a model must fill."""
    schema: Any = tool.tool_call_schema
    if isinstance(schema, dict):
        return bool(schema.get("required"))
    return any(field.is_required() for field in schema.model_fields.values())


def _signal(name: str, description: str, schema: type[BaseModel]) -> BaseTool:
    def never_run(**_: Any) -> str:
        raise AssertionError(f"{name} is handled by the graph")

    return StructuredTool(name=name, description=description, func=never_run, args_schema=schema)


def agent_tool(agent: Agent) -> AgentTool:
    """Wrap an agent as a tool."""
    return AgentTool(
        name=agent.name, description=agent.description or f"Ask {agent.name}.", agent=agent
    )
