"""Guards around a run: policies, the mechanisms that decide, and the trail of what they decided."""

from agentgraph.guards.decision import Action, Decision, FailureClass, Tier
from agentgraph.guards.guard import Guard, GuardedCall
from agentgraph.guards.mechanisms.approval import ToolApproval
from agentgraph.guards.mechanisms.breaker import CircuitBreaker, Permit
from agentgraph.guards.mechanisms.deadlines import Deadline, Deadlines
from agentgraph.guards.mechanisms.deadlock import DeadlockMonitor
from agentgraph.guards.mechanisms.effects import Effect, effect
from agentgraph.guards.mechanisms.escalation import Answer, Escalation
from agentgraph.guards.mechanisms.failures import Failure, classify
from agentgraph.guards.mechanisms.gates.gate import (
    CheckResult,
    Document,
    Gate,
    Subject,
    ValidationResult,
)
from agentgraph.guards.mechanisms.limits import (
    DepthLimit,
    FanOutLimit,
    HopLimit,
    ReplanLimit,
    StepLimit,
)
from agentgraph.guards.mechanisms.loop import LoopDetector
from agentgraph.guards.mechanisms.retry import Backoff, RetryBudget
from agentgraph.guards.mechanisms.saga import Saga
from agentgraph.guards.mechanisms.spending.budget import CostBudget, Spend
from agentgraph.guards.mechanisms.spending.input_spend import SHARE
from agentgraph.guards.mechanisms.spending.tool_limit import ToolLimit
from agentgraph.guards.mechanisms.velocity import CostVelocity
from agentgraph.guards.patcher import DEFAULT, Default, Guards
from agentgraph.guards.place import Place
from agentgraph.guards.records.audit_trail import AuditTrail
from agentgraph.guards.records.record import Record, Sink
from agentgraph.guards.records.registry import GuardedState
from agentgraph.guards.records.sinks import JSONLSink, MemorySink, SQLiteSink
from agentgraph.guards.records.trail import Trail, folded
from agentgraph.guards.table import Cell, DecisionTable
from agentgraph.interception import report_call

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
    "Guard",
    "GuardedCall",
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
    "ToolApproval",
    "ToolLimit",
    "Trail",
    "ValidationResult",
    "classify",
    "effect",
    "folded",
    "report_call",
]
