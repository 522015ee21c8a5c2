"""Multi-agent framework for LangGraph: supervisors and sub-agents that compile to graphs."""

from agentgraph.agents import Agent, Intent, Reply
from agentgraph.errors import AgentGraphError
from agentgraph.guards import Guards
from agentgraph.outcomes import Finish, Handoff
from agentgraph.patching import Patcher, patched
from agentgraph.running import current_history, idempotency_key

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentGraphError",
    "Finish",
    "Guards",
    "Handoff",
    "Intent",
    "Patcher",
    "Reply",
    "__version__",
    "current_history",
    "idempotency_key",
    "patched",
]
