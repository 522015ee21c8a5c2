"""The loop detector: tool calls that repeat, go round in a circle, or keep failing.

Only a call with the same result counts as a repetition: asking for the next page, or whether a job
is done, is work. The calls of one message of the model were all asked for before any had a result,
so they are never repetitions of each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, cast

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.canonical import digest, exact_digest, parse_json
from agentgraph.guards.mechanisms.settings import whole_number_faults

INSTEAD = "Do something else, or answer with what you have."
"""How a correction of the model ends."""

_GUARD = "loop_detector"
_ALLOW = Decision("allow", _GUARD)
_FAILURE = "failed"
"""The result that is entered for every failed call: their error texts are not compared."""
_PERIODS = (1, 2, 3)
"""How many messages a round may have."""
_GRACE = 2
"""How many failures of the tool after its correction end the run."""
_MAX_CALLS = 64
_MAX_POLLS = 16
_MAX_CORRECTIONS = 64
_MINIMUMS = {"window": 2, "threshold": 2, "failures": 2, "poll_threshold": 2}


class _Call(NamedTuple):
    """A call of a tool, with digests of its request and of its result."""

    tool: str
    digest: str
    result: str


class _Poll(NamedTuple):
    """The last result of a polling call, how often it came in a row, and the last message."""

    result: str
    times: int
    message: str


class _Loop(NamedTuple):
    """A detected loop: its identity, its description, and the tools of one round."""

    key: str
    words: str
    times: int
    cycle: list[str]


class _Message:
    """The calls of one message of the model, which asked for all of them at once."""

    __slots__ = ("calls", "id", "row")

    def __init__(self, id: str, *calls: _Call) -> None:
        self.id = id
        self.calls = [*calls]
        self.row: list[object] = [id, [*map(list, calls)]]
        """The message as JSON-able values, made once: the window is stored at each step."""

    def add(self, call: _Call) -> None:
        self.calls.append(call)
        self.row = [self.id, [*map(list, self.calls)]]


@dataclass(slots=True)
class LoopDetector:
    """Correct the model when its calls repeat, and end the run if the model does not stop.

        LoopDetector().observe(tool="search", args={"q": "cats"}, result="none")

    `threshold` equal calls among the last `window`, or as many rounds of up to three messages, are
    a loop; so are `failures` of one tool in a row, and `poll_threshold` equal results in a row of a
    tool that is marked to be polled. By the decision table a model may be corrected several times.
    """

    window: int = 5
    threshold: int = 3
    failures: int = 3
    poll_threshold: int = 10
    _outer: LoopDetector | None = field(default=None, init=False, repr=False)
    """The detector of an outer policy, whose limits hold as well."""
    _tail: list[_Message] = field(default_factory=list, init=False, repr=False, compare=False)
    """The last messages, as many as the window or three-message rounds need."""
    _polls: dict[str, _Poll] = field(default_factory=dict, init=False, repr=False, compare=False)
    _streaks: FailureStreaks = field(init=False, repr=False, compare=False)
    _corrections: dict[str, int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """How often the model was corrected for each loop."""
    _corrected_message: str | None = field(default=None, init=False, repr=False, compare=False)
    """The message whose calls were corrected last, until the model does something new."""
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
        outcome = _FAILURE if failed else _digest(result)
        call = _Call(tool, _call_digest(tool, args, volatile), outcome)
        decisions: list[Decision] = []
        detector: LoopDetector | None = self
        while detector is not None:
            decisions += detector._decisions(call, message, failed=failed, poll=poll)
            detector = detector._outer
        sternest = [decision for decision in decisions if decision.action == "abort"] or decisions
        return max(sternest, key=_earlier_corrections, default=_ALLOW)

    def _decisions(self, call: _Call, message: str, *, failed: bool, poll: bool) -> list[Decision]:
        self._state = None
        loops = self._poll_loops(call, message) if poll else self._call_loops(call, message)
        count = self._streaks.count(call.tool, failed, message)
        if not loops and count < self.failures:
            return []
        return [*self._on_loops(call, loops), *self._on_failures(call, count)]

    def _on_loops(self, call: _Call, loops: Sequence[_Loop]) -> Iterator[Decision]:
        """Decide on one of the loops, preferably one that was corrected before; count them all."""
        corrected_loops = [loop for loop in loops if loop.key in self._corrections]
        for loop in (corrected_loops or loops)[:1]:
            yield _decision(call, loop, self._corrections.get(loop.key, 0))
        for loop in loops:
            self._corrections[loop.key] = self._corrections.pop(loop.key, 0) + 1
            if len(self._corrections) > _MAX_CORRECTIONS:
                del self._corrections[next(iter(self._corrections))]

    def _on_failures(self, call: _Call, count: int) -> Iterator[Decision]:
        # The first failure after a correction may be the attempt to follow it.
        if count == self.failures or count >= self.failures + _GRACE:
            words = f"`{call.tool}` has failed {count} times in a row"
            loop = _Loop("", words, count, [call.tool])
            yield _decision(call, loop, max(0, count - self.failures - _GRACE + 1))

    def _poll_loops(self, call: _Call, message: str) -> list[_Loop]:
        """Record a polling call; return its loop if it had the same result too often."""
        before = self._polls.get(call.digest)
        if before is not None and message and before.message == message:
            return []
        is_same = before is not None and before.result == call.result
        count = before.times + 1 if before is not None and is_same else 1
        self._polls.pop(call.digest, None)
        self._polls[call.digest] = _Poll(call.result, count, message)
        if len(self._polls) > _MAX_POLLS:
            del self._polls[next(iter(self._polls))]
        if count < self.poll_threshold:
            return []
        words = f"`{call.tool}` was asked {count} times in a row and gave the same result each time"
        return [_Loop(f"poll {call.digest}", words, count, [call.tool])]

    def _call_loops(self, call: _Call, message: str) -> list[_Loop]:
        """Record a call; return the loops that it closes: a repetition, a round, or both."""
        self._polls.clear()
        if not self._enter(call, message) or not self._is_repeated(call):
            return []
        loops = []
        count = self._count_in_window(call)
        if count >= self.threshold:
            words = f"`{call.tool}` was called {count} times with the same arguments and result"
            loops.append(_Loop(f"call {call.digest}", words, count, [call.tool]))
        if messages := self._round():
            loops.append(self._loop_of(messages))
        if loops:
            self._corrected_message = message
        return loops

    def _enter(self, call: _Call, message: str) -> bool:
        """Record a call; return False where its message made an equal call already."""
        joins_last = bool(message and self._tail and self._tail[-1].id == message)
        if joins_last and any(call.digest == call_.digest for call_ in self._tail[-1].calls):
            return False
        if self._corrected_message is not None and self._follows_correction(call, message):
            self._tail.clear()
            self._corrected_message, joins_last = None, False
        if not joins_last:
            self._tail.append(_Message(message, call))
            del self._tail[: -max(self.window, _PERIODS[-1] * self.threshold)]
        elif len(self._tail[-1].calls) < _MAX_CALLS:
            self._tail[-1].add(call)
        return True

    def _is_repeated(self, call: _Call) -> bool:
        """Tell whether an earlier message made an equal call; without one there is no loop."""
        return any(call in message.calls for message in self._tail[:-1])

    def _follows_correction(self, call: _Call, message: str) -> bool:
        """Tell whether a call is something new, as the correction before it demanded."""
        if message and message == self._corrected_message:
            return False
        return not any(call in message_.calls for message_ in self._tail)

    def _count_in_window(self, call: _Call) -> int:
        """Count equal calls in the window, back to the last that had a different result."""
        calls = [call_ for message in self._tail for call_ in message.calls][-self.window :]
        count = 0
        for earlier in reversed(calls):
            if earlier.digest == call.digest and earlier.result != call.result:
                break
            count += earlier == call
        return count

    def _round(self) -> list[_Message]:
        """Return the shortest round that the last messages repeat `threshold` times, else []."""
        rounds = [frozenset(message.calls) for message in self._tail]
        for period in _PERIODS:
            last = rounds[-period * self.threshold :]
            if len(last) == period * self.threshold and last[period:] == last[:-period]:
                return self._tail[-period:]
        return []

    def _loop_of(self, messages: list[_Message]) -> _Loop:
        """Return the loop of a round; its identity does not depend on where the round begins."""
        steps = [sorted(message.calls) for message in messages]
        first = min(range(len(steps)), key=lambda at: steps[at])
        steps = steps[first:] + steps[:first]
        names = [" + ".join(call.tool for call in step) for step in steps]
        quoted_names = ", ".join(f"`{name}`" for name in names)
        words = f"The round {quoted_names} was made {self.threshold} times with the same results"
        return _Loop(f"cycle {_digest(steps)}", words, self.threshold, names)

    def fresh(self) -> Self:
        """Return the same detector for another run."""
        detector = replace(self)
        detector._outer = None if self._outer is None else self._outer.fresh()
        return detector

    def combine(self, outer: LoopDetector) -> Self:
        """Return this detector for another run, with the detector of an outer policy inside it."""
        detector = replace(self)
        detector._outer = outer.fresh()
        return detector

    def dump(self) -> dict[str, object]:
        """Return the memory as JSON-able values, the same object until it changes."""
        if self._state is None:
            self._state = {
                "tail": [message.row for message in self._tail],
                "polls": [[digest, list(poll)] for digest, poll in self._polls.items()],
                "streaks": self._streaks.dump(),
                "corrected": dict(self._corrections),
                "corrected_in": self._corrected_message,
                **({} if self._outer is None else {"beside": self._outer.dump()}),
            }
        return self._state

    def load(self, state: Mapping[str, object]) -> None:
        """Take the memory that `dump` gave."""
        self._state = None
        tail = cast(Sequence[tuple[str, Sequence[Sequence[str]]]], state.get("tail", ()))
        polls = cast(Sequence[tuple[str, tuple[str, int, str]]], state.get("polls", ()))
        self._tail = [_Message(id, *[_Call(*call) for call in calls]) for id, calls in tail]
        self._polls = {digest: _Poll(*poll) for digest, poll in polls}
        self._streaks.load(cast(Sequence[object], state.get("streaks", ("", {}, (), ()))))
        self._corrections = dict(cast(Mapping[str, int], state.get("corrected", {})))
        self._corrected_message = cast("str | None", state.get("corrected_in"))
        if self._outer is not None:
            self._outer.load(cast(Mapping[str, object], state.get("beside", {})))


@dataclass(slots=True)
class FailureStreaks:
    """The consecutive failures of each tool; the failures in one message count once.

    The model gets the results of a message together, so their order says nothing about it: a tool
    that has succeeded once within the message has not failed in it.
    """

    _message: str = field(default="", init=False)
    _streaks: dict[str, int] = field(default_factory=dict, init=False)
    """The streaks as they were before the message, by tool."""
    _failures: list[str] = field(default_factory=list, init=False)
    _successes: list[str] = field(default_factory=list, init=False)
    """The tools that have failed, and those that have succeeded, in the message."""

    def count(self, tool: str, failed: bool, message: str) -> int:
        """Count a call; return the length of the streak that it extends, 0 for none."""
        if not message or message != self._message:
            self._begin(message)
        tools = self._failures if failed else self._successes
        extends = failed and tool not in self._failures and tool not in self._successes
        if tool not in tools:
            tools.append(tool)
        return self._streaks.get(tool, 0) + 1 if extends else 0

    def _begin(self, message: str) -> None:
        if self._failures or self._streaks:
            tools = [tool for tool in self._failures if tool not in self._successes]
            self._streaks = {tool: self._streaks.get(tool, 0) + 1 for tool in tools}
        self._message, self._failures, self._successes = message, [], []

    def dump(self) -> list[object]:
        """Return the memory as JSON-able values."""
        return [self._message, dict(self._streaks), [*self._failures], [*self._successes]]

    def load(self, state: Sequence[object]) -> None:
        """Take the memory that `dump` gave."""
        message, streaks, failures, successes = cast(
            tuple[str, Mapping[str, int], Sequence[str], Sequence[str]], state
        )
        self._message, self._streaks = message, dict(streaks)
        self._failures, self._successes = [*failures], [*successes]


def _decision(call: _Call, loop: _Loop, corrections: int) -> Decision:
    """Decide on a loop for which the model was corrected `corrections` times before."""
    evidence: dict[str, object] = {
        "tool": call.tool,
        "digest": call.digest,
        "count": loop.times,
        "cycle": loop.cycle,
    }
    if corrections:
        cause = f"{loop.words}, although the model was told to stop"
        return Decision("abort", _GUARD, cause, "infinite_loop", {**evidence, "made": corrections})
    return Decision("correct", _GUARD, f"{loop.words}. {INSTEAD}", "infinite_loop", evidence)


def _earlier_corrections(decision: Decision) -> int:
    return cast(int, decision.evidence.get("made", 0))


def _call_digest(tool: str, args: object, volatile: Collection[str]) -> str:
    """Hash the tool and its arguments; equal arguments may be written in several ways."""
    arguments = args if type(args) is dict else parse_json(args)
    if volatile and isinstance(arguments, Mapping):
        arguments = {name: value for name, value in arguments.items() if name not in volatile}
    return f"{tool} {digest(arguments)[:32]}"


def _digest(value: object) -> str:
    return exact_digest(value)[:32]
