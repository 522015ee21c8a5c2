"""The summary of what a window no longer shows: made in steps, so that a turn costs the same."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from langgraph.errors import GraphBubbleUp

from agentgraph.errors import kind_of
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.draft import Draft
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.state import SessionState

if TYPE_CHECKING:
    from agentgraph.sessions.hub.live import LiveSession


log = logging.getLogger("agentgraph")

Summarize: TypeAlias = Callable[[str, Sequence[Envelope]], str | Awaitable[str]]
"""Given the summary so far and what has been said since, returns the next one."""

_BATCH = 100


def unsummarised(state: SessionState) -> int:
    """Return how many of the messages no summary has."""
    done = int(state.summary["count"]) if state.summary is not None else 0
    return sum(state.said.values()) - done


async def summarise(live: LiveSession, summarize: Summarize, reach: int) -> None:
    """Bring a session's summary up to the messages before its window, once enough have gone."""
    state = live.state
    waiting = unsummarised(state)
    if waiting < 2 * reach:
        return
    before = state.summary or {"text": "", "upto": 0, "count": 0}
    older = await _said_after(live, before["upto"], min(waiting - reach, 2 * reach))
    try:
        text = await _summary(summarize, before["text"], older)
        told = {"text": text, "upto": older[-1].sequence, "count": before["count"] + len(older)}
        draft = Draft(ev.EV_SUMMARY, told, audience=())
    except GraphBubbleUp:
        raise
    except Exception as error:  # it must not stop the session: it is asked again in the next turn
        log.warning("the summariser of session %s failed: %s", live.id, kind_of(error))
        return
    await live.note(draft)


async def _summary(summarize: Summarize, before: str, older: Sequence[Envelope]) -> str:
    # Everybody is shown a summary, so what only some may see is not in it.
    public = [one for one in older if one.audience is None]
    if not public:
        return before
    made = summarize(before, public)
    text = await made if inspect.isawaitable(made) else made
    if not isinstance(text, str):
        raise TypeError(f"a summary is a string, not {type(text).__name__}")
    return text


async def _said_after(live: LiveSession, after: int, count: int) -> list[Envelope]:
    found: list[Envelope] = []
    while len(found) < count and (read := await live.log.read(live.id, after, _BATCH)):
        found += [one for one in read if one.is_substantive]
        after = read[-1].sequence
    return found[:count]
