"""Tasks: the calls of tools that tell how far they are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from agentgraph.running import at_call_end
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.draft import Draft

if TYPE_CHECKING:
    from agentgraph.sessions.hub.live import LiveSession
    from agentgraph.sessions.hub.round import Round


Outcome = Literal["completed", "failed", "expired"]
_ENDS = {
    "completed": ev.EV_TASK_COMPLETED,
    "failed": ev.EV_TASK_FAILED,
    "expired": ev.EV_TASK_EXPIRED,
}


@dataclass(slots=True)
class Tasks:
    """The tasks of a session that are under way, and what they have told and is not yet written.

    A task begins with the first report of its call, and ends with the call; where that is broken
    off, with the round.
    """

    live: LiveSession
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    open: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    over: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By speaker, the last round and attempt that has ended: a thread may report from it still."""
    told: list[Draft] = field(default_factory=list)

    def report(self, told: Mapping[str, Any]) -> None:
        """Take a report, from any thread; the first one of a call begins its task."""
        at_call_end(partial(self._end_call, told["task_id"]))
        self.loop.call_soon_threadsafe(self._take, told)

    async def flush(self) -> None:
        """Write what was told."""
        drafts, self.told = self.told, []
        if drafts:
            await self.live.note(*drafts)

    async def end(self, round: Round, outcome: Outcome) -> None:
        """End the tasks of a round."""
        # Reports of threads come by the loop: those made before the round's end come first.
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no wait
        self.over[round.speaker] = round.number, round.attempt
        for task_id, told in list(self.open.items()):
            if told["agent"] == round.speaker:
                self._end(task_id, outcome)
        await self.flush()

    def cut_off(self) -> list[Draft]:
        """Return what is to be written of all tasks before the session ends with them."""
        return [*self.told, *(_ended(told, "expired") for told in self.open.values())]

    def _take(self, told: Mapping[str, Any]) -> None:
        if (told["round"], told["attempt"]) <= self.over.get(told["agent"], (0, 0)):
            return
        task_id = told["task_id"]
        if task_id not in self.open:
            self.told.append(Draft(ev.EV_TASK_STARTED, _named(told)))
        self.open[task_id] = told
        self.told.append(Draft(ev.EV_TASK_PROGRESS, told))
        self._flush_soon()

    def _end_call(self, task_id: str, went_well: bool) -> None:
        if task_id in self.open:
            self._end(task_id, "completed" if went_well else "failed")
            self._flush_soon()

    def _end(self, task_id: str, outcome: Outcome) -> None:
        self.told.append(_ended(self.open.pop(task_id), outcome))

    def _flush_soon(self) -> None:
        if len(self.told) <= 2:
            self._flushing = asyncio.ensure_future(self._quietly())

    async def _quietly(self) -> None:
        with suppress(Exception):  # the round's own write tells what is wrong with the log
            await self.flush()

    _flushing: Any = None


def _ended(told: Mapping[str, Any], outcome: Outcome) -> Draft:
    return Draft(_ENDS[outcome], _named(told))


def _named(told: Mapping[str, Any]) -> dict[str, Any]:
    return {key: told[key] for key in ("task_id", "agent", "round", "attempt")}
