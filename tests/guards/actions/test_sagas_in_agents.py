"""What agents have done to the world is undone where their run is ended, the last thing first."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from agentgraph import Agent
from agentgraph.errors import ConfigurationError
from agentgraph.guards import Deadlines, MemorySink, Saga
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.guards.escalating_agents import ANSWER, PLACES, Till, asked, clerk, pays, tree, unsure
from tests.guards.guarded_agents import (
    audited,
    decided,
    recorded,
    solo,
    streamed,
    watched,
    words_of,
)
from tests.guards.metered_models import Driven
from tests.guards.records.test_account_in_a_new_process import another_process


def paying(till: Till, *turns: Any, **fields: Any) -> Agent:
    """Return an agent who pays, and says what it is told to."""
    return solo(ScriptedModel(turns), till.tool, **fields)


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
    assert (reply.close_reason, words_of(reply)) == ("escalation", "")
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
    agent = paying(till, *again, *[again[1]] * 7)
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


@pytest.mark.parametrize("durability", ["async", "sync", "exit"])
@pytest.mark.parametrize("is_elsewhere", [False, True])
@pytest.mark.parametrize("place", ["root", "deep", "sticky"])
async def test_what_was_rejected_is_undone_though_a_question_beside_it_is_never_answered(
    place: str, durability: Any, is_elsewhere: bool
) -> None:
    """New input comes in place of the answer, in the same process or in another one."""
    till, sink = Till(), MemorySink()

    def ask(item: str) -> str:
        """Ask first."""
        return str(interrupt(f"may I pay for {item}?"))

    def make(saver: InMemorySaver, *turns: Any) -> Agent:
        cook = [*pays("jam"), call("ask", item="milk"), "I paid."]
        clerks = [
            clerk(till, "").replace(model=ScriptedModel([*pays("tea"), ANSWER])),
            Agent("cook", model=ScriptedModel(cook), tools=[till.tool, ask]),
        ]
        both = [call(f"transfer_to_{one.name}") for one in clerks]
        first = [] if not turns else [both if place == "root" else call("transfer_to_mid")]
        boss = Agent("boss", model=ScriptedModel([*first, *turns, "Hello!"]))
        if place == "root":
            boss = boss.replace(agents=clerks, handoff="delegate")
        else:
            said = ScriptedModel([both, "Hello!"] if turns else ["Hello!"])
            mid = Agent("mid", model=said, agents=clerks, handoff="delegate")
            boss = boss.replace(agents=[mid], handoff="delegate" if place == "deep" else "sticky")
        policy = unsure("doubt", sink)
        return boss.replace(guards=policy, checkpointer=saver, durability=durability)

    saver = InMemorySaver()
    above = "boss" if place == "root" else "boss/mid"
    boss = make(saver, "Hello!")
    reply = await boss.ainvoke("go", thread_id="t")
    [doubtful] = [one.id for one in reply.interrupts if one.agent == f"{above}/clerk"]
    reply = await boss.aresume("t", {doubtful: "reject"})
    assert [one.agent for one in reply.interrupts] == [f"{above}/cook"]
    with pytest.raises(ConfigurationError, match="nobody"):
        await boss.ainvoke([{"role": "nobody", "content": "?"}], thread_id="t")
    assert (len(await boss.ainterrupts("t")), len(till.tries)) == (1, 2)
    if is_elsewhere:
        boss = make(another_process(saver))
        gc.collect()
    reply = await boss.ainvoke("Are you there?", thread_id="t")
    assert (reply.text, reply.close_reason, reply.interrupts) == ("Hello!", None, ())
    assert till.left == [] and len(till.tries) == 4
    undone = [one.data["tool"] for one in recorded(sink, "compensated")[::2]]
    assert sorted(map(str, undone)) == [f"{above}/clerk:pay", f"{above}/cook:pay"]
    reply = await boss.replace(model=ScriptedModel(["Bye."])).ainvoke("Bye?", thread_id="t")
    assert len(till.tries) == 4


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
