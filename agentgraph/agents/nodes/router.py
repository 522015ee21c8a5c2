"""The node `router`: who handles this turn, before any model is asked."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langgraph.types import Command

from agentgraph.agents.nodes.level import Level, Tree
from agentgraph.agents.nodes.state import AgentState
from agentgraph.agents.spec.intents import Intent
from agentgraph.clock import new_id
from agentgraph.running import note
from agentgraph.stream import AIMessageEvent, ToolUsageEvent, emit

Route = Command[str]

_MENTION = re.compile(r"\s*@([\w-]+)")
_ADDRESS = re.compile(r"^\s*@[\w-]+[\s,:]+")


@dataclass(frozen=True, slots=True)
class Mention:
    """An `@name` at the start of a message; the path is None if nobody is called so."""

    name: str
    path: str | None


def router(level: Level) -> Callable[[AgentState], Awaitable[Route]]:
    """Make the node for a level."""

    async def decide(state: AgentState) -> Route:
        return await route(level, state)

    return decide


async def route(level: Level, state: AgentState) -> Route:
    """Decide: an `@mention`, else the active path, else an intent, else continue."""
    messages = level.history(state)
    said = said_in_this_run(messages)
    active = state.get("current_active_agent") or ""
    if level.tree is not None:
        mentioned = await _mentioned(level, level.tree, said)
        path = await _living(level, level.tree, active if mentioned is None else mentioned)
        if path and path == active and mentioned is None:
            await emit(level.routed("resume", path, "has the conversation"))
    else:
        path = active
    if path:
        return Command(goto=path.partition("/")[0], update={"current_active_agent": path})
    cleared: AgentState = {"current_active_agent": None} if active else {}
    phrase = None if said is None else _ADDRESS.sub("", said)
    for intent in level.agent.intents:
        if phrase is not None and intent.matches(phrase):
            return await _follow(level, intent, cleared)
    return Command(goto="continue_conversation", update=cleared)


def said_in_this_run(messages: Sequence[AnyMessage]) -> str | None:
    """Return the text of the human message that began this run; an older one is not it."""
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            return str(message.text)
        if isinstance(message, AIMessage | ToolMessage):
            return None
    return None


def parse_mention(text: str, tree: Tree) -> Mention | None:
    """Read an `@name` at the start of a text: the longest name, whatever its case."""
    match = _MENTION.match(text)
    if match is None:
        return None
    token = match[1]
    path = tree.find(token)
    if path is None and token.lower() == "supervisor":
        path = ""
    return Mention(token, path)


async def _mentioned(level: Level, tree: Tree, said: str | None) -> str | None:
    mention = parse_mention(said, tree) if said is not None else None
    if mention is None:
        return None
    if mention.path is None:
        reason = f"no agent is called {mention.name!r}; the model gets the message as it is written"
        await emit(level.routed("fallback", level.agent.name, reason))
        return None
    await emit(level.routed("mention", mention.path or tree.root, said or ""))
    return mention.path


async def _living(level: Level, tree: Tree, path: str) -> str:
    living = tree.nearest(path)
    if living != path:
        reason = f"{path!r} is no longer in the tree"
        await emit(level.routed("fallback", living or tree.root, reason))
    return living


async def _follow(level: Level, intent: Intent, cleared: AgentState) -> Route:
    if intent.kind == "raw":
        answer = AIMessage(intent.target, id=new_id(), name=level.agent.name)
        note([answer])
        await emit(AIMessageEvent(agent=level.path, text=intent.target, message_id=str(answer.id)))
        return Command(goto="__end__", update={**cleared, "messages": [answer]})
    if intent.kind == "agent":
        await emit(level.routed("transfer", intent.target, f"intent {intent.phrase!r}"))
        return Command(goto=intent.target, update={"current_active_agent": intent.target})
    call = ToolCall(name=intent.target, args={}, id=f"intent_{new_id()}", type="tool_call")
    asked = AIMessage("", id=new_id(), name=level.agent.name, tool_calls=[call])
    await emit(ToolUsageEvent(agent=level.path, tool=intent.target, call_id=str(call["id"])))
    return Command(goto="call_tools", update={**cleared, "messages": [asked], "asked": 1})
