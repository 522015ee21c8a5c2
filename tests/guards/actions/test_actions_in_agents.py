"""What agents do to the world is registered before it is done, and done once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, interrupt

from agentgraph import Agent, effect, idempotency_key
from agentgraph.guards import MemorySink
from agentgraph.testing import ScriptedModel, call
from tests.guards.escalating_agents import ANSWER, Till, asked, clerk, pays, unsure
from tests.guards.guarded_agents import audited, recorded, solo, watched
from tests.guards.records.test_account_in_a_new_process import another_process
from tests.sessions.talk import until

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


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("questions", [1, 2])
async def test_an_action_that_was_agreed_to_and_cut_off_by_a_kill_is_not_done_again(
    durability: Any, questions: int
) -> None:
    paid: list[str] = []
    is_paid, left = asyncio.Event(), InMemorySaver()

    @effect
    async def pay(item: str) -> str:
        """Pay for something, if humans agree."""
        for number in range(questions):
            interrupt(f"{number}: may I pay for {item}?")
        paid.append(item)
        is_paid.set()
        if len(paid) == 1:
            await asyncio.Event().wait()
        return "paid"

    def agent(saver: InMemorySaver) -> Agent:
        model = ScriptedModel([call("pay", item="tea"), ANSWER])
        return solo(model, pay, checkpointer=saver, durability=durability, guards=watched())

    [question] = (await agent(left).ainvoke("go", thread_id="t")).interrupts
    for _ in range(questions - 1):
        left = killed(left)  # each answer is given in another process
        [question] = (await agent(left).aresume("t", {question.id: "yes"})).interrupts
    left = killed(left)
    run = asyncio.create_task(agent(left).aresume("t", {question.id: "yes"}))
    await is_paid.wait()
    left = killed(left)
    run.cancel()
    [asked] = (await agent(left).aresume("t", {question.id: "yes"})).interrupts
    told: Any = asked.payload
    assert "nobody knows what came of it" in told["cause"]
    assert paid == ["tea"]


def killed(saver: InMemorySaver) -> InMemorySaver:
    """Return what a process leaves that is killed now."""
    left = InMemorySaver()
    for name in ("storage", "writes", "blobs"):
        getattr(left, name).update(deepcopy(dict(getattr(saver, name))))
    return left


# Actions beside a question, which begin once it is answered


def ask() -> str:
    """Ask a human."""
    return str(interrupt("May I?"))


def endless(paid: list[str], is_paid: asyncio.Event) -> Any:
    """Return an action that begins and never comes to an end."""

    @effect
    async def pay(item: str) -> str:
        """Pay for something."""
        paid.append(item)
        is_paid.set()
        await asyncio.Event().wait()
        return "never"

    return pay


def tree_of(place: str, worker: Agent, first: bool, **fields: Any) -> Agent:
    """Return a worker alone, or below another agent that hands over to it."""
    if place == "root":
        return worker.replace(**fields)
    turns = [call(f"transfer_to_{worker.name}")] if first else []
    boss = Agent("boss", model=ScriptedModel([*turns, "Hello!"]), agents=[worker])
    return boss.replace(handoff="delegate" if place == "delegate" else "sticky", **fields)


everywhere = pytest.mark.parametrize("place", ["root", "sticky", "delegate"])
durable = pytest.mark.parametrize("durability", ["sync", "async", "exit"])


@everywhere
@durable
@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_an_action_beside_a_question_is_done_once_that_is_answered(
    place: str, durability: Any, is_elsewhere: bool
) -> None:
    till, sink, saver = Till(), MemorySink(), InMemorySaver()

    def make(*turns: Any) -> Agent:
        worker = solo(ScriptedModel([*turns, ANSWER]), till.tool, ask, name="clerk")
        kept = {"checkpointer": saver, "durability": durability, "guards": watched(sink)}
        return tree_of(place, worker, bool(turns), **kept)

    agent = make([*pays("tea"), call("ask")])
    [question] = (await agent.ainvoke("go", thread_id="t")).interrupts
    assert till.tries == []
    if is_elsewhere:
        saver = killed(saver)
        agent = make()
        gc.collect()
    reply = await agent.aresume("t", {question.id: "yes"})
    assert (till.tries, reply.interrupts) == (["pay tea"], ())
    assert [one.data["state"] for one in recorded(sink, "effect")] == ["started", "done"]
    assert audited(sink) == []


@durable
@pytest.mark.parametrize("rejects", [False, True])
async def test_actions_beside_questions_of_several_are_done_and_undone_elsewhere(
    durability: Any, rejects: bool
) -> None:
    """The work of one is known before that of the other is read, and has got further."""
    till, sink, saver = Till(), MemorySink(), InMemorySaver()

    def make(*turns: Any) -> Agent:
        cook = ScriptedModel([[*pays("jam"), call("ask")], ANSWER] if turns else [ANSWER])
        other = ScriptedModel([*([call("ask")] if turns else []), "I asked.", "I asked again."])
        workers = [
            Agent("clerk", model=other, tools=[ask], default_tools=False),
            Agent("cook", model=cook, tools=[till.tool, ask], default_tools=False),
        ]
        policy = watched(sink)
        if rejects:
            policy = unsure("doubt", sink)
        boss = Agent("boss", model=ScriptedModel([*turns, "Done."]), agents=workers)
        kept = {"checkpointer": saver, "durability": durability, "guards": policy}
        return boss.replace(handoff="delegate", **kept)

    boss = make([call("transfer_to_clerk"), call("transfer_to_cook")])
    reply = await boss.ainvoke("go", thread_id="t")
    saver = killed(saver)
    boss = make()
    reply = await boss.aresume("t", {one.id: "yes" for one in reply.interrupts})
    assert till.tries == ["pay jam"]
    if rejects:
        while reply.interrupts:
            saver = killed(saver)
            boss = make()
            reply = await boss.aresume("t", {one.id: "reject" for one in reply.interrupts})
        assert (reply.close_reason, till.left) == ("escalation", [])
    else:
        assert (reply.text, reply.interrupts) == ("Done.", ())
    states = [one.data["state"] for one in recorded(sink, "effect")]
    assert states == ["started", "done"]


@durable
async def test_an_action_that_somebody_else_has_begun_is_not_begun_again_here(
    durability: Any,
) -> None:
    """Another process answers, begins it and is killed; the one that has registered it goes on."""
    paid, is_paid, saver = list[str](), asyncio.Event(), InMemorySaver()
    pay = endless(paid, is_paid)

    def make(saver: InMemorySaver, *turns: Any) -> Agent:
        cook = ScriptedModel([[*pays("tea"), call("ask")], ANSWER] if turns else [ANSWER])
        other = ScriptedModel([call("ask"), "I asked."])
        workers = [
            Agent("clerk", model=other, tools=[ask], default_tools=False),
            Agent("cook", model=cook, tools=[pay, ask], default_tools=False),
        ]
        boss = Agent("boss", model=ScriptedModel([*turns, "Done."]), agents=workers)
        kept = {"checkpointer": saver, "durability": durability, "guards": watched()}
        return boss.replace(handoff="delegate", **kept)

    here = make(saver, [call("transfer_to_clerk"), call("transfer_to_cook")])
    reply = await here.ainvoke("go", thread_id="t")
    [of_cook] = [one.id for one in reply.interrupts if one.agent == "boss/cook"]
    there = make(another_process(saver))
    running = asyncio.create_task(there.aresume("t", {of_cook: "yes"}))
    await is_paid.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    for _ in range(2):
        open_ones = await here.ainterrupts("t")
        reply = await here.aresume("t", {one.id: "yes" for one in open_ones})
        if any("nobody knows" in str(one.payload) for one in reply.interrupts):
            break
    assert (paid, len(reply.interrupts)) == (["tea"], 1)


@durable
@pytest.mark.parametrize("place", ["alone", "delegates"])
async def test_an_action_that_asks_first_asks_on_where_one_beside_it_was_answered(
    durability: Any, place: str
) -> None:
    till, saver = Till(), InMemorySaver()

    def make(*turns: Any) -> Agent:
        kept = {"checkpointer": saver, "durability": durability, "guards": watched()}
        cook = ScriptedModel([*turns, ANSWER])
        worker = Agent("cook", model=cook, tools=[careful(till), ask], default_tools=False)
        if place == "alone":
            return worker.replace(**kept)
        asks = ScriptedModel([*([call("ask")] if turns else []), "Yes."])
        other = Agent("clerk", model=asks, tools=[ask], default_tools=False)
        both = [call("transfer_to_clerk"), call("transfer_to_cook")]
        boss = Agent("boss", model=ScriptedModel([*([both] if turns else []), "Done."]))
        return boss.replace(agents=[other, worker], handoff="delegate", **kept)

    beside = [call("ask")] if place == "alone" else []
    reply = await make([*pays("jam"), *beside]).ainvoke("go", thread_id="t")
    [other] = [one.id for one in reply.interrupts if one.payload == "May I?"]
    saver = killed(saver)
    reply = await make().aresume("t", {other: "yes"})
    [question] = reply.interrupts
    assert (question.payload != "May I?", "nobody knows" in str(question.payload)) == (True, False)
    saver = killed(saver)
    reply = await make().aresume("t", {question.id: "yes"})
    assert (till.tries, reply.interrupts) == (["pay jam"], ())


@durable
async def test_what_another_process_has_registered_is_done_where_the_first_one_goes_on(
    durability: Any,
) -> None:
    till, saver = Till(), InMemorySaver()

    def make(saver: InMemorySaver, turns: list[Any], cooking: list[Any]) -> Agent:
        other = ScriptedModel([call("ask"), "I asked."])
        workers = [
            Agent("clerk", model=other, tools=[ask], default_tools=False),
            Agent("cook", model=ScriptedModel(cooking), tools=[till.tool, ask]),
        ]
        boss = Agent("boss", model=ScriptedModel([*turns, "Done."]), agents=workers)
        kept = {"checkpointer": saver, "durability": durability, "guards": watched()}
        return boss.replace(handoff="delegate", **kept)

    both = [call("transfer_to_clerk"), call("transfer_to_cook")]
    here = make(saver, [both], [call("ask"), ANSWER])
    reply = await here.ainvoke("go", thread_id="t")
    [of_cook] = [one.id for one in reply.interrupts if one.agent == "boss/cook"]
    there = make(another_process(saver), [], [[*pays("jam"), call("ask")]])
    await there.aresume("t", {of_cook: "yes"})
    assert till.tries == []
    open_ones = await here.ainterrupts("t")
    assert len(open_ones) == 2
    reply = await here.aresume("t", {one.id: "yes" for one in open_ones})
    assert (till.tries, reply.text, reply.interrupts) == (["pay jam"], "Done.", ())


@everywhere
@durable
async def test_an_action_that_begins_after_an_answer_and_is_cut_off_is_not_done_again(
    place: str, durability: Any
) -> None:
    paid, is_paid, left = list[str](), asyncio.Event(), InMemorySaver()
    pay = endless(paid, is_paid)

    def make(*turns: Any) -> Agent:
        worker = solo(ScriptedModel([*turns, ANSWER]), pay, ask, name="clerk")
        kept = {"checkpointer": left, "durability": durability, "guards": watched()}
        return tree_of(place, worker, bool(turns), **kept)

    first = make([*pays("tea"), call("ask")])
    [question] = (await first.ainvoke("go", thread_id="t")).interrupts
    left = killed(left)  # it is answered in another process, which is killed in its turn
    second = asyncio.create_task(make().aresume("t", {question.id: "yes"}))
    await is_paid.wait()
    left = killed(left)
    second.cancel()
    third = make()
    asked = await third.ainterrupts("t")
    reply = await third.aresume("t", {one.id: "yes" for one in asked}) if asked else None
    if reply is None:
        reply = await third.ainvoke("What came of it?", thread_id="t")
    assert paid == ["tea"]


@durable
@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_an_action_that_has_not_begun_is_not_undone(
    durability: Any, is_elsewhere: bool
) -> None:
    """Its run is rejected while a question beside it waits, and new input comes."""
    till, sink, saver = Till(), MemorySink(), InMemorySaver()

    def make(*turns: Any) -> Agent:
        beside = ScriptedModel([[*pays("jam"), call("ask")], "never"])
        workers = [
            clerk(till, "").replace(model=ScriptedModel([*pays("tea"), ANSWER])),
            Agent("cook", model=beside, tools=[till.tool, ask]),
        ]
        boss = Agent("boss", model=ScriptedModel([*turns, "Hello!"]), agents=workers)
        kept = {"checkpointer": saver, "durability": durability, "guards": unsure("doubt", sink)}
        return boss.replace(handoff="delegate", **kept)

    boss = make([call("transfer_to_clerk"), call("transfer_to_cook")])
    reply = await boss.ainvoke("go", thread_id="t")
    [doubtful] = [one.id for one in reply.interrupts if one.agent == "boss/clerk"]
    await boss.aresume("t", {doubtful: "reject"})
    if is_elsewhere:
        saver = killed(saver)
        boss = make()
        gc.collect()
    assert (await boss.ainvoke("Are you there?", thread_id="t")).text == "Hello!"
    assert till.tries == ["pay tea", "give back tea"]


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
