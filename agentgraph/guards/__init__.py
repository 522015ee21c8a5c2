"""Protections around a run; each decides, and only the graph acts on its decision."""

from agentgraph.guards.audit import AuditTrail, Record, Sink, Trail, folded
from agentgraph.guards.breaker import CircuitBreaker, Permit
from agentgraph.guards.budget import CostBudget, Spend
from agentgraph.guards.deadlines import Deadline, Deadlines
from agentgraph.guards.deadlock import DeadlockMonitor
from agentgraph.guards.decision import Action, Decision, FailureClass, Tier
from agentgraph.guards.decisions import Cell, DecisionTable
from agentgraph.guards.depth import DepthLimit
from agentgraph.guards.effects import Effect, effect
from agentgraph.guards.escalation import Answer, Escalation
from agentgraph.guards.failures import Failure, classify
from agentgraph.guards.fan_out import FanOutLimit
from agentgraph.guards.gates import CheckResult, Document, Gate, Subject, ValidationResult
from agentgraph.guards.guarded_state import GuardedState
from agentgraph.guards.hops import HopLimit
from agentgraph.guards.loop import LoopDetector
from agentgraph.guards.place import Place
from agentgraph.guards.policy import DEFAULT, Default, Guards
from agentgraph.guards.purse import SHARE
from agentgraph.guards.replans import ReplanLimit
from agentgraph.guards.retry import Backoff, RetryBudget
from agentgraph.guards.saga import Saga
from agentgraph.guards.sinks import JSONLSink, MemorySink, SQLiteSink
from agentgraph.guards.steps import StepLimit
from agentgraph.guards.velocity import CostVelocity

__all__ = [
    "DEFAULT",
    "SHARE",
    "Action",
    "Answer",
    "AuditTrail",
    "Backoff",
    "Cell",
    "CheckResult",
    "CircuitBreaker",
    "CostBudget",
    "CostVelocity",
    "Deadline",
    "Deadlines",
    "DeadlockMonitor",
    "Decision",
    "DecisionTable",
    "Default",
    "DepthLimit",
    "Document",
    "Effect",
    "Escalation",
    "Failure",
    "FailureClass",
    "FanOutLimit",
    "Gate",
    "GuardedState",
    "Guards",
    "HopLimit",
    "JSONLSink",
    "LoopDetector",
    "MemorySink",
    "Permit",
    "Place",
    "Record",
    "ReplanLimit",
    "RetryBudget",
    "SQLiteSink",
    "Saga",
    "Sink",
    "Spend",
    "StepLimit",
    "Subject",
    "Tier",
    "Trail",
    "ValidationResult",
    "classify",
    "effect",
    "folded",
]
