"""What a round comes to: one packet, which says what was said, decided and written."""

from __future__ import annotations

from typing import Any

import pytest

from agentgraph import Agent, idempotency_key
from agentgraph.outcomes import Finish, Handoff
from agentgraph.routing import (
    Always,
    AnyOf,
    ContextEquals,
    FromSpeaker,
    HumanTarget,
    Not,
    ParallelTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    feedback,
    round_robin,
    sequence,
    star,
)
from agentgraph.sessions import (
    EV_CONTEXT_SET,
    EV_HANDOFF,
    EV_HANDOFF_REJECTED,
    EV_PACKET,
    EV_PHASE,
    EV_ROUND_FAILED,
    EV_SESSION_CLOSED,
    EV_TASK_COMPLETED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    Envelope,
    Session,
    Team,
    report_progress,
    set_context,
)
from agentgraph.testing import Fault, ScriptedModel, bad_call, call
from tests.sessions.talk import after, agent, ample, asked, held, of_type, shown, talk, untried


def escalate(reason: str = "") -> str:
    """Escalate."""
    return f"escalated: {reason}"


def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


def fail(word: str = "") -> str:
    """Fail."""
    raise ValueError(f"no {word}")


async def packets(session: Session) -> list[Envelope]:
    return await of_type(session, EV_PACKET)


def routed_by(*rules: Transition) -> TransitionGraph:
    return TransitionGraph("a", rules, TerminateTarget("no_rule"))


TO_B = Transition(ToolCalled("escalate"), "b")
DONE = Transition(FromSpeaker("b"), TerminateTarget("done"))


async def test_a_packet_has_all_that_the_api_promises() -> None:
    one = agent("a", call("look_up", word="tide"), "A tide is water.", tools=[look_up])
    async with held(Team([one], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        (packet,) = await packets(session)
        assert packet.sender_id == "a"
        data = packet.event_data
        assert data["routing"] == {"kind": "text", "tool": None}
        assert data["context_updates"] == {"set": {}, "delete": []}
        assert (data["body"], packet.text) == ("A tide is water.", "A tide is water.")
        assert (data["round"], data["attempt"], data["active"]) == (1, 1, None)
        assert data["steps"] == [
            {
                "agent": "a",
                "text": "",
                "calls": [
                    {
                        "tool": "look_up",
                        "args": {"word": "tide"},
                        "result": "tide is a word",
                        "status": "success",
                    }
                ],
            }
        ]
        assert data["decision"]["close_reason"] == "sequence_complete"
        assert data["usage"]["a"]["total_tokens"] > 0


async def test_a_tool_that_was_called_routes() -> None:
    one = agent("a", call("escalate", reason="too hard"), "I give it to b.", tools=[escalate])
    async with held(Team([one, agent("b")], routed_by(TO_B, DONE))) as session:
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)] == ["user", "a", "b"]
        assert state.pending_close_reason == "done"
        routing = (await packets(session))[0].event_data["routing"]
        assert (routing["kind"], routing["tool"]) == ("handoff", "escalate")
        assert routing["reason"] == "too hard"
        # A rule has decided, no model's handoff to a peer.
        assert await of_type(session, EV_HANDOFF) == []
        assert state.hops == 0


def never() -> str:
    """Do what is never called for."""
    return "done"


@pytest.mark.parametrize(
    "when",
    [
        FromSpeaker("a") & ToolCalled("escalate"),
        AnyOf((ToolCalled("never"), ToolCalled("escalate"))),
        FromSpeaker("a") & Not(Not(ToolCalled("escalate"))),
        FromSpeaker("a") & (ContextEquals("k", 1) | ToolCalled("escalate")),
    ],
)
async def test_a_tool_is_found_inside_of_composites(when: Any) -> None:
    one = agent("a", call("escalate"), "so", tools=[escalate])
    rules = routed_by(Transition(when, "b"), DONE)
    async with held(Team([one, agent("b", tools=[never])], rules)) as session:
        assert (await after(session, "user", "hello")).pending_close_reason == "done"


async def test_of_several_routing_tools_the_first_call_counts() -> None:
    def close() -> str:
        """Close."""
        return "closed"

    one = agent(
        "a",
        [call("look_up", word="x"), call("close"), call("escalate")],
        "so",
        tools=[look_up, close, escalate],
    )
    ended = Transition(ToolCalled("close"), TerminateTarget("closed_by_tool"))
    async with held(Team([one, agent("b")], routed_by(TO_B, ended, DONE))) as session:
        state = await after(session, "user", "hello")
        assert (await packets(session))[0].event_data["routing"]["tool"] == "close"
        assert state.pending_close_reason == "closed_by_tool"


async def test_a_call_that_failed_routes_nowhere() -> None:
    one = agent("a", call("fail", word="x"), "It did not work.", tools=[fail])
    rules = routed_by(Transition(ToolCalled("fail"), "b"), DONE)
    async with held(Team([one, agent("b")], rules)) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "no_rule"
        step = (await packets(session))[0].event_data["steps"][0]["calls"][0]
        assert step["status"] == "error"
        assert "ValueError" in step["result"]


async def test_after_a_failed_call_the_next_routing_tool_counts() -> None:
    one = agent("a", call("fail"), call("escalate"), "so", tools=[fail, escalate])
    rules = routed_by(Transition(ToolCalled("fail"), TerminateTarget("bad")), TO_B, DONE)
    async with held(Team([one, agent("b")], rules)) as session:
        assert (await after(session, "user", "hello")).pending_close_reason == "done"


async def test_a_malformed_call_routes_nowhere() -> None:
    one = agent("a", bad_call("escalate"), "I could not.", tools=[escalate])
    async with held(Team([one, agent("b")], routed_by(TO_B, DONE))) as session:
        assert (await after(session, "user", "hello")).pending_close_reason == "no_rule"


async def test_a_handoff_outranks_the_rule_of_its_tool() -> None:
    def escalate() -> Handoff:
        """Escalate."""
        return Handoff("c", "c knows more", "it is about tides")

    one, third = agent("a", call("escalate"), tools=[escalate]), agent("c")
    rules = routed_by(TO_B, DONE, Transition(FromSpeaker("c"), TerminateTarget("c_spoke")))
    async with held(Team([one, agent("b"), third], rules)) as session:
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)] == ["user", "a", "c"]
        assert state.pending_close_reason == "c_spoke"
        data = (await packets(session))[0].event_data
        assert data["routing"]["target"] == "c"
        assert data["decision"]["rule"] == "handoff"
        (told,) = await of_type(session, EV_HANDOFF)
        assert told.event_data["reason"] == "c knows more"
        assert told.causation_id == (await packets(session))[0].envelope_id
        assert "[Context from a]: it is about tides" in shown(third)
        # The receiver spoke in the same run: the handoff ended the turn without another call.
        assert len(asked(one)) == 1


async def test_a_handoff_to_a_stranger_is_refused_and_the_model_goes_on() -> None:
    def give(to: str) -> Handoff:
        """Give it away."""
        return Handoff(to, "because", "of this")

    one = agent("a", call("give", to="zed"), call("give", to="a"), "I keep it.", tools=[give])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        rejected = await of_type(session, EV_HANDOFF_REJECTED)
        assert [one.event_data["from"] for one in rejected] == ["a", "a"]
        assert [one.event_data["target"] for one in rejected] == ["zed", "a"]
        assert '"unknown_target"' in rejected[0].event_data["told"]
        assert '"self_handoff"' in rejected[1].event_data["told"]
        assert await of_type(session, EV_HANDOFF) == []
        assert (await talk(session))[-1] == ("a", "I keep it.")
        assert state.pending_close_reason == "sequence_complete"


async def test_a_finish_closes_with_its_reason_and_its_text() -> None:
    def finish() -> Finish:
        """Finish."""
        return Finish("Refunded.", "refund_made")

    one = agent("a", call("finish"), tools=[finish])
    rules = routed_by(Transition(ToolCalled("finish"), "b"), DONE)
    team = Team([one, agent("b")], rules)
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert (state.status, state.pending_close_reason) == ("closed", "refund_made")
        (packet,) = await packets(session)
        assert packet.text == "Refunded."
        assert packet.event_data["decision"]["rule"] == "finish"
        assert (await of_type(session, EV_SESSION_CLOSED))[0].event_data == {
            "reason": "refund_made"
        }
    one = agent("a", call("finish"), tools=[finish])
    result = await Team([one, agent("b")], rules).arun("hello")
    assert (result.text, result.close_reason) == ("Refunded.", "refund_made")


async def test_a_finish_without_words_closes_all_the_same() -> None:
    def finish() -> Finish:
        """Finish."""
        return Finish()

    one = agent("a", call("finish"), tools=[finish])
    async with held(Team([one], round_robin(["a"], max_turns=9))) as session:
        assert (await after(session, "user", "hello")).pending_close_reason == "finished"


async def test_what_a_round_writes_is_in_its_packet_and_nowhere_else() -> None:
    def note(value: int) -> str:
        """Note it."""
        set_context("k", value)
        return "noted"

    one = agent("a", call("note", value=3), "so", tools=[note])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert await of_type(session, EV_CONTEXT_SET) == []
        (packet,) = await packets(session)
        assert packet.event_data["context_updates"] == {"set": {"k": 3}, "delete": []}
        assert dict(state.context_vars) == {"k": 3}


async def test_the_steps_of_a_round_are_bounded_and_keep_the_last() -> None:
    turns = [call("look_up", word=f"w{n}") for n in range(30)]
    one = agent("a", *turns, "done", tools=[look_up])
    async with held(Team([one], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        steps = (await packets(session))[0].event_data["steps"]
        assert len(steps) == 12
        assert steps[-1]["calls"][0]["args"] == {"word": "w29"}


async def test_what_is_huge_is_clipped_in_the_packet() -> None:
    def huge(word: str) -> str:
        """Say much."""
        return "y" * 500_000

    one = agent("a", call("huge", word="x" * 50_000), "z" * 200_000, tools=[huge])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        (packet,) = await packets(session)
        assert state.pending_close_reason == "sequence_complete"
        assert packet.text.endswith("… [100000 more]")
        call_ = packet.event_data["steps"][0]["calls"][0]
        assert len(call_["result"]) < 3_000
        assert len(call_["args"]["clipped"]) == 2_000


@pytest.mark.parametrize("letter", ["z", "\u00fc", "\U0001f600", "\0"])
async def test_words_of_any_length_and_script_fit_into_the_log(letter: str) -> None:
    async with held(Team([agent("a", letter * 150_000)], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "sequence_complete"
        assert (await talk(session))[-1][1].startswith(letter * 5_000)


async def test_many_huge_calls_of_one_message_still_fit_into_the_log() -> None:
    def huge(word: str) -> str:
        """Say much."""
        return "\u00fc" * 2_000

    many: list[Any] = [
        [call("huge", word=f"{of}/{at}" + "\u00fc" * 1_900) for at in range(20)] for of in range(12)
    ]
    one = agent("a", *many, "done", tools=[huge])
    async with held(Team([one], sequence(["a"]), guards=ample())) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "sequence_complete"
        assert (await talk(session))[-1] == ("a", "done")


async def test_a_call_with_what_json_lacks_does_not_break_the_round() -> None:
    one = agent("a", call("look_up", word="x", more=float("nan")), "so", tools=[look_up])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "sequence_complete"
        step = (await packets(session))[0].event_data["steps"][0]["calls"][0]
        assert step["args"] == {"word": "x", "more": "NaN"}


async def test_a_round_that_no_log_can_hold_is_a_failed_one() -> None:
    def flood() -> str:
        """Write too much."""
        for number in range(3):
            set_context(f"k{number}", "x" * 100_000)
        return "written"

    one = agent("a", call("flood"), "so", call("flood"), "so", tools=[flood])
    async with held(Team([one], sequence(["a"]))) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "round_failed"
        failed = await of_type(session, EV_ROUND_FAILED)
        assert [one.event_data["code"] for one in failed] == ["payload", "payload"]
        assert dict(state.context_vars) == {}


async def test_its_own_steps_are_shown_to_a_speaker_and_not_to_others() -> None:
    one = agent("a", call("look_up", word="tide"), "first", "second", tools=[look_up])
    other = agent("b")
    async with held(Team([one, other], sequence(["a", "b", "a"]))) as session:
        await after(session, "user", "hello")
        assert "tool: tide is a word" in shown(one)
        assert "ai: first" in shown(one)
        assert "tide is a word" not in shown(other)
        assert "[a]: first" in shown(other)


async def test_a_sub_agent_keeps_the_conversation_of_its_participant_over_rounds() -> None:
    below = agent("below", "below first", "below again")
    top = agent("a", call("transfer_to_below", reason="x"), agents=[below])
    other = agent("b")
    async with held(Team([top, other], sequence(["a", "b", "a"]))) as session:
        state = await after(session, "user", "hello")
        assert await talk(session) == [
            ("user", "hello"),
            ("a", "below first"),
            ("b", "b speaks"),
            ("a", "below again"),
        ]
        assert [one.event_data["active"] for one in await packets(session)] == [
            "below",
            None,
            "below",
        ]
        assert len(asked(top)) == 1
        assert dict(state.active) == {"a": "below"}
        usage = (await packets(session))[0].event_data["usage"]
        assert set(usage) == {"a", "a/below"}


async def test_a_sub_agent_that_asks_for_help_gives_the_conversation_back() -> None:
    asks = call("request_help", reason="stuck")
    below = agent("below", "below first", asks, default_tools=True)
    top = agent("a", call("transfer_to_below"), "top helps", "top again", agents=[below])
    async with held(Team([top, agent("b")], sequence(["a", "b", "a", "b", "a"]))) as session:
        state = await after(session, "user", "hello")
        assert [text for name, text in await talk(session) if name == "a"] == [
            "below first",
            "top helps",
            "top again",
        ]
        assert dict(state.active) == {}


async def test_a_tool_of_a_sub_agent_routes_the_team() -> None:
    below = agent("below", call("escalate"), "below says", tools=[escalate])
    top = agent("a", call("transfer_to_below"), agents=[below])
    async with held(Team([top, agent("b")], routed_by(TO_B, DONE))) as session:
        assert (await after(session, "user", "hello")).pending_close_reason == "done"


async def test_to_stay_is_to_go_on_after_ones_own_words() -> None:
    one = agent("a", "part one", "part two", "part three")
    rules = TransitionGraph("a", (Transition(Always(), StayTarget()),), max_turns=3)
    async with held(Team([one], rules)) as session:
        await after(session, "user", "hello")
        last = asked(one)[-1].messages
        assert [m.type for m in last] == ["system", "human", "ai", "human", "ai", "human"]
        assert last[-1].text == "Continue."
        assert last[-2].text == "part two"


async def test_round_robin_rotates_through_exactly_its_names() -> None:
    team = Team(
        [agent("a"), agent("b"), agent("c"), agent("idle")],
        round_robin(["b", "a", "c"], max_turns=7),
        failure_target="idle",
    )
    async with held(team) as session:
        state = await after(session, "user", "hello")
        names = [name for name, _ in await talk(session)][1:]
        assert names == ["b", "a", "c", "b", "a", "c", "b"]
        assert state.pending_close_reason == "round_robin_complete"


async def test_a_sequence_takes_a_name_more_than_once() -> None:
    team = Team([agent("a"), agent("b")], sequence(["a", "b", "a", "a", "b"]))
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)][1:] == ["a", "b", "a", "a", "b"]
        assert (state.turn_count, state.pending_close_reason) == (5, "sequence_complete")


async def test_a_sequence_that_an_agent_opens_counts_its_own_steps() -> None:
    team = Team([agent("a"), agent("b")], sequence(["a", "b", "a"]))
    async with held(team, creator="a") as session:
        state = await after(session, "a", "mine")
        assert [name for name, _ in await talk(session)] == ["a", "b", "a"]
        assert state.pending_close_reason == "sequence_complete"


async def test_the_hub_of_a_star_asks_its_spokes() -> None:
    def ask_b(question: str) -> str:
        """Ask b."""
        return "asked"

    def give(to: str) -> Handoff:
        """Give."""
        return Handoff(to, "", "")

    hub = agent("h", call("ask_b", question="?"), "b, please", call("give", to="c"), "all said")
    hub = hub.replace(tools=[ask_b, give])
    team = Team([hub, agent("b"), agent("c")], star("h", ["b", "c"]))
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)][1:] == ["h", "b", "h", "c", "h"]
        assert state.pending_close_reason == "star_complete"


async def test_feedback_goes_to_and_fro_until_it_is_done() -> None:
    def approve() -> str:
        """Approve."""
        set_context("approved", True)
        return "approved"

    reviewer = agent("r", "not yet", call("approve"), "good", tools=[approve])
    team = Team([agent("d"), reviewer], feedback("d", "r", done="approved"))
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)][1:] == ["d", "r", "d", "r"]
        assert state.pending_close_reason == "feedback_complete"


async def test_at_max_turns_the_default_target_has_a_say() -> None:
    rules = TransitionGraph("a", (Transition(Always(), "a"),), TerminateTarget("enough"), 2)
    async with held(Team([agent("a")], rules)) as session:
        assert (await after(session, "user", "x")).pending_close_reason == "enough"
    rules = TransitionGraph("a", (Transition(Always(), "a"),), HumanTarget(), 2)
    async with held(Team([agent("a")], rules)) as session:
        state = await after(session, "user", "x")
        assert (state.pending_close_reason, state.turn_count) == ("max_turns", 2)


async def test_the_key_of_a_tool_call_names_its_place_in_the_session() -> None:
    keys: list[str] = []

    def pay() -> str:
        """Pay."""
        keys.append(idempotency_key())
        return "paid"

    one = agent("a", call("pay"), [call("pay"), call("pay")], "so", call("pay"), "so", tools=[pay])
    async with held(Team([one], sequence(["a", "a"]))) as session:
        await after(session, "user", "hello")
        assert len(set(keys)) == 4


async def test_the_key_of_a_tool_call_is_the_same_when_its_round_runs_again() -> None:
    keys: list[str] = []

    def pay() -> str:
        """Pay."""
        keys.append(idempotency_key())
        return "paid"

    one = agent("a", call("pay"), Fault.server_error(), call("pay"), "so", tools=[pay])
    below = agent("below", call("pay"), Fault.server_error(), call("pay"), "so", tools=[pay])
    top = agent("b", call("transfer_to_below"), call("transfer_to_below"), agents=[below])
    team = Team([one, top], sequence(["a", "b"]), guards=untried())
    async with held(team) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "sequence_complete"
        assert keys[0] == keys[1] != keys[2] == keys[3]


async def test_the_keys_of_sessions_and_of_speakers_at_once_differ() -> None:
    keys: list[str] = []

    def pay() -> str:
        """Pay."""
        keys.append(idempotency_key())
        return "paid"

    turns: list[Any] = [call("pay"), "so"] * 2
    b, c = (agent(name, *turns, tools=[pay]) for name in "bc")
    rules = TransitionGraph("b", (Transition(FromSpeaker("b"), ParallelTarget(["b", "c"], "a")),))
    team = Team([agent("a"), b, c], rules)
    async with held(team, id="one") as session:
        await after(session, "user", "hello")
    assert len(set(keys)) == len(keys) == 3
    one = agent("a", call("pay"), "so", call("pay"), "so", tools=[pay])
    for session_id in ("x", "y"):
        async with held(Team([one], sequence(["a"])), id=session_id) as session:
            await after(session, "user", "hello")
    assert len(set(keys)) == len(keys) == 5


async def test_a_sub_agents_handoff_moves_the_whole_conversation() -> None:
    def give() -> Handoff:
        """Give."""
        return Handoff("b", "below knows", "of this")

    below = agent("below", call("give"), tools=[give])
    top = agent("a", call("transfer_to_below"), "never said", agents=[below])
    async with held(Team([top, agent("b")], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        assert [name for name, _ in await talk(session)] == ["user", "a", "b"]
        assert (len(asked(top)), len(asked(below))) == (1, 1)
        assert [one.event_data["target"] for one in await of_type(session, EV_HANDOFF)] == ["b"]


async def test_a_delegates_handoff_is_made_once_its_participant_has_spoken() -> None:
    def give() -> Handoff:
        """Give."""
        return Handoff("b", "below knows", "of this")

    below = agent("below", call("give"), tools=[give])
    calls = call("transfer_to_below")
    top = agent("a", calls, "I asked below.", agents=[below], handoff="delegate")
    async with held(Team([top, agent("b")], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        assert await talk(session) == [
            ("user", "hello"),
            ("a", "I asked below."),
            ("b", "b speaks"),
        ]
        assert [one.event_data["target"] for one in await of_type(session, EV_HANDOFF)] == ["b"]


async def test_a_sub_agents_finish_closes_the_session() -> None:
    def finish() -> Finish:
        """Finish."""
        return Finish("Done.", "below_finished")

    below = agent("below", call("finish"), tools=[finish])
    top = agent("a", call("transfer_to_below"), agents=[below])
    async with held(Team([top, agent("b")], sequence(["a", "b"]))) as session:
        state = await after(session, "user", "hello")
        assert state.pending_close_reason == "below_finished"
        assert (await talk(session))[-1] == ("a", "Done.")


async def test_progress_is_told_at_once_and_its_task_ends_with_the_round() -> None:
    seen: list[Any] = []

    async def work() -> str:
        """Work."""
        report_progress("half", fraction=0.5)
        report_progress("all", fraction=1.0)
        return "worked"

    one = agent("a", call("work"), "so", tools=[work])
    async with held(Team([one], sequence(["a"]))) as session:
        session.on("*", lambda envelope: seen.append(envelope.event_type))
        await after(session, "user", "hello")
        progress = await of_type(session, EV_TASK_PROGRESS)
        assert [p.event_data["message"] for p in progress] == ["half", "all"]
        assert [p.event_data["fraction"] for p in progress] == [0.5, 1.0]
        (started,) = await of_type(session, EV_TASK_STARTED)
        (completed,) = await of_type(session, EV_TASK_COMPLETED)
        assert started.event_data["task_id"] == completed.event_data["task_id"]
        tasks = [one for one in seen if "task" in one]
        assert tasks == [EV_TASK_STARTED, EV_TASK_PROGRESS, EV_TASK_PROGRESS, EV_TASK_COMPLETED]


async def test_a_structured_answer_is_the_body() -> None:
    from pydantic import BaseModel

    class Page(BaseModel):
        title: str

    one = Agent(
        "a",
        "writes",
        model=ScriptedModel([call("Page", title="Tides")]),
        response_format=Page,
        default_tools=False,
    )
    async with held(Team([one], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        assert "Tides" in (await talk(session))[-1][1]


async def test_no_phase_is_told_where_none_is_entered() -> None:
    async with held(Team([agent("a")], sequence(["a"]))) as session:
        await after(session, "user", "hello")
        assert await of_type(session, EV_PHASE) == []
