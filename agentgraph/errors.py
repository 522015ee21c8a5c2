"""The errors of agentgraph, as one tree; each says what went wrong and what to do.

AgentGraphError             catch it to catch all of them; `.code` is a stable name
├── ConfigurationError      a specification cannot be built: fix everything that `.faults` lists
├── RoutingError            a run was sent to a node, an agent or an interrupt that does not exist
├── SessionError            a session cannot do what was asked of it
│   ├── SessionClosed       it accepts nothing after its close: open a new session
│   ├── RoundConflict       another process committed to its log first: read it, and try again
│   ├── StaleOwner          its lease was lost: another process drives it now
│   ├── InsideRound         a round waits for its own session: send without `admitted=True`
│   └── Quarantined         its log cannot be read, or its code is not registered: fix that
├── AlreadyDecided          somebody has decided this question before: it says what, when and who
├── ModelError              the model's provider failed: its own error is the chained exception
├── GuardStopped            a guard ended the run: `.decision` says which, and why
└── StorageError            the store cannot be reached or read: check its URL and its server

AlreadyDecided is a RoutingError and a SessionError: threads and sessions ask questions.
RoutingWarning is the category of the warnings that a team gives when it is built.

An error that is raised without a message has its docstring as the message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches

__all__ = [
    "AgentGraphError",
    "AlreadyDecided",
    "ConfigurationError",
    "GuardStopped",
    "InsideRound",
    "ModelError",
    "Quarantined",
    "RoundConflict",
    "RoutingError",
    "RoutingWarning",
    "SessionClosed",
    "SessionError",
    "StaleOwner",
    "StorageError",
    "in_words",
    "kind_of",
    "redacted",
    "similar_name",
    "suggestion",
]


class AgentGraphError(Exception):
    """Something in agentgraph failed."""

    code: str = "error"
    """A stable name, for programs: texts may change."""

    def __init__(self, message: str = "", *, code: str | None = None, public: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().partition("\n")[0])
        if code is not None:
            self.code = code
        self.public = public or str(self)
        """The message without the words of somebody else's error, for users of a server."""


class ConfigurationError(AgentGraphError):
    """The specification cannot be built: fix everything that `faults` lists."""

    code = "configuration"

    def __init__(
        self, faults: str | Iterable[str], *, code: str | None = None, public: str = ""
    ) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        count = len(self.faults)
        head = "1 fault" if count == 1 else f"{count} faults"
        text = "\n".join([f"{head}:", *(f"- {f}" for f in self.faults)])
        super().__init__(text, code=code, public=public)


class RoutingError(AgentGraphError):
    """The run was sent to a node, an agent or an interrupt that does not exist: check the name."""

    code = "routing"


class RoutingWarning(UserWarning):
    """The rules of a team can be run, but hardly do what their author means.

    `warnings.filterwarnings("ignore", category=RoutingWarning)` hides these; a `message` that
    contains a code of `TransitionGraph.check`, such as `unreached`, hides one kind of them.
    """


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
    """The session can be read but not run: repair its log, or register its code."""

    code = "quarantined"


class AlreadyDecided(RoutingError, SessionError):
    """Somebody has decided this question before: `decision` says what counts.

    `sender` is who has decided, None where that is not known; `decided_at` is when, in UTC.
    """

    code = "already_decided"

    def __init__(
        self,
        where: str,
        interrupt_id: str,
        decision: object,
        *,
        decided_at: datetime | None = None,
        sender: str | None = None,
    ) -> None:
        self.interrupt_id = interrupt_id
        self.decision = decision
        self.decided_at = decided_at
        self.sender = sender
        value = repr(decision)
        value = value if len(value) <= _LONGEST_DECISION else f"{value[: _LONGEST_DECISION - 1]}…"
        instant = f" at {decided_at.isoformat(timespec='seconds')}" if decided_at else ""
        super().__init__(
            f"{where}: {interrupt_id} was decided already: {sender or 'somebody'} has answered "
            f"{value}{instant}, and that decision counts"
        )


class ModelError(AgentGraphError):
    """The model's provider failed: see the chained exception, and try again later.

    Its text says the provider's error in words, for the developer; `public` does without them, for
    logs that are kept and for users of a server.
    """

    code = "model"

    @classmethod
    def of(cls, what: str, error: Exception) -> ModelError:
        """Return the error that `what` has failed: a model, or a foreign graph."""
        if isinstance(error, AgentGraphError):
            words, public = str(error), error.public
        else:
            words, public = in_words(error), kind_of(error)
        code = error.code if isinstance(error, ModelError) else None
        return ModelError(f"{what} failed: {words}", code=code, public=f"{what} failed: {public}")


class GuardStopped(AgentGraphError):
    """A guard ended the run: `decision` says which, and why."""

    code = "guard_stopped"

    def __init__(self, decision: object, message: str = "") -> None:
        super().__init__(message or f"A guard ended the run: {decision}")
        self.decision = decision


class StorageError(AgentGraphError):
    """The store cannot be reached or read: check its URL, and that its server runs."""

    code = "storage"


def similar_name(name: str, names: Iterable[str], *, similarity: float = 0.8) -> str | None:
    """Return the name that a name is probably a misspelling of, None if it is like none."""
    by_folded = {candidate.casefold(): candidate for candidate in names}
    matches = get_close_matches(name.casefold(), by_folded, n=1, cutoff=similarity)
    return by_folded[matches[0]] if matches else None


def suggestion(name: str, names: Collection[str]) -> str:
    """Return the end of a sentence about an unknown name: what to write in its place."""
    if not names:
        return "there are none"
    match = similar_name(name, names, similarity=0.6)
    choice = f"choose one of {', '.join(sorted(names))}"
    return choice if match is None else f"did you mean {match!r}? Otherwise {choice}"


def kind_of(error: BaseException) -> str:
    """Return an error's class and HTTP status, without its text, which may hold secrets."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    return f"{type(error).__name__}{f' {status}' if status else ''}"


def in_words(error: BaseException) -> str:
    """Return an error's class, its HTTP status and its own text, without the secrets in it.

    Only for the errors of models, of foreign graphs and of the parts of flows: those of a store or
    a tool may hold secrets that have no form by which they could be found.
    """
    text = redacted(" ".join(_text_of(error).split()))
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT - 1]}…"
    return f"{kind_of(error)}: {text}" if text else kind_of(error)


def redacted(text: str) -> str:
    """Return a text with "***" for its keys, tokens, passwords and the credentials of its URLs."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name):
            text = text.replace(value, "***")
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _text_of(error: BaseException) -> str:
    """Return the message in a provider's answer, or an error's text where there is none."""
    answer = getattr(error, "body", None)
    if isinstance(answer, Mapping) and isinstance(answer.get("error"), Mapping):
        answer = answer["error"]
    if isinstance(answer, Mapping) and isinstance(answer.get("message"), str):
        return str(answer["message"])
    return str(error)


_LONGEST_TEXT = 400
_LONGEST_DECISION = 200
_SHORTEST_SECRET = 8
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        # The credentials of a URL.
        (r"(\b[a-z][a-z0-9+.-]*://)\S*@", r"\1***@"),
        # Headers, also as they stand in a dict.
        (r"\b((?:proxy-)?authorization|(?:set-)?cookie)(['\"]?\s*[:=]\s*)[^,;}\n]+", r"\1\2***"),
        (r"\b(bearer|basic)\s+(?=\S*[\d=+/._-])[\w.~+/=-]{6,}", r"\1 ***"),
        # A name of a secret, and its value.
        (
            r"((?:api|access|private|secret|subscription)[ _-]?key|secret|token|password|passwd|pwd"
            r"|credential|signature)(s?(?:\s+(?:provided|given|is|was))?['\"]?\s*[:=]\s*['\"]?)"
            r"(?!\d+\b)[^\s'\",;&}]+",
            r"\1\2***",
        ),
        (r"([?&][\w-]*(?:key|sig|code|auth)=)[^\s&'\"]+", r"\1***"),
        # Keys as providers write them, and what looks like one.
        (
            r"\b(?:sk|pk|rk|gsk|xai|gh[pousr]|github_pat|hf|r8|nvapi|pplx|lsv2|csk|fw|tgp)"
            r"[-_][\w*.-]{6,}",
            "***",
        ),
        (r"\b(?:AIza[\w-]{10,}|(?:AKIA|ASIA)\w{8,}|eyJ[\w-]{6,}\.[\w.-]+)", "***"),
        (r"\b(?=[a-z_]*\d)(?=\d*[a-z_])\w{24,}\b", "***"),
        (r"[a-z0-9+/]{40,}={0,2}", "***"),
    )
)
