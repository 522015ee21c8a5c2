"""Flows: staged work with a plan, workers, a verdict, and a gate between every two stages."""

from agentgraph.flow.audit.stage_report import StageReport, ValidationResult
from agentgraph.flow.flow import Flow
from agentgraph.flow.result import FlowResult, mast_of
from agentgraph.flow.stage import Stage
from agentgraph.flow.topology import debate
from agentgraph.flow.values import Brief, Plan, Summary, Verdict

__all__ = [
    "Brief",
    "Flow",
    "FlowResult",
    "Plan",
    "Stage",
    "StageReport",
    "Summary",
    "ValidationResult",
    "Verdict",
    "debate",
    "mast_of",
]
