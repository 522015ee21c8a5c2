"""How fast a run spends: tokens per minute and dollars per hour, over two sliding windows.

A ceiling is exceeded only when a short and a long window both are over it. One window alone would
misjudge: one large call fills the short window, a burst that has ended still fills the long one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from decimal import Decimal
from threading import Lock
from typing import Any, Self, cast

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Decision, Tier
from agentgraph.guards.mechanisms.settings import is_finite, is_positive

_GUARD = "cost_velocity"
_ALLOW = Decision("allow", _GUARD)
_ZERO = Decimal(0)
_BUCKETS = 10
_MAX_SCOPES = 32
_MIN_CALLS = 3
"""So few calls tell no velocity."""
_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class _Bucket:
    """What was spent within a tenth of a window that begins at a monotonic instant."""

    start_ms: int
    tokens: int
    usd: Decimal


class _Window:
    """A sliding window, in a bounded number of buckets."""

    __slots__ = ("_width_ms", "buckets", "calls", "length_ms")

    def __init__(self, seconds: float) -> None:
        self.length_ms = _milliseconds(seconds)
        self._width_ms = self.length_ms / _BUCKETS
        self.buckets: list[_Bucket] = []
        self.calls = 0
        """How many calls it has counted since it was made or loaded."""

    def add(self, now: int, tokens: int, usd: Decimal) -> None:
        buckets = self.buckets
        self.calls += 1
        if buckets and now - buckets[0].start_ms >= self.length_ms:
            self.buckets = buckets = [x for x in buckets if now - x.start_ms < self.length_ms]
        if buckets and now - (last := buckets[-1]).start_ms < self._width_ms:
            last.tokens += tokens
            last.usd += usd
        else:
            buckets.append(_Bucket(now, tokens, usd))

    def tokens_per_min(self) -> float:
        return sum(bucket.tokens for bucket in self.buckets) * _MINUTE_MS / self.length_ms

    def usd_per_hour(self) -> float:
        return float(sum(bucket.usd for bucket in self.buckets)) * _HOUR_MS / self.length_ms

    def dump(self, offset_ms: int) -> list[list[object]]:
        """Return the buckets; `offset_ms` converts their starts to the wall clock.

        The last one has the number of calls too, where that is more than there are buckets.
        """
        rows: list[list[object]] = [
            [b.start_ms + offset_ms, b.tokens, str(b.usd)] for b in self.buckets
        ]
        calls = min(self.calls, _MIN_CALLS)
        if rows and calls > len(rows):
            rows[-1].append(calls)
        return rows

    def load(self, rows: Sequence[Sequence[Any]], offset_ms: int, now: int) -> None:
        # A wall clock that was set back must not put spending into the future.
        self.buckets = [
            _Bucket(min(row[0] - offset_ms, now), row[1], Decimal(row[2])) for row in rows
        ]
        self.calls = max(len(rows), rows[-1][3] if rows and len(rows[-1]) > 3 else 0)


@dataclass(slots=True)
class CostVelocity(BuiltInGuard):
    """Deny when tokens per minute or dollars per hour pass their ceiling, in both windows.

    Each window is averaged over its whole length, so a run may spend at once what is allowed in
    `slow_s`. Nothing is denied in the first `min_elapsed_s` of spending, or before the third call.

    One agent, or one visit to an agent (a stage), may spend the part `share` of the ceilings within
    `fast_s`, as soon as the run has spent as much within `slow_s`. With `alert` the run goes on:
    the decision is recorded and streamed, and counting begins anew.
    """

    setting = "velocity"
    summary = "CostVelocity(200_000, share=0.5): how fast they are spent, tokens per minute"
    short_form = "how many tokens a minute"
    is_input_wide = True

    tokens_per_min: float | None = None
    usd_per_hour: float | None = None
    fast_s: float = 60
    slow_s: float = 600
    min_elapsed_s: float = 30
    share: float = 1.0
    alert: bool = False
    _fast: _Window = field(init=False, repr=False, compare=False)
    _slow: _Window = field(init=False, repr=False, compare=False)
    """The spending of all scopes, in the two windows that decide."""
    _min_elapsed_ms: int = field(init=False, repr=False, compare=False)
    _scopes: dict[str, _Window] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The spending of each scope, in a short window; the scope used last comes last."""
    _lock: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)
    _rows: list[list[object]] | None = field(default=None, init=False, repr=False, compare=False)
    """The last dump, kept because it is stored at each step; None where it is out of date."""
    _offset_ms: int | None = field(default=None, init=False, repr=False, compare=False)
    """How far the wall clock was ahead when the run began to spend; None before."""

    def __post_init__(self) -> None:
        faults = [
            f"CostVelocity({name}={value!r}): give a number above 0"
            for name in ("tokens_per_min", "usd_per_hour", "fast_s", "slow_s")
            if not _is_positive(value := getattr(self, name))
            and not (value is None and name in ("tokens_per_min", "usd_per_hour"))
        ]
        if not _is_positive(self.min_elapsed_s) and not _is_zero(self.min_elapsed_s):
            faults.append(f"CostVelocity(min_elapsed_s={self.min_elapsed_s!r}): give 0 or more")
        if not _is_positive(self.share) or self.share > 1:
            faults.append(f"CostVelocity(share={self.share!r}): give a number above 0, at most 1")
        if not isinstance(self.alert, bool):
            faults.append(f"CostVelocity(alert={self.alert!r}): give True or False")
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
        self._begin()
        self._min_elapsed_ms = _milliseconds(self.min_elapsed_s)

    @classmethod
    def of_tier(cls, tier: Tier) -> Self | None:
        """Return the ceiling of a tier, in tokens; a regulated one has to be given."""
        if tier == "regulated":
            return None
        is_batch = tier == "batch"
        return cls(1_000_000 if is_batch else 200_000, share=0.5, alert=is_batch)

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the ceiling of so many tokens a minute."""
        return cls(tokens_per_min=value) if is_positive(value) else None

    @classmethod
    def absence_faults(cls, tier: Tier, *, is_removed: bool) -> Iterator[str]:
        """Yield a fault where a regulated policy does not say whether it has a ceiling."""
        if tier == "regulated" and not is_removed:
            yield (
                "a regulated flow has no velocity of its own: give velocity=CostVelocity(…), "
                "or velocity=None to watch none"
            )

    def record(
        self, *, tokens: int, usd: Decimal | None = None, scope: str = "", stage: str = ""
    ) -> Decision:
        """Count what was spent, in the whole run and in its scopes, and decide whether to go on.

        `scope` is the agent; `stage` the visit to it, where there are several.
        """
        if self.tokens_per_min is None and self.usd_per_hour is None:
            return _ALLOW
        now = _milliseconds(clock().monotonic())
        if self._offset_ms is None:
            self._offset_ms = _wall_offset_ms()
        tokens, usd = max(0, tokens), max(_ZERO, usd or _ZERO)
        with self._lock:
            self._rows = None
            self._fast.add(now, tokens, usd)
            self._slow.add(now, tokens, usd)
            scopes = (scope, stage) if stage and stage != scope else (scope,)
            for name in scopes if scope else ():
                self._window(name).add(now, tokens, usd)
            is_young = now - self._slow.buckets[0].start_ms < self._min_elapsed_ms
            if is_young or self._slow.calls < _MIN_CALLS:
                return _ALLOW
            return next(self._denials(scopes), _ALLOW)

    def _window(self, scope: str) -> _Window:
        window = self._scopes.pop(scope, None) or _Window(self.fast_s)
        self._scopes[scope] = window
        if len(self._scopes) > _MAX_SCOPES:
            del self._scopes[next(iter(self._scopes))]
        return window

    def _denials(self, scopes: tuple[str, ...]) -> Iterator[Decision]:
        for unit in ("tokens_per_min", "usd_per_hour"):
            limit = getattr(self, unit)
            if limit is None:
                continue
            fast, slow = getattr(self._fast, unit)(), getattr(self._slow, unit)()
            name = scopes[0]
            if min(fast, slow) > limit:
                part = getattr(self._scopes[name], unit)() if name else fast
                yield self._denial(unit, limit, (fast, slow), name, part)
            for name in scopes if scopes[0] and slow > self.share * limit else ():
                window = self._scopes[name]
                part = getattr(window, unit)()
                if window.calls >= _MIN_CALLS and part > self.share * limit:
                    yield self._denial(unit, self.share * limit, (fast, slow), name, part, True)

    def _denial(
        self,
        unit: str,
        limit: float,
        rates: tuple[float, float],
        scope: str,
        part: float,
        is_share: bool = False,
    ) -> Decision:
        fast, slow = (round(rate, 6) for rate in rates)
        words = unit.replace("_", " ")
        whose = f"{part:g} of them by {scope!r}, whose ceiling is" if is_share else "the ceiling is"
        return Decision(
            "deny",
            _GUARD,
            f"{fast:g} {words} over {self.fast_s:g} s and {slow:g} over {self.slow_s:g} s were "
            f"spent; {whose} {limit:g}",
            "cost_overrun",
            {
                "unit": unit,
                "ceiling": float(limit),
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
        clone = copy(self)  # the ceilings were checked when this was made
        clone._begin()
        return clone

    def _begin(self) -> None:
        self._fast, self._slow = _Window(self.fast_s), _Window(self.slow_s)
        self._scopes, self._lock, self._rows, self._offset_ms = {}, Lock(), None, None

    def forget(self) -> None:
        """Begin to count anew."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        self._rows = None
        for window in (self._fast, self._slow):
            window.buckets, window.calls = [], 0
        self._scopes.clear()

    def dump(self) -> dict[str, object]:
        """Return the memory as JSON-able values; its times are those of the wall clock."""
        with self._lock:
            if self._rows is None:
                offset_ms = self._offset_ms or 0
                rows: list[list[object]] = []
                for scope, window in self._scopes.items():
                    rows.append([scope, window.dump(offset_ms)])
                if self._slow.buckets:
                    rows.append(["", self._fast.dump(offset_ms), self._slow.dump(offset_ms)])
                self._rows = rows
            return {"scopes": self._rows}

    def load(self, state: Mapping[str, object]) -> None:
        """Restore the memory from what `dump` returned, in this process or in another one."""
        buckets = Sequence[Sequence[Any]]
        scopes = cast(Sequence[tuple[str, buckets, buckets]], state.get("scopes", ()))
        offset_ms, now = _wall_offset_ms(), _milliseconds(clock().monotonic())
        self._offset_ms = offset_ms
        with self._lock:
            self._clear()
            for scope, *stored_windows in scopes:
                windows = (self._window(scope),) if scope else (self._fast, self._slow)
                # Not strict: an older store has a long window of each scope too, which is skipped.
                for window, rows in zip(windows, stored_windows, strict=False):
                    window.load(rows, offset_ms, now)


def _wall_offset_ms() -> int:
    """Return how far the wall clock is ahead of the monotonic one."""
    present_clock = clock()
    return _milliseconds(present_clock.wall() - present_clock.monotonic())


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1_000)


def _is_positive(value: object) -> bool:
    # Durations are computed in milliseconds, which have to be a finite number too.
    return is_finite(value) and value > 0 and is_finite(value * 1_000)


def _is_zero(value: object) -> bool:
    return is_finite(value) and value == 0
