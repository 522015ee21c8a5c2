"""`Guards(interrupt_on=…)`: before such a tool runs, a human decides, at any depth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from agentgraph import Agent, Guards, Hub, Team, effect, patched, sequence
from agentgraph.errors import ConfigurationError
from agentgraph.guards import AuditTrail, Escalation, Gate, MemorySink, Subject
from agentgraph.testing import FakeClock, ScriptedModel, call
from tests.guards.guarded_agents import answers, audited, elsewhere, is_legal, recorded, solo

paid: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


async def pay(item: str, amount: int) -> str:
    """Pay for something."""
    paid.append((item, amount))
    return f"paid {amount} for {item}"


def action(compensate: Any = None) -> Any:
    async def pay(item: str, amount: int) -> str:
        """Pay for something."""
        paid.append((item, amount))
        return "paid"

    return effect(compensate=compensate)(pay)


def guards(**fields: Any) -> Guards:
    return Guards(**{"interrupt_on": {"pay": True}, **fields})


def buyer(*turns: Any, tool: Any = pay, **fields: Any) -> Agent:
    turns = turns or (call("pay", item="tea", amount=3), "Done.")
    return solo(ScriptedModel(turns), tool, **{"guards": guards(), **fields})


VERBS = {"true": "approve", "langchain": "edit"}
DECISIONS: Mapping[str, tuple[Any, list[tuple[str, int]], str]] = {
    "approve": ("approve", [("tea", 3)], "paid 3 for tea"),
    "true": (True, [("tea", 3)], "paid 3 for tea"),
    "edit": (
        {"type": "edit", "edited": {"item": "tea", "amount": 2}},
        [("tea", 2)],
        'A human has changed the call to pay({"item":"tea","amount":2}). Do not repeat it.\n\n'
        "paid 2 for tea",
    ),
    "langchain": (
        {
            "decisions": [
                {
                    "type": "edit",
                    "edited_action": {"name": "pay", "args": {"item": "cake", "amount": 1}},
                }
            ]
        },
        [("cake", 1)],
        'A human has changed the call to pay({"item":"cake","amount":1}). Do not repeat it.\n\n'
        "paid 1 for cake",
    ),
    "reject": (
        {"type": "reject", "message": "too expensive"},
        [],
        "Not executed: a human has rejected the call: too expensive.",
    ),
    "respond": ({"type": "respond", "message": "It is free today."}, [], "It is free today."),
}


@pytest.mark.parametrize("kind", DECISIONS)
async def test_a_human_decides_before_the_tool_runs(kind: str) -> None:
    decision, payments, text = DECISIONS[kind]
    sink = MemorySink()
    agent = buyer(guards=guards(audit=AuditTrail(sink)))
    reply = await agent.ainvoke("buy tea", thread_id="t")
    [question] = reply.interrupts
    assert not paid
    payload: Any = question.payload
    assert (payload["type"], payload["tool"]) == ("tool_approval", "pay")
    assert payload["args"] == {"item": "tea", "amount": 3}
    assert payload["allowed"] == ["approve", "edit", "reject", "respond"]

    reply = await agent.aresume("t", {question.id: decision})
    assert (reply.text, paid) == ("Done.", payments)
    assert answers(reply.messages) == [text]
    assert is_legal(await agent.ahistory("t"))
    assert audited(sink) == [("a", "interrupt_on", "escalate")]
    [human] = recorded(sink, "human")
    assert human.data["decision"] == VERBS.get(kind, kind)
    assert human.data["tool"] == "pay"
    assert len(recorded(sink, "tool")) == len(payments)


async def test_a_decision_that_is_not_allowed_is_asked_again() -> None:
    agent = buyer(guards=guards(interrupt_on={"pay": ["approve", "reject"]}))
    [question] = (await agent.ainvoke("buy tea", thread_id="t")).interrupts
    edit = {"type": "edit", "edited": {"item": "tea", "amount": 1}}
    [question] = (await agent.aresume("t", {question.id: edit})).interrupts
    payload: Any = question.payload
    assert "no answer that is allowed" in payload["error"] and not paid
    assert (await agent.aresume("t", {question.id: "approve"})).text == "Done."


@pytest.mark.parametrize("edit", ["half", {"name": "refund", "args": {"amount": 1}}])
async def test_an_edit_has_arguments_of_the_same_tool(edit: Any) -> None:
    agent = buyer()
    [question] = (await agent.ainvoke("buy tea", thread_id="t")).interrupts
    decision = {"type": "edit", "edited": edit}
    [question] = (await agent.aresume("t", {question.id: decision})).interrupts
    payload: Any = question.payload
    assert "the answer edit" in payload["error"] and not paid


async def test_an_edit_passes_the_gates_again() -> None:
    def is_small(subject: Subject) -> bool:
        return not subject.args or int(str(subject.args["amount"])) < 10

    agent = buyer(guards=guards(gates=Gate(policy=is_small)))
    [question] = (await agent.ainvoke("buy tea", thread_id="t")).interrupts
    decision = {"type": "edit", "edited": {"item": "tea", "amount": 100}}
    reply = await agent.aresume("t", {question.id: decision})
    assert reply.text == "Done." and not paid
    assert "policy:is_small" in answers(reply.messages)[0]


async def test_nobody_is_asked_about_a_call_that_its_gates_refuse() -> None:
    calls: list[object] = []

    def never(subject: Subject) -> bool | None:
        calls.append(subject.tool)
        return subject.tool is None

    reply = await buyer(guards=guards(gates=Gate(policy=never))).ainvoke("buy tea")
    assert reply.text == "Done." and not reply.interrupts
    assert calls.count("pay") == 1


async def test_other_tools_run_and_false_never_asks() -> None:
    agent = buyer(guards=guards(interrupt_on={"pay": False, "mail": True}))
    assert (await agent.ainvoke("buy tea")).text == "Done."
    assert paid == [("tea", 3)]


async def test_parallel_calls_are_asked_about_at_once() -> None:
    both = [call("pay", item="tea", amount=3), call("pay", item="cake", amount=4)]
    agent = buyer(both, "Done.")
    reply = await agent.ainvoke("buy", thread_id="t")
    by_item: dict[Any, str] = {q.payload["args"]["item"]: q.id for q in reply.interrupts}
    assert set(by_item) == {"tea", "cake"}
    reply = await agent.aresume("t", {by_item["cake"]: "approve"})
    assert [q.id for q in reply.interrupts] == [by_item["tea"]]
    reply = await agent.aresume("t", {by_item["tea"]: "reject"})
    assert (reply.text, paid) == ("Done.", [("cake", 4)])


@pytest.mark.parametrize("handoff", ["sticky", "delegate"])
async def test_it_holds_for_every_agent_below(handoff: Any) -> None:
    clerk = Agent(
        "clerk", model=ScriptedModel([call("pay", item="tea", amount=3), "Paid."]), tools=[pay]
    )
    says = ScriptedModel([call("transfer_to_clerk"), "All done."])
    boss = Agent("boss", model=says, agents=[clerk], handoff=handoff, guards=guards())
    [question] = (await boss.ainvoke("buy tea", thread_id="t")).interrupts
    assert not paid
    reply = await boss.aresume("t", {question.id: True})
    assert reply.text == ("Paid." if handoff == "sticky" else "All done.")
    assert paid == [("tea", 3)]


@pytest.mark.parametrize("is_action", [False, True])
async def test_another_process_decides_on_it(is_action: bool, tmp_path: Path) -> None:
    tool = action() if is_action else pay
    url = f"sqlite:///{tmp_path / 'store.db'}"
    sink = MemorySink()
    agent = buyer(tool=tool, checkpointer=url)
    [question] = (await agent.ainvoke("buy tea", thread_id="t")).interrupts
    policy = guards(audit=AuditTrail(sink))
    again = buyer("Done.", tool=tool, checkpointer=elsewhere(url), guards=policy)
    reply = await again.aresume("t", {question.id: "approve"})
    assert (reply.text, paid) == ("Done.", [("tea", 3)])
    assert audited(sink) == [], "the decision to ask was recorded when it was made"


async def test_what_nobody_decides_on_in_time_does_not_run() -> None:
    clock = FakeClock()
    with clock.installed():
        agent = buyer(guards=guards(escalation=Escalation(ttl_s=60)))
        [question] = (await agent.ainvoke("buy tea", thread_id="t")).interrupts
        clock.advance(61)
        reply = await agent.aresume("t", {question.id: "approve"})
    assert not paid
    assert "nobody decided" in answers(reply.messages)[0]


async def test_the_time_of_a_human_counts_for_no_deadline() -> None:
    clock = FakeClock()
    with clock.installed():
        agent = buyer(guards=guards(deadlines=30))
        [question] = (await agent.ainvoke("buy tea", thread_id="t")).interrupts
        clock.advance(3_600)
        reply = await agent.aresume("t", {question.id: "approve"})
    assert (reply.text, paid) == ("Done.", [("tea", 3)])


async def test_a_tool_may_ask_itself_after_it_was_approved() -> None:
    async def pay(item: str, amount: int) -> str:
        """Pay for something."""
        paid.append((str(interrupt("Which purse?")), amount))
        return "paid"

    agent = buyer(tool=pay)
    [first] = (await agent.ainvoke("buy tea", thread_id="t")).interrupts
    [second] = (await agent.aresume("t", {first.id: "approve"})).interrupts
    assert second.payload == "Which purse?"
    assert (await agent.aresume("t", {second.id: "the red one"})).text == "Done."
    assert paid == [("the red one", 3)]


@pytest.mark.parametrize("kind", DECISIONS)
async def test_an_action_runs_once_and_is_undone_as_it_was_approved(kind: str) -> None:
    decision, payments, _ = DECISIONS[kind]
    undone: list[tuple[str, int]] = []

    async def unpay(item: str, amount: int) -> None:
        undone.append((item, amount))

    turns = (call("pay", item="tea", amount=3), *(call("look", what=str(n)) for n in range(9)))
    agent = buyer(*turns, tool=action(unpay), guards=guards(steps=3))
    [question] = (await agent.ainvoke("buy tea", thread_id="t")).interrupts
    reply = await agent.aresume("t", {question.id: decision})
    assert reply.close_reason == "max_steps"
    assert paid == payments and undone == payments


def team(*turns: Any) -> Team:
    clerk = Agent("clerk", model=ScriptedModel(turns), tools=[pay])
    return Team([clerk], sequence(["clerk"]), name="desk", guards=guards())


async def test_a_team_asks_and_goes_on() -> None:
    desk = team(call("pay", item="tea", amount=3), "Paid.")
    result = await desk.arun("buy tea")
    [question] = result.interrupts
    result = await desk.aresume(result.session_id, {question.id: "approve"})
    assert (result.text, paid) == ("Paid.", [("tea", 3)])


async def test_another_hub_decides_on_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'desk.db'}"
    async with await Hub.open(url, serve=[team(call("pay", item="tea", amount=3))]) as hub:
        session = await hub.session("desk", id="s")
        [question] = (await session.ask("buy tea")).interrupts
    async with await Hub.open(url, serve=[team("Paid.")]) as hub:
        session = await hub.session("desk", id="s")
        await session.decide(question.id, {"type": "edit", "edited": {"item": "tea", "amount": 1}})
        await session.settled()
        assert paid == [("tea", 1)]


async def test_a_session_with_one_agent_asks_and_goes_on() -> None:
    async with await Hub.open(serve=[buyer()]) as hub:
        session = await hub.session("a")
        [question] = (await session.ask("buy tea")).interrupts
        await session.decide(question.id, "approve")
        await session.settled()
        assert paid == [("tea", 3)]


@pytest.mark.parametrize("kind", DECISIONS)
async def test_a_foreign_graph_asks_too(kind: str) -> None:
    decision, payments, text = DECISIONS[kind]
    model = ScriptedModel([call("pay", item="tea", amount=3), "Done."])
    graph = patched(create_agent(model, [pay], checkpointer=InMemorySaver()), guards())
    config: Any = {"configurable": {"thread_id": "t"}}
    result = await graph.ainvoke({"messages": [HumanMessage("buy tea")]}, config)
    [question] = result["__interrupt__"]
    assert question.value["tool"] == "pay" and not paid

    result = await graph.ainvoke(Command(resume=decision), config)
    assert (result["messages"][-1].text, paid) == ("Done.", payments)
    assert answers(result["messages"]) == [text]


async def test_inner_guards_add_tools_and_take_none_away() -> None:
    inner = Guards(interrupt_on={"pay": ["approve"], "mail": True})
    both = inner.within(guards(interrupt_on={"pay": ["reject", "approve"], "wipe": True}))
    assert both.interrupt_on is not None
    assert both.interrupt_on.verbs("pay") == ("approve",)
    assert both.interrupt_on.verbs("mail") and both.interrupt_on.verbs("wipe")
    loose = Guards(interrupt_on={"pay": False}).within(guards())
    assert loose.interrupt_on is not None and loose.interrupt_on.verbs("pay")


@pytest.mark.parametrize(
    "value", [True, ["pay"], {"pay": "approve"}, {"pay": []}, {"pay": ["maybe"]}, {1: True}, "pay"]
)
def test_what_names_no_tools_or_no_answers_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Guards(interrupt_on=value)
    [fault] = caught.value.faults
    assert fault.startswith(f"interrupt_on={value!r}: ")
    assert "True" in fault


def test_langchains_form_of_the_setting_is_taken() -> None:
    approval = guards(interrupt_on={"pay": {"allowed_decisions": ["approve"]}}).interrupt_on
    assert approval is not None and approval.verbs("pay") == ("approve",)


def test_a_misspelt_tool_is_refused_at_build() -> None:
    with pytest.raises(ConfigurationError, match=r"interrupt_on=\{'Pay': …\}\): nobody .* 'pay'"):
        buyer(guards=guards(interrupt_on={"Pay": True}))
