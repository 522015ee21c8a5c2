"""Sessions: several speakers, a log as their shared memory, and rounds that commit as a whole."""

from agentgraph.outcomes import Interrupt
from agentgraph.sessions.audit import Audit, audit_of
from agentgraph.sessions.envelopes.draft import Draft, packet_envelope, text_envelope
from agentgraph.sessions.envelopes.envelope import (
    EV_AUDIT,
    EV_CANCELLED,
    EV_CONTEXT_SET,
    EV_DECISION,
    EV_EXPECTATION_VIOLATED,
    EV_HANDOFF,
    EV_HANDOFF_REJECTED,
    EV_INTERRUPT,
    EV_PACKET,
    EV_PHASE,
    EV_REWOUND,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_SESSION_EXPIRED,
    EV_SESSION_INVITE,
    EV_SESSION_INVITE_ACK,
    EV_SESSION_INVITE_REJECT,
    EV_SESSION_LEFT,
    EV_SESSION_OPENED,
    EV_SESSION_RELEASED,
    EV_SUMMARY,
    EV_TASK_COMPLETED,
    EV_TASK_EXPIRED,
    EV_TASK_FAILED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TEXT,
    Envelope,
    Priority,
    visible_to,
)
from agentgraph.sessions.hub.answer import Answer
from agentgraph.sessions.hub.hub import Hub
from agentgraph.sessions.hub.session import Receipt, Session
from agentgraph.sessions.hub.team import Team, TeamResult
from agentgraph.sessions.log import Log, MemoryLog, SessionSummary, open_log, register_log
from agentgraph.sessions.state.expectations import DEFAULT_EXPECTATIONS, Expectation
from agentgraph.sessions.state.fold import fold
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.rules import SessionExplanation
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.views import FullTranscript, View, WindowedSummary
from agentgraph.sessions.team.orchestrate import orchestrate
from agentgraph.sessions.tools import (
    current_session,
    delete_context,
    report_progress,
    set_context,
)

__all__ = [
    "DEFAULT_EXPECTATIONS",
    "EV_AUDIT",
    "EV_CANCELLED",
    "EV_CONTEXT_SET",
    "EV_DECISION",
    "EV_EXPECTATION_VIOLATED",
    "EV_HANDOFF",
    "EV_HANDOFF_REJECTED",
    "EV_INTERRUPT",
    "EV_PACKET",
    "EV_PHASE",
    "EV_REWOUND",
    "EV_ROUND_FAILED",
    "EV_SESSION_CLOSED",
    "EV_SESSION_EXPIRED",
    "EV_SESSION_INVITE",
    "EV_SESSION_INVITE_ACK",
    "EV_SESSION_INVITE_REJECT",
    "EV_SESSION_LEFT",
    "EV_SESSION_OPENED",
    "EV_SESSION_RELEASED",
    "EV_SUMMARY",
    "EV_TASK_COMPLETED",
    "EV_TASK_EXPIRED",
    "EV_TASK_FAILED",
    "EV_TASK_PROGRESS",
    "EV_TASK_STARTED",
    "EV_TEXT",
    "Answer",
    "Audit",
    "Draft",
    "Envelope",
    "Expectation",
    "FullTranscript",
    "Hub",
    "Interrupt",
    "Log",
    "MemoryLog",
    "Priority",
    "Receipt",
    "Session",
    "SessionExplanation",
    "SessionRecord",
    "SessionState",
    "SessionSummary",
    "Team",
    "TeamResult",
    "View",
    "WindowedSummary",
    "audit_of",
    "current_session",
    "delete_context",
    "fold",
    "open_log",
    "orchestrate",
    "packet_envelope",
    "register_log",
    "report_progress",
    "set_context",
    "text_envelope",
    "visible_to",
]
