"""Conversations that models hand over: judged, told once, and shown to whoever receives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agentgraph import Agent, Guards
from agentgraph.guards import HopLimit
from agentgraph.outcomes import Handoff
from agentgraph.phases import (
    ConversationPipeline,
    ConversationRouter,
    PipelineStage,
    RoutingConditions,
    RoutingRule,
)
from agentgraph.routing import (
    FromSpeaker,
    HumanTarget,
    PhaseTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    TurnIs,
    sequence,
)
from agentgraph.sessions import (
    EV_HANDOFF,
    EV_HANDOFF_REJECTED,
    EV_PACKET,
    EV_PHASE,
    Envelope,
    Hub,
    Session,
    Team,
)
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import after, agent, asked, held, of_type, shown, talk


def over(target: str, **fields: Any) -> Any:
    """Call the tool that hands over."""
    return call("handoff_conversation", target=target, **{"reason": "", "summary": "", **fields})


def stages() -> ConversationPipeline:
    """Return triage, handling and review, which may go back to handling, then resolution."""
    return ConversationPipeline(
        [
            PipelineStage("triage", "t", "handling"),
            PipelineStage("handling", "h", "review"),
            PipelineStage("review", "r", "resolution", {"handling"}),
            PipelineStage("resolution", "z"),
        ]
    )


def four(**turns: Any) -> list[Agent]:
    return [agent(name, *turns.get(name, ())) for name in ("t", "h", "r", "z")]


async def handoffs(session: Session) -> list[tuple[Any, ...]]:
    return [
        (one.event_data["from"], one.event_data["target"], one.event_data["next_phase"])
        for one in await of_type(session, EV_HANDOFF)
    ]


async def phases(session: Session) -> list[tuple[Any, Any]]:
    return [
        (one.event_data["from"], one.event_data["to"]) for one in await of_type(session, EV_PHASE)
    ]


async def rejections(session: Session) -> list[tuple[str, str, str]]:
    """Return who was refused, whom they wished for, and with which code."""
    import json

    return [
        (
            one.event_data["from"],
            one.event_data["target"],
            json.loads(one.event_data["told"])["code"],
        )
        for one in await of_type(session, EV_HANDOFF_REJECTED)
    ]


def parameters(participant: Agent) -> Mapping[str, Any]:
    """Return the parameters of the handoff tool, as the model was shown them."""
    request = asked(participant)[0]
    functions: list[Any] = [spec.get("function", spec) for spec in request.specs]
    (spec,) = [one for one in functions if one["name"] == "handoff_conversation"]
    found: Mapping[str, Any] = spec["parameters"]["properties"]
    return found


async def test_a_pipeline_walks_its_stages_and_tells_each_phase_once() -> None:
    async with held(Team(four(), stages())) as session:
        assert session.state.phase == "triage"
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)] == ["user", "t", "h", "r", "z"]
        assert await phases(session) == [
            ("triage", "handling"),
            ("handling", "review"),
            ("review", "resolution"),
        ]
        assert await handoffs(session) == []
        assert state.pending_close_reason == "pipeline_complete"
        assert state.phase == "resolution"


async def test_a_reviewer_may_return_to_the_handler() -> None:
    agents = four(
        h=["first try", "second try"],
        r=[over("h", reason="too short", summary="write more"), "it is good"],
    )
    async with held(Team(agents, stages())) as session:
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)] == [
            "user",
            "t",
            "h",
            "r",
            "h",
            "r",
            "z",
        ]
        assert await handoffs(session) == [("r", "h", "handling")]
        assert ("review", "handling") in await phases(session)
        assert state.pending_close_reason == "pipeline_complete"
        assert (state.conversation.handoff_count, state.hops) == (1, 1)
        assert state.conversation.active_agent_id == "h"


async def test_the_tool_shows_who_may_be_reached() -> None:
    agents = four()
    team = Team(agents, stages(), aliases={"the_boss": "r"})
    async with held(team) as session:
        await after(session, "user", "hello")
        shown_ = parameters(agents[0])
        assert shown_["target"]["enum"] == ["h", "r", "z", "the_boss", "human"]
        assert set(shown_) == {"target", "reason", "summary", "next_phase", "channel_escalation"}
        assert parameters(agents[1])["target"]["enum"][0] == "t"


async def test_without_phases_or_aliases_a_graph_offers_no_such_tool() -> None:
    one = agent("a")
    async with held(Team([one], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        assert asked(one)[0].tools == ()
    one = agent("a")
    async with held(Team([one], sequence(["a"]), aliases={"me": "a"})) as session:
        await after(session, "user", "hello")
        assert asked(one)[0].tools == ("handoff_conversation",)


async def test_an_alias_reaches_whom_it_stands_for() -> None:
    agents = four(t=[over("the_handler")])
    async with held(Team(agents, stages(), aliases={"the_handler": "h"})) as session:
        await after(session, "user", "hello")
        assert await handoffs(session) == [("t", "h", "handling")]
        assert [name for name, _ in await talk(session)][:3] == ["user", "t", "h"]


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({"target": "zed"}, "unknown_target"),
        ({"target": "t"}, "self_handoff"),
        ({"target": "z"}, "transition_not_allowed"),
        ({"target": "h", "next_phase": "review"}, "phase_mismatch"),
        ({"target": "h", "channel_escalation": "voice"}, "unsupported_escalation"),
        ({"target": "human", "channel_escalation": "sms"}, "unsupported_escalation"),
    ],
)
async def test_a_handoff_that_may_not_be_is_refused_told_and_the_model_goes_on(
    wish: dict[str, Any], code: str
) -> None:
    agents = four(t=[over(**wish), "I go on."])
    async with held(Team(agents, stages())) as session:
        state = await after(session, "user", "hello")
        assert await rejections(session) == [("t", wish["target"], code)]
        assert await handoffs(session) == []
        answer = next(m for m in asked(agents[0])[-1].messages if m.type == "tool")
        assert f'"{code}"' in str(answer.text)
        assert '"accepted":false' in str(answer.text)
        assert (await talk(session))[1] == ("t", "I go on.")
        assert state.pending_close_reason == "pipeline_complete"


async def test_the_hop_limit_refuses_the_handoff_after_the_last_allowed_one() -> None:
    back = [over("h"), over("h"), "enough"]
    agents = four(h=["one", "two", "three"], r=back)
    guards = Guards.interactive(hops=HopLimit(1))
    async with held(Team(agents, stages(), guards=guards)) as session:
        state = await after(session, "user", "hello")
        assert await handoffs(session) == [("r", "h", "handling")]
        assert await rejections(session) == [("r", "h", "hop_limit")]
        assert state.pending_close_reason == "pipeline_complete"


async def test_hops_are_counted_anew_for_each_input_from_outside() -> None:
    def give() -> Handoff:
        """Give it to b."""
        return Handoff("b", "", "")

    one = agent("a", *[call("give")] * 3, tools=[give])
    rules = TransitionGraph("a", (Transition(FromSpeaker("user"), "a"),), HumanTarget())
    guards = Guards.interactive(hops=HopLimit(1))
    async with held(Team([one, agent("b")], rules, guards=guards)) as session:
        for _ in range(3):
            state = await after(session, "user", "hello")
        assert await rejections(session) == []
        assert (len(await handoffs(session)), state.hops) == (3, 1)


async def test_without_guards_hops_have_no_limit() -> None:
    agents = four(h=["x"] * 9, r=[*[over("h")] * 7, "enough"])
    async with held(Team(agents, stages(), guards=None)) as session:
        await after(session, "user", "hello")
        assert len(await handoffs(session)) == 7


async def test_a_summary_is_shown_to_the_receiver_once_and_to_nobody_else() -> None:
    secret = "the order is number 4711"
    agents = four(t=[over("h", reason="a refund", summary=secret)], h=["first", "again"])
    agents[2] = agent("r", over("h", summary="other words"), "good")
    async with held(Team(agents, stages())) as session:
        await after(session, "user", "hello")
        assert f"[Context from t]: {secret}" in shown(agents[1], 0)
        assert "[t handed over to h: a refund]" in shown(agents[1], 0)
        assert secret not in shown(agents[1], 1)
        assert "[Context from r]: other words" in shown(agents[1], 1)
        for other in (agents[2], agents[3]):
            assert all(secret not in shown(other, n) for n in range(len(asked(other))))
        assert "[t handed over to h: a refund]" in shown(agents[2], 0)


async def test_a_summary_is_shown_again_to_a_receiver_whose_round_runs_again() -> None:
    from agentgraph.testing import Fault

    agents = four(t=[over("h", summary="of this")], h=[Fault.server_error(), "so"])
    async with held(Team(agents, stages())) as session:
        await after(session, "user", "hello")
        assert "[Context from t]: of this" in shown(agents[1], 0)
        assert shown(agents[1], 0) == shown(agents[1], 1)


async def test_a_summary_does_not_get_lost_where_somebody_interjects() -> None:
    def note() -> str:
        """Note."""
        return ""

    agents = four(h=["so"])
    agents[0] = agent("t", over("h", summary="of this"))
    async with held(Team(agents, stages(), humans=["ann"])) as session:

        async def interject(envelope: Envelope) -> None:
            await session.send("ann", "by the way")

        await session.join("ann")
        session.on(EV_HANDOFF, interject)
        await after(session, "user", "hello")
        assert "[Context from t]: of this" in shown(agents[1], 0)


async def test_what_was_said_with_a_handoff_is_said() -> None:
    from agentgraph.testing import Turn

    turn = Turn("I pass you on.", [over("h")])
    async with held(Team(four(t=[turn]), stages())) as session:
        await after(session, "user", "hello")
        assert (await talk(session))[1] == ("t", "I pass you on.")


async def test_an_accepted_handoff_ends_the_turn_and_refuses_the_second_of_a_message() -> None:
    agents = four(t=[[over("h"), over("human")]])
    async with held(Team(agents, stages())) as session:
        await after(session, "user", "hello")
        assert len(asked(agents[0])) == 1
        assert await handoffs(session) == [("t", "h", "handling")]
        assert [name for name, _ in await talk(session)][:3] == ["user", "t", "h"]


async def test_a_handoff_within_one_phase_tells_no_phase() -> None:
    def give() -> Handoff:
        """Give."""
        return Handoff("b", "", "")

    team = Team([agent("a", call("give"), tools=[give]), agent("b")], sequence(["a"]))
    async with held(team) as session:
        await after(session, "user", "hello")
        assert len(await handoffs(session)) == 1
        assert await phases(session) == []


async def test_a_handoff_into_a_phase_tells_both_once() -> None:
    team = Team(four(t=[over("h", reason="x")]), stages())
    async with held(team) as session:
        events: list[str] = []
        session.on("*", lambda one: events.append(one.event_type))
        await after(session, "user", "hello")
        first = events.index(EV_PACKET)
        assert events[first : first + 3] == [EV_PACKET, EV_HANDOFF, EV_PHASE]
        assert events.count(EV_HANDOFF) == 1
        assert events.count(EV_PHASE) == 3


async def test_a_phase_map_puts_whom_it_names_into_their_phase() -> None:
    rules = TransitionGraph("a", (), TerminateTarget("done"))
    agents = [agent("a", over("b")), agent("b")]
    team = Team(agents, rules, phase_map={"b": "handling"})
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert await handoffs(session) == [("a", "b", "handling")]
        assert await phases(session) == [("intake", "handling")]
        assert (state.phase, state.conversation.active_agent_id) == ("handling", "b")


async def test_a_rule_that_enters_a_phase_tells_it() -> None:
    def go() -> str:
        """Go."""
        return "gone"

    rules = TransitionGraph(
        "a",
        (Transition(ToolCalled("go"), PhaseTarget("handling", "b")),),
        TerminateTarget("done"),
    )
    async with held(Team([agent("a", call("go"), "so", tools=[go]), agent("b")], rules)) as session:
        state = await after(session, "user", "hello")
        assert await phases(session) == [("intake", "handling")]
        assert (await of_type(session, EV_PHASE))[0].event_data["by"] == "a"
        assert state.conversation.active_agent_id is None


async def test_an_agents_own_handoff_is_judged_like_the_tools() -> None:
    def give(to: str) -> Handoff:
        """Give."""
        return Handoff(to, "", "")

    agents = four()
    agents[0] = agent("t", call("give", to="z"), call("give", to="h"), tools=[give])
    async with held(Team(agents, stages())) as session:
        await after(session, "user", "hello")
        assert await rejections(session) == [("t", "z", "transition_not_allowed")]
        assert await handoffs(session) == [("t", "h", "handling")]


async def test_whoever_has_left_cannot_be_handed_to() -> None:
    agents = four(t=[over("h"), "I go on."])
    async with held(Team(agents, stages(), failure_target="human")) as session:
        await session.leave("h")
        await after(session, "user", "hello")
        assert await rejections(session) == [("t", "h", "unknown_target")]


def router() -> ConversationRouter:
    """Return rules by intent, with `t` for the rest."""
    refunds = RoutingRule("h", RoutingConditions(intents={"refund"}))
    return ConversationRouter([refunds], "t")


async def test_a_router_answers_each_input_once_and_waits() -> None:
    async with held(Team(four(), router())) as session:
        state = await after(session, "user", "hello", metadata={"intent": "refund"})
        assert [name for name, _ in await talk(session)] == ["user", "h"]
        assert (state.status, state.expected_next_speaker) == ("waiting_human", "user")
        state = await after(session, "user", "and this?")
        assert [name for name, _ in await talk(session)] == ["user", "h", "user", "t"]


async def test_in_a_router_whoever_was_handed_the_conversation_keeps_it() -> None:
    agents = four(t=[over("r", summary="of this")])
    async with held(Team(agents, router())) as session:
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)] == ["user", "t", "r"]
        assert state.status == "waiting_human"
        await after(session, "user", "more", metadata={"intent": "refund"})
        assert [name for name, _ in await talk(session)][-1] == "r"
        await after(session, "user", "you, z", metadata={"addressed_to": "z"})
        assert [name for name, _ in await talk(session)][-1] == "z"


async def test_an_escalation_goes_to_its_handler_once_with_the_envelope() -> None:
    called: list[tuple[str, Envelope]] = []

    async def ring(session: Session, envelope: Envelope) -> None:
        called.append((session.id, envelope))

    agents = four(t=[over("human", reason="angry", channel_escalation="voice")])
    team = Team(agents, stages(), escalations={"voice": ring})
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_human"
        (told,) = await of_type(session, EV_HANDOFF)
        assert called == [(session.id, told)]
        assert told.event_data["channel_escalation"] == "voice"


async def test_an_escalation_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def ring(session: Session, envelope: Envelope) -> None:
        raise ValueError("no line")

    agents = four(t=[over("human", channel_escalation="voice")])
    async with held(Team(agents, stages(), escalations={"voice": ring})) as session:
        assert (await after(session, "user", "hello")).status == "waiting_human"
        assert "a handler of ag.handoff failed" in caplog.text


async def test_a_hop_to_a_human_is_none_and_is_never_refused() -> None:
    agents = four(t=[over("human")])
    guards = Guards.interactive(hops=HopLimit(0))
    async with held(Team(agents, stages(), guards=guards)) as session:
        state = await after(session, "user", "hello")
        assert state.status == "waiting_human"
        assert await rejections(session) == []


async def test_a_human_can_be_asked_by_name_in_any_phase() -> None:
    pipeline = ConversationPipeline(
        [PipelineStage("intake", "a", "work"), PipelineStage("work", "b")]
    )
    wish = call("handoff_conversation", target="boss", reason="too much", summary="900")
    agents = [
        Agent("a", model=ScriptedModel([wish, "thanks"])),
        Agent("b", model=ScriptedModel(["done"])),
    ]
    team = Team(agents, pipeline, humans=["boss"], name="desk")
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session("desk")
        await session.join("boss")
        await session.send("user", "go")
        state = await session.settled()

        assert (state.status, state.expected_next_speaker) == ("waiting_human", "boss")
        refused = [e for e in await session.history() if e.event_type == EV_HANDOFF_REJECTED]
        assert refused == []


def give(to: str, why: str) -> Handoff:
    """Give."""
    return Handoff(to, why)


async def test_each_handoff_counts_and_names_who_made_it() -> None:
    # A rule gives the floor back to `a`, who hands over again to whom it did before.
    one = agent("a", call("give", to="b", why="first"), call("give", to="b", why="second"))
    rules = TransitionGraph("a", [Transition(FromSpeaker("b") & TurnIs(2), "a")])
    team = Team([one.replace(tools=[give]), agent("b")], rules)
    async with held(team) as session:
        conversation = (await after(session, "user", "go")).conversation
    assert conversation.handoff_count == 2
    steps = [(step.from_agent, step.to_agent, step.reason) for step in conversation.phase_history]
    assert steps == [("a", "b", "first"), ("a", "b", "second")]
    assert (conversation.active_agent_id, conversation.previous_agent_id) == ("b", "a")


async def test_a_phase_says_who_changed_it_and_why() -> None:
    agents = four(r=[over("h", reason="too short"), "it is good"])
    async with held(Team(agents, stages())) as session:
        state = await after(session, "user", "hello")
        told = [one.event_data for one in await of_type(session, EV_PHASE)]
    assert [(one["by"], one["reason"]) for one in told] == [
        ("t", "rule 0"),
        ("h", "rule 1"),
        ("r", "too short"),
        ("h", "rule 1"),
        ("r", "rule 2"),
    ]
    steps = [(step.from_agent, step.reason) for step in state.conversation.phase_history]
    assert steps == [(one["by"], one["reason"]) for one in told]


async def test_a_routing_tools_reason_is_that_of_the_phase_it_leads_to() -> None:
    def go(reason: str) -> str:
        """Go."""
        return "gone"

    rules = TransitionGraph("a", (Transition(ToolCalled("go"), PhaseTarget("handling", "b")),))
    one = agent("a", call("go", reason="it is ripe"), "so", tools=[go])
    async with held(Team([one, agent("b")], rules)) as session:
        await after(session, "user", "hello")
        assert (await of_type(session, EV_PHASE))[0].event_data["reason"] == "it is ripe"


async def test_of_two_handoffs_in_one_message_the_second_is_told_as_rejected() -> None:
    both = [call("give", to="b", why="first"), call("give", to="c", why="second")]
    team = Team([agent("a", both, tools=[give]), agent("b"), agent("c")], TransitionGraph("a"))
    async with held(team) as session:
        state = await after(session, "user", "go")
        assert await handoffs(session) == [("a", "b", "intake")]
        (rejected,) = await of_type(session, EV_HANDOFF_REJECTED)
        assert rejected.event_data["told"].startswith("Not executed")
        named = [rejected.event_data[key] for key in ("from", "target", "reason")]
        assert named == ["a", "c", "second"]
        assert (state.conversation.handoff_count, state.last_speaker_id) == (1, "b")


async def test_a_handoff_beside_a_routing_tool_that_was_called_first_is_told_as_rejected() -> None:
    def close_it() -> str:
        """Close it."""
        return "closed"

    both = [call("close_it"), call("give", to="b", why="or so")]
    rules = TransitionGraph("a", [Transition(ToolCalled("close_it"), TerminateTarget("shut"))])
    async with held(Team([agent("a", both, tools=[give, close_it]), agent("b")], rules)) as session:
        assert (await after(session, "user", "go")).pending_close_reason == "shut"
        (rejected,) = await of_type(session, EV_HANDOFF_REJECTED)
        assert rejected.event_data["target"] == "b"


async def test_what_a_person_says_to_an_agent_alone_is_addressed_to_it() -> None:
    team = Team([agent("desk"), agent("support")], ConversationRouter(default_agent_id="desk"))
    async with held(team) as session:
        await after(session, "user", "hello")
        await after(session, "user", "psst", audience=["support"])
        await after(session, "user", "all again")
        speakers = [name for name, _ in await talk(session) if name != "user"]
    assert speakers == ["desk", "support", "desk"]


async def test_an_address_in_the_metadata_comes_before_the_audience() -> None:
    team = Team([agent("desk"), agent("support")], ConversationRouter(default_agent_id="desk"))
    async with held(team) as session:
        both = ["desk", "support"]
        to_one = {"addressed_to": "support"}
        await after(session, "user", "hi", audience=both, metadata=to_one)
        assert (await talk(session))[-1][0] == "support"
        (text,) = [one for one in await session.history() if one.sender_id == "user"]
        assert str(await session.explain(text.sequence)).splitlines()[-1] == "= support speaks"
