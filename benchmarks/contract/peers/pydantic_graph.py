"""pydantic-graph 1: `FileStatePersistence`, by "State Persistence" of its page "Graphs", whose
question graph stops at a node, and is answered by another one in another process.

A run that was cut off is taken up by `iter_from_persistence`, as the page does. The second major
release of the package has no persistence any more, so this is the last one that has.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_graph import BaseNode, End, Graph, GraphRunContext
from pydantic_graph.persistence.file import FileStatePersistence

from benchmarks.contract.scenario import (
    NotOffered,
    Outcome,
    astep,
    cut,
    job,
    play,
    wait_for_the_others,
)

warnings.simplefilter("ignore")


@dataclass
class Work:
    """The state of a run."""

    done: list[str] = field(default_factory=list)
    count: int = 0
    answer: str = ""


@dataclass
class Draft(BaseNode[Work, None, str]):
    async def run(self, ctx: GraphRunContext[Work]) -> Charge:
        await astep("draft")
        ctx.state.done.append("draft")
        ctx.state.count = "many" if job().misfit else 1  # type: ignore[assignment]  # the misfit
        return Charge()


@dataclass
class Charge(BaseNode[Work, None, str]):
    async def run(self, ctx: GraphRunContext[Work]) -> Report:
        await astep("charge")
        ctx.state.done.append("charge")
        return Report()


@dataclass
class Report(BaseNode[Work, None, str]):
    async def run(self, ctx: GraphRunContext[Work]) -> MayIPay:
        await astep("report")
        ctx.state.done.append("report")
        return MayIPay()


@dataclass
class MayIPay(BaseNode[Work, None, str]):
    """Where the run stops: `Answer` of the page's example."""

    value: str = ""

    async def run(self, ctx: GraphRunContext[Work]) -> Pay:
        return Pay(self.value)


@dataclass
class Pay(BaseNode[Work, None, str]):
    value: str

    async def run(self, ctx: GraphRunContext[Work]) -> End[str]:
        if self.value == "yes":
            await astep("pay")
        ctx.state.answer = "paid" if self.value == "yes" else "refused"
        return End(ctx.state.answer)


GRAPH = Graph(nodes=(Draft, Charge, Report, MayIPay, Pay), state_type=Work)


class PydanticGraph:
    def __init__(self) -> None:
        self._path = Path(job().store) / f"{job().run}.json"
        self._persistence: Any = FileStatePersistence(self._path)
        self._persistence.set_graph_types(GRAPH)

    async def begin(self) -> Outcome:
        async with GRAPH.iter(Draft(), state=Work(), persistence=self._persistence) as run:
            await _drive(run)
        return await self.state()

    async def resume(self) -> Outcome:
        async with GRAPH.iter_from_persistence(self._persistence) as run:
            if not isinstance(run.next_node, MayIPay):
                await _drive(run)
        return await self.state()

    async def answer(self) -> Outcome:
        wait_for_the_others()
        snapshot = await self._persistence.load_next()
        if snapshot is None or not isinstance(snapshot.node, MayIPay):
            raise LookupError("load_next has no open question")
        node = Pay(job().value)
        async with GRAPH.iter(node, state=snapshot.state, persistence=self._persistence) as run:
            await _drive(run)
        return await self.state()

    async def state(self) -> Outcome:
        snapshots = await self._persistence.load_all()
        if not snapshots:
            return Outcome("none")
        last = snapshots[-1]
        work = last.state
        state = {"done": work.done, "count": work.count, "answer": work.answer}
        asks = isinstance(last.node, MayIPay)
        status = "asks" if asks else "ended" if isinstance(last.node, End) else "open"
        return Outcome(status, state, work.answer)

    async def fork(self) -> Outcome:
        raise NotOffered("a persistence is for one run, and there is no fork of it")

    async def tear(self) -> Outcome:
        cut(self._path)
        return Outcome("torn")


async def _drive(run: Any) -> None:
    while not isinstance(await run.next(), End | MayIPay):
        pass


if __name__ == "__main__":
    play(PydanticGraph)
