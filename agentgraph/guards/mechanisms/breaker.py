"""The circuit breaker: a provider that keeps failing is left alone for a while, then tried once."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Literal, Self, get_args

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import FAILURE_CLASSES, Decision, Tier
from agentgraph.guards.mechanisms.settings import is_finite, is_whole, seconds_faults
from agentgraph.guards.table import DecisionTable

FailureKind = Literal["provider", "schema", "identical", "cost"]
State = Literal["closed", "open", "half_open", "stopped"]

_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
_GUARD = "circuit_breaker"
_MAX_KEYS = 256
_MAX_RUNS = 1024
_LARGEST_EXPONENT = 1000

_ADMITTED = Decision("allow", _GUARD)
_PROBE = Decision("allow", _GUARD, evidence={"state": "half_open"})


@dataclass(eq=False, slots=True)
class Permit:
    """The permission to make one call, or its refusal: see `decision`.

    The caller settles it by `success`, `failure` or `release`; only the first of them counts.
    """

    decision: Decision
    _breaker: CircuitBreaker | None = field(default=None, repr=False)
    _generation: int = 0
    _run: str = ""

    def success(self, *, valid: bool = True) -> None:
        """Report that the provider answered; `valid=False` says that the answer is unusable."""
        if breaker := self._take_breaker():
            breaker._on_success(self._generation, valid)

    def failure(
        self, kind: FailureKind, retry_after: float | None = None, *, is_final: bool = False
    ) -> None:
        """Report what went wrong, with the provider's Retry-After in seconds.

        A failure that is final opens the breaker at once: all further tries were made already.

        A fault of the client itself (400, 401, 403) is no failure of the provider: call `release`.
        """
        if kind not in _KINDS:
            raise ValueError(f"failure({kind!r}): give one of {', '.join(_KINDS)}")
        if breaker := self._take_breaker():
            breaker._on_failure(self._generation, self._run, kind, retry_after, is_final)

    def release(self) -> None:
        """Report no outcome: the call was cancelled, or paused for a human.

        A cancelled probe must free its slot, or no other call could try until its lease has ended.
        """
        if breaker := self._take_breaker():
            breaker._on_release(self._generation)

    def _take_breaker(self) -> CircuitBreaker | None:
        """Return the breaker the first time, None from then on."""
        breaker, self._breaker = self._breaker, None
        return breaker


@dataclass(eq=False, kw_only=True, slots=True)
class CircuitBreaker(BuiltInGuard):
    """Refuse calls for a while after too many failures, then let exactly one call try.

    `permit = breaker.acquire()`; where `permit.decision.allows`, make the call and settle the
    permit. With a `fallback` the decision of a refusal is "fallback", else "deny".

    It opens after `identical`, `schema` or `consecutive` (provider) failures in a row, each counted
    by itself, when `rate` of the last `window` calls failed at the provider (`min_calls` of them at
    least), and at once on a cost signal. It stays open for `cooldown_s`, twice as long after each
    further opening up to `cooldown_cap_s`, and longer where the provider's Retry-After says so.
    After it was closed for `cooldown_cap_s`, it begins with `cooldown_s` again.

    Under `Guards` only failures of the provider are reported to the breaker of a model. An agent
    has a breaker of its own, which opens where its answers have failed a gate's schema, invariants
    or grounding until the tries of the decision table were used up.

    A run whose failures opened it `max_trips` times is stopped; other runs are not. Nothing is
    awaited between a check and its effect, so the lock is only for several event loops at once.
    """

    setting = "breaker"
    summary = "CircuitBreaker(): leaves a failing provider alone; `fallback=` answers instead"
    short_form = "a model, its name, or an AIMessage, which answers for a failing provider"

    identical: int = 3
    schema: int = 2
    rate: float = 0.5
    window: int = 20
    min_calls: int = 10
    consecutive: int = 5
    cooldown_s: float = 30.0
    cooldown_cap_s: float = 300.0
    probe_lease_s: float = 120.0
    max_trips: int = 3
    fallback: object = None
    key: str = field(default="", init=False)
    trips: int = field(default=0, init=False)

    _lock: Lock = field(init=False, repr=False, default_factory=Lock)
    _generation: int = field(init=False, repr=False, default=0)
    _streaks: dict[FailureKind, int] = field(init=False, repr=False)
    _calls: deque[bool] = field(init=False, repr=False)
    _closed_at: float = field(init=False, repr=False, default=-math.inf)
    _open_until: float | None = field(init=False, repr=False, default=None)
    _probe_until: float = field(init=False, repr=False, default=-math.inf)
    _trips_in_row: int = field(init=False, repr=False, default=0)
    _opened_by: FailureKind = field(init=False, repr=False, default="provider")
    _reason: str = field(init=False, repr=False, default="")
    _openings: OrderedDict[str, int] = field(init=False, repr=False, default_factory=OrderedDict)
    _by_key: OrderedDict[tuple[str, str], CircuitBreaker] = field(
        init=False, repr=False, default_factory=OrderedDict
    )

    def __post_init__(self) -> None:
        if faults := self._faults():
            raise ConfigurationError(faults)
        self._streaks = dict.fromkeys(_KINDS, 0)
        self._calls = deque(maxlen=self.window)

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the breaker with this fallback."""
        return cls(fallback=value) if _can_answer(value) else None

    def policy_faults(self) -> Iterator[str]:
        """Yield a fault where the nodes cannot let the fallback answer."""
        if self.fallback is not None and not _can_answer(self.fallback):
            yield f"fallback={self.fallback!r}: give a model, its name, or an AIMessage to say"

    @property
    def state(self) -> State:
        """Return the state that it has for every run that it has not stopped."""
        if (until := self._open_until) is None:
            return "closed"
        return "open" if clock().monotonic() < until else "half_open"

    def state_for(self, run: str) -> State:
        """Return its state for a run: also "stopped"."""
        return "stopped" if self._openings.get(run, 0) >= self.max_trips else self.state

    def for_key(self, key: str, provider: str = "") -> CircuitBreaker:
        """Return the breaker of this key, the same one each time, configured like this one.

        With a `provider` it is another one than that of the same key elsewhere.
        """
        place = provider, key
        with self._lock:
            if place not in self._by_key:
                if len(self._by_key) >= _MAX_KEYS:
                    self._forget_key()
                self._by_key[place] = self.fresh(key)
            self._by_key.move_to_end(place)
            return self._by_key[place]

    def fresh(self, key: str = "") -> CircuitBreaker:
        """Return a new breaker, configured like this one."""
        breaker = replace(self)
        breaker.key = key
        return breaker

    def acquire(self, run: str = "") -> Permit:
        """Ask for one call of a run; settle the permit, whatever the outcome of the call."""
        with self._lock:
            if run in self._openings and (refusal := self._stop(run)) is not None:
                return Permit(refusal)
            if self._open_until is None:
                return Permit(_ADMITTED, self, self._generation, run)
            now = clock().monotonic()
            if (refusal := self._refuse(now, self._open_until)) is not None:
                return Permit(refusal)
            self._generation += 1
            self._probe_until = now + self.probe_lease_s
            return Permit(_PROBE, self, self._generation, run)

    # A permit of an older generation was given before the state changed: the outcome of its call
    # says nothing about the present state, and must not settle the probe of another call.

    def _on_success(self, generation: int, valid: bool) -> None:
        with self._lock:
            if generation != self._generation:
                return
            if self._open_until is None:
                self._count_answer(valid)
            elif valid or self._opened_by in ("provider", "cost"):
                self._close()
            else:
                self._probe_until = -math.inf

    def _on_failure(
        self,
        generation: int,
        run: str,
        kind: FailureKind,
        retry_after: float | None,
        is_final: bool,
    ) -> None:
        now = clock().monotonic()
        with self._lock:
            if generation != self._generation:
                return
            is_probe = self._open_until is not None
            if is_probe:
                reason = f"a {kind} failure of the probe"
            elif is_final:
                reason = f"a {kind} failure, whose tries are used up"
            else:
                reason = self._count_failure(kind)
            if not reason:
                return
            self._opened_by, self._reason = kind, reason
            self._open(now, retry_after)
            self._blame(run)

    def _on_release(self, generation: int) -> None:
        with self._lock:
            if generation == self._generation:
                self._probe_until = -math.inf

    def _count_answer(self, valid: bool) -> None:
        self._calls.append(True)
        self._streaks["provider"] = 0
        if valid:
            self._streaks["schema"] = self._streaks["identical"] = 0

    def _count_failure(self, kind: FailureKind) -> str:
        """Count a failure; return why the breaker has to open, "" where it has not."""
        if kind == "cost":
            return "a cost signal"
        if kind == "provider":
            self._calls.append(False)
        else:
            self._count_answer(valid=False)
        self._streaks[kind] += 1
        streak, calls = self._streaks[kind], len(self._calls)
        limits = {"provider": self.consecutive, "schema": self.schema, "identical": self.identical}
        if streak >= limits[kind]:
            return f"{kind} failures in a row: {streak}"
        failures = self._calls.count(False)
        if kind == "provider" and calls >= self.min_calls and failures / calls >= self.rate:
            return f"provider failures in the last {calls} calls: {failures}"
        return ""

    def _open(self, now: float, retry_after: float | None) -> None:
        if self._open_until is None and now - self._closed_at >= self.cooldown_cap_s:
            self._trips_in_row = 0
        doublings = 2.0 ** min(self._trips_in_row, _LARGEST_EXPONENT)
        cooldown = min(self.cooldown_cap_s, self.cooldown_s * doublings)
        if is_finite(retry_after):
            cooldown = max(cooldown, retry_after)
        self.trips += 1
        self._trips_in_row += 1
        self._generation += 1
        self._open_until, self._probe_until = now + cooldown, -math.inf

    def _close(self) -> None:
        self._generation += 1
        self._open_until, self._closed_at = None, clock().monotonic()
        self._calls.clear()
        self._streaks = dict.fromkeys(_KINDS, 0)

    def _blame(self, run: str) -> None:
        if run:
            self._openings[run] = self._openings.pop(run, 0) + 1
        if len(self._openings) > _MAX_RUNS:
            self._openings.popitem(last=False)

    def _stop(self, run: str) -> Decision | None:
        openings = self._openings[run]
        # A run that still asks must not be the first to be forgotten.
        self._openings.move_to_end(run)
        if openings < self.max_trips:
            return None
        cause = f"run {run} opened {self._name()} {openings} times; {self.max_trips} end a run"
        evidence = {"key": self.key, "state": "stopped", "run": run, "openings": openings}
        return Decision("abort", _GUARD, cause, "provider_error", evidence)

    def _refuse(self, now: float, open_until: float) -> Decision | None:
        if now < open_until:
            state, wait_s = "open", open_until - now
            until = f"it lets one call try in {wait_s:.6g} s"
        elif now < self._probe_until:
            state, wait_s = "half_open", self._probe_until - now
            until = f"one call is trying it, for {wait_s:.6g} s at most"
        else:
            return None
        evidence = {
            "key": self.key,
            "state": state,
            "opened_by": self._opened_by,
            "trips": self.trips,
            "retry_in_s": wait_s,
            "until": clock().wall() + wait_s,
        }
        action: Literal["deny", "fallback"] = "deny" if self.fallback is None else "fallback"
        cause = f"{self._name()} is open ({self._reason}): {until}"
        return Decision(action, _GUARD, cause, "provider_error", evidence)

    def _name(self) -> str:
        return f"the breaker of {self.key}" if self.key else "the breaker"

    def _forget_key(self) -> None:
        # The breaker used longest ago, but a closed one first: an open one knows of an outage.
        closed_keys = (key for key, breaker in self._by_key.items() if breaker.state == "closed")
        del self._by_key[next(closed_keys, next(iter(self._by_key)))]

    def _faults(self) -> list[str]:
        faults = [
            f"CircuitBreaker({name}={value!r}): give a whole number, 1 or more"
            for name in ("identical", "schema", "window", "min_calls", "consecutive", "max_trips")
            if not is_whole(value := getattr(self, name), 1)
        ]
        faults += seconds_faults(self, ("cooldown_s", "cooldown_cap_s", "probe_lease_s"))
        if not (is_finite(self.rate) and 0 < self.rate <= 1):
            faults.append(f"CircuitBreaker(rate={self.rate!r}): give a number above 0, up to 1")
        if faults:
            return faults
        if self.window > sys.maxsize:
            faults.append(f"CircuitBreaker(window={self.window}): give {sys.maxsize} or less")
        if self.min_calls > self.window:
            faults.append(f"CircuitBreaker(min_calls={self.min_calls}): give {self.window} or less")
        if (cap := self.cooldown_cap_s) < (least := self.cooldown_s):
            faults.append(f"CircuitBreaker(cooldown_cap_s={cap}): give {least} or more")
        return faults


def unused_fallback(table: DecisionTable, tier: Tier, breaker: CircuitBreaker | None) -> str:
    """Return what is wrong with a fallback that no decision of a tier's table leads to, else ""."""
    fallback = breaker.fallback if breaker is not None else None
    classes = FAILURE_CLASSES if isinstance(fallback, AIMessage) else ("provider_error",)
    if fallback is None or any(table.cell(name, tier).action == "fallback" for name in classes):
        return ""
    return (
        f"a {tier} run swaps no model in silence, so the fallback would never answer: "
        "give none, or a cell that asks for it, "
        f"DecisionTable({{('provider_error', {tier!r}): Cell('fallback', 1, 'escalate')}})"
    )


def _can_answer(value: object) -> bool:
    return isinstance(value, str | BaseChatModel | AIMessage)
