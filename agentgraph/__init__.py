"""Multi-agent framework for LangGraph: agents, declared routing, sessions, guards.

`Agent` is a model with tools and other agents, and compiles to a graph. `TransitionGraph` declares
who speaks next. A `Team` of agents and rules runs in sessions, which a `Hub` keeps in a store.
A `Flow` is work in stages, with a gate between every two. `Guards` limit what a run may cost and
do. More names are in `agentgraph.routing`, `.phases`, `.sessions`, `.flow`, `.guards`, `.stream`
and `.testing`.
"""

from agentgraph.agents import Agent, Intent, Reply
from agentgraph.errors import AgentGraphError
from agentgraph.flow import Flow, FlowResult
from agentgraph.guards import Guards, effect
from agentgraph.outcomes import Finish, Handoff
from agentgraph.patching import Patcher, patched
from agentgraph.routing import (
    AgentTarget,
    AllOf,
    Always,
    AnyOf,
    ContextEquals,
    FromSpeaker,
    HumanTarget,
    Not,
    ParallelTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    round_robin,
    sequence,
)
from agentgraph.running import current_history, idempotency_key
from agentgraph.sessions import (
    Envelope,
    Hub,
    Session,
    Team,
    TeamResult,
    current_session,
    delete_context,
    report_progress,
    set_context,
)

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentGraphError",
    "AgentTarget",
    "AllOf",
    "Always",
    "AnyOf",
    "ContextEquals",
    "Envelope",
    "Finish",
    "Flow",
    "FlowResult",
    "FromSpeaker",
    "Guards",
    "Handoff",
    "Hub",
    "HumanTarget",
    "Intent",
    "Not",
    "ParallelTarget",
    "Patcher",
    "Reply",
    "RevertToInitiatorTarget",
    "RoundRobinTarget",
    "Session",
    "StayTarget",
    "Team",
    "TeamResult",
    "TerminateTarget",
    "ToolCalled",
    "Transition",
    "TransitionGraph",
    "__version__",
    "current_history",
    "current_session",
    "delete_context",
    "effect",
    "idempotency_key",
    "patched",
    "report_progress",
    "round_robin",
    "sequence",
    "set_context",
]
