"""CrewAI: a flow with `@persist` on SQLite, by "Flows" (its part "Flow Persistence") and "Human
Feedback in Flows" (its part "Async Human Feedback": a provider raises `HumanFeedbackPending`).

A run is the id of its state. After a kill it is taken up by `kickoff(inputs={"id": …})`, an answer
by `from_pending` and `resume_async`; a fork is `restore_from_state_id`.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from uuid import uuid4

from crewai.flow.async_feedback import HumanFeedbackPending
from crewai.flow.flow import Flow, FlowState, listen, start
from crewai.flow.human_feedback import human_feedback
from crewai.flow.persistence import SQLiteFlowPersistence, persist
from pydantic import Field

from benchmarks.contract.scenario import Outcome, astep, job, play, wait_for_the_others


class Work(FlowState):
    """The state of a run."""

    done: list[str] = Field(default_factory=list)
    count: int = 0
    answer: str = ""


class Later:
    """A provider that pauses the flow until somebody answers."""

    def request_feedback(self, context: Any, flow: Any) -> str:
        raise HumanFeedbackPending(context=context)


class WorkFlow(Flow[Work]):
    @start()
    async def draft(self) -> str:
        await astep("draft")
        self.state.done.append("draft")
        self.state.count = "many" if job().misfit else 1  # type: ignore[assignment]  # the misfit
        return "draft"

    @listen(draft)
    async def charge(self) -> str:
        await astep("charge")
        self.state.done.append("charge")
        return "charge"

    @listen(charge)
    async def report(self) -> str:
        await astep("report")
        self.state.done.append("report")
        return "report"

    @listen(report)
    @human_feedback(message="May I pay 5?", provider=Later())
    async def ask(self) -> str:
        return "5"

    @listen(ask)
    async def pay(self, result: Any) -> str:
        if result.feedback == "yes":
            await astep("pay")
        self.state.answer = "paid" if result.feedback == "yes" else "refused"
        return self.state.answer


class CrewAI:
    def __init__(self) -> None:
        self._db = Path(job().store) / "flows.db"
        self._persistence = SQLiteFlowPersistence(str(self._db))
        self._kind: Any = persist(self._persistence)(WorkFlow)

    def _new(self) -> Any:
        return self._kind(suppress_flow_events=False)

    async def begin(self) -> Outcome:
        await self._new().kickoff_async(inputs={"id": job().run})
        return await self.state()

    async def resume(self) -> Outcome:
        if self._persistence.load_pending_feedback(job().run) is None:
            await self._new().kickoff_async(inputs={"id": job().run})
        return await self.state()

    async def answer(self) -> Outcome:
        flow = self._kind.from_pending(job().run, self._persistence)
        wait_for_the_others()
        await flow.resume_async(job().value)
        return await self.state()

    async def state(self) -> Outcome:
        pending = self._persistence.load_pending_feedback(job().run)
        # What was saved with the question is newer than the state of the step before it.
        values = pending[0] if pending else self._persistence.load_state(job().run)
        if values is None:
            return Outcome("none")
        state = {key: values.get(key) for key in ("done", "count", "answer")}
        status = "asks" if pending else "ended" if state["answer"] else "open"
        return Outcome(status, state, str(state["answer"]), job().run)

    async def fork(self) -> Outcome:
        name = str(uuid4())
        before = await self.state()
        await self._new().kickoff_async(inputs={"id": name}, restore_from_state_id=job().run)
        asks = self._persistence.load_pending_feedback(name) is not None
        return Outcome("asks" if asks else "ended", before.state, "", name)

    async def tear(self) -> Outcome:
        query = (
            "UPDATE pending_feedback SET state_json = substr(state_json, 1, length(state_json) / 2)"
        )
        with sqlite3.connect(self._db) as file:
            count = file.execute(query).rowcount
        assert count == 1, count
        return Outcome("torn")


if __name__ == "__main__":
    play(CrewAI)
