from __future__ import annotations

import json
from collections.abc import Callable
from cProfile import Profile
from typing import Any, TypedDict, Unpack
from uuid import UUID

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.canonical import digest
from agentgraph.guards.mechanisms.loop import LoopDetector, attempts_beyond_patience


class Made(TypedDict, total=False):
    args: object
    result: object
    failed: bool
    volatile: tuple[str, ...]
    poll: bool
    message: str


def call(detector: LoopDetector, tool: str, **made: Unpack[Made]) -> Decision:
    given: Made = {"args": {}, "result": "r"}
    return detector.observe(tool=tool, **(given | made))


ALLOW, CORRECT, ABORT = "allow", "correct", "abort"


def actions(decisions: list[Decision]) -> list[str]:
    return [decision.action for decision in decisions]


def several(detector: LoopDetector, tools: str, **made: Unpack[Made]) -> list[str]:
    return actions([call(detector, tool, **made) for tool in tools])


def course(decisions: list[Decision]) -> tuple[int | None, int | None]:
    """Return which call is corrected first, and which one ends a run."""
    corrections = (n for n, d in enumerate(decisions, 1) if d.action == CORRECT)
    ends = (n for n, d in enumerate(decisions, 1) if attempts_beyond_patience(d))
    return next(corrections, None), next(ends, None)


def test_the_third_identical_call_is_corrected_and_the_fourth_ends_the_run() -> None:
    detector = LoopDetector()
    assert several(detector, "AAAA") == [ALLOW, ALLOW, CORRECT, ABORT]


def test_the_correction_tells_the_model_what_it_did_and_what_to_do() -> None:
    detector = LoopDetector()
    for _ in range(3):
        corrected = call(detector, "search", args={"q": "rome"})
    assert corrected.cause == (
        "`search` was called 3 times with the same arguments and result. "
        "Do something else, or answer with what you have."
    )
    assert corrected.evidence["tool"] == "search"
    assert corrected.evidence["count"] == 3
    assert corrected.evidence["cycle"] == ["search"]
    aborted = call(detector, "search", args={"q": "rome"})
    assert (aborted.guard, aborted.failure_class) == ("loop_detector", "infinite_loop")
    assert aborted.evidence["digest"] == corrected.evidence["digest"]
    json.dumps(aborted.to_dict())


def test_two_calls_in_turn_are_a_loop_within_the_window() -> None:
    assert several(LoopDetector(), "ABABA")[-1] == CORRECT
    assert ABORT in several(LoopDetector(), "ABABABA")


def test_three_calls_in_turn_are_seen_beyond_the_window() -> None:
    detector = LoopDetector()
    assert several(detector, "ABCABCAB") == [ALLOW] * 8
    corrected = call(detector, "C")
    assert corrected.action == CORRECT
    assert corrected.evidence["cycle"] in (["A", "B", "C"], ["B", "C", "A"], ["C", "A", "B"])
    assert call(detector, "A").action == ABORT


@pytest.mark.parametrize(
    ("period", "corrected", "ended"),
    [(1, 3, 7), (2, 5, 10), (3, 9, 13), (4, 12, 16), (5, 14, 20), (6, 15, 21), (9, 18, 24)],
)
def test_calls_in_turn_are_corrected_and_end_a_run_if_nothing_new_follows(
    period: int, corrected: int, ended: int
) -> None:
    detector = LoopDetector()
    decisions = [call(detector, tool) for tool in "ABCDEFGHI"[:period] * 30]
    assert course(decisions[:ended]) == (corrected, ended)
    assert decisions[ended - 1].evidence["quiet"] == decisions[ended - 1].evidence["patience"]


def test_a_round_is_told_with_its_tools() -> None:
    detector = LoopDetector()
    decided = [call(detector, tool) for tool in "ABC" * 3]
    assert decided[-1].evidence["cycle"] == ["A", "B", "C"]
    assert decided[-1].cause.startswith("The round `A`, `B`, `C` was made 3 times")


def test_pages_and_other_changing_results_are_no_loop() -> None:
    detector = LoopDetector()
    assert {call(detector, "next_page", result=page).action for page in range(40)} == {ALLOW}


def test_equal_results_of_different_calls_are_no_loop() -> None:
    detector = LoopDetector()
    for name in range(40):
        assert call(detector, "attach_file", args={"name": name}, result=True).allows


def test_a_changed_result_in_between_ends_the_streak() -> None:
    detector = LoopDetector()
    results = ["pending", "pending", "running", "pending", "pending"]
    assert {call(detector, "status", result=result).action for result in results} == {ALLOW}


def test_a_loop_after_something_new_is_corrected_anew() -> None:
    detector = LoopDetector()
    assert several(detector, "AAABAA") == [ALLOW, ALLOW, CORRECT, ALLOW, ALLOW, ALLOW]
    assert several(detector, "AA") == [CORRECT, ABORT]


def test_checks_between_new_work_are_corrected_once_and_never_ended() -> None:
    detector, decided = LoopDetector(), []
    for number in range(20):
        assert call(detector, "edit", args={"line": number}, result="ok").allows
        decided.append(call(detector, "test", result="3 failed").action)
    assert decided == [ALLOW, ALLOW, CORRECT, *[ALLOW] * 17]


def test_a_changed_result_after_the_correction_is_progress() -> None:
    detector = LoopDetector()
    several(detector, "AAA")
    assert call(detector, "A", result="new").allows
    assert several(detector, "AA") == [ALLOW, ALLOW]


def test_a_step_of_the_old_round_is_no_progress() -> None:
    detector = LoopDetector()
    assert several(detector, "BAAA")[-1] == CORRECT
    assert several(detector, "BA") == [ALLOW, ABORT]


def test_spelling_does_not_hide_a_loop() -> None:
    detector = LoopDetector()
    spelled = [
        {"q": "to  rome", "n": 1},
        {"n": 1.0, "q": " to rome ", "": {}},
        '{"q":"to rome","n":1}',
    ]
    assert actions([call(detector, "search", args=args) for args in spelled])[-1] == CORRECT


def test_volatile_arguments_do_not_count() -> None:
    detector = LoopDetector()
    for number in range(3):
        args = {"q": "rome", "request_id": number}
        last = call(detector, "search", args=args, volatile=("request_id",))
    assert last.action == CORRECT
    text = json.dumps({"q": "rome", "request_id": 9})
    assert call(detector, "search", args=text, volatile=("request_id",)).action == ABORT


def test_the_second_identical_failure_is_corrected_whatever_its_text() -> None:
    detector = LoopDetector()
    texts = [f"no such id {number}, in other words" for number in range(6)]
    failures = [call(detector, "get", result=text, failed=True) for text in texts]
    assert (course(failures), actions(failures)[3]) == ((2, 6), ABORT)
    assert failures[1].cause.startswith("`get` has failed 2 times with the same arguments.")


def test_failures_with_other_arguments_are_corrected_now_and_then_and_never_ended() -> None:
    detector = LoopDetector()
    decided = [call(detector, "sql", args={"q": n}, failed=True) for n in range(50)]
    at = [number for number, decision in enumerate(decided, 1) if not decision.allows]
    assert (at, {decided[n - 1].action for n in at}) == ([3, 6, 12, 24, 48], {CORRECT})
    assert decided[2].cause.startswith("`sql` has failed 3 times in a row.")


def test_a_failing_call_with_trivially_different_arguments_is_ended() -> None:
    detector = LoopDetector()
    wordings = ["rome hotels", "Rome Hotels", "hotels, rome!", " hotels  rome"]
    decided = [call(detector, "get", args={"q": q}, failed=True) for q in wordings * 2]
    assert course(decided) == (3, 6)


def test_a_failure_that_says_something_else_to_other_punctuation_is_new() -> None:
    detector = LoopDetector()
    for number in range(20):
        made: Made = {"args": {"q": "a b" + "!" * number}, "result": f"error {chr(97 + number)}"}
        made["failed"] = True
        assert call(detector, "run", **made).action != ABORT


WORDINGS = {
    "case": ["weather in Rome", "Weather In Rome", "WEATHER IN ROME", "weather in rome"],
    "spaces": ["weather in Rome", "weather  in Rome", " weather in\nRome ".replace("\n", " ")],
    "order": ["weather in Rome", "in Rome weather", "Rome: weather in", "in weather, Rome"],
    "punctuation": [
        "weather in Rome",
        "weather in Rome?",
        "'weather' in Rome!",
        "weather in Rome.",
    ],
    "more words": ["weather Rome", "the weather Rome", "Rome weather", "what weather, Rome?"],
}


@pytest.mark.parametrize("kind", WORDINGS)
def test_the_same_in_other_words_with_the_same_result_is_a_loop(kind: str) -> None:
    detector = LoopDetector()
    asked = [{"query": wording, "limit": 10} for wording in WORDINGS[kind] * 4]
    corrected, ended = course([call(detector, "search", args=args) for args in asked])
    assert corrected is not None and corrected <= 5
    assert ended is not None and ended <= 10


@pytest.mark.parametrize(
    "queries",
    [
        [f"weather in {city} tomorrow" for city in ("Rome", "Oslo", "Bonn", "Lima", "Riga")],
        [f"invoice {number} of last year" for number in range(20)],
        ["hotel prices", *(f"hotel prices {city}" for city in ("Rome", "Oslo", "Bonn", "Lima"))],
        [f"x = {a} {sign} 1" for a in "ab" for sign in "+-*/"],
        [f"flights on 2024-05-{day:02}" for day in range(1, 20)],
    ],
)
def test_other_questions_of_one_form_with_the_same_answer_are_never_ended(
    queries: list[str],
) -> None:
    detector = LoopDetector()
    decided = [call(detector, "search", args={"query": query}) for query in queries]
    assert ABORT not in actions(decided)


VOLATILE: dict[str, Callable[[int], object]] = {
    "time stamps": lambda n: f"No results, as of 2026-01-01T10:{n:02}:00Z",
    "clocks": lambda n: f"[10:{n:02}:07] still waiting",
    "UUIDs": lambda n: {"status": "pending", "request": str(UUID(int=n * 2**90, version=4))},
    "hashes": lambda n: f"nothing found, see {n * 7919 + 10**9:012x}a",
    "timings": lambda n: f"0 rows in {n * 3 + 1} ms",
    "ages": lambda n: f"The same page. You have been here {n * 7} seconds ago.",
    "numbers of requests": lambda n: f"no match for request #{n * 37}",
    "counters of calls": lambda n: f"There are no results (call {n}).",
}


@pytest.mark.parametrize("kind", VOLATILE)
def test_what_differs_each_time_does_not_make_a_result_new(kind: str) -> None:
    detector = LoopDetector()
    decided = [call(detector, "search", result=VOLATILE[kind](n)) for n in range(1, 20)]
    corrected, ended = course(decided)
    assert corrected in (4, 5)
    assert ended == 8


MOVING: dict[str, Callable[[int], object]] = {
    "a clock": lambda n: f"10:{n:02}:07",
    "a page": lambda n: f"page {n} of 40 has these rows",
    "percents": lambda n: f"the long job is {n} % done",
    "what is left": lambda n: f"the queue has {90 - n} jobs before this one",
    "a price": lambda n: f"the share costs {100 + n * n % 17}.25 dollars now",
    "a number": lambda n: n,
}


@pytest.mark.parametrize("kind", MOVING)
def test_a_number_that_is_the_answer_makes_a_result_new(kind: str) -> None:
    detector = LoopDetector()
    for number in range(1, 40):
        assert call(detector, "look", result=MOVING[kind](number)).allows


@pytest.mark.parametrize("between", ["success", "another tool"])
def test_a_streak_of_failures_ends(between: str) -> None:
    detector = LoopDetector()
    for number in range(30):
        assert call(detector, "sql", args={"q": number}, failed=number % 3 != 2).allows
        if between == "another tool" and number % 3 == 1:
            assert call(detector, "read", args={"q": number}).allows


def test_failures_side_by_side_count_once() -> None:
    detector = LoopDetector()
    for message in ("m1", "m2"):
        for number in range(5):
            made: Made = {"args": (message, number), "failed": True, "message": message}
            assert call(detector, "sql", **made).allows
    assert call(detector, "sql", failed=True, message="m3").action == CORRECT


def test_a_tool_that_works_beside_its_failure_is_not_failing() -> None:
    detector = LoopDetector()
    for turn in range(9):
        for failed in (True, False):
            made: Made = {"args": (turn, failed), "failed": failed, "message": f"m{turn}"}
            assert call(detector, "sql", **made).allows


@pytest.mark.parametrize("order", ["sr", "rs"])
def test_a_neighbour_that_works_does_not_hide_failures(order: str) -> None:
    detector = LoopDetector()
    decided = [
        call(detector, tool, args=turn, failed=tool == "s", message=f"m{turn}")
        for turn in range(3)
        for tool in order
    ]
    assert actions(decided).count(CORRECT) == 1


def test_identical_calls_of_one_message_are_a_duplicate() -> None:
    detector = LoopDetector()
    assert set(several(detector, "AAAAAA", message="m1")) == {ALLOW}
    assert set(several(detector, "AAA", message="m2")) == {ALLOW}
    assert several(detector, "AAA", message="m3") == [CORRECT, ALLOW, ALLOW]


def test_the_order_within_a_message_does_not_count() -> None:
    detector = LoopDetector()
    for number, order in enumerate(["ABCD", "DCBA", "BADC"]):
        decided = several(detector, order, message=f"m{number}")
    assert decided == [ALLOW, ALLOW, ALLOW, CORRECT]
    assert several(detector, "CABD", message="m4")[-1] == ABORT


def test_a_neighbour_of_the_corrected_call_does_not_heed_the_correction() -> None:
    detector = LoopDetector()
    several(detector, "AA")
    assert several(detector, "AZ", message="m") == [CORRECT, ALLOW]
    assert several(detector, "AAA") == [ALLOW, ALLOW, ABORT]


def test_a_check_beside_new_work_in_each_message_is_no_loop() -> None:
    detector = LoopDetector()
    for number in range(50):
        message = f"m{number}"
        assert call(detector, "status", message=message).action != ABORT
        assert call(detector, "work", args=number, message=message).allows


def test_waiting_between_the_polls_of_a_tool_that_is_marked_ends_nothing() -> None:
    detector = LoopDetector()
    for _ in range(1, 10):
        assert call(detector, "wait").action != ABORT
        assert call(detector, "job", poll=True).allows
    call(detector, "wait")
    assert call(detector, "job", poll=True).action == CORRECT


def test_polls_that_never_change_end_a_run_after_half_as_many_more() -> None:
    detector = LoopDetector()
    assert course([call(detector, "job", poll=True) for _ in range(20)]) == (10, 15)


def test_a_polling_tool_may_ask_ten_times() -> None:
    detector = LoopDetector()
    decided = several(detector, "P" * 11, poll=True)
    assert decided == [ALLOW] * 9 + [CORRECT, ABORT]


def test_a_poll_that_answers_something_new_begins_anew() -> None:
    detector = LoopDetector()
    for turn in range(50):
        assert call(detector, "job", result=f"{turn // 9} done", poll=True).allows


def test_work_between_polls_begins_them_anew() -> None:
    detector = LoopDetector()
    for turn in range(40):
        assert call(detector, "job", poll=True).allows
        assert turn % 5 or call(detector, "work", args=turn).allows


def test_two_polls_in_turn_are_counted_apart() -> None:
    detector = LoopDetector()
    assert several(detector, "PQ" * 9, poll=True) == [ALLOW] * 18
    assert several(detector, "PQPQ", poll=True) == [CORRECT, CORRECT, ABORT, ABORT]


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 2},
        {"threshold": 1},
        {"failures": True},
        {"poll_threshold": 3.0},
        {"threshold": float("nan")},
    ],
)
def test_a_wrong_configuration_says_what_to_give(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        LoopDetector(**wrong)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as told:
        LoopDetector(0, 0, 0, 0)
    assert len(told.value.faults) == 4


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(0, 4), st.text("ABCDEF", max_size=3))
def test_a_call_is_corrected_at_the_threshold_exactly(
    threshold: int, extra: int, before: str
) -> None:
    detector = LoopDetector(threshold + extra, threshold)
    distinct = "".join(sorted(set(before)))
    assert set(several(detector, distinct)) <= {ALLOW}
    assert several(detector, "X" * threshold) == [ALLOW] * (threshold - 1) + [CORRECT]
    assert several(detector, "XX") == [ABORT] * 2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("ABCDEFGH"), max_size=3, unique=True), st.integers(1, 5))
def test_whatever_came_before_a_short_round_is_ended(before: list[str], period: int) -> None:
    detector = LoopDetector()
    several(detector, "".join(before))
    decided = several(detector, "VWXYZ"[:period] * 6)
    assert CORRECT in decided
    assert ABORT in decided


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.booleans(), st.booleans())
def test_the_memory_does_not_grow_with_the_run(
    pattern: list[int], poll: bool, one_message: bool
) -> None:
    detector = LoopDetector()
    for turn in range(300):
        step = pattern[turn % len(pattern)]
        message = "m" if one_message else f"m{turn // 4}"
        made: Made = {"args": turn // 3, "failed": step % 5 == 0, "message": message}
        made["poll"] = poll and step % 2 == 0
        call(detector, f"tool {step}", **made)
    assert len(json.dumps(detector.dump())) < 15_000


class Restarted(RuleBasedStateMachine):
    """A detector, and one that is written and read between all calls."""

    def __init__(self) -> None:
        super().__init__()
        self._whole = LoopDetector(4, 2, 2, 3)
        self._resumed = LoopDetector(4, 2, 2, 3)
        self._message = 0

    @rule(
        tool=st.sampled_from("AAB"),
        question=st.sampled_from(["it", "the it", "The It!", "page 1"]),
        result=st.sampled_from(["r", "r", "no row at 10:00:01", "no row at 10:00:02"]),
        failed=st.booleans(),
        poll=st.sampled_from([False, False, True]),
        nameless=st.booleans(),
    )
    def call(
        self, tool: str, question: str, result: str, failed: bool, poll: bool, nameless: bool
    ) -> None:
        dumped = json.loads(json.dumps(self._resumed.dump()))
        self._resumed = self._whole.fresh()
        self._resumed.load({**dumped, "of a later version": 1})
        message = "" if nameless else f"m{self._message}"
        made: Made = {"args": {"q": question}, "result": result, "failed": failed}
        made |= {"poll": poll, "message": message}
        assert call(self._resumed, tool, **made) == call(self._whole, tool, **made)

    @rule()
    def answer(self) -> None:
        self._message += 1


TestRestarted = Restarted.TestCase
TestRestarted.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def test_a_fresh_detector_has_no_memory() -> None:
    detector = LoopDetector(6, 3, 4, 12)
    several(detector, "AAA")
    assert detector.fresh() == detector
    assert several(detector.fresh(), "AA") == [ALLOW, ALLOW]


def test_what_was_dumped_stays_as_it_was_when_a_detector_goes_on() -> None:
    detector = LoopDetector()
    detector.observe(tool="look_up", args={"order": 1}, result="none", message="m1")
    before = detector.dump()
    told = json.dumps(before)
    detector.observe(tool="look_up", args={"order": 2}, result="none", message="m1")

    assert json.dumps(before) == told != json.dumps(detector.dump())


@pytest.mark.parametrize("is_stored", [False, True])
def test_of_two_detectors_the_one_that_has_corrected_more_often_tells(is_stored: bool) -> None:
    strict = LoopDetector()
    both = LoopDetector(window=8, threshold=6).tighter(strict)
    for told in [None, None, None, 1, 2, 3, 4, 5]:
        if is_stored:
            dumped, both = both.dump(), LoopDetector(window=8, threshold=6).tighter(strict)
            both.load(json.loads(json.dumps(dumped)))
        assert call(both, "A").evidence.get("made") == told


def test_it_counts_its_corrections_however_many_they_are() -> None:
    detector = LoopDetector()
    made = [call(detector, "A").evidence.get("made") for _ in range(200)]
    assert made[3:] == list(range(1, 198))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
ARGS = st.dictionaries(st.text(max_size=4), JSON, max_size=4)


@settings(max_examples=100, deadline=None)
@given(ARGS)
def test_the_order_of_keys_and_white_space_around_words_do_not_count(args: dict[str, Any]) -> None:
    spaced = {
        name: f" {value}  " if isinstance(value, str) else value
        for name, value in reversed(args.items())
    }
    detector = LoopDetector()
    decided = [call(detector, "A", args=one) for one in (args, spaced, args)]
    assert actions(decided) == [ALLOW, ALLOW, CORRECT]


@settings(max_examples=200, deadline=None)
@given(ARGS, ARGS)
def test_a_changed_value_is_another_question(args: dict[str, Any], other: dict[str, Any]) -> None:
    detector = LoopDetector()
    assume(digest(args) != digest(other))
    assert {call(detector, "A", args=one).action for one in (args, args, other)} == {ALLOW}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=40), st.booleans())
def test_results_that_are_all_new_are_never_corrected(results: list[str], failed: bool) -> None:
    detector = LoopDetector()
    for number, result in enumerate(results):
        letters = "".join(chr(97 + int(digit)) for digit in str(number))
        assert call(detector, "A", result=f"{result} {letters}").allows


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from("ABCDEFGHIJKLM"), min_size=1, max_size=13, unique=True))
def test_whatever_goes_round_is_corrected_before_it_is_ended(tools: list[str]) -> None:
    detector = LoopDetector()
    corrected, ended = course([call(detector, tool) for tool in tools * 30])
    assert corrected is not None and ended is not None
    assert corrected < ended <= max(4 * len(tools), len(tools) + 15)


def test_the_time_for_a_call_does_not_grow_with_the_run() -> None:
    """Counted in calls of Python functions, which no other load on the machine changes."""

    def cost(detector: LoopDetector, turn: int) -> int:
        profile = Profile()
        args = {"q": f"thing {turn} of all"}
        profile.runcall(detector.observe, tool="look", args=args, result="not found")
        return sum(entry.callcount for entry in profile.getstats())

    detector = LoopDetector()
    costs = [cost(detector, turn) for turn in range(1_000)]
    assert max(costs[900:]) <= max(costs[50:100]) + 2
