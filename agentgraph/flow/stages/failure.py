"""The failure of a stage or of a worker: of what class it is, and which guard says so."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from agentgraph.errors import AgentGraphError, ConfigurationError, GuardStopped, in_words
from agentgraph.guards import Decision, FailureClass
from agentgraph.guards.mechanisms.failures import classify
from agentgraph.guards.nodes.site import Overdue

logger = logging.getLogger("agentgraph")


class StageFailure(Exception):
    """A stage has failed: what kind of failure it is, which guard says so, and why."""

    def __init__(
        self,
        failure_class: FailureClass,
        guard: str,
        cause: str,
        problems: Sequence[str] = (),
        evidence: Mapping[str, object] | None = None,
        *,
        is_rejected: bool = False,
        worker: str = "",
    ) -> None:
        super().__init__(cause)
        self.worker = worker
        """Who has failed, where it is the failure of a worker: its guards decide then."""
        self.is_rejected = is_rejected
        """Whether a human has rejected what was made: that is the end of the flow."""
        self.failure_class: FailureClass = failure_class
        self.guard, self.cause = guard, cause
        self.problems = tuple(problems) or (cause,)
        self.evidence = dict(evidence or {})


_CLASSES: Mapping[str, FailureClass] = {
    "max_steps": "infinite_loop",
    "recursion_limit": "infinite_loop",
    "depth_limit": "infinite_loop",
    "loop_detector": "infinite_loop",
    "hop_limit": "deadlock",
    "deadlock_monitor": "deadlock",
    "deadline": "deadlock",
    "cost_budget": "cost_overrun",
    "cost_velocity": "cost_overrun",
    "fan_out_limit": "cost_overrun",
    "tool_limit": "cost_overrun",
    "circuit_breaker": "provider_error",
    "retry": "provider_error",
    "gate": "schema_failure",
    "escalation": "unsafe_output",
    "saga": "unsafe_output",
}


def class_of_guard(reason: str) -> FailureClass:
    """Return the class of the failure for which a guard ends a run, by its close reason."""
    return _CLASSES.get(reason.partition(":")[0], "no_progress")


def failure_in(error: Exception) -> StageFailure:
    """Return the failure of a stage for an error in its work."""
    if isinstance(error, StageFailure):
        return error
    if isinstance(error, GuardStopped):
        return _failure_of(error)
    if isinstance(error, Overdue):
        return StageFailure("deadlock", f"deadline:{error.layer}", str(error))
    logger.info("a stage of a flow has failed", exc_info=error)
    return StageFailure(classify(error).failure_class, "failure", error_text(error))


def error_text(error: Exception) -> str:
    """Return an error in words, for the planner and for clients: without the secrets in it."""
    return error.public if isinstance(error, AgentGraphError) else in_words(error)


def _failure_of(error: GuardStopped) -> StageFailure:
    """Return the failure of a stage that a guard has stopped."""
    decision = error.decision
    if not isinstance(decision, Decision):
        raise ConfigurationError(f"a guard stopped without a decision: {error}") from error
    failure_class = decision.failure_class or class_of_guard(decision.reason)
    return StageFailure(failure_class, decision.reason, decision.cause, (), decision.evidence)
