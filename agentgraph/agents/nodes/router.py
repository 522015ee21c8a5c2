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
from langgraph.errors import GraphBubbleUp

from agentgraph.agents.nodes.attempt import run_users_code
from agentgraph.agents.nodes.calls import emit_call
from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.state import AgentState
from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.agents.spec.intents import Intent, same_words
from agentgraph.agents.spec.tools import needs_arguments
from agentgraph.agents.spec.tree import Tree
from agentgraph.clock import new_id
from agentgraph.errors import GuardStopped, kind_of, suggestion
from agentgraph.running import record_messages
from agentgraph.stream import AIMessageEvent, ErrorEvent, emit


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
    """Decide: an `@mention`, else an intent of this agent, else the active path, else continue.

    A mention of the root itself, or `@supervisor`, clears the active path. An agent's intents do
    not hold for a message that mentions an agent below it.
    """
    text = input_text(level.history(state))
    active = level.active_path(state)
    path, mention = active, None
    if level.tree is not None:
        mention = await _mentioned_path(level, level.tree, text)
        path = await _existing_path(level, level.tree, active if mention is None else mention)
    update: AgentState = {} if path == active else {"current_active_agent": path or None}
    if state.get("forced_tool"):  # of a turn that ended before its model was asked
        update["forced_tool"] = None
    phrase = _phrase(level, path, text, is_for_root=mention == "")
    intent = await _matching_intent(level, path, phrase) if phrase is not None else None
    if intent is not None:
        return await _follow(level, intent, path, update)
    if not path:
        return update
    if level.tree is not None and mention is None and path == active:
        await emit(level.routing_event("resume", path, "has the conversation"))
    return {**update, "current_active_agent": path}


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
    """Read an `@name` or `@path/of/names` at the start of a text, in any letter case.

    Returns None where the text does not begin with one.
    """
    match = _MENTION.match(text)
    if match is None:
        return None
    token = match[1]
    path = tree.find(token)
    if path is None:
        path = tree.find(token.rstrip("_-"))  # as in "@billing- hello"
    if path is None and token.lower() == "supervisor":
        path = ""
    return Mention(token, path)


_NAME = r"\s*@([\w-]+(?:/[\w-]+)*)"
_MENTION = re.compile(_NAME)
_ADDRESS = re.compile(_NAME + r"[\s,:;.!?\u2013\u2014-]*")


async def _mentioned_path(level: Level, tree: Tree, text: str | None) -> str | None:
    """Return the path of the agent that a text mentions, None where it mentions no agent here."""
    mention = parse_mention(text, tree) if text is not None else None
    if mention is None:
        return None
    if mention.path is None:
        advice = suggestion(mention.name, tree.names)
        reason = f"there is no agent {mention.name!r}, so the message stays as it is: {advice}"
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


def _phrase(level: Level, path: str, text: str | None, *, is_for_root: bool) -> str | None:
    """Return the text that this agent's intents may match, without the mention of this agent.

    None where there is no human message, or where it mentions an agent further down the path.
    """
    address = _ADDRESS.match(text) if text is not None else None
    if text is None or address is None:
        return text
    name = address[1].rpartition("/")[2].lower()
    if path:
        return None if name == path.rpartition("/")[2].lower() else text
    is_for_this = is_for_root or name == level.agent.name.lower()
    return text[address.end() :] if is_for_this else text


async def _matching_intent(level: Level, path: str, phrase: str) -> Intent | None:
    """Return the first intent of this agent that matches.

    An intent of an agent on the active path takes the place of one with the same phrase above it.
    """
    below = _phrases_below(level, path) if level.agent.intents else []
    for intent in level.agent.intents:
        is_replaced = any(same_words(intent.phrase, other) for other in below)
        if not is_replaced and await _matches(level, intent, phrase):
            return intent
    return None


def _phrases_below(level: Level, path: str) -> list[str]:
    """Return the phrases of the intents of the agents along a path."""
    phrases: list[str] = []
    agents = level.agent.sub_agents
    for name in path.split("/") if path else ():
        agent = next(child for child in agents if child.name == name)
        if not isinstance(agent, AgentSpec):
            break
        phrases += [intent.phrase for intent in agent.intents]
        agents = agent.sub_agents
    return phrases


async def _matches(level: Level, intent: Intent, phrase: str) -> bool:
    """Ask a matcher, which may be async; one that raises counts as no match, with an event."""
    try:
        if intent.matcher is same_words:
            return same_words(phrase, intent.phrase)
        return bool(
            await run_users_code(level.path, "matcher", intent.matcher, phrase, intent.phrase)
        )
    except (GraphBubbleUp, GuardStopped):
        raise
    except Exception as error:  # the matcher is the user's code, and must not break the turn
        text = f"The matcher of the intent {intent.phrase!r} failed: {kind_of(error)}."
        await emit(ErrorEvent(agent=level.path, code="intent_failed", message=text))
        return False


async def _follow(level: Level, intent: Intent, active: str, update: AgentState) -> AgentState:
    """Carry out an intent; `update` makes `active` the active path below this agent."""
    if intent.kind == "raw":
        return await _answer_raw(level, intent.target, active, update)
    if intent.kind == "agent":
        path = (level.tree or Tree.of(level.agent)).find(intent.target) or ""
        reason = f"intent {intent.phrase!r}"
        await emit(level.routing_event("transfer", path or level.agent.name, reason))
        return {**update, "current_active_agent": path or None}
    # The agent whose tool it is answers, and so has the conversation.
    update = {**update, "current_active_agent": None}
    tool = level.toolset.ordinary.get(intent.target)
    if tool is None or needs_arguments(tool):
        return {**update, "forced_tool": intent.target}
    call = ToolCall(name=intent.target, args={}, id=f"intent_{new_id()}", type="tool_call")
    message = AIMessage("", id=new_id(), name=level.agent.name, tool_calls=[call])
    await emit_call(level, intent.target, {}, call["id"])
    return {**update, "messages": [message], "asked": 1}


async def _answer_raw(level: Level, text: str, active: str, update: AgentState) -> AgentState:
    path = f"{level.path}/{active}" if active else level.path
    answer = level.marked(AIMessage(text, id=new_id(), name=level.agent.name), path)
    record_messages([answer])
    await emit(AIMessageEvent(agent=level.path, text=text, message_id=str(answer.id)))
    return {**update, "messages": [answer]}
