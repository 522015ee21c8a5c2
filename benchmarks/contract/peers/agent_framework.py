"""Microsoft Agent Framework: a workflow with `FileCheckpointStorage`, by its pages "Microsoft Agent
Framework Workflows - Checkpoints" and "Human-in-the-loop" (`request_info`, `@response_handler`).

A run is the name of its workflow, since checkpoints are grouped by it. Resuming means: the latest
checkpoint of that name, which `get_latest` returns, by `run(checkpoint_id=…)`; an answer is
`run(checkpoint_id=…, responses=…)`. A fork is a second run of one checkpoint, in a workflow of its
own with a folder of its own, as "checkpoints are not tied to a workflow instance".
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from agent_framework import (
    Executor,
    FileCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)

from benchmarks.contract.scenario import (
    NotOffered,
    Outcome,
    astep,
    cut,
    job,
    play,
    wait_for_the_others,
)


@dataclass
class Work:
    """What is passed from step to step."""

    done: list[str] = field(default_factory=list)
    answer: str = ""


@dataclass
class MayIPay:
    """The question."""

    amount: int


class Step(Executor):
    """A step that is passed the work, and passes it on."""

    @handler
    async def run_step(self, work: Work, ctx: WorkflowContext[Work]) -> None:
        await astep(self.id)
        ctx.set_state("done", [*work.done, self.id])
        await ctx.send_message(Work([*work.done, self.id]))


class Pay(Executor):
    """The gated step."""

    @handler
    async def ask(self, work: Work, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.request_info(request_data=MayIPay(5), response_type=str)

    @response_handler
    async def pay(self, question: MayIPay, answer: str, ctx: WorkflowContext[Any, str]) -> None:
        if answer == "yes":
            await astep("pay")
        ctx.set_state("answer", "paid" if answer == "yes" else "refused")
        await ctx.yield_output("paid" if answer == "yes" else "refused")


class AgentFramework:
    def __init__(self) -> None:
        names = [f"{__name__}:Work", f"{__name__}:MayIPay"]
        self._folder = Path(job().store) / job().run
        self._storage = FileCheckpointStorage(self._folder, allowed_checkpoint_types=names)
        draft, charge, report, pay = Step("draft"), Step("charge"), Step("report"), Pay("pay")
        builder = WorkflowBuilder(
            name="work", start_executor=draft, checkpoint_storage=self._storage
        )
        self._workflow = (
            builder.add_edge(draft, charge).add_edge(charge, report).add_edge(report, pay).build()
        )

    async def begin(self) -> Outcome:
        if job().misfit:
            raise NotOffered("a workflow's state is keys and values without a schema")
        await self._workflow.run(Work())
        return await self.state()

    async def resume(self) -> Outcome:
        latest = await self._latest()
        await self._workflow.run(checkpoint_id=latest.checkpoint_id)
        return await self.state()

    async def answer(self) -> Outcome:
        latest = await self._latest()
        requests = list(latest.pending_request_info_events)
        wait_for_the_others()
        await self._workflow.run(
            checkpoint_id=latest.checkpoint_id,
            responses={request: job().value for request in requests},
        )
        return await self.state()

    async def state(self) -> Outcome:
        latest = await self._storage.get_latest(workflow_name="work")
        if latest is None:
            return Outcome("none", name=job().run)
        state = {"done": latest.state.get("done", []), "answer": latest.state.get("answer", "")}
        asks = bool(latest.pending_request_info_events)
        status = "asks" if asks else "open" if latest.messages else "ended"
        return Outcome(status, state, state["answer"], job().run)

    async def fork(self) -> Outcome:
        name = f"fork-{uuid4().hex[:8]}"
        latest = await self._latest()
        other = Path(job().store) / name
        other.mkdir()
        shutil.copy(self._folder / f"{latest.checkpoint_id}.json", other)
        state = {"done": latest.state.get("done", []), "answer": latest.state.get("answer", "")}
        result = await self._workflow.run(
            checkpoint_id=latest.checkpoint_id,
            checkpoint_storage=FileCheckpointStorage(
                other, allowed_checkpoint_types=[f"{__name__}:Work", f"{__name__}:MayIPay"]
            ),
        )
        asks = bool(result.get_request_info_events())
        return Outcome("asks" if asks else "ended", state, "", name)

    async def tear(self) -> Outcome:
        newest = max(
            self._folder.glob("*.json"), key=lambda path: json.loads(path.read_text())["timestamp"]
        )
        cut(newest)
        return Outcome("torn")

    async def _latest(self) -> Any:
        latest = await self._storage.get_latest(workflow_name="work")
        assert latest is not None, "there is no checkpoint"
        return latest


if __name__ == "__main__":
    play(AgentFramework)
