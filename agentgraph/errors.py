"""The errors of agentgraph, as one tree; each says what went wrong and what to do.

AgentGraphError             catch it to catch all of them; `.code` is a stable name
├── ConfigurationError      a specification cannot be built: mend what `.faults` lists, all of it
├── RoutingError            a run was sent to a node, an agent or an interrupt that does not exist
├── SessionError            a session cannot do what was asked of it
│   ├── SessionClosed       it accepts nothing after its close: open a new session
│   ├── RoundConflict       another process committed to its log first: read it, and try again
│   ├── StaleOwner          its lease was lost: another process drives it now
│   ├── InsideRound         a round waits for its own session: send without `admitted=True`
│   └── Quarantined         its log cannot be read, or its code is not registered: mend that
├── ModelError              the model's provider failed: its own error is the chained exception
├── GuardStopped            a guard ended the run: `.decision` says which, and why
└── StorageError            the store cannot be reached or read: check its URL and its server

An error that is raised without a message has its docstring as the message.
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
    """A stable name, for programs: texts may change."""

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        if code is not None:
            self.code = code


class ConfigurationError(AgentGraphError):
    """The specification cannot be built: mend all that `faults` lists."""

    code = "configuration"

    def __init__(self, faults: str | Iterable[str], *, code: str | None = None) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        count = len(self.faults)
        head = "1 fault" if count == 1 else f"{count} faults"
        super().__init__("\n".join([f"{head}:", *(f"- {f}" for f in self.faults)]), code=code)


class RoutingError(AgentGraphError):
    """The run was sent to a node, an agent or an interrupt that does not exist: check the name."""

    code = "routing"


class SessionError(AgentGraphError):
    """The session cannot do this in its present state."""

    code = "session"


class SessionClosed(SessionError):
    """The session is closed: open a new one."""

    code = "session_closed"


class RoundConflict(SessionError):
    """Another process committed to the session's log first: read the log, and try again."""

    code = "round_conflict"


class StaleOwner(SessionError):
    """The lease on the session was lost: another process drives it now."""

    code = "stale_owner"


class InsideRound(SessionError):
    """A round cannot wait for its own session: send without `admitted=True`."""

    code = "inside_round"


class Quarantined(SessionError):
    """The session can be read but not run: mend its log, or register its code."""

    code = "quarantined"


class ModelError(AgentGraphError):
    """The model's provider failed: see the chained exception, and try again later."""

    code = "model"


class GuardStopped(AgentGraphError):
    """A guard ended the run: `decision` says which, and why."""

    code = "guard_stopped"

    def __init__(self, decision: object, message: str = "") -> None:
        super().__init__(message or f"A guard ended the run: {decision}")
        self.decision = decision


class StorageError(AgentGraphError):
    """The store cannot be reached or read: check its URL, and that its server runs."""

    code = "storage"


def kind_of(error: BaseException) -> str:
    """Return an error's class and HTTP status, without its text, which may hold secrets."""
    status = getattr(error, "status_code", None)
    return f"{type(error).__name__}{f' {status}' if status else ''}"
