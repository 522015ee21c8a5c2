"""Protections around a run; each decides, and only the graph acts on its decision."""

from agentgraph.guards.deadlines import Deadlines
from agentgraph.guards.decision import Action, Decision
from agentgraph.guards.hops import HopLimit
from agentgraph.guards.policy import DEFAULT, Default, Guards
from agentgraph.guards.steps import StepLimit

__all__ = [
    "DEFAULT",
    "Action",
    "Deadlines",
    "Decision",
    "Default",
    "Guards",
    "HopLimit",
    "StepLimit",
]
