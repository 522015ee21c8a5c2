"""The loop detector: tool calls that repeat, go round in a circle, or keep failing.

A call is new if it asks something new, or is told something new: the next page, a job that has got
further, a test after an edit. A loop is corrected when it is noticed, and ends the run only where
nothing new follows for long. The calls of one message of the model were all asked for before any
had a result, so they are never repetitions of each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple, Self, TypeVar, cast

from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Decision, Tier
from agentgraph.guards.mechanisms.canonical import canonical, exact, parse_json
from agentgraph.guards.mechanisms.repeats.answer import Count, answer_in, count_in
from agentgraph.guards.mechanisms.repeats.window import (
    FAILURE,
    PERIODS,
    Call,
    FailureStreaks,
    Message,
    Window,
)
from agentgraph.guards.mechanisms.repeats.wording import compare, words_of
from agentgraph.guards.mechanisms.settings import is_whole, whole_number_faults

INSTEAD = "Do something else, or answer with what you have."
"""How a correction of the model ends."""

V = TypeVar("V")

_GUARD = "loop_detector"
_ALLOW = Decision("allow", _GUARD)
_SAME_FAILURES = 2
"""How many identical failing calls are corrected."""
_MAX_POLLS = 16
_MAX_QUESTIONS = 32
_MAX_ANSWERS = 3
"""How many answers to one question are remembered."""
_MAX_COUNTS = 8
_MINIMUMS = {"window": 2, "threshold": 2, "failures": 2, "poll_threshold": 2}


class _Poll(NamedTuple):
    """The last answer to a polling call, how often it came in a row, and the last message."""

    answer: str
    times: int
    message: str


class _Loop(NamedTuple):
    """A detected loop: what it is, how often, the tools of one round, and when it ends the run."""

    words: str
    times: int
    cycle: list[str]
    patience: int
    """How many messages without anything new end the run."""
    key: str = ""
    """Identifies a loop between whose calls there was something new: it is corrected once."""


class _Observation:
    """A call after it was made; what only a repeated call needs is computed when it is needed."""

    def __init__(self, tool: str, args: object, text: str, *, failed: bool) -> None:
        self.tool = tool
        self.args = args
        self.failed = failed
        self.question = _digest(f"{tool} {canonical(args)}")[:16]
        self.text = answer_in(text) if failed else text
        """The result; a failure's error, without what differs each time."""
        self.result = _digest(self.text)[:12]

    @cached_property
    def answer(self) -> str:
        """What counts as the same result."""
        return FAILURE if self.failed else _digest(self.answer_text)[:12]

    @cached_property
    def answer_text(self) -> str:
        return self.text if self.failed else answer_in(self.text)

    @cached_property
    def count(self) -> Count | None:
        """The numbers in the answer, which may count the calls."""
        return None if self.failed else count_in(self.answer_text)

    @cached_property
    def words(self) -> str:
        return words_of(self.args)


@dataclass(slots=True)
class LoopDetector(BuiltInGuard):
    """Correct the model when its calls repeat, and end the run if the model does not stop.

        LoopDetector().observe(tool="search", args={"q": "cats"}, result="none")

    `threshold` equal calls among the last `window`, as many rounds of up to five messages, or one
    more that ask the same in other words, are a loop; so are a call that fails again, `failures` of
    one tool in a row, and `poll_threshold` equal results in a row of a tool that is marked to be
    polled. A correction comes first; a loop that goes on is to be ended. The evidence of that
    decision says how many messages in a row have brought nothing new (`quiet`), and after how many
    a run under guard ends (`patience`). Failures with different arguments never end it.
    """

    setting = "loop"
    summary = "LoopDetector(): tool calls that repeat, and tools that keep failing"
    short_form = "how many equal calls are a loop, 2 or more"

    window: int = 5
    threshold: int = 3
    failures: int = 3
    poll_threshold: int = 10
    _outer: LoopDetector | None = field(default=None, init=False, repr=False)
    """The detector of an outer policy, whose limits hold as well."""
    _tail: Window = field(init=False, repr=False, compare=False)
    _answers: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The last answers to the last questions."""
    _counts: dict[str, Count] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The numbers in the last answer to a question that was asked again."""
    _polls: dict[str, _Poll] = field(default_factory=dict, init=False, repr=False, compare=False)
    _streaks: FailureStreaks = field(init=False, repr=False, compare=False)
    _quiet: int = field(default=0, init=False, repr=False, compare=False)
    """How many messages in a row have brought nothing new."""
    _stops: int = field(default=0, init=False, repr=False, compare=False)
    """How often the model was corrected, or would have been stopped, since the last new call."""
    _decided_in: str = field(default="", init=False, repr=False, compare=False)
    """The message in which that was last decided."""
    _nudges: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The loops that were corrected although there was something new between their calls."""
    _state: dict[str, object] | None = field(default=None, init=False, repr=False, compare=False)
    """The last dump, None where it is out of date."""

    def __post_init__(self) -> None:
        faults = [*whole_number_faults(self, _MINIMUMS)]
        if not faults and self.window < self.threshold:
            faults = [
                f"LoopDetector(window={self.window}): a window smaller than "
                f"threshold={self.threshold} never sees a loop"
            ]
        if faults:
            raise ConfigurationError(faults)
        self._streaks = FailureStreaks()
        self._tail = self._window()

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return a detector whose window holds two calls that alternate so often."""
        if not is_whole(value, 2):
            return None
        return cls(window=max(5, 2 * value - 1), threshold=value)

    def _window(self) -> Window:
        return Window(max(self.window, PERIODS[-1] * self.threshold))

    def observe(
        self,
        *,
        tool: str,
        args: object,
        result: object,
        failed: bool = False,
        volatile: Collection[str] = (),
        poll: bool = False,
        message: str = "",
    ) -> Decision:
        """Decide on a call after it was made; a refused call counts as a failed one.

        `message` is the id of the model's message that asked for the call, "" where each call has a
        message of its own. `volatile` names the arguments that differ from call to call without a
        meaning, such as a request id. A detector of an outer policy observes the call too, and the
        stricter decision is returned.
        """
        arguments = args if type(args) is dict else parse_json(args)
        if volatile and isinstance(arguments, Mapping):
            arguments = {name: value for name, value in arguments.items() if name not in volatile}
        call = _Observation(tool, arguments, exact(result), failed=failed)
        decision = self._decide(call, message, poll=poll)
        detector = self._outer
        while detector is not None:
            decision = max(decision, detector._decide(call, message, poll=poll), key=_sternness)
            detector = detector._outer
        return decision

    def _decide(self, call: _Observation, message: str, *, poll: bool) -> Decision:
        self._state = None
        streak = self._streaks.count(call.tool, call.failed, message)
        if poll:
            decision = self._on_poll(call, message)
        else:
            loop = self._enter(call, message)
            decision = None if loop is None else self._on_loop(call, loop, message)
        is_due = streak >= self.failures and _is_doubled(streak, self.failures)
        if decision is None and is_due and not self._stops:
            words = f"`{call.tool}` has failed {streak} times in a row"
            decision = _correction(call, _Loop(words, streak, [call.tool], 0))
        return decision or _ALLOW

    # Repeated calls.

    def _enter(self, call: _Observation, message: str) -> _Loop | None:
        """Record a call; return the loop that it is part of, if there is one."""
        messages = self._tail.messages
        joins_last = bool(message and messages and messages[-1].id == message)
        if joins_last and messages[-1].has(call.question):
            return None
        earlier_answers = self._answers.get(call.question)
        if earlier_answers is None and not call.failed and call.result not in self._tail:
            self._polls.clear()
            digests = (call.tool, call.question, call.result, call.result, call.question, "")
            self._record(Call(*digests), "", message, joins_last, is_new=True)
            return None
        entry, is_new = self._entry_of(call, earlier_answers)
        if is_new:
            self._polls.clear()
        self._record(entry, earlier_answers or "", message, joins_last, is_new=is_new)
        return None if is_new else self._loop(entry)

    def _entry_of(self, call: _Observation, earlier_answers: str | None) -> tuple[Call, bool]:
        """Compare a call with the earlier ones; return it, and whether it is new."""
        answers = () if earlier_answers is None else earlier_answers.split()
        answer = call.answer
        is_known = answer in answers or (not call.failed and call.result in answers)
        if earlier_answers is not None and not is_known:
            answer_counted = self._answer_but_for_count(call)
            answer, is_known = answer_counted or answer, answer_counted is not None
        earlier = [entry for entry in self._same_answers(call, answer) if entry.words]
        same_at = compare(call.words, [entry.words for entry in earlier]).same_at
        identity = call.question if same_at is None else earlier[same_at].identity
        entry = Call(call.tool, call.question, call.result, answer, identity, call.words)
        return entry, not is_known and (earlier_answers is not None or same_at is None)

    def _answer_but_for_count(self, call: _Observation) -> str | None:
        """Return the answer in a result that differs from the last one by a counter alone."""
        earlier = self._counts.pop(call.question, None)
        if call.count is None:
            return None
        self._counts[call.question] = call.count
        _trim(self._counts, _MAX_COUNTS)
        is_next = earlier is not None and call.count.is_next_of(earlier)
        return call.count.text if is_next else None

    def _same_answers(self, call: _Observation | Call, answer: str) -> list[Call]:
        """Return the calls of the same tool with the same result, the last one last."""
        return [
            entry
            for message in self._tail.messages
            for entry in message.calls
            if entry.tool == call.tool
            and (entry.result == call.result or (entry.answer == answer and answer != FAILURE))
        ]

    def _record(
        self, entry: Call, earlier_answers: str, message: str, joins_last: bool, *, is_new: bool
    ) -> None:
        # What stands beside a corrected call was asked for before the correction.
        is_answer_to_it = is_new and self._stops and not (message and message == self._decided_in)
        if is_answer_to_it:
            self._stops, joins_last = 0, False
            self._tail.load(())
        self._tail.enter(entry, message, joins_last=joins_last)
        answers = [answer for answer in earlier_answers.split() if answer != entry.answer]
        self._answers.pop(entry.question, None)
        self._answers[entry.question] = " ".join([*answers, entry.answer][-_MAX_ANSWERS:])
        _trim(self._answers, _MAX_QUESTIONS)
        self._quiet = 0 if is_new else self._quiet + (not joins_last)

    def _loop(self, entry: Call) -> _Loop | None:
        """Return the loop that an old call is part of, None where it only stands alone."""
        return (
            self._same_failure(entry)
            or self._same_call(entry)
            or self._same_round()
            or self._same_in_other_words(entry)
            or self._nothing_new(entry)
        )

    def _same_failure(self, entry: Call) -> _Loop | None:
        if entry.answer != FAILURE:
            return None
        times, is_exact = 0, True
        for call in self._tail.calls(self._quiet + 1):
            if call.identity == entry.identity and call.answer == FAILURE:
                times += 1
                is_exact = is_exact and call.question == entry.question
        if times < _SAME_FAILURES + (not is_exact):
            return None
        words = f"`{entry.tool}` has failed {times} times with the same arguments"
        return _Loop(words, times, [entry.tool], self._patience(1) - 1)

    def _same_call(self, entry: Call) -> _Loop | None:
        times = self._times_in_window(entry)
        if times < self.threshold:
            return None
        words = f"`{entry.tool}` was called {times} times with the same arguments and result"
        # Where there was something new in between, the calls may be checks of it.
        key = entry.question if self._quiet < self.threshold - 1 else ""
        return _Loop(words, times, [entry.tool], self._patience(self._gap(entry)), key)

    def _same_in_other_words(self, entry: Call) -> _Loop | None:
        if entry.answer == FAILURE:
            return None
        same_answers = []
        for call in self._tail.calls():
            if call.tool == entry.tool:
                if entry.answer not in (call.answer, call.result):
                    break
                same_answers.append(call)
        times = compare(entry.words, [call.words for call in same_answers if call.words]).alike
        is_reworded = any(call.question != entry.question for call in same_answers)
        # The wording of the first of them was not needed yet.
        if not is_reworded or times < self.threshold or len(same_answers) <= self.threshold:
            return None
        cause = f"`{entry.tool}` was asked the same {len(same_answers)} times, with the same result"
        return _Loop(cause, len(same_answers), [entry.tool], self._patience(1) - 1)

    def _gap(self, entry: Call) -> int:
        """Return how many messages ago a call was made before, the longest period at most."""
        for ago, message in enumerate(reversed(self._tail.messages[:-1]), 1):
            if message.has(entry.question):
                return min(ago, PERIODS[-1])
        return 1

    def _times_in_window(self, entry: Call) -> int:
        """Count equal calls back to the last that had a different result, 0 if too few are recent.

        Too few are fewer than `threshold` in the window.
        """
        times, rest = 0, self.window
        for call in self._tail.calls():
            if not rest and times < self.threshold:
                return 0
            if call.question == entry.question:
                if call.answer != entry.answer and call.result != entry.answer:
                    break
                times += 1
            rest = max(0, rest - 1)
        return times

    def _same_round(self) -> _Loop | None:
        messages = self._tail.round(self.threshold, self._quiet // (self.threshold - 1))
        if not messages:
            return None
        names = _names_of(messages)
        quoted_names = ", ".join(f"`{name}`" for name in names)
        words = f"The round {quoted_names} was made {self.threshold} times with the same results"
        return _Loop(words, self.threshold, names, self._patience(len(messages)))

    def _nothing_new(self, entry: Call) -> _Loop | None:
        if self._quiet < 3 * self.threshold:
            return None
        words = f"The last {self._quiet} steps repeated earlier ones and had the same results"
        return _Loop(words, self._quiet, [entry.tool], 5 * self.threshold)

    def _patience(self, period: int) -> int:
        """Return how many messages of a round without anything new end the run.

        Several times a round more than what is corrected: whoever waits for something repeats too.
        """
        return max(self.threshold * period, 2 * self.threshold + 2 * (period - 1))

    def _on_loop(self, call: _Observation, loop: _Loop, message: str) -> Decision | None:
        """Correct the model for a loop, or end the run where a correction did not help."""
        if message and message == self._decided_in:
            return None
        if loop.key and loop.key in self._nudges:
            return None
        if self._stops and self._quiet < self.threshold:
            return None
        if loop.key:
            self._nudges[loop.key] = 1
            _trim(self._nudges, _MAX_POLLS)
        stops, self._stops, self._decided_in = self._stops, self._stops + 1, message
        if stops == 0:
            return _correction(call, loop)
        return _end(call, loop, stops, self._quiet)

    # Polls.

    def _on_poll(self, call: _Observation, message: str) -> Decision | None:
        """Record a polling call; decide where it had the same result too often."""
        before = self._polls.get(call.question)
        if before is not None and message and before.message == message:
            return None
        is_same = before is not None and before.answer == call.answer
        times = before.times + 1 if before is not None and is_same else 1
        self._polls.pop(call.question, None)
        self._polls[call.question] = _Poll(call.answer, times, message)
        _trim(self._polls, _MAX_POLLS)
        if times < self.poll_threshold:
            self._quiet = 0  # whatever it does between its polls, it is waiting
            return None
        words = f"`{call.tool}` was asked {times} times in a row and gave the same result each time"
        patience = self.poll_threshold + self.poll_threshold // 2
        loop = _Loop(words, times, [call.tool], patience)
        corrections = times - self.poll_threshold
        return _end(call, loop, corrections, times) if corrections else _correction(call, loop)

    # Copies.

    def fresh(self) -> Self:
        """Return the same detector for another run."""
        detector = replace(self)
        detector._outer = None if self._outer is None else self._outer.fresh()
        return detector

    def tighter(self, outer: Self) -> Self:
        """Return this detector for another run, with the detector of an outer policy inside it."""
        if outer is self:
            return self
        detector = replace(self)
        detector._outer = outer.fresh()
        return detector

    def dump(self) -> dict[str, object]:
        """Return the memory as JSON-able values, the same object until it changes."""
        if self._state is None:
            state: dict[str, object] = {
                "tail": self._tail.dump(),
                "answers": dict(self._answers),
                "counts": [[name, [*count]] for name, count in self._counts.items()],
                "polls": [[name, list(poll)] for name, poll in self._polls.items()],
                "streaks": self._streaks.dump(),
                "quiet": self._quiet,
                "made": self._stops,
                "decided_in": self._decided_in,
                "nudges": [*self._nudges],
            }
            if self._outer is not None:
                state["beside"] = self._outer.dump()
            self._state = state
        return self._state

    def load(self, state: Mapping[str, object]) -> None:
        """Take the memory that `dump` gave."""
        self._state = None
        self._tail = self._window()
        self._tail.load(cast(Sequence[object], state.get("tail", ())))
        self._answers = dict(cast(Mapping[str, str], state.get("answers", {})))
        counts = cast(Sequence[tuple[str, tuple[str, Sequence[int]]]], state.get("counts", ()))
        self._counts = {name: Count(text, tuple(numbers)) for name, (text, numbers) in counts}
        polls = cast(Sequence[tuple[str, tuple[str, int, str]]], state.get("polls", ()))
        self._polls = {name: _Poll(*poll) for name, poll in polls}
        self._streaks.load(cast(Sequence[object], state.get("streaks", ("", {}, (), ()))))
        self._quiet = cast(int, state.get("quiet", 0))
        self._stops = cast(int, state.get("made", 0))
        self._decided_in = cast(str, state.get("decided_in", ""))
        self._nudges = dict.fromkeys(cast(Sequence[str], state.get("nudges", ())), 1)
        if self._outer is not None:
            self._outer.load(cast(Mapping[str, object], state.get("beside", {})))


def _correction(call: _Observation, loop: _Loop) -> Decision:
    evidence = _evidence(call, loop)
    return Decision("correct", _GUARD, f"{loop.words}. {INSTEAD}", "infinite_loop", evidence)


def _end(call: _Observation, loop: _Loop, corrections: int, quiet: int) -> Decision:
    """End a run for a loop for which the model was corrected `corrections` times before."""
    cause = f"{loop.words}, although the model was told to stop"
    counts = {"made": corrections, "quiet": quiet, "patience": loop.patience}
    return Decision("abort", _GUARD, cause, "infinite_loop", {**_evidence(call, loop), **counts})


def attempts_beyond_patience(decision: Decision) -> int:
    """Return how often a run has gone on where a decision would have ended it; 0 is not yet.

    Whoever waits for something asks the same again for a while: a correction is enough for that.
    """
    if decision.action != "abort":
        return 0
    quiet, patience = (cast(int, decision.evidence[name]) for name in ("quiet", "patience"))
    return max(0, quiet - patience + 1)


def _evidence(call: _Observation, loop: _Loop) -> dict[str, object]:
    return {
        "tool": call.tool,
        "digest": f"{call.tool} {call.question}",
        "count": loop.times,
        "cycle": loop.cycle,
    }


def _sternness(decision: Decision) -> tuple[int, int]:
    """Order decisions; of two that end the run, the one that has waited longer is the sterner."""
    return ("allow", "correct", "abort").index(decision.action), attempts_beyond_patience(decision)


def _names_of(messages: Sequence[Message]) -> list[str]:
    """Return the tools of a round; it does not depend on where the round begins."""
    steps = [sorted(message.calls) for message in messages]
    first = min(range(len(steps)), key=lambda at: steps[at])
    steps = steps[first:] + steps[:first]
    return [" + ".join(call.tool for call in step) for step in steps]


def _is_doubled(count: int, first: int) -> bool:
    """Tell whether a count is `first`, or twice that, or twice that again: a word now and then."""
    times, rest = divmod(count, first)
    return rest == 0 and times & (times - 1) == 0


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _trim(memory: dict[str, V], most: int) -> None:
    if len(memory) > most:
        del memory[next(iter(memory))]
