"""CrewAI: the same flow with checkpoints too, by "Checkpointing".

A checkpoint is written whenever a method has finished, and for a question. After a kill the run is
taken up from the newest one, by `kickoff(from_checkpoint=…)`; a fork is `fork` and `kickoff`.
The question is stored and answered by `@persist`, as in `crewai_flows`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crewai import CheckpointConfig

from benchmarks.contract.peers.crewai_flows import CrewAI
from benchmarks.contract.scenario import Outcome, cut, job, play


class CrewAICheckpoints(CrewAI):
    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(job().store) / "checkpoints"

    def _new(self) -> Any:
        return self._kind(checkpoint=self._config())

    def _config(self, **more: Any) -> CheckpointConfig:
        return CheckpointConfig(
            location=str(self._folder), on_events=["method_execution_finished"], **more
        )

    def _newest(self) -> Path:
        return max(self._folder.rglob("*.json"), key=lambda path: path.stat().st_mtime_ns)

    async def resume(self) -> Outcome:
        if self._persistence.load_pending_feedback(job().run) is None:
            if not self._folder.exists():
                return await self.begin()  # nothing was recorded before the kill
            config = self._config(restore_from=self._newest())
            await self._kind().kickoff_async(from_checkpoint=config)
        return await self.state()

    async def fork(self) -> Outcome:
        flow: Any = self._kind.fork(self._config(restore_from=self._newest()))
        values = {key: getattr(flow.state, key) for key in ("done", "count", "answer")}
        await flow.kickoff_async()
        name = flow.state.id
        asks = self._persistence.load_pending_feedback(name) is not None
        return Outcome("asks" if asks else "ended", values, "", name)

    async def tear(self) -> Outcome:
        # The question is asked anew from the checkpoint, so the checkpoint is what is newest.
        self._persistence.clear_pending_feedback(job().run)
        cut(self._newest())
        return Outcome("torn")


if __name__ == "__main__":
    play(CrewAICheckpoints)
