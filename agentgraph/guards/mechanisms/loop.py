"""Tool calls that go round in a circle.

Only a call with the same result counts as a repetition: asking for the next page, or whether a job
is done, is work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, cast

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.canonical import digest, exact_digest, parse_json

INSTEAD = "Do something else, or answer with what you have."

_GUARD = "loop_detector"
_ALLOW = Decision("allow", _GUARD)
_FAILED = "failed"
_PERIODS = (1, 2, 3)
_HEED = 2
_MOST_CALLS = 64
_MOST_POLLS = 16
_MOST_CORRECTED = 64
_LEAST = {"window": 2, "threshold": 2, "failures": 2, "poll_threshold": 2}


class _Call(NamedTuple):
    tool: str
    call: str
    result: str


class _Poll(NamedTuple):
    result: str
    times: int
    message: str


class _Trip(NamedTuple):
    key: str
    told: str
    times: int
    cycle: list[str]


class _Message:
    """The calls of one message of the model, which asked for all of them at once."""

    __slots__ = ("calls", "id", "told")

    def __init__(self, id: str, *calls: _Call) -> None:
        self.id = id
        self.calls = [*calls]
        self.told: list[object] = [id, [*map(list, calls)]]
        """It as JSON-able values, made once: the window is stored again and again."""

    def add(self, call: _Call) -> None:
        self.calls.append(call)
        self.told = [self.id, [*map(list, self.calls)]]


@dataclass(slots=True)
class FailureStreaks:
    """The failures of each tool in a row, those of one message counted once.

    The model learns of them together, so their order is none of its doing.
    """

    _message: str = field(default="", init=False)
    _before: dict[str, int] = field(default_factory=dict, init=False)
    _failed: list[str] = field(default_factory=list, init=False)
    _worked: list[str] = field(default_factory=list, init=False)

    def count(self, tool: str, failed: bool, message: str) -> int:
        """Count a call; return the streak that it lengthens, 0 when it lengthens none."""
        if not message or message != self._message:
            self._turn(message)
        known = self._failed if failed else self._worked
        lengthens = failed and tool not in self._failed and tool not in self._worked
        if tool not in known:
            known.append(tool)
        return self._before.get(tool, 0) + 1 if lengthens else 0

    def _turn(self, message: str) -> None:
        if self._failed or self._before:
            lengthened = [tool for tool in self._failed if tool not in self._worked]
            self._before = {tool: self._before.get(tool, 0) + 1 for tool in lengthened}
        self._message, self._failed, self._worked = message, [], []

    def dump(self) -> list[object]:
        """Return the memory as JSON-able values."""
        return [self._message, dict(self._before), [*self._failed], [*self._worked]]

    def load(self, dumped: Sequence[object]) -> None:
        """Take the memory that `dump` gave."""
        message, before, failed, worked = cast(
            tuple[str, Mapping[str, int], Sequence[str], Sequence[str]], dumped
        )
        self._message, self._before = message, dict(before)
        self._failed, self._worked = [*failed], [*worked]


@dataclass(slots=True)
class LoopDetector:
    """Correct the model when its calls repeat, and end the run when it does not heed.

    The decision table may have it corrected more often than once.

    `threshold` of the last `window` calls, or that many rounds of up to three steps, are a loop;
    so are `failures` of one tool in a row, and `poll_threshold` equal results of a polling tool.
    """

    window: int = 5
    threshold: int = 3
    failures: int = 3
    poll_threshold: int = 10
    beside: LoopDetector | None = field(default=None, init=False, repr=False)
    """Another one, whose limits hold as well."""
    _tail: list[_Message] = field(default_factory=list, init=False, repr=False, compare=False)
    _polls: dict[str, _Poll] = field(default_factory=dict, init=False, repr=False, compare=False)
    _streaks: FailureStreaks = field(
        default_factory=FailureStreaks, init=False, repr=False, compare=False
    )
    _corrected: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """How often the model was told of each loop."""
    _corrected_in: str | None = field(default=None, init=False, repr=False, compare=False)
    _dumped: dict[str, object] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        faults = [
            f"LoopDetector({name}={value!r}): give {least} or more"
            for name, least in _LEAST.items()
            if type(value := getattr(self, name)) is not int or value < least
        ]
        if not faults and self.window < self.threshold:
            faults = [
                f"LoopDetector(window={self.window}): a window smaller than "
                f"threshold={self.threshold} never sees a loop"
            ]
        if faults:
            raise ConfigurationError(faults)

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
        """Decide on a call that was made; one that nothing ran for is told as one that failed.

        Calls that the model asked for in one message carry its id. `volatile` names the arguments
        that are no part of what is asked, such as a request id.
        """
        made = _Call(tool, _asked(tool, args, volatile), _FAILED if failed else _digest(result))
        decisions: list[Decision] = []
        detector: LoopDetector | None = self
        while detector is not None:
            decisions += detector._judged(made, message, failed=failed, poll=poll)
            detector = detector.beside
        worst = [one for one in decisions if one.action == "abort"] or decisions
        return max(worst, key=_corrections, default=_ALLOW)

    def _judged(self, made: _Call, message: str, *, failed: bool, poll: bool) -> list[Decision]:
        self._dumped = None
        trips = self._polled(made, message) if poll else self._looped(made, message)
        count = self._streaks.count(made.tool, failed, message)
        if not trips and count < self.failures:
            return []
        return [*self._met(made, trips), *self._failed(made, count)]

    def _met(self, made: _Call, trips: Sequence[_Trip]) -> Iterator[Decision]:
        again = [trip for trip in trips if trip.key in self._corrected]
        for trip in (again or trips)[:1]:
            yield _decision(made, trip, self._corrected.get(trip.key, 0))
        for trip in trips:
            self._corrected[trip.key] = self._corrected.pop(trip.key, 0) + 1
            if len(self._corrected) > _MOST_CORRECTED:
                del self._corrected[next(iter(self._corrected))]

    def _failed(self, made: _Call, count: int) -> Iterator[Decision]:
        # The first failure after a correction may be the attempt to heed it.
        if count == self.failures or count >= self.failures + _HEED:
            told = f"`{made.tool}` has failed {count} times in a row"
            trip = _Trip("", told, count, [made.tool])
            yield _decision(made, trip, max(0, count - self.failures - _HEED + 1))

    def _polled(self, made: _Call, message: str) -> list[_Trip]:
        before = self._polls.get(made.call)
        if before is not None and message and before.message == message:
            return []
        same = before is not None and before.result == made.result
        count = before.times + 1 if before is not None and same else 1
        self._polls.pop(made.call, None)
        self._polls[made.call] = _Poll(made.result, count, message)
        if len(self._polls) > _MOST_POLLS:
            del self._polls[next(iter(self._polls))]
        if count < self.poll_threshold:
            return []
        told = f"`{made.tool}` was asked {count} times in a row and gave the same result each time"
        return [_Trip(f"poll {made.call}", told, count, [made.tool])]

    def _looped(self, made: _Call, message: str) -> list[_Trip]:
        self._polls.clear()
        if not self._entered(made, message) or not self._is_known(made):
            return []
        trips = []
        count = self._repeated(made)
        if count >= self.threshold:
            told = f"`{made.tool}` was called {count} times with the same arguments and result"
            trips.append(_Trip(f"call {made.call}", told, count, [made.tool]))
        if cycle := self._cycle():
            trips.append(self._circled(cycle))
        if trips:
            self._corrected_in = message
        return trips

    def _entered(self, made: _Call, message: str) -> bool:
        """Note a call, unless its message has asked for the same already."""
        beside = bool(message and self._tail and self._tail[-1].id == message)
        if beside and any(call.call == made.call for call in self._tail[-1].calls):
            return False
        if self._corrected_in is not None and self._heeds(made, message):
            self._tail.clear()
            self._corrected_in, beside = None, False
        if not beside:
            self._tail.append(_Message(message, made))
            del self._tail[: -max(self.window, _PERIODS[-1] * self.threshold)]
        elif len(self._tail[-1].calls) < _MOST_CALLS:
            self._tail[-1].add(made)
        return True

    def _is_known(self, made: _Call) -> bool:
        """Whether an earlier message made the call: else there is no repetition to look for."""
        return any(made in asked.calls for asked in self._tail[:-1])

    def _heeds(self, made: _Call, message: str) -> bool:
        """Whether a call does what the correction before it asked for: something new."""
        if message and message == self._corrected_in:
            return False
        return not any(made in asked.calls for asked in self._tail)

    def _repeated(self, made: _Call) -> int:
        """Count the call in the window, back to where it gave another result."""
        calls = [call for asked in self._tail for call in asked.calls][-self.window :]
        count = 0
        for call in reversed(calls):
            if call.call == made.call and call.result != made.result:
                break
            count += call == made
        return count

    def _cycle(self) -> list[_Message]:
        """Return the shortest round that ends the tail as often as the threshold says."""
        rounds = [frozenset(asked.calls) for asked in self._tail]
        for period in _PERIODS:
            last = rounds[-period * self.threshold :]
            if len(last) == period * self.threshold and last[period:] == last[:-period]:
                return self._tail[-period:]
        return []

    def _circled(self, cycle: list[_Message]) -> _Trip:
        steps = [sorted(asked.calls) for asked in cycle]
        first = min(range(len(steps)), key=lambda at: steps[at])
        rotated = steps[first:] + steps[:first]
        names = [" + ".join(call.tool for call in step) for step in rotated]
        shown = ", ".join(f"`{name}`" for name in names)
        told = f"The round {shown} was made {self.threshold} times with the same results"
        return _Trip(f"cycle {_digest(rotated)}", told, self.threshold, names)

    def fresh(self) -> Self:
        """Return the same detector for another run."""
        other = replace(self)
        other.beside = None if self.beside is None else self.beside.fresh()
        return other

    def held_to(self, other: LoopDetector) -> Self:
        """Return this detector for another run, which has to keep to another one too."""
        both = replace(self)
        both.beside = other.fresh()
        return both

    def dump(self) -> dict[str, object]:
        """Return the memory as JSON-able values, the same ones until it changes."""
        if self._dumped is None:
            self._dumped = self._told()
        return self._dumped

    def _told(self) -> dict[str, object]:
        return {
            "tail": [asked.told for asked in self._tail],
            "polls": [[call, list(poll)] for call, poll in self._polls.items()],
            "streaks": self._streaks.dump(),
            "corrected": dict(self._corrected),
            "corrected_in": self._corrected_in,
            **({} if self.beside is None else {"beside": self.beside.dump()}),
        }

    def load(self, dumped: Mapping[str, object]) -> None:
        """Take the memory that `dump` gave."""
        self._dumped = None
        tail = cast(Sequence[tuple[str, Sequence[Sequence[str]]]], dumped.get("tail", ()))
        polls = cast(Sequence[tuple[str, tuple[str, int, str]]], dumped.get("polls", ()))
        self._tail = [_Message(asked, *[_Call(*call) for call in calls]) for asked, calls in tail]
        self._polls = {call: _Poll(*poll) for call, poll in polls}
        self._streaks.load(cast(Sequence[object], dumped.get("streaks", ("", {}, (), ()))))
        self._corrected = dict(cast(Mapping[str, int], dumped.get("corrected", {})))
        self._corrected_in = cast("str | None", dumped.get("corrected_in"))
        if self.beside is not None:
            self.beside.load(cast(Mapping[str, object], dumped.get("beside", {})))


def _digest(value: object) -> str:
    return exact_digest(value)[:32]


def _asked(tool: str, args: object, volatile: Collection[str]) -> str:
    """Hash what a call asks for, as the model may spell it in several ways."""
    held = args if type(args) is dict else parse_json(args)
    if volatile and isinstance(held, Mapping):
        held = {name: value for name, value in held.items() if name not in volatile}
    return f"{tool} {digest(held)[:32]}"


def _corrections(decision: Decision) -> int:
    return cast(int, decision.evidence.get("made", 0))


def _decision(made: _Call, trip: _Trip, corrected: int) -> Decision:
    """Decide on a loop that its model was told of so often before."""
    evidence: dict[str, object] = {
        "tool": made.tool,
        "digest": made.call,
        "count": trip.times,
        "cycle": trip.cycle,
    }
    if corrected:
        cause = f"{trip.told}, although the model was told to stop"
        return Decision("abort", _GUARD, cause, "infinite_loop", {**evidence, "made": corrected})
    return Decision("correct", _GUARD, f"{trip.told}. {INSTEAD}", "infinite_loop", evidence)
