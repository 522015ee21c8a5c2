"""A flow beside a bare LangGraph map-reduce with `Send` that makes the same model calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from time import perf_counter, process_time
from typing import Any, Literal, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.messages.ai import UsageMetadata
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent
from agentgraph.flow import Brief, Flow, Plan, Summary, Verdict
from agentgraph.guards import Guards
from benchmarks.measure import Conversation, Opening, Row, Times, side_by_side
from benchmarks.peers import bare_langgraph, bare_map_reduce
from benchmarks.script import FunctionModel, Say, answer, look_up, question, then_answer

__all__ = ["flow_rows"]

SIZES = FEW, MANY = 8, 50
TURNS, MEASURED = 6, (2, 6)
REPETITIONS = {FEW: 12, MANY: 6}
GOAL, WALL_GOAL, FLAT = 1.3, 1.15, 1.1
PAUSES_S = (0.2, 0.4)
"""How long the quickest and the slowest worker sleep, where real time is measured."""

Kind: TypeAlias = Literal["functions", "agents", "agents with a tool"]
KINDS: Mapping[Kind, str] = {
    "functions": "functions that ask a model",
    "agents": "agents without tools",
    "agents with a tool": "agents with one tool",
}
_ids = count()


async def flow_rows() -> list[Row]:
    """Measure flows of 8 and of 50 workers, and how long they run beside slow workers."""
    rows: list[Row] = []
    for kind in KINDS:
        times = {size: await _measured(kind, size) for size in SIZES}
        rows += _rows_of(kind, times)
    return [*rows, *[await _elapsed_row(size) for size in SIZES]]


async def _measured(kind: Kind, size: int) -> dict[str, Times]:
    guarded, unguarded = Contestant(kind, size), Contestant(kind, size, guards=None)
    openings = {"ours": guarded.flow, "unguarded": unguarded.flow, "bare": guarded.bare}
    return await side_by_side(
        openings, turns=TURNS, repetitions=REPETITIONS[size], timer=process_time
    )


def _rows_of(kind: Kind, times: Mapping[int, Mapping[str, Times]]) -> list[Row]:
    ms = {
        size: {who: entry.around(*MEASURED) * 1000 for who, entry in times[size].items()}
        for size in SIZES
    }
    what = KINDS[kind]
    own = [ms[size]["ours"] / size for size in (MANY, FEW)]
    return [
        *(
            Row(
                f"a flow of {size} {what}{which} / bare map-reduce, CPU",
                ms[size][who],
                ms[size]["bare"],
                goal,
            )
            for size in SIZES
            for which, who, goal in (("", "ours", GOAL), (", guards=None", "unguarded", None))
        ),
        Row(f"a flow of {what}, CPU per worker, {MANY} workers / {FEW}", *own, FLAT),
    ]


async def _elapsed_row(size: int) -> Row:
    """Compare the time that a flow runs with that of its slowest worker."""
    contestant = Contestant("agents", size, pauses_s=PAUSES_S)
    async with contestant.flow() as conversation:
        await conversation.turn(1)
        began = perf_counter()
        await conversation.turn(2)
        elapsed = perf_counter() - began
    first, last = PAUSES_S
    what = f"a flow of {size} workers that take {first} to {last} s, elapsed / its slowest worker"
    return Row(what, elapsed * 1000, last * 1000, WALL_GOAL)


@dataclass(frozen=True)
class Contestant:
    """A flow of so many workers of a kind, all of them at once, and the map-reduce beside it."""

    kind: Kind
    size: int
    pauses_s: tuple[float, float] = (0.0, 0.0)
    guards: Guards | Literal["batch"] | None = "batch"

    @property
    def flow(self) -> Opening:
        """The flow, on a thread of its own in each turn."""
        members = self._functions() if self.kind == "functions" else self._agents()

        @asynccontextmanager
        async def opened() -> AsyncIterator[Conversation]:
            guards = self.guards
            if guards == "batch":
                guards = Guards.batch(fan_out=self.size, steps=4 * MANY)
            saver = InMemorySaver()
            flow: Flow[Any] = Flow("report", **members, guards=guards, checkpointer=saver)
            yield Conversation(lambda turn: _run(flow, turn))

        return opened

    @property
    def bare(self) -> Opening:
        """The map-reduce, which has no guards, no gates and no reports."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Conversation]:
            worker = bare_langgraph(None, FunctionModel) if self.has_tool else None
            graph = bare_map_reduce(InMemorySaver(), self._lead, self._worker(0), worker)

            async def turn(number: int) -> None:
                config: Any = {"configurable": {"thread_id": f"thread_{number}"}}
                values = {"task": question(number)}
                result = await graph.ainvoke(values, config, durability="sync")
                assert result["accepted"] and len(result["results"]) == self.size

            yield Conversation(turn)

        return opened

    @property
    def has_tool(self) -> bool:
        """Whether each worker calls a tool before it answers."""
        return self.kind == "agents with a tool"

    def _agents(self) -> dict[str, Any]:
        lead = Agent("lead", model=self._lead, default_tools=False)
        tools = [look_up] if self.has_tool else []
        work = [
            Agent(f"worker_{number}", model=self._worker(number), tools=tools, default_tools=False)
            for number in range(self.size)
        ]
        return {"supervisor": lead, "work": work}

    def _functions(self) -> dict[str, Any]:
        lead = self._lead
        planner, judge = lead.with_structured_output(Plan), lead.with_structured_output(Verdict)

        async def aggregate(summaries: Sequence[Summary]) -> str:
            return str((await lead.ainvoke("\n\n".join(s.text for s in summaries))).text)

        return {
            "plan": lambda task: planner.ainvoke(f"Plan the work: {task}"),
            "aggregate": aggregate,
            "validate": lambda result: judge.ainvoke(f"Judge this: {result}"),
            "work": [self._function(number) for number in range(self.size)],
        }

    def _function(self, number: int) -> Callable[[Brief], Any]:
        model = self._worker(number)

        async def work(brief: Brief) -> str:
            return str((await model.ainvoke(brief.task)).text)

        work.__name__ = f"worker_{number}"
        return work

    @property
    def _lead(self) -> FunctionModel:
        return FunctionModel(say=_lead(self.size))

    def _worker(self, number: int) -> PausedModel:
        first, last = self.pauses_s
        pause_s = first + (last - first) * number / (self.size - 1)
        say: Say = then_answer("look_up", order="A17") if self.has_tool else lambda _: answer()
        return PausedModel(say=say, pause_s=pause_s)


async def _run(flow: Flow[Any], turn: int) -> None:
    result = await flow.ainvoke(question(turn), thread_id=f"thread_{turn}")
    assert result.status == "finished", result.text


class PausedModel(FunctionModel):
    """A model that sleeps before it answers."""

    pause_s: float = 0.0

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        if self.pause_s:
            await asyncio.sleep(self.pause_s)
        return await super()._agenerate(messages, *args, **kwargs)


def _lead(size: int) -> Say:
    """Return who plans, judges and aggregates, by what the request says."""
    briefs = [{"worker": f"worker_{number}", "task": question(number)} for number in range(size)]
    verdict = {"accepted": True, "confidence": 0.9, "problems": []}

    def say(messages: Sequence[BaseMessage]) -> AIMessage:
        text = str(messages[-1].text)
        if "Plan the work" in text:
            return _in_form("Plan", briefs=briefs)
        return _in_form("Verdict", **verdict) if "Judge" in text else answer()

    return say


def _in_form(name: str, **args: object) -> AIMessage:
    call = ToolCall(name=name, args=args, id=f"form_{next(_ids)}", type="tool_call")
    usage = UsageMetadata(input_tokens=300, output_tokens=50, total_tokens=350)
    return AIMessage("", tool_calls=[call], usage_metadata=usage)
