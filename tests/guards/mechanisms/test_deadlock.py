from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.deadlock import DeadlockMonitor


def walk(monitor: DeadlockMonitor, *edges: str, digest: str = "same") -> list[Decision]:
    return [monitor.handoff(source=edge[0], target=edge[1], digest=digest) for edge in edges]


def actions(decisions: list[Decision]) -> list[str]:
    return [decision.action for decision in decisions]


def replies(monitor: DeadlockMonitor, *texts: str, worker: str = "coder") -> list[str]:
    return [
        monitor.dispatch(worker=worker, brief=f"brief {number}", reply=text).action
        for number, text in enumerate(texts)
    ]


def test_a_pair_that_hands_over_twice_in_the_same_state_is_stuck() -> None:
    decisions = walk(DeadlockMonitor(), "AB", "BA", "AB", "BA")
    assert actions(decisions) == ["allow", "allow", "allow", "escalate"]
    assert decisions[-1].failure_class == "deadlock"
    assert decisions[-1].evidence["cycle"] == ["A", "B"]
    assert "A → B → A" in decisions[-1].cause


def test_a_round_of_three_trips_and_one_of_four_does_not() -> None:
    assert actions(walk(DeadlockMonitor(), *("AB", "BC", "CA") * 2))[-1] == "escalate"
    assert set(actions(walk(DeadlockMonitor(), *("AB", "BC", "CD", "DA") * 3))) == {"allow"}
    longer = DeadlockMonitor(cycle=4)
    assert actions(walk(longer, *("AB", "BC", "CD", "DA") * 2))[-1] == "escalate"


def test_the_rotations_of_a_cycle_are_one() -> None:
    monitor = DeadlockMonitor()
    walk(monitor, "AB", "BA")
    (_, trip) = walk(monitor, "BA", "AB")
    assert trip.action == "escalate"
    assert trip.evidence["cycle"] == ["A", "B"]


def test_a_cycle_comes_again_after_a_detour() -> None:
    decisions = walk(DeadlockMonitor(), "AB", "BA", "AC", "CA", "AB", "BA")
    assert actions(decisions)[-1] == "escalate"


def test_a_handoff_to_oneself_is_a_cycle() -> None:
    assert actions(walk(DeadlockMonitor(), "AA", "AA")) == ["allow", "escalate"]


def test_a_cycle_trips_once() -> None:
    assert actions(walk(DeadlockMonitor(), *("AB", "BA") * 6)).count("escalate") == 1


def test_a_solver_and_a_checker_may_talk_for_twenty_turns() -> None:
    monitor = DeadlockMonitor()
    for turn in range(20):
        edge = ("SC", "CS")[turn % 2]
        assert walk(monitor, edge, digest=f"attempt {turn}")[0].allows


def test_progress_on_one_side_is_progress() -> None:
    monitor = DeadlockMonitor()
    for turn in range(10):
        assert walk(monitor, "AB", digest="please check")[0].allows
        assert walk(monitor, "BA", digest=f"fault {turn}")[0].allows


def test_a_jump_begins_another_path() -> None:
    assert set(actions(walk(DeadlockMonitor(), *("AB", "CA") * 4))) == {"allow"}


def test_branches_do_not_see_each_other() -> None:
    monitor = DeadlockMonitor()
    for branch in ("left", "right"):
        for source, target in ("AB", "BA"):
            edge = {"source": source, "target": target, "digest": "same"}
            assert monitor.handoff(**edge, branch=branch).allows
        assert monitor.dispatch(worker="W", brief="b", reply="?", branch=branch).allows


def test_a_cycle_is_found_in_each_of_two_branches() -> None:
    monitor = DeadlockMonitor()
    decisions = [
        monitor.handoff(source=source, target=target, digest="same", branch=branch)
        for source, target in ("AB", "BA", "AB", "BA")
        for branch in ("left", "right")
    ]
    assert actions(decisions) == ["allow"] * 6 + ["escalate"] * 2


def test_a_worker_that_always_says_the_same_is_nudged_and_then_stopped() -> None:
    monitor = DeadlockMonitor()
    said = ("I need more info.", " I need  more\ninfo. ", "I need more info.", "I need more info.")
    actions = [monitor.dispatch(worker="coder", brief="b", reply=one).action for one in said]
    assert actions == ["allow", "correct", "abort", "abort"]
    stopped = monitor.dispatch(worker="coder", brief="b", reply=said[0])
    assert stopped.failure_class == "deadlock"
    assert stopped.evidence["count"] == 5
    assert "'coder'" in stopped.cause


def test_a_worker_may_say_the_same_to_any_number_of_other_briefs() -> None:
    assert set(replies(DeadlockMonitor(), *["not spam"] * 100)) == {"allow"}


REWORDED = [
    "Find the sales figures of spring.",
    "find the sales figures of spring, please",
    "The sales figures of spring: find!",
    "Please find the sales figures of spring",
    "sales figures of spring, please find the",
    "please, find the figures of spring sales",
]


def test_a_worker_that_says_the_same_to_a_brief_in_other_words_is_stuck() -> None:
    monitor = DeadlockMonitor()
    decided = [
        monitor.dispatch(worker="coder", brief=brief, reply=f"I cannot do that ({n:02}:00:00).")
        for n, brief in enumerate(REWORDED)
    ]
    assert actions(decided) == ["allow", "allow", "correct", "allow", "allow", "abort"]
    assert "has given the same reply 6 times" in decided[-1].cause


def test_a_general_brief_and_many_special_ones_are_no_wordings_of_one() -> None:
    monitor = DeadlockMonitor()
    topics = ["rome", "oslo", "bonn", "lima", "riga", "bern", "kiev", "nice", "bari", "graz"]
    for brief in ["check the mail", *(f"check the mail from {topic}" for topic in topics)]:
        assert monitor.dispatch(worker="coder", brief=brief, reply="Nothing.").allows


def test_the_same_brief_is_a_nudge_every_third_time_and_never_ends_the_run() -> None:
    monitor = DeadlockMonitor()
    decided = [monitor.dispatch(worker="w", brief="go on", reply=f"part {n}") for n in range(9)]
    assert [n for n, one in enumerate(decided, 1) if not one.allows] == [3, 6, 9]
    assert {one.action for one in decided} == {"allow", "correct"}
    assert decided[2].cause.startswith("'w' has got the same brief 3 times.")


def test_the_briefs_of_one_message_are_one_brief() -> None:
    monitor = DeadlockMonitor()
    for message in ("m1", "m2"):
        for n in range(4):
            texts = {"brief": "go on", "reply": f"part {n} {message}", "message": message}
            assert monitor.dispatch(worker="w", **texts).allows


def test_a_handoff_may_be_refused_once_and_who_insists_is_in_a_deadlock() -> None:
    monitor, edge = DeadlockMonitor(), {"source": "B", "target": "A", "digest": "same"}
    trip = walk(monitor, "AB", "BA", "AB", "BA")[-1]
    corrected = monitor.correct(trip, **edge)
    assert (corrected.action, corrected.evidence["cycle"]) == ("correct", ["A", "B"])
    again = monitor.handoff(**edge)
    assert (again.action, monitor.correct(again, **edge)) == ("escalate", again)
    assert monitor.handoff(**{**edge, "digest": "new"}).allows


def test_the_spelling_of_a_brief_does_not_make_it_another_one() -> None:
    monitor = DeadlockMonitor()
    briefs = ["Find the file.", "find the FILE", "Find  the file!"]
    decided = [monitor.dispatch(worker="w", brief=b, reply=f"no: {b!r}") for b in briefs]
    assert [decision.action for decision in decided] == ["allow", "allow", "correct"]


def test_briefs_that_a_sign_tells_apart_are_not_the_same() -> None:
    monitor = DeadlockMonitor()
    for number, sign in enumerate("+-*/%"):
        brief = f"compute a {sign} b"
        assert monitor.dispatch(worker="w", brief=brief, reply=f"it is {number}").allows


def test_a_supervisor_may_dispatch_ten_times_to_one_worker() -> None:
    assert set(replies(DeadlockMonitor(), *(f"part {n}" for n in range(10)))) == {"allow"}


def test_workers_may_say_the_same_as_others() -> None:
    monitor = DeadlockMonitor()
    for worker in ("a", "b", "c"):
        assert replies(monitor, "done", worker=worker) == ["allow"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"cycle": 0},
        {"occurrences": 1},
        {"stuck": True},
        {"stuck_correct": 2.0},
        {"stuck_correct": 4, "stuck": 3},
    ],
)
def test_a_wrong_configuration_says_what_to_give(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(reversed(wrong))):
        DeadlockMonitor(**wrong)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as told:
        DeadlockMonitor(0, 0, 0, 0)
    assert len(told.value.faults) == 4


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 200), st.integers(0, 60))
def test_the_memory_does_not_grow_with_the_run(names: int, start: int) -> None:
    monitor = DeadlockMonitor()
    for turn in range(start, start + 300):
        source, target = f"agent {turn % names}", f"agent {(turn * 7) % names}"
        branch = f"branch {turn % 90}"
        monitor.handoff(source=source, target=target, digest=str(turn), branch=branch)
        monitor.dispatch(worker=source, brief="b", reply=f"said {turn}", branch=branch)
    assert len(json.dumps(monitor.dump())) < 14_000


class Restarted(RuleBasedStateMachine):
    """A monitor, one that is written and read between all calls, and a count of replies."""

    def __init__(self) -> None:
        super().__init__()
        self._whole = DeadlockMonitor()
        self._resumed = DeadlockMonitor()
        self._said: Counter[tuple[str, str, str]] = Counter()

    def resumed(self) -> DeadlockMonitor:
        dumped = json.loads(json.dumps(self._resumed.dump()))
        self._resumed = self._whole.fresh()
        self._resumed.load({**dumped, "of a later version": 1})
        return self._resumed

    @rule(
        ends=st.tuples(st.sampled_from("ABC"), st.sampled_from("ABC")),
        digest=st.sampled_from("xy"),
        branch=st.sampled_from(["", "left"]),
    )
    def hand_over(self, ends: tuple[str, str], digest: str, branch: str) -> None:
        edge = {"source": ends[0], "target": ends[1], "digest": digest, "branch": branch}
        assert self.resumed().handoff(**edge) == self._whole.handoff(**edge)

    @rule(
        worker=st.sampled_from("VW"),
        reply=st.sampled_from(["done", "what?"]),
        branch=st.sampled_from(["", "left"]),
    )
    def reply(self, worker: str, reply: str, branch: str) -> None:
        self._said[branch, worker, reply] += 1
        said = {"worker": worker, "brief": "b", "reply": reply, "branch": branch}
        decided = self._whole.dispatch(**said)
        assert self.resumed().dispatch(**said) == decided
        times = self._said[branch, worker, reply]
        sent = sum(n for key, n in self._said.items() if key[:2] == (branch, worker))
        first = "correct" if sent % 3 == 0 else "allow"
        assert decided.action == {1: first, 2: "correct"}.get(times, "abort")


TestRestarted = Restarted.TestCase
TestRestarted.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def test_other_work_excuses_the_same_reply_to_another_brief_and_not_to_the_same_one() -> None:
    monitor, said = DeadlockMonitor(), {"worker": "w", "reply": "Done."}
    for n in range(20):
        assert monitor.dispatch(**said, brief=f"row {n}", work=f"row {n} saved").allows
    again = [monitor.dispatch(**said, brief="row 0", work=f"try {n}").action for n in range(2)]
    assert again == ["correct", "abort"]
    monitor = DeadlockMonitor()
    for wording in REWORDED:
        same = monitor.dispatch(**said, brief=wording, work="nothing found").action
    assert same == "abort"


def returns(monitor: DeadlockMonitor, times: int, *, state: str = "same") -> list[str]:
    return [
        monitor.give_back(worker="coder", supervisor="boss", state=state).action
        for _ in range(times)
    ]


def test_a_worker_that_gives_back_for_the_third_time_is_stuck_until_it_is_told_more() -> None:
    monitor = DeadlockMonitor()
    assert returns(monitor, 4) == ["allow", "allow", "escalate", "escalate"]
    assert monitor.tell("The customer is 17")
    copy = DeadlockMonitor()
    copy.load(json.loads(json.dumps(monitor.dump())))
    assert not copy.tell("the customer is 17, please")
    assert returns(copy, 3) == ["allow", "allow", "escalate"]
    assert returns(copy, 2, state="a file was read") == ["allow", "allow"]


def test_a_circle_with_something_new_told_in_each_round_is_none() -> None:
    monitor = DeadlockMonitor()
    for number in range(30):
        assert monitor.tell(f"fact {number}")
        assert actions(walk(monitor, "AB", "BA")) == ["allow", "allow"]


def test_words_alone_are_no_progress_for_ever() -> None:
    monitor = DeadlockMonitor()
    news = [monitor.tell(f"try number {number}") for number in range(80)]
    assert news.index(False) == 50
    assert not any(news[50:])
