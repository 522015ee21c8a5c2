"""When a run began and how it ended, in its audit trail.

These two records hold nothing up: a trail that has to stop a run does so at its first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

from agentgraph.errors import GuardStopped
from agentgraph.guards.audit import AuditTrail

__all__ = ["began", "ended", "went_on"]

_LONGEST = 2_000


def began(audit: AuditTrail | None, run: str, thread: str, text: str = "", **data: object) -> None:
    """Record that a run begins, and with what."""
    told = {"text": text[:_LONGEST]} if text else {}
    _record(audit, run, "input", thread, {**told, **data})


def went_on(audit: AuditTrail | None, run: str) -> None:
    """Go on with the numbers of what another process has recorded of a run."""
    if audit is not None:
        with suppress(GuardStopped):
            audit.resume(run)


def ended(audit: AuditTrail | None, run: str, thread: str, reason: str, **data: object) -> None:
    """Record that a run is over, and why."""
    _record(audit, run, "end", thread, {"reason": reason, **data})


def _record(
    audit: AuditTrail | None,
    run: str,
    kind: Literal["input", "end"],
    thread: str,
    data: Mapping[str, object],
) -> None:
    if audit is not None:
        with suppress(GuardStopped):
            audit.record(run, kind, thread=thread, data=data)
