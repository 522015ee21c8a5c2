"""The node `router`: decides which agent handles this turn, before any model is asked.

Where no sub-agent does, it leads to `continue_conversation`, the node in front of this agent's own
model. A sub-agent's request for help leads there directly: the router would read the old mention
again and send the conversation back to the sub-agent.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage

from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.state import AgentState
from agentgraph.agents.spec.intents import Intent
from agentgraph.agents.spec.tree import Tree
from agentgraph.clock import new_id
from agentgraph.running import record_messages
from agentgraph.stream import AIMessageEvent, ToolUsageEvent, emit


@dataclass(frozen=True, slots=True)
class Mention:
    """An `@name` at the start of a message; the path is None if no agent has that name."""

    name: str
    path: str | None


def router(level: Level) -> Callable[[AgentState], Awaitable[AgentState]]:
    """Make the node for a level; only at the root are mentions and stale paths read."""

    async def decide(state: AgentState) -> AgentState:
        return await route(level, state)

    return decide


async def route(level: Level, state: AgentState) -> AgentState:
    """Decide: an `@mention`, else the active path, else an intent, else continue.

    A mention of the root itself, or `@supervisor`, clears the active path.
    """
    text = input_text(level.history(state))
    active = level.active_path(state)
    if level.tree is not None:
        mention = await _mentioned_path(level, level.tree, text)
        path = await _existing_path(level, level.tree, active if mention is None else mention)
        if path and path == active and mention is None:
            await emit(level.routing_event("resume", path, "has the conversation"))
    else:
        path = active
    if path:
        return {"current_active_agent": path}
    update: AgentState = {"current_active_agent": None} if active else {}
    phrase = None if text is None else _ADDRESS.sub("", text)
    for intent in level.agent.intents:
        if phrase is not None and intent.matches(phrase):
            return await _follow(level, intent, update)
    return update


async def continue_conversation(state: AgentState) -> AgentState:
    """Pass on to this agent's model; a node of its own so that patchers can insert others here."""
    return {}


def input_text(messages: Sequence[AnyMessage]) -> str | None:
    """Return the human message that began this run as text, None if an answer came after it."""
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            return str(message.text)
        if isinstance(message, AIMessage | ToolMessage):
            return None
    return None


def parse_mention(text: str, tree: Tree) -> Mention | None:
    """Read an `@name` at the start of a text: the longest name, whatever its case.

    Returns None where the text does not begin with one.
    """
    match = _MENTION.match(text)
    if match is None:
        return None
    token = match[1]
    path = tree.find(token)
    if path is None and token.lower() == "supervisor":
        path = ""
    return Mention(token, path)


_MENTION = re.compile(r"\s*@([\w-]+)")
_ADDRESS = re.compile(r"^\s*@[\w-]+[\s,:]+")


async def _mentioned_path(level: Level, tree: Tree, text: str | None) -> str | None:
    """Return the path of the agent that a text mentions, None where it mentions no agent here."""
    mention = parse_mention(text, tree) if text is not None else None
    if mention is None:
        return None
    if mention.path is None:
        reason = f"no agent is called {mention.name!r}; the model gets the message as it is written"
        await emit(level.routing_event("fallback", level.agent.name, reason))
        return None
    await emit(level.routing_event("mention", mention.path or tree.root, text or ""))
    return mention.path


async def _existing_path(level: Level, tree: Tree, path: str) -> str:
    """Return a path, or its longest beginning that exists, as the tree may have been rebuilt."""
    nearest = tree.nearest(path)
    if nearest != path:
        reason = f"{path!r} is no longer in the tree"
        await emit(level.routing_event("fallback", nearest or tree.root, reason))
    return nearest


async def _follow(level: Level, intent: Intent, update: AgentState) -> AgentState:
    """Carry out an intent; `update` is the router's update to the state so far."""
    if intent.kind == "raw":
        answer = level.marked(AIMessage(intent.target, id=new_id(), name=level.agent.name))
        record_messages([answer])
        await emit(AIMessageEvent(agent=level.path, text=intent.target, message_id=str(answer.id)))
        return {**update, "messages": [answer]}
    if intent.kind == "agent":
        await emit(level.routing_event("transfer", intent.target, f"intent {intent.phrase!r}"))
        return {"current_active_agent": intent.target}
    call = ToolCall(name=intent.target, args={}, id=f"intent_{new_id()}", type="tool_call")
    message = AIMessage("", id=new_id(), name=level.agent.name, tool_calls=[call])
    await emit(ToolUsageEvent(agent=level.path, tool=intent.target, call_id=str(call["id"])))
    return {**update, "messages": [message], "asked": 1}
