"""The tools that stand for agents, and the conversion of functions to tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.tools import tool as make_tool
from pydantic import BaseModel, Field, SkipValidation
from pydantic_core import to_json

from agentgraph.participant import Participant

ToolLike: TypeAlias = BaseTool | Callable[..., Any] | Mapping[str, Any]

REQUEST_HELP = "request_help"


class Answer(Protocol):
    """The answer of an agent that is called like a tool."""

    @property
    def text(self) -> str:
        """Return the answer as text."""
        ...

    @property
    def output(self) -> object | None:
        """Return the object of the agent's `response_format`, where it has one."""
        ...


class Callee(Participant, Protocol):
    """A participant that can be called and answers, on a thread of its own."""

    def invoke(self, input: str) -> Answer:
        """Answer a request."""
        ...

    async def ainvoke(self, input: str) -> Answer:
        """Answer a request."""
        ...


class _Transfer(BaseModel):
    reason: str = Field("", description="Why the conversation moves.")
    summary: str = Field("", description="What the other needs to know of it so far.")


class _Help(BaseModel):
    reason: str = ""


class _Request(BaseModel):
    request: str = Field(description="The task, with all that is needed to do it.")


class AgentTool(BaseTool):
    """An agent that a model calls like a tool; in the tree of an `Agent` it has its own node."""

    # Not validated: pydantic would read `graph`, which compiles the agent.
    agent: SkipValidation[Callee]
    args_schema: type[BaseModel] = _Request

    def _run(self, request: str) -> str:
        return _answer_text(self.agent.invoke(request))

    async def _arun(self, request: str) -> str:
        return _answer_text(await self.agent.ainvoke(request))


def agent_tool(agent: Callee) -> AgentTool:
    """Wrap an agent as a tool."""
    return AgentTool(
        name=agent.name, description=agent.description or f"Ask {agent.name}.", agent=agent
    )


def as_base_tool(candidate: BaseTool | Callable[..., Any]) -> BaseTool:
    """Return a tool as it is, or a tool made of a plain function."""
    if isinstance(candidate, BaseTool):
        return candidate
    tool: BaseTool = make_tool(candidate)
    return tool


def transfer_tool_name(agent_name: str) -> str:
    """Return the name of the tool that moves the conversation to an agent."""
    return f"transfer_to_{agent_name}"


def transfer_tool(name: str, description: str) -> BaseTool:
    """Return the tool by which a model moves the conversation to a sub-agent."""
    about = f"Transfer the conversation to {name}."
    if description:
        about = f"{about} {description}"
    return _signal(transfer_tool_name(name), about, _Transfer)


def help_tool(supervisor: str) -> BaseTool:
    """Return the tool by which a model gives the conversation back to its supervisor."""
    about = f"Give the conversation back to {supervisor} if you are stuck."
    return _signal(REQUEST_HELP, about, _Help)


def needs_arguments(tool: BaseTool) -> bool:
    """Tell whether a tool has a parameter that a model must fill."""
    schema: Any = tool.tool_call_schema
    if isinstance(schema, dict):
        return bool(schema.get("required"))
    return any(field.is_required() for field in schema.model_fields.values())


def _signal(name: str, description: str, schema: type[BaseModel]) -> BaseTool:
    """Return a tool that only the model sees: `call_tools` reads its calls and never runs it."""

    def never_run(**_: Any) -> str:
        raise AssertionError(f"{name} is handled by the graph")

    return StructuredTool(name=name, description=description, func=never_run, args_schema=schema)


def _answer_text(answer: Answer) -> str:
    return answer.text if answer.output is None else to_json(answer.output).decode()
