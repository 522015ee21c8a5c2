"""What a run of an agent that has not come to its end leaves to the next one of its session."""

from __future__ import annotations

from langgraph.types import StateSnapshot

from agentgraph.agents.nodes.state import merge_messages
from agentgraph.agents.run.decisions import reachable_questions
from agentgraph.agents.run.recovery import Journal, active_path, messages_so_far, recover
from agentgraph.agents.spec.agent_spec import AgentSpec
from agentgraph.participant import Left


def left_by_run(
    agent: AgentSpec, snapshot: StateSnapshot, journal: Journal, *, is_over: bool
) -> Left:
    """Return what a run leaves, from the state of its graph and from its journal.

    Of a run that is over, what is open is answered, as the next turn of a thread does it.
    """
    if not is_over:
        questions = reachable_questions(snapshot, agent, agent.name)
        askers = {question.id: path for path, question in questions}
        messages = messages_so_far(snapshot, journal)
        return Left(messages, active_path(snapshot), snapshot.values, askers)
    recovery = recover(snapshot, journal)
    messages = merge_messages(snapshot.values.get("messages") or [], [recovery.messages])
    return Left(messages, recovery.active, {**snapshot.values, **recovery.values})
