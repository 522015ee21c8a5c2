"""How fast a run spends.

A ceiling is passed only when a short and a long window both are over it: one large call fills the
short one, and a burst that is over still fills the long one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from threading import Lock
from typing import Self, cast

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.deadlines import is_finite

_GUARD = "cost_velocity"
_ALLOW = Decision("allow", _GUARD)
_NOTHING = Decimal(0)
_BUCKETS = 10
_MOST_SCOPES = 32
_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class _Bucket:
    """What was spent from an instant on, by the monotonic clock."""

    start_ms: int
    tokens: int
    usd: Decimal


class _Window:
    """The last so many milliseconds, in a bounded number of buckets."""

    __slots__ = ("_width_ms", "buckets", "length_ms")

    def __init__(self, seconds: float) -> None:
        self.length_ms = _milliseconds(seconds)
        self._width_ms = self.length_ms / _BUCKETS
        self.buckets: list[_Bucket] = []

    def add(self, now: int, tokens: int, usd: Decimal) -> None:
        buckets = self.buckets
        if buckets and now - buckets[0].start_ms >= self.length_ms:
            self.buckets = buckets = [x for x in buckets if now - x.start_ms < self.length_ms]
        if buckets and now - (last := buckets[-1]).start_ms < self._width_ms:
            last.tokens += tokens
            last.usd += usd
        else:
            buckets.append(_Bucket(now, tokens, usd))

    def tokens_per_min(self) -> float:
        return sum(one.tokens for one in self.buckets) * _MINUTE_MS / self.length_ms

    def usd_per_hour(self) -> float:
        return float(sum(one.usd for one in self.buckets)) * _HOUR_MS / self.length_ms

    def dump(self, ago: int) -> list[list[object]]:
        return [[one.start_ms + ago, one.tokens, str(one.usd)] for one in self.buckets]

    def load(self, dumped: Sequence[tuple[int, int, str]], ago: int, now: int) -> None:
        # A wall clock that was set back must not put spending into the future.
        self.buckets = [
            _Bucket(min(start - ago, now), tokens, Decimal(usd)) for start, tokens, usd in dumped
        ]


@dataclass(slots=True)
class CostVelocity:
    """Deny when tokens per minute or dollars per hour pass their ceiling, in both windows.

    Each window is averaged over its whole length, so up to `slow_s` of a ceiling may be spent at
    once; nothing is denied before `min_elapsed_s` of spending. A scope's share is in the evidence.
    """

    tokens_per_min: float | None = None
    usd_per_hour: float | None = None
    fast_s: float = 60
    slow_s: float = 600
    min_elapsed_s: float = 30
    _fast: _Window = field(init=False, repr=False, compare=False)
    _slow: _Window = field(init=False, repr=False, compare=False)
    """All that is spent, in the two windows by which it is decided."""
    _least_ms: int = field(init=False, repr=False, compare=False)
    _scopes: dict[str, _Window] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What of it each scope has spent, in a short window."""
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)
    _told: list[list[object]] | None = field(default=None, init=False, repr=False, compare=False)
    """What was dumped last, None where it is out of date."""

    def __post_init__(self) -> None:
        faults = [
            f"CostVelocity({name}={value!r}): give a number above 0"
            for name in ("tokens_per_min", "usd_per_hour", "fast_s", "slow_s")
            if not _is_positive(value := getattr(self, name))
            and not (value is None and name in ("tokens_per_min", "usd_per_hour"))
        ]
        if not _is_positive(self.min_elapsed_s) and not _is_zero(self.min_elapsed_s):
            faults.append(f"CostVelocity(min_elapsed_s={self.min_elapsed_s!r}): give 0 or more")
        if not faults and not self.fast_s < self.slow_s:
            faults.append(
                f"CostVelocity(slow_s={self.slow_s}): give more than fast_s={self.fast_s}"
            )
        if not faults and self.min_elapsed_s > self.slow_s / 2:
            faults.append(
                f"CostVelocity(min_elapsed_s={self.min_elapsed_s}): give at most half of "
                f"slow_s={self.slow_s}, else nothing is ever denied"
            )
        if faults:
            raise ConfigurationError(faults)
        self._fast, self._slow = _Window(self.fast_s), _Window(self.slow_s)
        self._least_ms = _milliseconds(self.min_elapsed_s)

    def record(self, *, tokens: int, usd: Decimal | None = None, scope: str = "") -> Decision:
        """Count what was spent, in its scope and in all, and decide on going on."""
        if self.tokens_per_min is None and self.usd_per_hour is None:
            return _ALLOW
        now = _milliseconds(clock().monotonic())
        tokens, usd = max(0, tokens), max(_NOTHING, usd or _NOTHING)
        with self._lock:
            self._told = None
            self._fast.add(now, tokens, usd)
            self._slow.add(now, tokens, usd)
            if scope:
                self._window(scope).add(now, tokens, usd)
            if now - self._slow.buckets[0].start_ms < self._least_ms:
                return _ALLOW
            return next(self._exceeded(scope), _ALLOW)

    def _window(self, scope: str) -> _Window:
        window = self._scopes.pop(scope, None) or _Window(self.fast_s)
        self._scopes[scope] = window  # the last one is the one that was used last
        if len(self._scopes) > _MOST_SCOPES:
            del self._scopes[next(iter(self._scopes))]
        return window

    def _exceeded(self, scope: str) -> Iterator[Decision]:
        for unit in ("tokens_per_min", "usd_per_hour"):
            ceiling = getattr(self, unit)
            rates = (getattr(self._fast, unit)(), getattr(self._slow, unit)())
            if ceiling is not None and min(rates) > ceiling:
                part = getattr(self._scopes[scope], unit)() if scope else rates[0]
                yield self._denied(unit, ceiling, rates, scope, part)

    def _denied(
        self, unit: str, ceiling: float, rates: tuple[float, float], scope: str, part: float
    ) -> Decision:
        fast, slow = (round(rate, 6) for rate in rates)
        shown = unit.replace("_", " ")
        return Decision(
            "deny",
            _GUARD,
            f"{fast:g} {shown} over {self.fast_s:g} s and {slow:g} over {self.slow_s:g} s were "
            f"spent; the ceiling is {ceiling:g}",
            "cost_overrun",
            {
                "unit": unit,
                "ceiling": float(ceiling),
                "fast": fast,
                "slow": slow,
                "fast_s": self.fast_s,
                "slow_s": self.slow_s,
                "scope": scope,
                "scope_fast": round(part, 6),
            },
        )

    def fresh(self) -> Self:
        """Return the same ceilings for another run."""
        return replace(self)

    def forget(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        self._told = None
        self._fast.buckets, self._slow.buckets = [], []
        self._scopes.clear()

    def dump(self) -> dict[str, object]:
        """Return the memory as JSON-able values; its times are those of the wall clock."""
        with self._lock:
            if self._told is None:
                ago = _wall_ahead()
                told: list[list[object]] = []
                for scope, window in self._scopes.items():
                    told.append([scope, window.dump(ago)])
                if self._slow.buckets:
                    told.append(["", self._fast.dump(ago), self._slow.dump(ago)])
                self._told = told
            return {"scopes": self._told}

    def load(self, dumped: Mapping[str, object]) -> None:
        """Take the memory that `dump` gave."""
        rows = Sequence[tuple[int, int, str]]
        scopes = cast(Sequence[tuple[str, rows, rows]], dumped.get("scopes", ()))
        ago, now = _wall_ahead(), _milliseconds(clock().monotonic())
        with self._lock:
            self._clear()
            for scope, *spent in scopes:
                windows = (self._window(scope),) if scope else (self._fast, self._slow)
                # Of a scope there was once a long window as well: what has no place is left out.
                for window, one in zip(windows, spent, strict=False):
                    window.load(one, ago, now)


def _wall_ahead() -> int:
    """Return how far the wall clock is ahead of the monotonic one."""
    here = clock()
    return _milliseconds(here.wall() - here.monotonic())


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1_000)


def _is_positive(value: object) -> bool:
    # Seconds are reckoned with as milliseconds, which have to be a number too.
    return is_finite(value) and value > 0 and is_finite(value * 1_000)


def _is_zero(value: object) -> bool:
    return is_finite(value) and value == 0
