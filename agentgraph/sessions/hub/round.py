"""The round that code runs in: which session's, whose, and where it began."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentgraph.phases import HandoffPolicy
from agentgraph.sessions.state.state import SessionState

if TYPE_CHECKING:
    from agentgraph.sessions.hub.live import LiveSession


@dataclass(frozen=True, slots=True)
class Round:
    """One speaker's turn under way."""

    live: LiveSession
    speaker: str
    number: int
    attempt: int
    state: SessionState
    """The session as it was when this began."""

    @property
    def key(self) -> str:
        """What it is called wherever it runs again."""
        return f"{self.live.id}/{self.number}"

    def policy(self, general: HandoffPolicy) -> HandoffPolicy:
        """Return the team's policy for handoffs, for those who are here now."""
        here = self.state.participant_order
        names = [name for name in general.participants if name in here]
        names += [name for name in here if name not in names]
        return replace(general, participants=names)


_round: ContextVar[Round | None] = ContextVar("agentgraph_session_round", default=None)


def current_round() -> Round | None:
    """Return the round around this code, None outside of one."""
    return _round.get()


def current_place() -> tuple[str, int, int]:
    """Return whose turn runs around this code, in which round and attempt."""
    round = _round.get()
    return ("", 0, 0) if round is None else (round.speaker, round.number, round.attempt)


@contextmanager
def inside(round: Round) -> Iterator[None]:
    """Run a speaker."""
    token = _round.set(round)
    try:
        yield
    finally:
        _round.reset(token)
