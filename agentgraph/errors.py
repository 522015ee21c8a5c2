"""What can go wrong, as one tree.

AgentGraphError
├── ConfigurationError      a specification that cannot be built: `.faults` has all of them
├── RoutingError            a run sent where nobody is: a node, an agent, an interrupt
├── SessionError            a session that cannot do what was asked of it
│   ├── SessionClosed       nothing is accepted after the close
│   ├── RoundConflict       somebody else committed first
│   ├── StaleOwner          the lease on the session was lost
│   ├── InsideRound         a wait for a round, from inside that round
│   └── Quarantined         its log cannot be read, or its code is not registered
├── ModelError              the provider failed; the cause is chained
├── GuardStopped            a guard ended the run: `.decision` says which and why
└── StorageError            the store cannot be reached or read
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "AgentGraphError",
    "ConfigurationError",
    "GuardStopped",
    "InsideRound",
    "ModelError",
    "Quarantined",
    "RoundConflict",
    "RoutingError",
    "SessionClosed",
    "SessionError",
    "StaleOwner",
    "StorageError",
    "kind_of",
]


class AgentGraphError(Exception):
    """Something in agentgraph failed."""

    code: str = "error"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        if code is not None:
            self.code = code


class ConfigurationError(AgentGraphError):
    """The specification cannot be built."""

    code = "configuration"

    def __init__(self, faults: str | Iterable[str], *, code: str | None = None) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        count = len(self.faults)
        head = "1 fault" if count == 1 else f"{count} faults"
        super().__init__("\n".join([f"{head}:", *(f"- {f}" for f in self.faults)]), code=code)


class RoutingError(AgentGraphError):
    """The run was sent to something that is not there."""

    code = "routing"


class SessionError(AgentGraphError):
    """The session cannot do this."""

    code = "session"


class SessionClosed(SessionError):
    """The session is closed: open a new one."""

    code = "session_closed"


class RoundConflict(SessionError):
    """The log has moved on: somebody else committed first."""

    code = "round_conflict"


class StaleOwner(SessionError):
    """The lease on the session was lost to another owner."""

    code = "stale_owner"


class InsideRound(SessionError):
    """A round cannot wait for its own session: send without `admitted=True`."""

    code = "inside_round"


class Quarantined(SessionError):
    """The session can be read but not run until its fault is mended."""

    code = "quarantined"


class ModelError(AgentGraphError):
    """The model's provider failed; see the chained exception."""

    code = "model"


class GuardStopped(AgentGraphError):
    """A guard ended the run."""

    code = "guard_stopped"

    def __init__(self, decision: object, message: str = "") -> None:
        super().__init__(message or f"A guard ended the run: {decision}")
        self.decision = decision


class StorageError(AgentGraphError):
    """The store cannot be reached or read."""

    code = "storage"


def kind_of(error: BaseException) -> str:
    """Name what kind of error it was: its text may hold what a stranger must not read."""
    status = getattr(error, "status_code", None)
    return f"{type(error).__name__}{f' {status}' if status else ''}"
