"""Phases: the state of a conversation, the agent that answers in each phase, and handoffs.

A `ConversationRouter` picks an agent for each message from outside; a `ConversationPipeline` leads
through stages, each with its agent. Both compile to a `TransitionGraph` of `agentgraph.routing`.
"""

from agentgraph.phases.handoff import (
    HandoffPolicy,
    HandoffRequest,
    HandoffResult,
    validate_handoff,
)
from agentgraph.phases.pipeline import ConversationPipeline, PipelineStage
from agentgraph.phases.router import ConversationRouter, RoutingConditions, RoutingRule
from agentgraph.phases.state import KEEP, ConversationPhase, ConversationState, PhaseTransition

__all__ = [
    "KEEP",
    "ConversationPhase",
    "ConversationPipeline",
    "ConversationRouter",
    "ConversationState",
    "HandoffPolicy",
    "HandoffRequest",
    "HandoffResult",
    "PhaseTransition",
    "PipelineStage",
    "RoutingConditions",
    "RoutingRule",
    "validate_handoff",
]
