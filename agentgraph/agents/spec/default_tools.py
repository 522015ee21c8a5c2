"""The default tools, by which an agent can ask about itself and its place in a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, Field

from agentgraph.agents.spec.intents import Intent
from agentgraph.clock import clock


class _NoArguments(BaseModel):
    pass


class _Zone(BaseModel):
    timezone: str = Field("UTC", description="A name such as Europe/Paris.")


def default_tools(
    *,
    name: str,
    supervisor: str | None,
    tools: Sequence[tuple[str, str]],
    agents: Sequence[tuple[str, str]],
    intents: Sequence[Intent],
) -> list[BaseTool]:
    """Make the introspection tools of an agent in its place.

    `tools` and `agents` are names with descriptions. A tool about agents or intents is left out
    where there are none: its description costs tokens in every request.
    """

    def get_time_date(timezone: str = "UTC") -> str:
        """Tell the present time and date in a time zone, such as Europe/Paris."""
        try:
            zone = UTC if timezone.upper() == "UTC" else ZoneInfo(timezone)
        except (KeyError, ValueError, OSError):
            return f"There is no time zone {timezone!r}: use a name such as Europe/Paris."
        return datetime.fromtimestamp(clock().wall(), zone).strftime("%H:%M:%S %Y-%m-%d %Z")

    def list_tools_available() -> str:
        """List the tools this agent can use."""
        return _list(tools, "I have no tools.")

    def list_subagents_available() -> str:
        """List the agents this agent can pass the conversation to."""
        return _list(agents)

    def list_intents_available() -> str:
        """List the phrases this agent answers to without thinking."""
        return _table(intents)

    def get_current_active_agent() -> str:
        """Tell which agent has the conversation."""
        return name

    def get_supervisor_agent() -> str:
        """Tell which agent supervises this one."""
        return supervisor or "I have no supervisor."

    has_others = supervisor is not None or bool(agents)
    applicable: dict[Callable[..., str], bool] = {
        get_time_date: True,
        list_tools_available: True,
        list_subagents_available: bool(agents),
        list_intents_available: bool(intents),
        get_current_active_agent: has_others,
        get_supervisor_agent: has_others,
    }
    return [_tool(function) for function, applies in applicable.items() if applies]


def _tool(function: Callable[..., str]) -> BaseTool:
    # With an explicit schema: the inspection of signatures would take most of a build's time.
    return StructuredTool(
        name=function.__name__,
        description=function.__doc__ or "",
        func=function,
        args_schema=_Zone if function.__name__ == "get_time_date" else _NoArguments,
    )


def _list(entries: Sequence[tuple[str, str]], empty_text: str = "") -> str:
    if not entries:
        return empty_text
    lines = [(name, (about.strip() or "-").splitlines()[0]) for name, about in entries]
    return "\n".join(f"- `{name}`: {about}" for name, about in lines)


def _table(intents: Sequence[Intent]) -> str:
    rows = [f"| {i.phrase} | {i.kind} | {i.target} |" for i in intents]
    return "\n".join(["| Phrase | Kind | Target |", "| --- | --- | --- |", *rows])
