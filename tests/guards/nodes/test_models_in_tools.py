"""Models and graphs without guards that the code of a tool calls: the input's guards hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer

from agentgraph import Agent, Guards, effect
from agentgraph.guards import CostBudget, Gate, MemorySink, StepLimit
from agentgraph.testing import ScriptedModel, Turn, call
from tests.guards.guarded_agents import audited, recorded, solo, watched

SECRET = "the secret word"


class Desk:
    """A tool that asks a model, or a graph of a model and a tool that pays."""

    def __init__(self, *turns: Any) -> None:
        self.model = ScriptedModel([*turns, "Paid."] if turns else lambda _: "Paid.")
        self.amounts: list[int] = []

        @tool
        def pay(amount: int) -> str:
            """Pay."""
            self.amounts.append(amount)
            return f"paid {amount}"

        self.pay = pay
        self.graph: Any = create_agent(self.model, [pay])

    def by_graph(self) -> Any:
        async def desk(what: str) -> str:
            """Ask the desk."""
            result = await self.graph.ainvoke({"messages": [("user", what)]})
            return str(result["messages"][-1].text)

        return desk

    def by_sync_graph(self) -> Any:
        def desk(what: str) -> str:
            """Ask the desk."""
            result = self.graph.invoke({"messages": [("user", what)]})
            return str(result["messages"][-1].text)

        return desk

    def by_model(self) -> Any:
        async def desk(what: str) -> str:
            """Ask the desk."""
            answer = await self.model.ainvoke(what)
            for c in answer.tool_calls:
                await self.pay.ainvoke(c)
            return str((await self.model.ainvoke(what)).text)

        return desk

    def by_config(self) -> Any:
        async def desk(what: str, config: RunnableConfig) -> str:
            """Ask the desk."""
            result = await self.graph.ainvoke({"messages": [("user", what)]}, config)
            return str(result["messages"][-1].text)

        return desk


WAYS: list[Callable[[Desk], Any]] = [
    Desk.by_graph,
    Desk.by_sync_graph,
    Desk.by_model,
    Desk.by_config,
]
in_all_ways = pytest.mark.parametrize("way", WAYS)
PAYS = call("pay", amount=1)


def asking(desk: Any, guards: Guards) -> Agent:
    return solo(ScriptedModel([call("desk", what="pay"), "Done."]), desk, guards=guards)


@in_all_ways
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"gates": Gate(policy=lambda s: s.tool != "pay")}, "no reason given"),
        ({"tool_limit": {"pay": 0}}, "0 are allowed"),
        ({"interrupt_on": {"pay": True}}, "nobody can be asked here, inside of another tool"),
    ],
)
async def test_a_call_of_its_model_that_may_not_run_breaks_the_tool_off(
    way: Callable[[Desk], Any], limits: dict[str, Any], reason: str
) -> None:
    desk, sink = Desk(PAYS), MemorySink()
    agent = asking(way(desk), watched(sink, **limits))
    reply = await agent.ainvoke("go")
    assert (desk.amounts, reply.text, reply.close_reason) == ([], "Done.", None)
    answer = next(m for m in reply.messages if m.type == "tool")
    assert answer.text.startswith("Error: `desk` was broken off: ") and reason in answer.text
    assert [action for _, _, action in audited(sink)] == ["deny"]


@in_all_ways
async def test_its_model_calls_are_the_input_s(way: Callable[[Desk], Any]) -> None:
    desk, sink = Desk(PAYS), MemorySink()
    reply = await asking(way(desk), watched(sink, steps=StepLimit(total=3))).ainvoke("go")
    assert (reply.close_reason, len(recorded(sink, "model"))) == ("max_steps", 3)


async def test_a_tool_that_asks_its_model_again_and_again_is_broken_off() -> None:
    model = ScriptedModel(lambda _: "No.")

    async def desk(what: str) -> str:
        """Ask the desk."""
        while True:
            await model.ainvoke(what)

    agent = asking(desk, Guards(steps=StepLimit(total=9)))
    assert (await agent.ainvoke("go")).close_reason == "max_steps"
    assert len(model.requests) == 8


@in_all_ways
async def test_what_its_models_use_is_paid_from_the_budget(way: Callable[[Desk], Any]) -> None:
    usage = UsageMetadata(input_tokens=4_000, output_tokens=1_000, total_tokens=5_000)
    desk = Desk(Turn("", [PAYS], usage=usage), Turn("Paid.", usage=usage))
    reply = await asking(way(desk), Guards(budget=6_000)).ainvoke("go")
    assert reply.close_reason == "cost_budget"
    assert len(desk.model.requests) == 1


async def test_a_price_that_nobody_knows_refuses_its_model_under_a_budget_in_dollars() -> None:
    desk = Desk()
    budget = CostBudget(usd=1, prices={"scripted": (1, 1)})
    desk.model = ScriptedModel(["Paid."], model_name="unheard-of")
    reply = await asking(desk.by_model(), Guards(budget=budget)).ainvoke("go")
    assert desk.model.requests == []
    assert "the price of the call is unknown" in str([m.text for m in reply.messages])


async def test_a_tool_may_ask_its_model_about_each_of_a_hundred_things() -> None:
    model = ScriptedModel(lambda _: "no spam")

    async def desk(what: str) -> str:
        """Ask the desk."""
        answers = [(await model.ainvoke(f"mail {n}")).text for n in range(100)]
        return f"{len(answers)} asked"

    reply = await asking(desk, Guards.default()).ainvoke("go")
    assert (reply.text, reply.close_reason, len(model.requests)) == ("Done.", None, 100)


async def test_a_tool_that_code_calls_is_the_code_s_own_affair() -> None:
    desk = Desk()

    async def both(what: str) -> str:
        """Do both."""
        return str(await desk.pay.ainvoke({"amount": 1}))

    model = ScriptedModel([call("both", what="pay"), "Done."])
    guards = Guards(gates=Gate(policy=lambda s: s.tool != "pay"), interrupt_on={"pay": True})
    await solo(model, both, guards=guards).ainvoke("go")
    assert desk.amounts == [1]


async def test_what_an_action_has_done_before_it_was_broken_off_is_undone() -> None:
    undone: list[str] = []
    desk = Desk(PAYS)

    @effect(compensate=lambda what: undone.append(what))
    async def act(what: str) -> str:
        """Act."""
        return str(await desk.graph.ainvoke({"messages": [("user", what)]}))

    model = ScriptedModel([call("act", what="it"), "Bad.", "Bad."])
    gates = [Gate(policy=lambda s: s.tool != "pay"), Gate(invariants=[lambda s: s.text != "Bad."])]
    await solo(model, act, guards=Guards(gates=gates)).ainvoke("go")
    assert undone == ["it"]


@in_all_ways
async def test_no_stream_shows_what_its_models_say_where_answers_are_judged(
    way: Callable[[Desk], Any],
) -> None:
    def build() -> Any:
        gate = Gate(invariants=[lambda s: SECRET not in s.text])
        agent = asking(way(Desk(SECRET, SECRET)), Guards(gates=gate))
        return agent.replace(
            checkpointer=InMemorySaver(),
            model=ScriptedModel([call("desk", what="it"), "Done."]),
        )

    config = {"configurable": {"thread_id": "t"}}
    modes = ["messages", "custom", "updates", "values", "debug", "tasks"]
    turn = {"messages": [("user", "go")]}
    shown = [
        part
        async for part in build().graph.astream(turn, config, stream_mode=modes, subgraphs=True)
    ]
    by_models = [part for part in shown if part[1] in ("messages", "custom") or part[0]]
    assert SECRET not in str([p for p in by_models if "ToolMessage" not in repr(p)])
    events = [e async for e in build().graph.astream_events(turn, config, version="v2")]
    assert not [e for e in events if e["event"] == "on_chat_model_stream" and SECRET in str(e)]


async def test_what_a_tool_writes_to_the_stream_is_shown() -> None:
    async def desk(what: str) -> str:
        """Ask the desk."""
        get_stream_writer()("half done")
        return "Paid."

    agent = asking(desk, Guards(gates=Gate(invariants=[lambda s: True])))
    turn = {"messages": [("user", "go")]}
    shown = [part async for part in agent.graph.astream(turn, stream_mode="custom")]
    assert "half done" in shown


def in_task(work: Any) -> Any:
    async def start() -> str:
        """Ask in a task."""
        await asyncio.create_task(work())
        return "ok"

    return start


def in_loop_thread(work: Any) -> Any:
    async def start() -> str:
        """Ask in a thread of the event loop."""
        await asyncio.to_thread(asyncio.run, work())
        return "ok"

    return start


def in_plain_thread(work: Any, *, has_context: bool) -> Any:
    def start() -> str:
        """Ask in a thread of its own."""
        run: Any = partial(asyncio.run, work())
        if has_context:
            run = partial(copy_context().run, run)
        thread = Thread(target=run)
        thread.start()
        thread.join()
        return "ok"

    return start


STARTS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "a task": (in_task, 3),
    "asyncio.to_thread": (in_loop_thread, 3),
    "a thread with the tool's context": (partial(in_plain_thread, has_context=True), 3),
    "a thread without it": (partial(in_plain_thread, has_context=False), 2),
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("what", ["a model", "an agent"])
async def test_what_a_tool_starts_with_its_context_is_the_input_s(start: str, what: str) -> None:
    make, seen = STARTS[start]
    inner, sink = ScriptedModel(lambda _: "No."), MemorySink()
    asked: Any = inner if what == "a model" else Agent("inner", model=inner, default_tools=False)

    async def work() -> None:
        await asked.ainvoke("why?")

    agent = solo(ScriptedModel([call("start"), "Done."]), make(work), guards=watched(sink))
    assert (await agent.ainvoke("go")).text == "Done."
    assert (len(recorded(sink, "model")), len(inner.requests)) == (seen, 1)
