"""The node `render_system_prompt`: the system prompt of each entry into an agent's graph."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, RemoveMessage, SystemMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from agentgraph.agents.nodes.attempt import run_users_code
from agentgraph.agents.nodes.level import Level
from agentgraph.agents.nodes.state import AgentState
from agentgraph.agents.spec.tree import Tree
from agentgraph.clock import new_id, utc_now
from agentgraph.errors import ConfigurationError, GuardStopped
from agentgraph.history import settled_before_input
from agentgraph.running import current_round_key, current_run


def render_system_prompt(
    level: Level,
) -> Callable[[AgentState], Awaitable[AgentState]]:
    """Make the node for a level; at the root it also begins the turn.

    The id of a turn is the id of the run, or in a team the key of the round, so that a round that
    runs again has the same idempotency keys.
    """

    async def render(state: AgentState) -> AgentState:
        messages = level.history(state)
        update: AgentState = {}
        if level.tree is not None:
            run = current_run()
            turn_id = current_round_key() or (run.id if run is not None else new_id())
            since = messages[-1].id if messages else None
            update["turn"] = {"id": turn_id, "agent": level.path, "closed": None, "since": since}
            update["turn"]["after"] = (state.get("turn") or {}).get("since")
            if state.get("asked"):
                update["asked"] = 0
            if state.get("output") is not None:
                update["output"] = None
            if run is None:  # a run of the agent itself takes over what an earlier one has left
                update.update(_settled(level.tree, state))
        try:
            prompt = await _render(level, messages, update.get("turn"))
        except GuardStopped:  # the model is not asked: its node ends the run
            return update
        return (
            update if prompt == state.get("system_prompt") else {**update, "system_prompt": prompt}
        )

    return render


def _settled(tree: Tree, state: AgentState) -> AgentState:
    """Return the update that answers the calls that an earlier run of this graph has left open."""
    messages = settled_before_input(state.get("messages") or (), tree.names)
    if messages is None:
        return {}
    removal: Any = RemoveMessage(REMOVE_ALL_MESSAGES)  # answers cannot be inserted otherwise
    return {"messages": [removal, *messages]}


async def _render(level: Level, messages: list[AnyMessage], turn: Mapping[str, Any] | None) -> str:
    """Return the agent's own prompt with the team's part, the supervisor's block and the date."""
    prompt: object = level.agent.system_prompt
    if callable(prompt):
        prompt = await run_users_code(level.path, "system_prompt", prompt, messages, turn=turn)
    own = _text_of(level.agent.name, prompt)
    if level.membership is not None and level.membership.prompt and level.tree is not None:
        own = f"{own}\n\n{level.membership.prompt}".lstrip()
    if level.supervisor is not None and "SUPERVISOR SYSTEM PROMPT:" not in own:
        help = " Use `request_help` if uncertain." if level.toolset.offers_help else ""
        own = _SUB_AGENT_PROMPT.format(supervisor=level.supervisor, help=help, own=own)
    return _with_date(own)


def _text_of(name: str, prompt: object) -> str:
    """Return the text of a prompt, or of several, as a function of the user returns them."""
    parts: Sequence[object] = prompt if isinstance(prompt, list | tuple) else [prompt]
    texts = [str(part.text) if isinstance(part, SystemMessage) else part for part in parts]
    for text in texts:
        if not isinstance(text, str):
            raise ConfigurationError(
                f"the system_prompt of agent {name!r} returned a {type(text).__name__}: return a "
                "text, a SystemMessage or a list of them",
                code="system_prompt",
            )
    return "\n\n".join(text for text in texts if isinstance(text, str) and text)


_SUB_AGENT_PROMPT = """SUPERVISOR SYSTEM PROMPT:
Remember, you are a specialized agent working under {supervisor}.
Stay focused on your role.{help}
SUBAGENT SYSTEM PROMPT:
{own}"""


def _with_date(prompt: str) -> str:
    # The date is at the end, without a time: providers can cache the unchanged prefix.
    today = utc_now().date().isoformat()
    if today in prompt or "CURRENT_DATE" in prompt:
        return prompt
    return f"{prompt}\n\nCURRENT_DATE: {today}".lstrip()
