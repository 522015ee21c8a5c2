"""Other ways to reach a human: what a handoff's `channel_escalation` leads to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from agentgraph.sessions.state.envelope import Envelope

if TYPE_CHECKING:
    from agentgraph.sessions.hub.session import Session


Escalate: TypeAlias = Callable[["Session", Envelope], Awaitable[None] | None]
"""Given the session and the envelope of the handoff, once that stands in the log."""
