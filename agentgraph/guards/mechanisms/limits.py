"""Limits on counts of one outside input: steps, hops, depth, fan-out and new plans.

The caller asks a limit before the next step, with the count so far; the limit allows the step or
says what happens instead. `Progress` is the memory of steps and hops; `ReplanLimit` has one of its
own, as it compares plans with earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal, Self, cast

from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Decision, FailureClass, Tier
from agentgraph.guards.mechanisms.canonical import canonical, digest
from agentgraph.guards.mechanisms.settings import is_whole, smaller

# The step limit is checked before each model call, so the usual decision is made once.
STEP_ALLOWED = Decision("allow", "max_steps")
_BITS = 512
_BITS_PER_RESULT = 2
_MAX_PLANS = 32
"""How many digests of plans are kept for a stage; the oldest is forgotten first."""


class Progress:
    """What an input has learned, and what its models have done since: the memory of two limits.

    All levels and inner sessions of an input share it. It remembers which results were seen by a
    few bits each, so that its size is fixed: after hundreds of results some new ones are taken for
    old ones, and none the other way round.
    """

    __slots__ = ("_results", "asked_at", "handoffs", "learned_at", "steps", "workers")

    def __init__(self) -> None:
        self.steps = 0
        """How many model calls were made; each attempt at a provider is one."""
        self.learned_at = 0
        """How many had been made before the one that led to the last new result."""
        self.asked_at = 0
        """How many before the last new result, or before an old result of a new question."""
        self.handoffs = 0
        """How many handoffs models have made in a row, without a tool's work between them."""
        self.workers = 0
        """How many workers have begun."""
        self._results = 0

    @property
    def idle_steps(self) -> int:
        """Return the number of model calls since the last new result, with that which led to it."""
        return self.steps - self.learned_at

    def learn(self, result: object, question: str = "") -> None:
        """Note the result of a question; a new one starts the count of model calls anew."""
        text = result if isinstance(result, str) else canonical(result)
        if self._is_new(text):
            self.learned_at = max(self.steps - 1, self.learned_at)
        elif not question or not self._is_new(f"{question}\0{text}"):
            return
        self.asked_at = max(self.steps - 1, self.asked_at)

    def _is_new(self, text: str) -> bool:
        """Remember a text; return whether it is new."""
        mask = _mask_of(text)
        is_new = self._results & mask != mask
        self._results |= mask
        return is_new

    def dump(self) -> dict[str, Any]:
        """Return the memory as JSON-able values."""
        return {**self.counts(), "seen": f"{self._results:x}"} if self._results else self.counts()

    def counts(self) -> dict[str, Any]:
        """Return the counts alone: for a session's log, of which each byte is kept."""
        values: dict[str, Any] = {"steps": self.steps}
        if self.learned_at:
            values["learned_at"] = self.learned_at
        if self.asked_at > self.learned_at:
            values["asked_at"] = self.asked_at
        if self.handoffs:
            values["in_a_row"] = self.handoffs
        if self.workers:
            values["workers"] = self.workers
        return values

    def merge(self, values: Mapping[str, Any], *, is_latest: bool) -> None:
        """Add what another process has dumped, and its handoffs in a row if that is the latest."""
        self.steps = max(self.steps, values.get("steps", 0))
        self.learned_at = max(self.learned_at, values.get("learned_at", 0))
        self.asked_at = max(self.asked_at, self.learned_at, values.get("asked_at", 0))
        self.workers = max(self.workers, values.get("workers", 0))
        self._results |= int(values.get("seen", "0"), 16)
        if is_latest:
            self.handoffs = values.get("in_a_row", 0)


@dataclass(frozen=True, slots=True)
class StepLimit(BuiltInGuard):
    """End the run instead of making the model call after the last allowed one.

    `steps` counts the model calls since the last new result, with the call that led to it: a run
    that learns something goes on. `total` counts all model calls of an input; None sets no limit.
    Each attempt at a provider is a call, and all levels are counted together.
    """

    setting = "steps"
    summary = "StepLimit(50, total=500): model calls without a new result, and in all"
    short_form = "how many model calls, 1 or more"

    steps: int = 50
    total: int | None = 500
    _counts_questions: bool = field(default=False, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _require_whole(self.steps, 1, f"StepLimit({self.steps!r}): allow at least one model call")
        if self.total is not None:
            _require_whole(
                self.total, 1, f"StepLimit(total={self.total!r}): allow at least one model call"
            )

    @classmethod
    def of_tier(cls, tier: Tier) -> Self:
        """Return the limit that holds where none is given: it ends no work that asks new questions.

        Under it an old result of a new question is new too: "no spam" of each of a hundred mails.
        """
        limit = cls()
        object.__setattr__(limit, "_counts_questions", True)
        return limit

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the limit of so many model calls without a new result."""
        return cls(value) if is_whole(value, 1) else None

    def tighter(self, outer: Self) -> Self:
        """Return the limit with the smaller one of each count."""
        return replace(
            self, steps=min(self.steps, outer.steps), total=smaller(self.total, outer.total)
        )

    def times(self, turns: int) -> StepLimit:
        """Return the limit for so many turns."""
        total = None if self.total is None else self.total * turns
        limit = StepLimit(self.steps * turns, total)
        object.__setattr__(limit, "_counts_questions", self._counts_questions)
        return limit

    def ask(self, progress: Progress, grants: int = 1) -> Decision:
        """Decide on one more model call of an input."""
        steps = progress.steps
        since = progress.asked_at if self._counts_questions else progress.learned_at
        return self.check(steps - since, grants, total=steps)

    def check(self, count: int, grants: int = 1, *, total: int | None = None) -> Decision:
        """Decide on one more model call after `count` of them without a new result.

        `total` is the number of all calls, `count` where it is not given. Each grant of a human
        allows the whole limit once more; `grants` is 1 before any of them.
        """
        total = count if total is None else total
        most = None if self.total is None else self.total * grants
        if count < self.steps * grants and (most is None or total < most):
            return STEP_ALLOWED
        if most is not None and total >= most:
            count, limit, cause = total, most, "for one input"
        else:
            limit, cause = self.steps * grants, "since the last new result"
        return Decision(
            "abort",
            "max_steps",
            f"{count} model calls were made {cause}; {limit} are allowed",
            "infinite_loop",
            {"taken": count, "limit": limit},
        )


@dataclass(frozen=True, slots=True)
class HopLimit(BuiltInGuard):
    """Refuse the handoff after the last allowed one in a row.

    A row are the handoffs that models choose without a tool's work between them. What rules decide,
    a delegation and its answer, and a human's word are no handoffs; a request for help ends a row.
    """

    setting = "hops"
    summary = "HopLimit(5): how often in a row models hand over"
    short_form = "how many handoffs, 0 or more"

    hops: int = 5

    def __post_init__(self) -> None:
        _require_whole(self.hops, 0, f"HopLimit({self.hops!r}): give 0 or more")

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the limit of so many handoffs."""
        return cls(value) if is_whole(value) else None

    def tighter(self, outer: Self) -> Self:
        return min(self, outer, key=lambda limit: limit.hops)

    def check(self, count: int, grants: int = 1) -> Decision:
        """Decide on one more handoff after `count` in a row; for grants see `StepLimit.check`."""
        limit = self.hops * grants
        if count < limit:
            return Decision("allow", "hop_limit")
        return Decision(
            "deny",
            "hop_limit",
            f"{count} handoffs were made in a row, without a tool's work between them; {limit} are "
            "allowed: do some of the work, or answer with what is there",
            "deadlock",
            {"made": count, "limit": limit},
        )


@dataclass(frozen=True, slots=True)
class DepthLimit(BuiltInGuard):
    """Refuse the agent below the last allowed level."""

    setting = "depth"
    summary = "DepthLimit(8): how many levels of agents, those in teams and in tools included"
    short_form = "how many levels, 0 or more"

    depth: int = 8

    def __post_init__(self) -> None:
        _require_whole(self.depth, 0, f"DepthLimit({self.depth!r}): give 0 or more levels")

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the limit of so many levels."""
        return cls(value) if is_whole(value) else None

    def tighter(self, outer: Self) -> Self:
        return min(self, outer, key=lambda limit: limit.depth)

    def check(self, depth: int) -> Decision:
        """Decide on an agent that is `depth` levels below the root of its tree."""
        if depth <= self.depth:
            return Decision("allow", "depth_limit")
        return Decision(
            "deny",
            "depth_limit",
            f"level {depth} lies below the last allowed one, {self.depth}: "
            "do the work here instead of passing it down",
            "infinite_loop",
            {"depth": depth, "limit": self.depth},
        )


@dataclass(frozen=True, slots=True)
class FanOutLimit(BuiltInGuard):
    """Let so many workers work at once; further ones wait for them, and begin in their order.

    `total` is how many workers may begin for one input; None sets no limit. Those beyond it are
    refused, and all of them where `children` is 0. Workers are what models send for: delegates, and
    agents as tools. The speakers of a team are none, though `children` of them speak at once: its
    rules give them the floor, a refused one would leave its round open, and `max_turns` limits
    them.
    """

    setting = "fan_out"
    summary = "FanOutLimit(8): how many workers at once; the rest wait for them"
    short_form = "how many workers at once, 0 or more"
    comes_with_tier = True

    children: int = 8
    total: int | None = None

    def __post_init__(self) -> None:
        _require_whole(self.children, 0, f"FanOutLimit({self.children!r}): give 0 or more workers")
        if self.total is not None:
            _require_whole(
                self.total, 0, f"FanOutLimit(total={self.total!r}): give 0 or more workers"
            )

    @classmethod
    def of_tier(cls, tier: Tier) -> Self:
        """Return the limit of a tier: 16 workers in `batch`, 8 in the others."""
        return cls(16 if tier == "batch" else 8)

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the limit of so many workers at once."""
        return cls(value) if is_whole(value) else None

    def tighter(self, outer: Self) -> Self:
        """Return the limit with the smaller one of each count."""
        children = min(self.children, outer.children)
        return replace(self, children=children, total=smaller(self.total, outer.total))

    def check(self, asked: int) -> Decision:
        """Decide on `asked` workers at once: those beyond the limit have to wait for the others."""
        if asked <= self.children:
            return Decision("allow", "fan_out_limit")
        return Decision(
            "deny",
            "fan_out_limit",
            f"{asked} workers were asked for at once; {self.children} are allowed",
            "cost_overrun",
            {"asked": asked, "limit": self.children},
        )

    def ask(self, asked: int, earlier: int, grants: int = 1) -> Decision:
        """Decide on `asked` workers in turn, after `earlier` of them for the same input.

        For grants see `StepLimit.check`.
        """
        room = self.room(earlier, grants)
        if room is None or asked <= room:
            return Decision("allow", "fan_out_limit")
        limit = 0 if not self.children else (self.total or 0) * grants
        return Decision(
            "deny",
            "fan_out_limit",
            f"{asked} workers were asked for after {earlier} others; {limit} are allowed for one "
            "input: do the rest of the work here",
            "cost_overrun",
            {"asked": asked, "made": earlier, "limit": limit},
        )

    def room(self, earlier: int, grants: int = 1) -> int | None:
        """Return how many more workers may begin after `earlier` of them, None without a limit."""
        if not self.children:
            return 0
        return None if self.total is None else max(0, self.total * grants - earlier)


@dataclass(slots=True)
class ReplanLimit(BuiltInGuard):
    """Allow a number of new plans per stage and run, none of them equal to an earlier one."""

    setting = "replans"
    summary = "ReplanLimit(1): how many new plans in a stage"
    short_form = "how many new plans, 0 or more"
    is_removable = False
    comes_with_tier = True

    replans: int = 2
    _counts: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """How many new plans were allowed, by stage."""
    _plans: dict[str, list[str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The digests of the plans, by stage, the last one last."""

    def __post_init__(self) -> None:
        _require_whole(self.replans, 0, f"ReplanLimit({self.replans!r}): give 0 or more")

    @classmethod
    def of_tier(cls, tier: Tier) -> Self:
        """Return the limit of a tier: one new plan in `interactive`, two in the others."""
        return cls(1 if tier == "interactive" else 2)

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the limit of so many new plans."""
        return cls(value) if is_whole(value) else None

    def tighter(self, outer: Self) -> Self:
        return min(self, outer, key=lambda limit: limit.replans)

    def ask(self, stage: str, plan: object = None) -> Decision:
        """Decide on one more plan for a stage, and count it before it runs.

        `plan` is the failed plan, or the next one; a caller always passes the same of the two. A
        plan that is equal to an earlier one is no progress: the decision is to escalate.
        """
        count = self._counts.get(stage, 0)
        evidence: dict[str, object] = {"stage": stage, "made": count, "limit": self.replans}
        if plan is not None and not self._is_new(stage, plan):
            cause = (
                f"the plan of {stage!r} is one that was tried already: another try changes nothing"
            )
            return _escalation(cause, "no_progress", evidence)
        if count >= self.replans:
            cause = f"{stage!r} was planned anew {count} times; {self.replans} are allowed"
            return _escalation(cause, "", evidence)
        self._counts[stage] = count + 1
        cause = f"{stage!r} is planned anew: {count + 1} of {self.replans}"
        return Decision("replan", "replan_limit", cause, "", {**evidence, "made": count + 1})

    def _is_new(self, stage: str, plan: object) -> bool:
        """Remember a plan; return whether it is new for the stage."""
        plans = self._plans.setdefault(stage, [])
        plan_digest = digest(plan)[:32]
        if plan_digest in plans:
            return False
        plans.append(plan_digest)
        del plans[:-_MAX_PLANS]
        return True

    def fresh(self) -> Self:
        """Return the same limit for another run."""
        return replace(self)

    def dump(self) -> dict[str, object]:
        """Return the memory as JSON-able values."""
        plans = {stage: list(digests) for stage, digests in self._plans.items()}
        return {"made": dict(self._counts), "plans": plans}

    def load(self, state: Mapping[str, object]) -> None:
        """Restore the memory from what `dump` returned."""
        self._counts = dict(cast(Mapping[str, int], state.get("made", {})))
        plans = cast(Mapping[str, Sequence[str]], state.get("plans", {}))
        self._plans = {stage: list(digests) for stage, digests in plans.items()}


def _mask_of(text: str) -> int:
    # Not `hash`, which differs from process to process. Strict UTF-8 cannot write half of a
    # surrogate pair.
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    mask = 0
    for at in range(_BITS_PER_RESULT):
        mask |= 1 << int.from_bytes(digest[4 * at : 4 * at + 4]) % _BITS
    return mask


def _escalation(
    cause: str, failure: FailureClass | Literal[""], evidence: Mapping[str, object]
) -> Decision:
    return Decision("escalate", "replan_limit", cause, failure, evidence)


def _require_whole(value: object, least: int, fault: str) -> None:
    if not is_whole(value, least):
        raise ConfigurationError(fault)
