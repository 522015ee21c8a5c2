"""A team inside of an agent has a session for each time that it is asked, wherever it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, HumanTarget, ParallelTarget, Team, TransitionGraph, effect
from agentgraph.errors import SessionError
from agentgraph.routing import FromSpeaker, TerminateTarget, Transition, sequence
from agentgraph.sessions import EV_AUDIT, Hub
from agentgraph.testing import Fault, ScriptedModel, call
from tests.guards.escalating_agents import ANSWER, Till, pays, unsure
from tests.guards.guarded_agents import look, looping, solo, watched
from tests.guards.metered_models import Driven, worker
from tests.guards.records.test_account_in_a_new_process import another_process
from tests.guards.timed_agents import guards, hangs
from tests.sessions.talk import after, held, of_type, settled, talk, until

ASK = call("transfer_to_inner", reason="go")
FAILS = Fault.server_error()
DECISIONS: dict[str, Any] = {
    "approve": "approve",
    "reject": "reject",
    "edit": {"type": "edit", "edited": "It is paid twice."},
    "respond": {"type": "respond", "message": "Ann has paid."},
}


def shop(till: Till, *items: str, name: str = "inner") -> Team:
    """Return a team whose only agent, called the same in each, pays whenever it is asked."""
    left = iter(items)

    def turn(messages: list[BaseMessage]) -> Any:
        is_paid = isinstance(messages[-1], ToolMessage)
        return f"Paid: {messages[-1].text}." if is_paid else call("pay", item=next(left))

    clerk = Agent(
        "clerk", "pays", model=ScriptedModel(turn), tools=[till.tool], default_tools=False
    )
    return Team([clerk], sequence(["clerk"]), name=name)


def boss(*turns: Any, **fields: Any) -> Agent:
    fields = {"handoff": "delegate", "default_tools": False, **fields}
    return Agent("boss", model=ScriptedModel(turns), **fields)


@pytest.mark.parametrize("at_once", [True, False])
async def test_two_teams_with_agents_and_tools_of_one_name_each_do_their_own(at_once: bool) -> None:
    till = Till()
    teams = [shop(till, "tea", name="a"), shop(till, "tea", name="b")]
    asks = [call("transfer_to_a", reason="go"), call("transfer_to_b", reason="go")]
    turns = [asks, "Done."] if at_once else [*asks, "Done."]
    reply = await boss(*turns, agents=teams).ainvoke("go")
    assert (reply.text, reply.close_reason, till.left) == ("Done.", None, ["tea", "tea"])


async def test_a_team_that_is_asked_twice_at_once_answers_each() -> None:
    till = Till()
    asks = [call("transfer_to_inner", reason="1"), call("transfer_to_inner", reason="2")]
    reply = await boss(asks, "Done.", agents=[shop(till, "tea", "milk")]).ainvoke("go")
    told = {one.text for one in reply.messages if isinstance(one, ToolMessage)}
    assert told == {"Paid: paid for tea.", "Paid: paid for milk."}
    assert sorted(till.left) == ["milk", "tea"]


async def test_inputs_in_several_processes_are_no_repetitions_of_each_other() -> None:
    till, saver = Till(), InMemorySaver()
    for item in ("tea", "tea"):
        agent = boss(ASK, "Done.", agents=[shop(till, item)], checkpointer=saver)
        await agent.ainvoke("go", thread_id="t")
        saver = another_process(saver)
    assert till.left == ["tea", "tea"]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_what_a_team_has_done_is_not_done_again_with_its_agent_s_round(
    store: str, tmp_path: Path
) -> None:
    till = Till()
    lead = boss(ASK, FAILS, ASK, "Done.", agents=[shop(till, "tea", "milk")])
    url = f"sqlite:///{tmp_path / 's.db'}" if store == "sqlite" else None
    team = Team([lead], sequence(["boss"]), guards=watched(retry=None))
    async with held(team, url=url) as session:
        state = await after(session, "user", "go")
    assert (state.pending_close_reason, till.tries) == ("sequence_complete", ["pay tea"])


def doubtful(till: Till) -> Team:
    """Return a team that pays milk, and then has its agent ask a team that is in doubt."""
    start = Agent("start", model=ScriptedModel([*pays("milk"), "Paid."]), tools=[till.tool])

    def turn(messages: list[BaseMessage]) -> Any:
        told = [one.text for one in messages if isinstance(one, ToolMessage)]
        return f"It says: {told[-1]}" if told else ASK

    def paying(messages: list[BaseMessage]) -> Any:
        return ANSWER if isinstance(messages[-1], ToolMessage) else call("pay", item="tea")

    clerk = Agent("clerk", model=ScriptedModel(paying), tools=[till.tool], default_tools=False)
    inner = Team([clerk], sequence(["clerk"]), name="inner")
    lead = Agent("lead", model=ScriptedModel(turn), agents=[inner], handoff="delegate")
    return Team([start, lead], sequence(["start", "lead"]), name="shop", guards=unsure("doubt"))


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_human_decides_on_what_a_team_in_an_agent_says_on_any_hub(
    decision: str, elsewhere: bool, tmp_path: Path
) -> None:
    till, url = Till(), f"sqlite:///{tmp_path / 's.db'}"
    async with held(doubtful(till), url=url, id="s", ttl=None) as session:
        await after(session, "user", "go")
        if not elsewhere:
            [question] = session.state.interrupts
            await session.decide(question, DECISIONS[decision])
            await settled(session)
    async with held(doubtful(till), url=url, id="s", ttl=None) as session:
        state = await settled(session)
        if elsewhere:
            [question] = state.interrupts
            await session.decide(question, DECISIONS[decision])
            state = await settled(session)
        said = (await talk(session))[-1]
    if decision == "reject":
        assert state.pending_close_reason == "escalation"
        assert till.tries == ["pay milk", "pay tea", "give back tea", "give back milk"]
    else:
        texts = {"approve": ANSWER, "edit": "It is paid twice.", "respond": "Ann has paid."}
        assert said == ("lead", f"It says: {texts[decision]}")
        assert till.tries == ["pay milk", "pay tea"]


def may_i() -> str:
    """Ask a human."""
    return str(interrupt("may I?"))


def asking(saver: InMemorySaver, *turns: Any, **fields: Any) -> Agent:
    inner = Team([worker("clerk", turns, tools=[may_i])], sequence(["clerk"]), name="inner")
    return boss(ASK, "Done.", agents=[inner], checkpointer=saver, **fields)


async def test_a_session_in_the_memory_of_another_process_is_said_to_be_there() -> None:
    saver = InMemorySaver()
    [question] = (await asking(saver, call("may_i")).ainvoke("go", thread_id="t")).interrupts
    agent = asking(another_process(saver))
    with pytest.raises(SessionError, match="memory of another process: hold it on a hub") as told:
        await agent.aresume("t", {question.id: "yes"})
    assert told.value.code == "session_lost"
    assert (await asking(saver, "New.").ainvoke("and now?", thread_id="t")).text == "Done."


async def test_the_time_in_which_a_human_decides_is_none_of_a_team_s() -> None:
    with Driven().installed() as time:
        turns = [Fault.delay(40, call("may_i")), hangs()]
        agent = asking(InMemorySaver(), *turns, guards=guards(workflow_s=100))
        [question] = (await time.drive(agent.ainvoke("go", thread_id="t"))).interrupts
        time.advance(3_600)
        ended, seconds = await time.lasting(agent.aresume("t", {question.id: "yes"}))
    assert (ended.close_reason, seconds) == ("deadline:workflow", 60)


async def test_a_team_that_is_cut_off_ends_its_agent_and_has_all_undone() -> None:
    done: list[str] = []

    async def give_back(item: str) -> None:
        done.append(f"give back {item}")

    @effect(compensate=give_back)
    async def pay(item: str) -> str:
        """Pay for something: in no thread, for which no driven clock waits."""
        done.append(f"pay {item}")
        return "paid"

    with Driven().installed() as time:
        inner = Team([worker("slow", [hangs()])], sequence(["slow"]), name="inner")
        policy = guards(workflow_s=100)
        agent = boss(*pays("milk"), ASK, agents=[inner], tools=[pay], guards=policy)
        ended, seconds = await time.lasting(agent.ainvoke("go"))
    assert (ended.close_reason, seconds) == ("deadline:workflow", 100)
    assert done == ["pay milk", "give back milk"]


# What is told of it


def failing_once(till: Till, where: str) -> Team:
    """Return a team whose inner one fails, and does well when it is tried again."""
    turns = [*pays("tea"), FAILS, *pays("tea"), FAILS, *pays("tea"), "Paid."]
    clerk = Agent("clerk", model=ScriptedModel(turns), tools=[till.tool], default_tools=False)
    inner = Team([clerk], sequence(["clerk"]), name="inner")
    if where == "team":
        return Team([inner], sequence(["inner"]), guards=watched(retry=None))
    lead = boss(ASK, ASK, "Done.", agents=[inner])
    return Team([lead], sequence(["boss"]), guards=watched(retry=None))


@pytest.mark.parametrize(
    ("where", "path"), [("team", "inner/clerk"), ("agent", "boss/inner/clerk")]
)
async def test_what_was_used_for_a_try_that_failed_is_told_too(where: str, path: str) -> None:
    result = await failing_once(Till(), where).arun("go")
    assert result.close_reason == "sequence_complete"
    same = ScriptedModel([*pays("tea", "tea", "tea"), "Paid."])
    at_once = await solo(same, Till().tool, guards=None).ainvoke("go")
    assert result.usage.by_agent[path].output_tokens == at_once.usage.output_tokens


def looking(times: int) -> ScriptedModel:
    return ScriptedModel([*[call("look", what=str(n)) for n in range(times)], "Found."])


async def test_agents_of_one_name_in_teams_side_by_side_each_have_their_own_account() -> None:
    teams, models = [], []
    for number in range(3):
        models.append(looking(4 * number + 1))
        busy = solo(models[-1], name="busy")
        teams.append(Team([busy], sequence(["busy"]), name=f"t{number}"))
    start = solo(ScriptedModel(["Go."]), name="start")
    names = tuple(team.name for team in teams)
    rules = [Transition(FromSpeaker("start"), ParallelTarget(names, join="start"))]
    result = await Team([start, *teams], TransitionGraph("start", rules, max_turns=4)).arun("go")
    assert [len(model.requests) for model in models] == [2, 6, 10]
    for name, model in zip(names, models, strict=True):
        alone = await solo(looking(len(model.requests) - 1), name="busy").ainvoke("go")
        assert result.usage.by_agent[f"{name}/busy"].output_tokens == alone.usage.output_tokens


@pytest.mark.parametrize("where", ["team", "agent"])
async def test_what_was_decided_inside_is_in_the_log_of_the_whole(where: str) -> None:
    inner = Team([solo(looping(), look, name="busy")], sequence(["busy"]), name="inner")
    member = inner if where == "team" else boss(ASK, agents=[inner])
    team = Team([member], sequence([member.name]), guards=watched())
    async with held(team) as session:
        await after(session, "user", "go")
        told = [one.event_data for one in await of_type(session, EV_AUDIT)]
    path = "inner/busy" if where == "team" else "boss/inner/busy"
    made = [(one["agent"], one["guard"], one["action"]) for one in told if "guard" in one]
    assert made[:2] == [(path, "loop_detector", "correct"), (path, "loop_detector", "abort")]


# What becomes of it


async def test_it_is_closed_with_the_session_around_it() -> None:
    lead = boss(
        ASK,
        agents=[Team([solo(ScriptedModel([call("may_i")]), may_i)], sequence(["a"]), name="inner")],
    )
    async with await Hub.open(serve=[whole := Team([lead], sequence(["boss"]), name="out")]) as hub:
        session = await hub.session(whole, id="s", ttl=None)
        await after(session, "user", "go")
        assert [one.status for one in await hub.log.sessions()] == ["waiting_decision", "active"]
        await session.close()
        await settled(session)
        await until(lambda: _all_closed(hub))


async def _all_closed(hub: Hub) -> bool:
    return {one.status for one in await hub.log.sessions()} == {"closed"}


def waiting() -> Team:
    """Return a team whose agent speaks, and then waits for a human of the team's own."""
    answered = Transition(FromSpeaker("ann"), TerminateTarget("answered"))
    rules = TransitionGraph("a", [Transition(FromSpeaker("a"), HumanTarget("ann")), answered])
    return Team([solo(ScriptedModel(["Ask Ann."]))], rules, name="inner", humans=["ann"])


@pytest.mark.parametrize("where", ["team", "agent"])
async def test_what_a_human_has_said_in_it_is_no_answer_of_the_team_s(where: str) -> None:
    member = (
        waiting() if where == "team" else boss(ASK, "So.", agents=[waiting()], handoff="sticky")
    )
    async with held(Team([member], sequence([member.name]))) as session:
        [question] = (await after(session, "user", "go")).interrupts
        await session.decide(question, "It is blue.")
        await settled(session)
        assert (await talk(session))[-1] == (member.name, "Ask Ann.")


async def test_a_human_whom_it_waits_for_is_asked_without_a_hub_too() -> None:
    agent = boss(ASK, agents=[waiting()], handoff="sticky")
    reply = await agent.ainvoke("go", thread_id="t")
    [question] = reply.interrupts
    assert isinstance(question.payload, dict)
    assert question.payload["waits_for"] == "ann"
    assert (await agent.aresume("t", {question.id: "It is blue."})).text == "Ask Ann."


async def test_a_raw_graph_takes_no_session_for_its_own_that_is_another_s(tmp_path: Path) -> None:
    def whole() -> Team:
        graph = Team([solo(ScriptedModel([call("may_i")]), may_i)], sequence(["a"])).graph
        graph.name = "inner"
        return Team([boss(ASK, agents=[graph])], sequence(["boss"]), name="out")

    url = f"sqlite:///{tmp_path / 's.db'}"
    async with held(whole(), url=url, id="s", ttl=None) as session:
        await after(session, "user", "go")
    async with held(whole(), url=url, id="s", ttl=None) as session:
        [question] = (await settled(session)).interrupts
        await session.decide(question, "yes")
        state = await settled(session)
    assert (state.status, len(state.interrupts)) == ("waiting_decision", 1)  # it is asked anew
