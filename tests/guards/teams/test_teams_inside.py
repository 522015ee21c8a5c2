"""A team inside of an agent or of a team: one input, one account, one list of what to undo."""

from __future__ import annotations

from itertools import count, repeat
from typing import Any

import pytest

from agentgraph import Agent, Guards, ParallelTarget, Team, TransitionGraph
from agentgraph.errors import ConfigurationError
from agentgraph.guards import Cell, CostBudget, CostVelocity, DecisionTable, MemorySink
from agentgraph.guards.records.trail import folded
from agentgraph.routing import FromSpeaker, Transition, sequence
from agentgraph.sessions import EV_AUDIT
from agentgraph.testing import FakeClock, Fault, ScriptedModel, call
from tests.guards.escalating_agents import ANSWER, Till, pays
from tests.guards.guarded_agents import (
    audited,
    calls,
    look,
    looping,
    recorded,
    solo,
    watched,
    words_of,
)
from tests.guards.metered_models import Driven, worker
from tests.guards.timed_agents import guards
from tests.sessions.talk import after, held, of_type, settled, talk

ASK = call("transfer_to_inner", reason="go")
FAILS = Fault.server_error()


def payer(till: Till, *turns: Any, name: str = "desk", **fields: Any) -> Agent:
    fields = {"tools": [till.tool, look], "default_tools": False, **fields}
    return Agent(name, f"is {name}", model=ScriptedModel(turns), **fields)


def inner(*agents: Any, **fields: Any) -> Team:
    names = [one.name for one in agents]
    return Team(agents, sequence(names), name="inner", **fields)


def boss(*turns: Any, tools: Any = (look,), **fields: Any) -> Agent:
    """Return an agent that says its turns, and then goes round in a circle."""
    said = [*turns, *repeat(call("look", what="it"), 40)]
    fields = {"handoff": "delegate", "default_tools": False, "tools": tools, **fields}
    return Agent("boss", model=ScriptedModel(said), **fields)


def busy() -> ScriptedModel:
    pages = count()
    return ScriptedModel(lambda _: call("look", what=str(next(pages))))


# In an agent


async def test_model_calls_of_a_team_count_with_those_of_its_supervisor() -> None:
    model = busy()
    team = inner(solo(model, name="busy"))
    reply = await boss(ASK, agents=[team], guards=watched(steps=calls(5))).ainvoke("go")
    assert (reply.close_reason, words_of(reply), len(model.requests)) == ("max_steps", "", 4)


async def test_what_a_team_spends_is_paid_from_its_supervisor_s_budget() -> None:
    model, guards = busy(), watched(budget=CostBudget(tokens=8_000))
    reply = await boss(ASK, agents=[inner(solo(model, name="busy"))], guards=guards).ainvoke("go")
    assert reply.close_reason == "cost_budget"
    assert 2 <= len(model.requests) < 50
    assert reply.usage.total_tokens <= 8_000


async def test_teams_side_by_side_share_the_budget_around_them() -> None:
    models = [busy() for _ in range(4)]
    teams = [
        Team([solo(m, name=f"w{n}")], sequence([f"w{n}"]), name=f"t{n}")
        for n, m in enumerate(models)
    ]
    asks = [call(f"transfer_to_t{n}", reason="go") for n in range(4)]
    guards = watched(budget=CostBudget(tokens=20_000), steps=500)
    reply = await boss(asks, agents=teams, guards=guards).ainvoke("go")
    assert reply.close_reason == "cost_budget"
    assert reply.usage.total_tokens <= 20_000


async def test_what_a_team_has_used_stands_under_its_place() -> None:
    team = inner(
        solo(ScriptedModel(["a says"]), name="a"), solo(ScriptedModel(["b says"]), name="b")
    )
    agent = Agent("boss", model=ScriptedModel([ASK, ASK]), agents=[team])
    reply = await agent.ainvoke("go", thread_id="t")
    assert reply.text == "b says"
    assert set(reply.usage.by_agent) == {"boss", "boss/inner/a", "boss/inner/b"}
    parts = [one.total_tokens for one in reply.usage.by_agent.values()]
    assert sum(parts) == reply.usage.total_tokens > 0


async def test_each_input_begins_a_new_account_for_the_team_too() -> None:
    team = inner(solo(ScriptedModel(lambda _: "said"), name="a"))
    agent = Agent(
        "boss", model=ScriptedModel(lambda _: ASK), agents=[team], guards=watched(steps=2)
    )
    for _ in range(3):
        reply = await agent.ainvoke("go", thread_id="t")
        assert (reply.text, reply.close_reason) == ("said", None)
        await agent.ainvoke("@boss back", thread_id="t")


def ring(name: str, **fields: Any) -> Team:
    """Return a team of two that hand over to each other until they are refused."""
    reasons = count()

    def over(to: str) -> ScriptedModel:
        def turn(messages: Any) -> Any:
            if "hop_limit" in str(messages[-1].text):
                return "It ends here."
            reason = str(next(reasons))
            return call("handoff_conversation", target=to, reason=reason, summary="")

        return ScriptedModel(turn)

    agents = [Agent("p", model=over("q")), Agent("q", model=over("p"))]
    return Team(
        agents, TransitionGraph("p", max_turns=40), name=name, aliases={"to": "q"}, **fields
    )


async def test_hops_in_a_team_count_with_those_of_its_supervisor() -> None:
    sink = MemorySink()
    agent = Agent(
        "boss", model=ScriptedModel([ASK]), agents=[ring("inner")], guards=watched(sink, hops=3)
    )
    await agent.ainvoke("go")
    assert hops(sink) == ["boss", "boss/inner/p", "boss/inner/q"]


async def test_hops_of_one_team_are_none_that_are_left_to_the_next() -> None:
    sink = MemorySink()
    teams = [ring("first", guards=Guards(hops=2)), ring("second")]
    rules = sequence(["first", "second"])
    await Team(teams, rules, guards=watched(sink, hops=3)).arun("go")
    assert len(hops(sink)) == 3


def hops(sink: MemorySink) -> list[str]:
    return [one.agent for one in recorded(sink, "handoff") if one.data.get("hop")]


async def test_what_a_team_did_is_undone_where_its_supervisor_is_ended() -> None:
    till = Till()
    team = inner(payer(till, *pays("tea"), "Paid."))
    agent = boss(*pays("milk"), ASK, *pays("jam"), tools=[till.tool, look], agents=[team])
    reply = await agent.ainvoke("go")
    assert reply.close_reason == "loop_detector"
    assert till.tries[3:] == ["give back jam", "give back tea", "give back milk"]
    assert till.left == []


async def test_what_its_supervisor_did_is_undone_where_a_team_is_ended() -> None:
    till = Till()
    team = inner(payer(till, *pays("tea"), *[call("look", what="it")] * 20))
    reply = await boss(*pays("milk"), ASK, tools=[till.tool, look], agents=[team]).ainvoke("go")
    assert (reply.close_reason, words_of(reply)) == ("loop_detector", "")
    assert till.tries == ["pay milk", "pay tea", "give back tea", "give back milk"]


async def test_two_teams_of_one_agent_each_undo_their_own() -> None:
    """The first has failed for good: what the other one did stands, as nobody has ended that."""
    till = Till()
    good = Team([payer(till, *pays("tea"), "Paid.", name="a")], sequence(["a"]), name="good")
    bad_desk = payer(till, *pays("milk"), FAILS, *pays("milk"), FAILS, name="b")
    bad = Team([bad_desk], sequence(["b"]), name="bad")
    turns = [call("transfer_to_good", reason="go"), call("transfer_to_bad", reason="go")]
    agent = boss(*turns, agents=[good, bad], guards=watched(retry=None))
    with pytest.raises(Exception, match="failed"):
        await agent.ainvoke("go")
    assert till.tries == ["pay tea", "pay milk", "give back milk"]


async def test_a_policy_for_an_agent_of_a_team_is_held_there() -> None:
    guards = watched(stages={"busy": Guards(steps=calls(2))})
    model = busy()
    reply = await boss(ASK, agents=[inner(solo(model, name="busy"))], guards=guards).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 1)


def test_what_is_wrong_under_a_supervisor_s_policy_is_told_at_build() -> None:
    team = inner(solo(ScriptedModel(["x"], model_name="unheard-of"), name="a"))
    with pytest.raises(ConfigurationError, match="unheard-of") as told:
        Agent(
            "boss", model=ScriptedModel(["x"]), agents=[team], guards=watched(budget=CostBudget(1))
        )
    assert any("a" in fault for fault in told.value.faults)
    with pytest.raises(ConfigurationError, match="nobody"):
        Agent("boss", agents=[team], guards=watched(stages={"nobody": Guards(steps=calls(2))}))


async def test_a_team_s_own_graph_keeps_its_own_guards() -> None:
    """It is a graph as any other there: who gives the graph has compiled it."""
    model = busy()
    graph = inner(solo(model, name="busy"), guards=watched(steps=calls(7))).graph
    graph.name = "inner"
    await boss(ASK, "so", agents=[graph], guards=watched(steps=calls(5))).ainvoke("go")
    assert len(model.requests) == 7


# In a team


async def test_what_a_team_inside_did_is_undone_with_all_else_last_things_first() -> None:
    till, sink = Till(), MemorySink()
    first = payer(till, *pays("tea"), "Paid.", name="first")
    team = inner(payer(till, *pays("milk"), "Paid."))
    last = payer(till, *pays("jam"), *[call("look", what="it")] * 20, name="last")
    rules = sequence(["first", "inner", "last"])
    async with held(Team([first, team, last], rules, guards=watched(sink))) as session:
        state = await after(session, "user", "go")
        told = [one.event_data for one in await of_type(session, EV_AUDIT)]
    assert state.pending_close_reason == "loop_detector"
    assert till.tries[3:] == ["give back jam", "give back milk", "give back tea"]
    assert ("last", "loop_detector", "abort") in audited(sink)
    tools = [one["entry"]["tool"] for one in told if one.get("entry", {}).get("state") == "started"]
    assert tools == ["first:pay", "inner/desk:pay", "last:pay"]


async def test_three_levels_down_too() -> None:
    till = Till()
    deep = Team([payer(till, *pays("tea"), "Paid.")], sequence(["desk"]), name="deep")
    last = solo(looping(), name="last")
    team = Team([inner(deep), last], sequence(["inner", "last"]))
    await team.arun("go")
    assert till.tries == ["pay tea", "give back tea"]


async def test_a_team_in_an_agent_in_a_team_is_undone_with_it() -> None:
    till = Till()
    lead = Agent(
        "lead",
        model=ScriptedModel([ASK, "Done."]),
        agents=[inner(payer(till, *pays("tea"), "Paid."))],
        handoff="delegate",
    )
    async with held(Team([lead, solo(looping(), name="last")], sequence(["lead", "last"]))) as told:
        state = await after(told, "user", "go")
    assert state.pending_close_reason == "loop_detector"
    assert till.tries == ["pay tea", "give back tea"]


async def test_what_a_failed_try_of_a_team_did_is_undone_and_no_more() -> None:
    """What it did in an earlier round stands: its words do too."""
    till = Till()
    turns = [
        *pays("tea"),
        "Paid.",
        *pays("milk"),
        FAILS,
        *pays("milk"),
        FAILS,
        *pays("jam"),
        ANSWER,
    ]
    team = inner(payer(till, *turns))
    rules = sequence(["inner", "inner"])
    async with held(Team([team], rules, guards=watched(retry=None))) as session:
        state = await after(session, "user", "go")
        assert (await talk(session))[-1] == ("inner", ANSWER)
    assert state.pending_close_reason == "sequence_complete"
    assert till.left == ["tea", "jam"]


async def test_of_a_team_beside_an_agent_that_is_ended_nothing_is_left() -> None:
    till = Till()
    start = solo(ScriptedModel(["Go."]), name="start")
    team = inner(payer(till, *pays("tea"), *pays("milk"), *pays("jam"), "Paid."))
    ann = payer(till, *pays("ann"), *[call("look", what="it")] * 20, name="ann")
    rules = [Transition(FromSpeaker("start"), ParallelTarget(("ann", "inner"), join="start"))]
    graph = TransitionGraph("start", rules, max_turns=9)
    async with held(Team([start, ann, team], graph)) as session:
        state = await after(session, "user", "go")
    assert state.pending_close_reason == "loop_detector"
    assert till.left == []


async def test_a_team_inside_that_nobody_guards_keeps_its_own_account() -> None:
    till = Till()
    team = inner(payer(till, *pays("tea"), *[call("look", what="it")] * 20), guards=watched())
    outer = Team([team], sequence(["inner"]), guards=None)
    result = await outer.arun("go")
    assert till.tries == ["pay tea", "give back tea"]
    assert result.close_reason == "loop_detector"


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_what_a_human_grants_inside_is_granted_outside(decision: str) -> None:
    """Three calls are the limit; once that is granted anew, one more outside is none too many."""
    turns: list[Any] = [call("look", what=str(n)) for n in range(3)]
    team = inner(solo(ScriptedModel([*turns, "found"]), name="busy"))
    last = solo(ScriptedModel(["so"]), name="last")
    asks = DecisionTable({("infinite_loop", "interactive"): Cell("escalate")})
    policy = watched(steps=calls(3), decisions=asks)
    async with held(Team([team, last], sequence(["inner", "last"]), guards=policy)) as session:
        state = await after(session, "user", "go")
        [question] = state.interrupts
        await session.decide(question, decision)
        state = await settled(session)
        said = [text for _, text in await talk(session)]
    if decision == "approve":
        assert (state.pending_close_reason, said) == ("sequence_complete", ["go", "found", "so"])
    else:
        assert (state.pending_close_reason, said) == ("max_steps", ["go"])


async def test_a_team_says_nothing_where_nobody_in_it_has() -> None:
    """It must not give back what it was asked, as if that were an answer."""
    team = Team([solo(looping(), name="a")], sequence(["a"]), name="inner")
    agent = Agent("boss", model=ScriptedModel([ASK]), agents=[team])
    reply = await agent.ainvoke("please")
    assert (words_of(reply), reply.close_reason) == ("", "loop_detector")


# Both


def placed(where: str, team: Team, **fields: Any) -> Agent | Team:
    """Return an agent or a team that has a team in it."""
    if where == "agent":
        return Agent("boss", model=ScriptedModel([ASK, "So."]), agents=[team], **fields)
    return Team([team], sequence(["inner"]), expectations=(), **fields)


async def ended_by(whole: Agent | Team) -> str | None:
    result = await (whole.ainvoke("go") if isinstance(whole, Agent) else whole.arun("go"))
    return result.close_reason


WHERE = pytest.mark.parametrize("where", ["agent", "team"])


@WHERE
@pytest.mark.parametrize(("outer_s", "inner_s"), [(100, 30), (30, 100)])
async def test_a_team_inside_has_the_time_of_whoever_has_less(
    where: str, outer_s: float, inner_s: float
) -> None:
    with Driven().installed() as time:
        slow = worker("slow", [Fault.delay(20, call("look", what=str(n))) for n in range(9)])
        team = inner(slow.replace(tools=[look]), guards=guards(workflow_s=inner_s))
        whole = placed(where, team, guards=guards(workflow_s=outer_s))
        reason, seconds = await time.lasting(ended_by(whole))
    assert (reason, seconds) == ("deadline:workflow", 30)


@WHERE
async def test_the_trail_of_a_run_has_what_was_done_in_its_teams(where: str) -> None:
    sink = MemorySink()
    first = solo(ScriptedModel([call("look", what="it"), "One."]), name="a")
    team = inner(first, solo(ScriptedModel(["Two."]), name="b"))
    whole = placed(where, team, guards=watched(sink))
    result = await (whole.ainvoke("go") if isinstance(whole, Agent) else whole.arun("go"))
    [run] = sink.runs()
    trail = folded(sink.read(run))
    above = ("boss",) if where == "agent" else ()
    path = ("boss/inner/a", "boss/inner/b") if above else ("inner/a", "inner/b")
    assert trail.path == (*above, *path)
    assert trail.steps == 3 + len(above)
    assert trail.spend.total_tokens == result.usage.total_tokens > 0
    assert trail.end


@WHERE
async def test_how_fast_is_spent_is_watched_over_all_levels(where: str) -> None:
    with FakeClock().installed() as time:

        def turn(_: object) -> Any:
            time.advance(31)
            return call("look", what=str(time.monotonic()))

        team = inner(solo(ScriptedModel(turn), name="a"))
        velocity = CostVelocity(tokens_per_min=0.01, fast_s=60, slow_s=120, min_elapsed_s=30)
        whole = placed(where, team, guards=watched(velocity=velocity))
        assert await ended_by(whole) == "cost_velocity"
