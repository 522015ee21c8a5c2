"""The summary of the envelopes that are older than a view's window.

Each step of summarising takes a bounded number of envelopes, so that a turn costs the same however
long the session is.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from langgraph.errors import GraphBubbleUp

from agentgraph.errors import kind_of
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.rounds.branch import Branch
from agentgraph.sessions.rounds.owned_session import OwnedSession
from agentgraph.sessions.state.state import SessionState

log = logging.getLogger("agentgraph")

Summarize: TypeAlias = Callable[[str, Sequence[Envelope]], str | Awaitable[str]]
"""Takes the summary so far and the envelopes since then, and returns the next summary."""

_BATCH = 100


def count_unsummarised(state: SessionState) -> int:
    """Return the number of substantive envelopes that the summary does not cover."""
    count = int(state.summary["count"]) if state.summary is not None else 0
    return sum(state.said.values()) - count


async def summarise(session: OwnedSession, summarize: Summarize, reach: int) -> None:
    """Extend a session's summary up to its window, once enough envelopes have left the window."""
    state = session.state
    count = count_unsummarised(state)
    if count < 2 * reach:
        return
    before = state.summary or {"text": "", "upto": 0, "count": 0}
    older = await _said_after(session, before["upto"], min(count - reach, 2 * reach))
    try:
        text = await _summary(summarize, before["text"], older)
        data = {"text": text, "upto": older[-1].sequence, "count": before["count"] + len(older)}
        draft = Draft(ev.EV_SUMMARY, data, audience=())
    except GraphBubbleUp:
        raise
    except Exception as error:  # it must not stop the session: the next turn tries again
        log.warning("the summariser of session %s failed: %s", session.id, kind_of(error))
        return
    await session.note(draft)


async def _summary(summarize: Summarize, before: str, older: Sequence[Envelope]) -> str:
    # Every speaker is shown the summary, so it must not hold what only some may see.
    public = [envelope for envelope in older if envelope.audience is None]
    if not public:
        return before
    result = summarize(before, public)
    text = await result if inspect.isawaitable(result) else result
    if not isinstance(text, str):
        raise TypeError(f"a summary is a string, not {type(text).__name__}")
    return text


async def _said_after(session: OwnedSession, after: int, count: int) -> list[Envelope]:
    messages: list[Envelope] = []
    branch = Branch(session.log, session.state)
    while len(messages) < count and after < session.state.sequence:
        upto = after + _BATCH
        batch = await branch.read(after, upto)
        messages += [envelope for envelope in batch if envelope.is_substantive]
        after = upto
    return messages[:count]
