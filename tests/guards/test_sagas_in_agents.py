"""What agents do to the world is registered first, done once, and undone where a run is ended."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, interrupt

from agentgraph import Agent, effect, idempotency_key
from agentgraph.guards import Deadlines, MemorySink, Saga
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.guards.deciding import ANSWER, PLACES, Till, asked, clerk, tree, unsure
from tests.guards.spending import Driven
from tests.guards.working import audited, decided, recorded, solo, streamed, watched
from tests.sessions.talk import until


def paying(till: Till, *turns: Any, **fields: Any) -> Agent:
    """Return an agent who pays, and says what it is told to."""
    return solo(ScriptedModel(turns), till.tool, **fields)


def pays(*items: str) -> list[Any]:
    return [call("pay", item=item) for item in items]


# Undone: the last thing first


@pytest.mark.parametrize("place", PLACES)
async def test_what_was_done_is_undone_the_last_thing_first_where_a_human_rejects(
    place: str,
) -> None:
    till, sink = Till(), MemorySink()
    turns = [*pays("tea"), pays("milk", "jam"), ANSWER]
    worker = clerk(till, "").replace(model=ScriptedModel(turns))
    agent = tree(place, worker, guards=unsure("doubt", sink))
    [question] = (await asked(agent)).interrupts
    reply = await agent.aresume("t", {question.id: "reject"})
    assert (reply.close_reason, reply.text) == ("escalation", "")
    assert till.tries[-3:] == ["give back jam", "give back milk", "give back tea"]
    assert till.left == []
    path = "clerk" if place == "root" else f"boss{'/mid' if place == 'deep' else ''}/clerk"
    undone = [(one.data["tool"], one.data["state"]) for one in recorded(sink, "compensated")]
    assert undone == [(f"{path}:pay", "undoing"), (f"{path}:pay", "compensated")] * 3
    run = sink.runs()[0]
    assert watched(sink).audit.trail(run).effects == ((f"{path}:pay", "compensated"),) * 3  # type: ignore[union-attr]


async def test_what_a_guard_ends_is_undone_too() -> None:
    till = Till()
    again = [*pays("tea"), call("look", what="it")]
    agent = paying(till, *again, *[again[1]] * 4)
    agent = agent.replace(tools=[till.tool, look], guards=watched())
    reply = await agent.ainvoke("go")
    assert reply.close_reason == "loop_detector"
    assert till.tries == ["pay tea", "give back tea"]


def look(what: str) -> str:
    """Look something up."""
    return "nothing"


async def test_what_is_answered_stays_done() -> None:
    till = Till()
    reply = await paying(till, pays("tea", "milk"), ANSWER, guards=watched()).ainvoke("go")
    assert (reply.text, sorted(till.left)) == (ANSWER, ["milk", "tea"])
    assert [one for one in till.tries if one.startswith("give")] == []


async def test_actions_of_all_levels_are_undone_in_one_order() -> None:
    till, sink = Till(), MemorySink()
    low = clerk(till, "").replace(model=ScriptedModel([*pays("low"), ANSWER]))
    mid = Agent(
        "mid", model=ScriptedModel([*pays("mid"), call("transfer_to_clerk")]), agents=[low]
    ).replace(tools=[till.tool])
    top = Agent(
        "top",
        model=ScriptedModel([*pays("top"), call("transfer_to_mid")]),
        agents=[mid],
        tools=[till.tool],
        guards=unsure("doubt", sink),
    )
    [question] = (await asked(top)).interrupts
    await top.aresume("t", {question.id: "reject"})
    order = ["top", "mid", "low"]
    assert till.tries == [f"pay {one}" for one in order] + [
        f"give back {one}" for one in order[::-1]
    ]


async def test_of_delegates_side_by_side_all_is_undone_once_by_whom_they_work_for() -> None:
    till, sink = Till(), MemorySink()
    workers = [
        clerk(till, "").replace(name=name, model=ScriptedModel([*pays(name), ANSWER]))
        for name in ("clerk", "cook")
    ]
    calls = [call(f"transfer_to_{one.name}") for one in workers]
    model = ScriptedModel([[*pays("own"), *calls][:1], calls, "never"])
    boss = Agent("boss", model=model, tools=[till.tool], agents=workers, handoff="delegate")
    boss = boss.replace(guards=unsure("doubt", sink))
    reply = await boss.ainvoke("go", thread_id="t")
    [question] = reply.interrupts  # of the clerk, who is not sure; the cook is
    reply = await boss.aresume("t", {question.id: "reject"})
    assert reply.close_reason == "escalation"
    undone = [one.removeprefix("give back ") for one in till.tries if one.startswith("give")]
    assert sorted(undone) == ["clerk", "cook", "own"] and undone[-1] == "own"
    assert till.left == []


async def test_a_run_that_was_ended_does_nothing_more() -> None:
    """One of two delegates is rejected while the other waits too, who then wants to act."""
    till, sink = Till(), MemorySink()

    def ask(item: str) -> str:
        """Ask first."""
        return str(interrupt(f"may I pay for {item}?"))

    clerks = [
        clerk(till, "").replace(model=ScriptedModel([*pays("tea"), ANSWER])),
        Agent(
            "cook",
            model=ScriptedModel([call("ask", item="jam"), *pays("jam"), "I paid."]),
            tools=[till.tool, ask],
        ),
    ]
    calls = [call(f"transfer_to_{one.name}") for one in clerks]
    boss = Agent("boss", model=ScriptedModel([calls]), agents=clerks, handoff="delegate")
    boss = boss.replace(guards=unsure("doubt", sink))
    reply = await boss.ainvoke("go", thread_id="t")
    questions = {one.agent: one.id for one in reply.interrupts}
    reply = await boss.aresume("t", {questions["boss/clerk"]: "reject"})
    assert [one.agent for one in reply.interrupts] == ["boss/cook"]
    reply = await boss.aresume("t", {questions["boss/cook"]: "yes"})
    assert reply.close_reason == "escalation"
    assert till.tries == ["pay tea", "give back tea"]
    assert ("boss/cook", "saga", "deny") in audited(sink)


# A compensation that fails


class Stubborn(Till):
    """Does not take back a thing, as often as it says."""

    def __init__(self, item: str, times: int) -> None:
        super().__init__()
        self.item, self.times = item, times

    def give_back(self, item: str, key: str) -> None:
        if item == self.item and self.times > 0:
            self.times -= 1
            self.tries.append(f"fail {item}")
            raise OSError("the shop is closed")
        super().give_back(item, key)


async def rejected(time: Driven, till: Till, sink: MemorySink, **fields: Any) -> list[Any]:
    """Have a run rejected in which three things were paid for; return what was told of it."""
    turns = [*pays("tea"), *pays("milk"), *pays("jam"), ANSWER]
    worker = clerk(till, "").replace(
        model=ScriptedModel(turns), guards=unsure("doubt", sink, **fields)
    )
    [question] = (await time.drive(asked(worker))).interrupts
    return await time.drive(streamed(worker, Command(resume={question.id: "reject"})))


async def test_a_compensation_that_fails_is_tried_again() -> None:
    till, sink = Stubborn("milk", 2), MemorySink()
    events = await rejected(Driven(), till, sink)
    back = ["give back jam", "fail milk", "fail milk", "give back milk", "give back tea"]
    assert till.tries[3:] == back
    assert till.left == []
    assert decided(events) == []


async def test_one_that_fails_for_good_is_told_and_does_not_stop_the_others() -> None:
    till, sink = Stubborn("milk", 99), MemorySink()
    events = await rejected(Driven(), till, sink)
    back = ["give back jam", "fail milk", "fail milk", "fail milk", "give back tea"]
    assert till.tries[3:] == back
    assert till.left == ["milk"]
    assert decided(events) == [("clerk", "saga", "escalate")]
    states = [one.data["state"] for one in recorded(sink, "compensated")]
    assert states[1::2] == ["compensated", "compensation_failed", "compensated"]
    assert set(states[::2]) == {"undoing"}
    [escalated] = [one.decision for one in recorded(sink, "decision") if one.decision][1:]
    assert escalated["cause"] == "clerk:pay could not be undone (OSError): undo it by hand"
    assert escalated["failure_class"] == "unsafe_output"


async def test_how_often_it_is_tried_is_configured() -> None:
    till, sink = Stubborn("milk", 99), MemorySink()
    await rejected(Driven(), till, sink, saga=Saga(retries=0))
    assert till.tries.count("fail milk") == 1


async def test_one_that_hangs_is_cut_off_whatever_deadline_has_passed_before() -> None:
    hangs = asyncio.Event()

    class Hanging(Till):
        async def give_back(self, item: str, key: str) -> None:  # type: ignore[override]
            if item == "milk":
                hangs.set()
                await asyncio.Event().wait()
            super().give_back(item, key)

    till = Hanging()
    turns = [*pays("tea"), *pays("milk"), *pays("jam"), ANSWER]
    with FakeClock().installed() as clock:
        limits = Deadlines(None, None, workflow_s=50)
        guards = unsure("doubt", saga=Saga(grace_s=30), deadlines=limits)
        worker = clerk(till, "").replace(model=ScriptedModel(turns), guards=guards)
        [question] = (await asked(worker)).interrupts
        deciding = asyncio.ensure_future(worker.aresume("t", {question.id: "reject"}))
        await hangs.wait()
        clock.advance(60)
        assert (await deciding).close_reason == "escalation"
    assert till.tries[3:] == ["give back jam", "give back tea"]
    assert till.left == ["milk"]


# Registered before it runs


async def test_an_action_is_stored_before_it_runs() -> None:
    saver = InMemorySaver()
    stored: list[Any] = []

    def undo() -> None: ...

    @effect(compensate=undo)
    async def act(what: str) -> str:
        """Act."""
        found = await saver.aget_tuple({"configurable": {"thread_id": "t"}})
        assert found is not None
        entries = found.checkpoint["channel_values"]["guarded"]["saga"]["entries"]
        stored.append(entries[idempotency_key()])
        return f"acted {what}"

    calls = [call("act", what="a"), call("act", what="b")]
    model = ScriptedModel([calls, call("act", what="c"), ANSWER])
    agent = solo(model, act, checkpointer=saver, durability="sync", guards=watched())
    assert (await agent.ainvoke("go", thread_id="t")).text == ANSWER
    assert [(one["state"], one["args"]["what"]) for one in stored] == [
        ("started", "a"),
        ("started", "b"),
        ("started", "c"),
    ]
    assert all(one["compensates"] for one in stored)


async def test_a_compensation_is_given_what_the_action_was_given_and_what_came_of_it() -> None:
    seen: list[Any] = []

    async def undo(item: str, count: int, result: str, key: str) -> None:
        seen.append((item, count, result, key))

    keys: list[str] = []

    @effect(compensate=undo)
    def order(item: str, count: int = 1) -> str:
        """Order something."""
        keys.append(idempotency_key())
        return f"order 7 of {item}"

    model = ScriptedModel([call("order", item="tea", count=3), ANSWER])
    agent = solo(model, order, name="clerk", guards=unsure("doubt"))
    [question] = (await asked(agent)).interrupts
    await agent.aresume("t", {question.id: "reject"})
    assert seen == [("tea", 3, "order 7 of tea", *keys)]


async def test_without_a_saga_nothing_is_registered_nor_undone() -> None:
    till = Till()
    agent = clerk(till, "").replace(guards=unsure("doubt", saga=None))
    [question] = (await asked(agent)).interrupts
    assert (await agent.aresume("t", {question.id: "reject"})).close_reason == "escalation"
    assert till.tries == ["pay tea"]


# Actions that ask a human


def careful(till: Till) -> Any:
    """Return a tool that pays once a human agrees."""

    @effect(compensate=till.give_back)
    def pay(item: str) -> str:
        """Pay for something, if a human agrees."""
        if interrupt(f"may I pay for {item}?") != "yes":
            return "not paid"
        return str(till.tool(item))

    return pay


@asynccontextmanager
async def stored(path: Path) -> AsyncIterator[AsyncSqliteSaver]:
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        yield saver


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("items", [("tea",), ("tea", "jam")])
async def test_an_action_may_ask_first_and_is_done_once(
    items: tuple[str, ...], is_restarted: bool, tmp_path: Path
) -> None:
    till, sink = Till(), MemorySink()

    def agent(saver: Any, *turns: Any) -> Agent:
        fields = {"checkpointer": saver, "durability": "sync", "guards": watched(sink)}
        return solo(ScriptedModel(turns), careful(till), **fields)

    async with stored(tmp_path / "t.db") as first:
        before = agent(first, pays(*items), ANSWER)
        reply = await before.ainvoke("go", thread_id="t")
        decisions = {one.id: "yes" for one in reply.interrupts}
        if not is_restarted:
            reply = await before.aresume("t", decisions)
    if is_restarted:
        async with stored(tmp_path / "t.db") as second:
            reply = await agent(second, ANSWER).aresume("t", decisions)
    assert (reply.text, reply.interrupts) == (ANSWER, ())
    assert till.tries == [f"pay {item}" for item in items]
    assert audited(sink) == []
    assert {one.data["state"] for one in recorded(sink, "effect")} == {"started", "waiting", "done"}


async def test_an_action_that_waits_when_its_run_is_rejected_is_undone_too() -> None:
    till = Till()
    worker = clerk(till, "").replace(model=ScriptedModel([ANSWER]))
    cook = Agent("cook", model=ScriptedModel([*pays("jam"), "never"]), tools=[careful(till)])
    calls = [call("transfer_to_clerk"), call("transfer_to_cook")]
    boss = Agent("boss", model=ScriptedModel([calls]), agents=[worker, cook], handoff="delegate")
    boss = boss.replace(guards=unsure("doubt"))
    reply = await boss.ainvoke("go", thread_id="t")
    answers = {one.id: "reject" if one.agent == "boss/clerk" else "no" for one in reply.interrupts}
    reply = await boss.aresume("t", answers)
    assert reply.close_reason == "escalation"
    assert till.left == []


# Actions that were cut off


async def test_an_action_is_done_at_once_also_where_langgraph_itself_runs_the_graph() -> None:
    till, sink = Till(), MemorySink()
    model = ScriptedModel([*pays("tea"), pays("milk", "jam"), ANSWER])
    graph = solo(model, till.tool, guards=watched(sink)).graph
    on_t: Any = {"configurable": {"thread_id": "t"}}
    graph = graph.with_config(callbacks=[Collector()])
    result = await graph.ainvoke({"messages": [("user", "go")]}, on_t)
    assert result["messages"][-1].text == ANSWER
    assert till.tries[:1] + sorted(till.tries[1:]) == ["pay tea", "pay jam", "pay milk"]
    assert audited(sink) == []


class Collector(BaseCallbackHandler):
    """Collects what nobody holds, whenever a node begins."""

    run_inline = True

    def on_chain_start(self, *_: Any, **__: Any) -> None:
        gc.collect()


class Fragile:
    """A tool in which its process dies once, before or after it has paid."""

    def __init__(self, till: Till, acts_first: bool, lookup: Callable[..., Any] | None) -> None:
        self.reached = asyncio.Event()

        @effect(compensate=till.give_back, lookup=lookup)
        async def pay(item: str) -> str:
            """Pay for something."""
            dies = not self.reached.is_set()
            if acts_first or not dies:
                till.tool(item)
            if dies:
                self.reached.set()
                await asyncio.Event().wait()
            return f"paid for {item}"

        self.tool = pay


async def cut_off(path: Path, fragile: Fragile, sink: MemorySink, *turns: Any) -> Any:
    """Have a process die in a tool; another one goes on from what is stored."""

    def graph(saver: Any, *turns: Any) -> Any:
        fields = {"checkpointer": saver, "durability": "sync", "guards": watched(sink)}
        return solo(ScriptedModel(turns), fragile.tool, **fields).graph

    on_t: Any = {"configurable": {"thread_id": "t"}}
    async with stored(path) as first:
        said = {"messages": [("user", "go")]}
        working = graph(first, pays("tea"), "never").ainvoke(said, on_t, durability="sync")
        running = asyncio.ensure_future(working)
        await fragile.reached.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    async with stored(path) as second:
        return await graph(second, *turns).ainvoke(None, on_t, durability="sync")


@pytest.mark.parametrize("acts_first", [True, False])
async def test_an_action_of_unknown_outcome_is_looked_up(acts_first: bool, tmp_path: Path) -> None:
    till, sink = Till(), MemorySink()

    def find(key: str) -> str | None:
        return f"paid for {till.paid[key]}" if key in till.paid else None

    fragile = Fragile(till, acts_first, find)
    result = await cut_off(tmp_path / "t.db", fragile, sink, ANSWER)
    answers = [m.text for m in result["messages"] if isinstance(m, ToolMessage)]
    assert (answers, result["messages"][-1].text) == (["paid for tea"], ANSWER)
    assert till.tries == ["pay tea"]
    assert audited(sink) == []


@pytest.mark.parametrize("acts_first", [True, False])
async def test_where_nobody_can_look_it_up_a_human_is_asked(
    acts_first: bool, tmp_path: Path
) -> None:
    till, sink = Till(), MemorySink()
    fragile = Fragile(till, acts_first, None)
    result = await cut_off(tmp_path / "t.db", fragile, sink, ANSWER)
    [question] = result["__interrupt__"]
    assert question.value["guard"] == "saga"
    assert "nobody knows what came of it" in question.value["cause"]
    assert audited(sink) == [("a", "saga", "escalate")]
    async with stored(tmp_path / "t.db") as saver:
        fields: Any = {"checkpointer": saver, "guards": watched(sink)}
        agent = solo(ScriptedModel([ANSWER]), fragile.tool, **fields)
        reply = await agent.aresume("t", {question.id: "reject"})
    assert reply.close_reason == "saga"
    assert till.tries == [*(["pay tea"] if acts_first else []), "give back tea"]


async def test_of_actions_side_by_side_none_is_forgotten_where_one_was_cut_off(
    tmp_path: Path,
) -> None:
    reached, results = asyncio.Event(), dict[str, Any]()

    def undo(item: str, result: str) -> None:
        results[item] = result

    @effect(compensate=undo, lookup=lambda key: None)
    async def pay(item: str) -> str:
        """Pay for something."""
        if item == "milk" and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return f"paid for {item}"

    def graph(saver: Any, *turns: Any) -> Any:
        fields: Any = {"checkpointer": saver, "durability": "sync", "guards": unsure("doubt")}
        return solo(ScriptedModel(turns), pay, name="clerk", **fields).graph

    on_t: Any = {"configurable": {"thread_id": "t"}}
    async with stored(tmp_path / "t.db") as first:
        said = {"messages": [("user", "go")]}
        working = graph(first, pays("tea", "milk")).ainvoke(said, on_t, durability="sync")
        running = asyncio.ensure_future(working)
        await reached.wait()
        await until(lambda: has_answered(first, on_t))
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    async with stored(tmp_path / "t.db") as second:
        again = graph(second, ANSWER)
        result = await again.ainvoke(None, on_t, durability="sync")
        [question] = result["__interrupt__"]
        await again.ainvoke(Command(resume={question.id: "reject"}), on_t, durability="sync")
    assert results == {"tea": "paid for tea", "milk": "paid for milk"}


async def has_answered(saver: AsyncSqliteSaver, config: Any) -> bool:
    """Tell whether what one of several calls came to is stored, though the step is not over."""
    found = await saver.aget_tuple(config)
    writes = found.pending_writes if found is not None else None
    return any(channel == "messages" for _, channel, _ in writes or ())
