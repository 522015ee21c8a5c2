"""Tasks: tool calls that report their progress, as envelopes of a session's log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from agentgraph.running import at_call_end
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.draft import Draft
from agentgraph.sessions.state.visibility import Audience

Outcome = Literal["completed", "failed", "expired"]
_END_TYPES = {
    "completed": ev.EV_TASK_COMPLETED,
    "failed": ev.EV_TASK_FAILED,
    "expired": ev.EV_TASK_EXPIRED,
}


@dataclass(slots=True)
class Tasks:
    """The open tasks of a session, and the task envelopes that are not written yet.

    A task begins with the first report of a call, and ends with the call. If the call is cancelled,
    the task ends with the round.
    """

    write: Callable[..., Awaitable[None]]
    """Appends drafts to the session's log."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    last_reports: dict[str, Draft] = field(default_factory=dict)
    """The last report of each open task, by task id."""
    ended_rounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By speaker, the last round and attempt that ended: a thread may still report from it."""
    drafts: list[Draft] = field(default_factory=list)
    """The drafts that are not written yet."""

    def report(self, report: Mapping[str, Any], audience: Audience) -> None:
        """Take a report, from any thread; the first one of a call begins its task."""
        at_call_end(partial(self._end_with_call, report["task_id"]))
        draft = Draft(ev.EV_TASK_PROGRESS, report, audience=audience)
        self.loop.call_soon_threadsafe(self._add, draft)

    async def flush(self) -> None:
        """Append all drafts that are not written yet."""
        drafts, self.drafts = self.drafts, []
        if drafts:
            await self.write(*drafts)

    async def end_round(self, speaker: str, round: int, attempt: int, outcome: Outcome) -> None:
        """End all tasks of a speaker's round."""
        # Threads report through the loop: reports from before the round's end are handled first.
        await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no wait
        self.ended_rounds[speaker] = round, attempt
        for task_id, report in list(self.last_reports.items()):
            if report.event_data["agent"] == speaker:
                self._end(task_id, outcome)
        await self.flush()

    def drafts_at_close(self) -> list[Draft]:
        """Return the drafts to write before the session ends; they end each open task."""
        open_tasks = self.last_reports.values()
        return [*self.drafts, *(_note_of(last, ev.EV_TASK_EXPIRED) for last in open_tasks)]

    def _add(self, report: Draft) -> None:
        data = report.event_data
        if (data["round"], data["attempt"]) <= self.ended_rounds.get(data["agent"], (0, 0)):
            return
        task_id = data["task_id"]
        if task_id not in self.last_reports:
            self.drafts.append(_note_of(report, ev.EV_TASK_STARTED))
        self.last_reports[task_id] = report
        self.drafts.append(report)
        self._flush_soon()

    def _end_with_call(self, task_id: str, went_well: bool) -> None:
        if task_id in self.last_reports:
            self._end(task_id, "completed" if went_well else "failed")
            self._flush_soon()

    def _end(self, task_id: str, outcome: Outcome) -> None:
        self.drafts.append(_note_of(self.last_reports.pop(task_id), _END_TYPES[outcome]))

    def _flush_soon(self) -> None:
        # More drafts than one call adds mean that a scheduled flush will write them all.
        if len(self.drafts) <= 2:
            self._flush_task = asyncio.ensure_future(self._try_to_flush())

    async def _try_to_flush(self) -> None:
        with suppress(Exception):  # the round's own write raises the same error of the log
            await self.flush()

    _flush_task: asyncio.Task[None] | None = None
    """A reference to the task, as the loop itself has only a weak one."""


def _note_of(report: Draft, event_type: str) -> Draft:
    """Return the draft of a task's begin or end, for those who may see its reports."""
    keys = ("task_id", "agent", "round", "attempt")
    data = {key: report.event_data[key] for key in keys}
    return Draft(event_type, data, audience=report.audience)
