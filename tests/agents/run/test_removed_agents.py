"""Agents that are removed while they wait for a human: what they have done is not forgotten."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, Team, sequence
from agentgraph.agents.spec.values import Durability
from agentgraph.errors import RoutingError
from agentgraph.history import OUTCOME_UNKNOWN
from agentgraph.storage.memory import MemorySaver
from agentgraph.testing import ScriptedModel, call

Handoff = Literal["sticky", "delegate"]


async def quick() -> str:
    """Return at once."""
    return "quick is done"


async def ask() -> str:
    """Ask a human."""
    return f"told {interrupt('sure?')}"


def worker(name: str = "worker") -> Agent:
    """Return an agent that works, and then waits for a human."""
    turns: list[Any] = [[call("quick"), call("ask")], f"{name} has it"]
    return Agent(name, model=ScriptedModel(turns), tools=[quick, ask])


def root(model: ScriptedModel, saver: InMemorySaver, *agents: Any, **settings: Any) -> Agent:
    return Agent("root", model=model, agents=agents, checkpointer=saver, **settings)


def other_process(saver: InMemorySaver) -> InMemorySaver:
    """Return a saver on the same checkpoints: no process knows more than they have."""
    other = InMemorySaver()
    other.storage, other.writes, other.blobs = saver.storage, saver.writes, saver.blobs
    return other


def answers(messages: Any) -> list[str]:
    return [m.text for m in messages if isinstance(m, ToolMessage)]


REPORT = f"{OUTCOME_UNKNOWN}\nWhat worker did until then:\n- quick: quick is done"
TAKEN_OVER = ["Conversation transferred to worker", "quick is done", OUTCOME_UNKNOWN]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize(("handoff", "told"), [("delegate", [REPORT]), ("sticky", TAKEN_OVER)])
@pytest.mark.parametrize("text", ["what happened?", None])
async def test_work_of_a_removed_agent_is_taken_over(
    handoff: Handoff, told: list[str], durability: Durability, text: str | None
) -> None:
    saver = InMemorySaver()
    settings: Any = {"handoff": handoff, "durability": durability}
    first = root(ScriptedModel([call("transfer_to_worker")]), saver, worker(), **settings)
    assert (await first.ainvoke("go", thread_id="t")).interrupts

    model = ScriptedModel(["I see"])
    later = root(model, other_process(saver), **settings)
    if text is None:
        reply = await later.acontinue("t")
    else:
        reply = await later.ainvoke(text, thread_id="t")

    assert (reply.text, reply.agent) == ("I see", "root")
    assert answers(model.requests[-1].messages) == told


@pytest.mark.parametrize(
    ("handoff", "told"),
    [("delegate", ["What worker did until then:", "- quick: quick is done"]), ("sticky", [])],
)
@pytest.mark.parametrize("goes_on", [False, True])
async def test_work_of_an_agent_removed_from_below_is_taken_over(
    handoff: Handoff, told: list[str], goes_on: bool
) -> None:
    saver = InMemorySaver()
    between = ScriptedModel([call("transfer_to_worker")])
    mid = Agent("mid", model=between, agents=[worker()], handoff=handoff)
    model = ScriptedModel([call("transfer_to_mid"), "I see"])
    first = root(model, saver, mid, handoff=handoff)
    assert (await first.ainvoke("go", thread_id="t")).interrupts

    models = ScriptedModel(["I see"]), ScriptedModel(["I see"])
    later = root(models[0], other_process(saver), Agent("mid", model=models[1]), handoff=handoff)
    if goes_on:
        await later.acontinue("t")
    else:
        await later.ainvoke("what happened?", thread_id="t")

    (request,) = [request for model in models for request in model.requests]
    text = "\n".join(answers(request.messages))
    assert "quick is done" in text
    assert OUTCOME_UNKNOWN in text
    assert [line for line in told if line not in text.splitlines()] == []


async def test_history_shows_the_work_of_a_removed_agent() -> None:
    saver = InMemorySaver()
    first = root(ScriptedModel([call("transfer_to_worker")]), saver, worker())
    await first.ainvoke("go", thread_id="t")
    shown = await first.ahistory("t")

    assert await root(ScriptedModel([]), other_process(saver)).ahistory("t") == shown
    assert answers(shown) == TAKEN_OVER[:2]


async def test_answer_of_a_removed_delegate_that_had_finished_is_kept() -> None:
    saver = InMemorySaver()
    ready = Agent("ready", model=ScriptedModel(["the answer is 42"]))
    calls = [call("transfer_to_ready"), call("transfer_to_worker")]
    first = root(ScriptedModel([calls]), saver, ready, worker(), handoff="delegate")
    await first.ainvoke("go", thread_id="t")

    model = ScriptedModel(["I see"])
    await root(model, other_process(saver), handoff="delegate").ainvoke("so?", thread_id="t")

    assert answers(model.requests[-1].messages) == ["the answer is 42", REPORT]


@pytest.mark.parametrize("is_below", [False, True])
async def test_decision_for_a_removed_agent_is_refused(is_below: bool) -> None:
    saver = InMemorySaver()
    model = ScriptedModel([call("transfer_to_mid" if is_below else "transfer_to_worker")])
    between = ScriptedModel([call("transfer_to_worker")])
    agent = Agent("mid", model=between, agents=[worker()]) if is_below else worker()
    first = root(model, saver, agent)
    (question,) = (await first.ainvoke("go", thread_id="t")).interrupts

    agents = [Agent("mid", model=ScriptedModel([]))] if is_below else []
    later = root(ScriptedModel([]), other_process(saver), *agents)
    assert await later.ainterrupts("t") == ()
    with pytest.raises(RoutingError, match="no longer in the tree"):
        await later.aresume("t", {question.id: "yes"})


@pytest.mark.parametrize("is_below", [False, True])
async def test_decision_for_an_agent_beside_a_removed_one_brings_the_work_of_both(
    is_below: bool,
) -> None:
    def tree(model: ScriptedModel, saver: InMemorySaver, *agents: Agent) -> Agent:
        if not is_below:
            return root(model, saver, *agents, handoff="delegate")
        mid = Agent("mid", model=model, agents=agents, handoff="delegate")
        above = ScriptedModel(lambda messages: call("transfer_to_mid"))
        return root(above, saver, mid)

    saver = InMemorySaver()
    calls = [call("transfer_to_worker"), call("transfer_to_other")]
    first = tree(ScriptedModel([calls]), saver, worker(), worker("other"))
    await first.ainvoke("go", thread_id="t")

    model = ScriptedModel(["I see"])
    other = Agent("other", model=ScriptedModel(["other has it"]), tools=[quick, ask])
    later = tree(model, other_process(saver), other)
    (question,) = await later.ainterrupts("t")
    reply = await later.aresume("t", {question.id: "yes"})

    assert reply.text == "I see"
    assert answers(model.requests[-1].messages)[-2:] == [REPORT, "other has it"]


def foreign(checkpointer: bool | None = None) -> Any:
    """Return a graph of others that works, and then waits for a human."""
    model = ScriptedModel([[call("quick"), call("ask")]])
    return create_agent(model, [quick, ask], name="foreign", checkpointer=checkpointer)


def team() -> Team:
    members = [worker(), Agent("other", model="offline")]
    return Team(members, sequence(["worker", "other"]), name="foreign")


@pytest.mark.parametrize(
    ("make", "handoff"),
    [
        (foreign, "sticky"),
        (foreign, "delegate"),
        (partial(foreign, checkpointer=True), "sticky"),
        (team, "sticky"),
        (team, "delegate"),
    ],
)
async def test_a_removed_graph_of_others_leaves_what_it_leaves_when_it_is_there(
    make: Any, handoff: Handoff
) -> None:
    saver = InMemorySaver()
    above = ScriptedModel([call("transfer_to_foreign")])
    first = root(above, saver, make(), handoff=handoff)
    assert (await first.ainvoke("go", thread_id="t")).interrupts

    told = []
    for agents in ([make()], []):
        model, copy = ScriptedModel(["I see"]), MemorySaver()
        copy.storage, copy.writes, copy.blobs = saver.storage, saver.writes, saver.blobs
        await copy.acopy_thread("t", f"{len(agents)}")
        later = root(model, copy, *agents, handoff=handoff)
        shown = [m.text for m in await later.ahistory(f"{len(agents)}")]
        await later.ainvoke("@root so?", thread_id=f"{len(agents)}")
        told.append((shown, [m.text for m in model.requests[-1].messages]))
    assert told[0] == told[1]
    assert ("quick is done" in told[1][1]) == (make is not team)
