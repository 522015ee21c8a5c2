"""The account of one outside input: the counts, memories and decisions of all its agents so far.

The parallel branches of a run share one account in their process, see `registry`, and each node
that ends writes the whole account into the graph's state. Its versions are numbered: the later one
of two versions contains everything that the earlier one has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, Self, TypeVar
from weakref import WeakSet

from agentgraph.clock import clock
from agentgraph.guards.decision import Decision
from agentgraph.guards.guard import Memories
from agentgraph.guards.mechanisms.breaker import CircuitBreaker
from agentgraph.guards.mechanisms.deadlines import Deadline, Deadlines
from agentgraph.guards.mechanisms.deadlock import DeadlockMonitor
from agentgraph.guards.mechanisms.effects import Effect
from agentgraph.guards.mechanisms.limits import STEP_ALLOWED, Progress, ReplanLimit
from agentgraph.guards.mechanisms.loop import LoopDetector
from agentgraph.guards.mechanisms.saga import Saga
from agentgraph.guards.mechanisms.spending.budget import Spend
from agentgraph.guards.mechanisms.spending.estimates import Estimates
from agentgraph.guards.mechanisms.spending.input_spend import InputSpend
from agentgraph.guards.mechanisms.velocity import CostVelocity
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.effect_log import EffectLog
from agentgraph.guards.records.pending_writes import ActionsInFlight

ANYWHERE = ""
"""The visit key for decisions on the whole run."""
BY_VISIT = ("corrections", "tries")
"""The attributes stored without conversion, by visit to an agent."""
BY_PATH: Mapping[str, int | None] = {"loops": 64, "replans": None}
"""The memories by path, and how many of each are stored: a run may make any number of visits."""
_PLAIN: Mapping[str, str] = {
    "round": "round",
    "closed": "closed_by",
    "approvals": "approvals",
    **{name: name for name in BY_VISIT},
}
"""The attributes stored without conversion: stored name and attribute."""
_OWN_MEMORIES: Mapping[str, str] = {"moved": "hop_count", "deadlock": "deadlock"}
"""The memories that an inner account does not share with its parent: stored name and attribute."""
_ENCLOSED_MEMORIES: Mapping[str, str] = {**_OWN_MEMORIES, "saga": "saga"}
_MEMORIES: Mapping[str, str] = {**_OWN_MEMORIES, "velocity": "velocity", "saga": "saga"}

Snapshot = Mapping[str, Any]
"""An account as JSON-able values."""


class _Memory(Protocol):
    def fresh(self) -> Self: ...
    def dump(self) -> dict[str, object]: ...
    def load(self, values: Mapping[str, object]) -> None: ...


M = TypeVar("M", bound=_Memory)


class Encloses(Protocol):
    """The tool call in which a run has begun."""

    def policy_of(self, policy: Policy, account: Account) -> Policy:
        """Return a policy inside of that of the tool's agent."""
        ...


class RecordsAgents(Protocol):
    """The log of a session, which takes records of agents by their whole paths."""

    def act(self, agent: str, *, asks: bool) -> None:
        """Note that an agent acts, or asks its model."""
        ...

    async def write(self, agent: str, record: Mapping[str, object]) -> None:
        """Write a record of an agent; it is durable when this returns."""
        ...


@dataclass(slots=True)
class Tally:
    """A count from which a speaker's part of the current round can be removed."""

    before: int = 0
    """The count of earlier rounds."""
    now: dict[str, int] = field(default_factory=dict)
    """The count of this round, by speaker."""

    @property
    def total(self) -> int:
        """Return the whole count."""
        return self.before + sum(self.now.values())

    def count(self, speaker: str, times: int = 1) -> None:
        """Count one more, or several."""
        self.now[speaker] = self.now.get(speaker, 0) + times

    def take_back(self, speaker: str) -> None:
        """Remove the counts of a speaker in this round: its turn is run again."""
        self.now.pop(speaker, None)

    def dump(self) -> dict[str, object]:
        """Return the count as JSON-able values."""
        return {"before": self.before, "now": dict(self.now)}

    def load(self, values: Mapping[str, Any]) -> None:
        """Restore the count from what `dump` returned."""
        self.before, self.now = values.get("before", 0), dict(values.get("now", {}))


@dataclass(slots=True)
class RoundProgress:
    """The attempt at a session's round that an account is in, and its state before the round."""

    attempt: str = ""
    attempts_by_speaker: dict[str, str] = field(default_factory=dict)
    """The attempt at this round in which each speaker has begun."""
    before: Snapshot = field(default_factory=dict)


class Account:
    """The counts and memories of one outside input, or of an inner session that is part of one."""

    def __init__(self, policy: Policy, input_id: str) -> None:
        self.policy = policy
        self.input_id = input_id
        self.run_id = input_id
        """The id of the outside input; an inner session's account has that of its parent."""
        self.parent: Account | None = None
        """The account of the input that an inner session works for."""
        self.path_prefix = ""
        """The path of an inner session, with a slash at the end."""
        self._children: WeakSet[Account] = WeakSet()
        self._inner_deadlines: dict[str, Deadline] = {}
        """The deadlines of inner sessions: one that runs again gets no more time."""
        self._memories = _MEMORIES
        self.level = 0
        """The level of the agent in whose tree this account's agents are, 0 where there is none."""
        self.enclosure: Encloses | None = None
        """The tool call in which its run has begun, None for an outside input's own account."""
        self.inner_policies: dict[Policy, Policy] = {}
        """The policies of its agents inside of that of the tool's agent."""
        self.outer_ledger: RecordsAgents | None = None
        """The log of the session around that tool."""
        self.effects: dict[str, Effect] = {}
        """How the actions of runs that began in tools are undone, by path and tool."""

        self.version = 0
        self.base: Snapshot = {}
        """The snapshot of another process from which this one goes on."""
        self.snapshot: Snapshot = {}
        """The snapshot that was written last."""
        self.may_ask = False
        """Whether some level may have asked a human, or deferred an answer."""
        self.caught_up: set[tuple[str, str]] = set()
        """The levels whose pauses were read, each with the run that read them."""
        self.catch_up_lock = asyncio.Lock()
        """Acquired while a level's pause is read."""

        self.deadline: Deadline | None = policy.deadlines.workflow()
        self.seen_at = clock().wall()
        """When it was last written."""
        self._free_until = 0.0
        """The instant up to which pauses were left out of the deadline."""
        self._resumed_by = ""

        self.closed_by = ""
        """The guard that has ended it."""
        self.closed_because = ""
        """Why it has, "" where another process made the decision."""
        self.is_rolling_back = False
        """Whether what was done in it is being undone."""
        self.in_flight = ActionsInFlight()
        self.has_acted = False
        """Whether an action has changed the world and is not stored yet."""
        self.effect_log: EffectLog | None = None
        """The effect log of its thread, None in a session and where nothing is stored."""
        self.undo_lock = asyncio.Lock()
        """Acquired while an action is undone."""

        self.hop_count = Tally()
        self.spending = InputSpend()
        self.progresses: tuple[Progress, ...] = (self.spending.progress,)
        """The progress of the whole input, and of each run in a tool that this is a part of."""
        self._spends: dict[Policy, list[Spend]] = {}
        self.estimates = Estimates()
        self.loops: dict[str, LoopDetector] = {}
        self.deadlock: DeadlockMonitor | None = policy.deadlock and policy.deadlock.fresh()
        self.velocity: CostVelocity | None = policy.velocity and policy.velocity.fresh()
        self.replans: dict[str, ReplanLimit] = {}
        self.saga: Saga | None = policy.saga and policy.saga.fresh()
        self._extra: Memories | None = None
        """What users' guards remember of the whole input; a part has that of the whole."""
        self.record_count = 0
        """How many records these have folded in this process."""
        self.recalled_levels: set[str] = set()
        """The levels at which the memories of a killed process were read."""
        self.throttles: dict[str, CircuitBreaker] = {}
        """The breakers that stop only this input from models on which it has spent too fast."""
        self.pending: dict[str, list[Decision]] = {}
        """The decisions that wait for a node that can act on them, by visit."""
        self.corrections: dict[str, list[str]] = {}
        """The corrections that the model gets with its next call, by visit."""
        self.tries: dict[str, int] = {}
        """How often each stage was corrected."""
        self.approvals: dict[str, dict[str, Any]] = {}
        """The answers of humans on tool calls that have not run yet, by the keys of the calls."""
        self.input_gates: list[object] = []
        """The gates that have let this input pass; another process asks them again."""
        self.round = 0
        self.progress = RoundProgress()

    def inner_deadline(self, name: str, deadlines: Deadlines) -> Deadline | None:
        """Return the deadline of an inner session, the same however often the session begins."""
        if name not in self._inner_deadlines and (deadline := deadlines.workflow()) is not None:
            self._inner_deadlines[name] = deadline
        return self._inner_deadlines.get(name)

    def join(self, parent: Account, part: str, session: str, deadline: Deadline | None) -> None:
        """Become a part of another account: what an inner session does counts in both.

        Both are under the same policy; only the deadline of the inner one may be earlier.
        """
        self._share(parent, f"{part}/", session, deadline)
        self.undo_lock = parent.undo_lock
        self.level = parent.level + part.count("/") + 1
        self.enclosure, self.outer_ledger = parent.enclosure, parent.outer_ledger
        self.progresses = parent.progresses
        self._memories = _OWN_MEMORIES

    def enclose(
        self,
        enclosure: Encloses,
        parent: Account,
        part: str,
        level: int,
        deadline: Deadline | None,
    ) -> None:
        """Become a part of the account of a tool's agent: the run has begun in that tool.

        The run is stored with its own graph, and may go on from there: so its actions are stored
        there too.
        """
        saga = parent.saga
        outer_session = "" if saga is None else saga.session
        self._share(parent, part, f"{outer_session}/{self.input_id}".lstrip("/"), deadline)
        self.level, self.enclosure = level, enclosure
        self.progresses = (*parent.progresses, Progress())
        self._memories = _ENCLOSED_MEMORIES

    def _share(self, parent: Account, part: str, session: str, deadline: Deadline | None) -> None:
        self.parent, self.run_id = parent, parent.run_id
        self.path_prefix = f"{parent.path_prefix}{part}"
        self.spending, self.velocity = parent.spending, parent.velocity
        self._spends = {}
        parent._children.add(self)
        deadlines = [limit for limit in (parent.deadline, deadline) if limit is not None]
        self.deadline = deadlines[0].shorter(deadlines[-1]) if deadlines else None
        if self.saga is not None and parent.saga is not None:
            self.saga = self.saga.inside(parent.saga, self.path_prefix, session)

    def enclosed(self, policy: Policy) -> Policy:
        """Return the policy of one of its agents, inside of that of the tool's agent around it."""
        if self.enclosure is None:
            return policy
        if policy not in self.inner_policies:
            self.inner_policies[policy] = self.enclosure.policy_of(policy, self)
        return self.inner_policies[policy]

    def may_step(self, policy: Policy) -> Decision:
        """Decide by the step limits on one more model call."""
        if (limit := policy.steps) is not None:
            decision = limit.ask(self.spending.progress, self.spending.grants)
            if not decision.allows:
                return decision
        for limit, progress in policy.run_limits:
            if not (decision := limit.ask(progress, self.spending.grants)).allows:
                return decision
        return STEP_ALLOWED

    def step(self) -> None:
        """Count one more model call."""
        for progress in self.progresses:
            progress.steps += 1

    def learn(self, result: object, question: str = "") -> None:
        """Note an answer to a question: a new one begins the counts of model calls anew."""
        for progress in self.progresses:
            progress.learn(result, question)

    @property
    def root(self) -> Account:
        """Return the account of the whole input."""
        return self if self.parent is None else self.parent.root

    @property
    def extra(self) -> Memories:
        """Return what the guards that users have brought remember of the whole input."""
        root = self.root
        if root._extra is None:
            root._extra = Memories()
        return root._extra

    @property
    def steps(self) -> int:
        """Return the number of model calls on all levels."""
        return self.spending.progress.steps

    @property
    def hops(self) -> int:
        """Return the number of handoffs that models made, here and on all levels above."""
        return self.hop_count.total + (0 if self.parent is None else self.parent.hops)

    @property
    def ended_by(self) -> str:
        """Return the guard that has ended this account's input, or an outer account's; else ""."""
        return self.closed_by or ("" if self.parent is None else self.parent.ended_by)

    @property
    def is_undoing(self) -> bool:
        """Tell whether actions are being undone: then nothing else runs any more."""
        return self.is_rolling_back or (self.parent is not None and self.parent.is_undoing)

    @property
    def undone_by(self) -> str:
        """Return the guard that has ended its input and has it undone, "" without one."""
        return self.ended_by if self.is_rolling_back else ""

    @property
    def unbegun_keys(self) -> Collection[str]:
        """Return the actions that are registered and have not begun."""
        return self.in_flight.registered_keys

    async def log_effects(self) -> None:
        """Write the actions of the whole input to the log of its thread, if it has one."""
        root = self.root
        if root.effect_log is not None:
            await root.effect_log.write(root)

    @property
    def waits_with_actions(self) -> bool:
        """Tell whether actions wait for a human, or have not begun."""
        has_questions = self.saga is not None and self.saga.waits_for_any
        return has_questions or bool(self.in_flight.registered_keys)

    def loop(self, visit: str, detector: LoopDetector) -> LoopDetector:
        """Return the loop detector of one visit; parallel visits have separate windows."""
        memory = self._memory("loops", self.loops, visit, detector)
        self.loops[visit] = self.loops.pop(visit)  # to the end: the last ones are stored
        return memory

    def replan_limit(self, path: str, limit: ReplanLimit) -> ReplanLimit:
        """Return the counting limit on new plans of one stage."""
        return self._memory("replans", self.replans, path, limit)

    def _memory(self, name: str, memories: dict[str, M], path: str, kind: M) -> M:
        if path not in memories:
            memories[path] = kind.fresh()
            if base := self.base.get(name, {}).get(path):
                memories[path].load(base)
        return memories[path]

    def spends_under(self, policy: Policy) -> list[Spend]:
        """Return the spends that pay for calls under a policy: the run's, then the inner ones."""
        spends = self._spends.get(policy)
        if spends is None:
            spends = [self.spending.spend(name, budget) for name, budget in policy.budgets]
            self._spends[policy] = spends
        return spends

    def postpone(self, visit: str, decision: Decision) -> None:
        """Leave a decision to the next node of a visit that can act on it."""
        self.pending.setdefault(visit, []).append(decision)

    def take_pending(self, visit: str) -> Decision | None:
        """Remove and return the next decision that waits for this visit, or for any visit."""
        for key in (visit, ANYWHERE):
            if decisions := self.pending.get(key):
                decision = decisions.pop(0)
                if not decisions:
                    del self.pending[key]
                return decision
        return None

    def correct(self, visit: str, text: str) -> None:
        """Add a text to the next call of a visit's model."""
        self.corrections.setdefault(visit, []).append(text)

    def begin(self, at: float) -> None:
        """Set the deadline from the arrival of the input, so that a slow prompt counts too."""
        if self.deadline is not None:
            self.deadline = self.deadline.shifted(min(0.0, at - self.seen_at))

    def suspend(self, since: float) -> None:
        """Move the deadline by the time since `since`, in which a human was asked."""
        for child in self._children:
            child.suspend(since)
        now = clock().wall()
        # Where two levels wait at the same time, that time counts once.
        since, self._free_until = max(since, self._free_until), now
        if self.deadline is not None:
            self.deadline = self.deadline.shifted(max(0.0, now - since))

    def resume(self, run_id: str) -> None:
        """Go on after a human's decision: the deadline moves by the time since the last write."""
        if self._resumed_by != run_id:
            self._resumed_by = run_id
            self.suspend(self.seen_at)

    def dump(self) -> dict[str, Any]:
        """Return the account as JSON-able values, as its next version."""
        self.version += 1
        self.has_acted = False
        self._see(clock().wall())
        values: dict[str, Any] = {
            "input": self.input_id,
            "version": self.version,
            "seen_at": self.seen_at,
            "spends": self.spending.dump(),
            **self.spending.progress.dump(),
            "granted": self.spending.grants,
        }
        if tool_calls := self.spending.tool_calls.dump():
            values["called"] = tool_calls
        if self.enclosure is not None:  # its own steps, beside those of the whole input
            values["own"] = self.progresses[-1].dump()
        self._dump_memories(values)
        for name, attribute in _PLAIN.items():
            if value := getattr(self, attribute):
                values[name] = deepcopy(value) if isinstance(value, dict) else value
        if (extra := self.root._extra) is not None:
            values["extra"] = extra.dump()
        if self.deadline is not None:
            values["deadline"] = self.deadline.at
        if self.pending:
            values["pending"] = {
                visit: [decision.to_dict() for decision in decisions]
                for visit, decisions in self.pending.items()
            }
        self.snapshot = values
        return values

    def _see(self, now: float) -> None:
        self.seen_at = now
        if self.parent is not None:  # the parent is at work as long as its parts are
            self.parent._see(now)

    def _dump_memories(self, values: dict[str, Any]) -> None:
        for name, attribute in self._memories.items():
            memory = getattr(self, attribute)
            if memory is not None and any((memory_values := memory.dump()).values()):
                values[name] = memory_values
        for name, most in BY_PATH.items():
            memories, base = getattr(self, name), self.base.get(name)
            if memories or base:
                values[name] = _dump_paths(memories, base or {}, most)

    def balance(self) -> dict[str, Any]:
        """Return the counts that another process must not begin anew for this input."""
        values: dict[str, Any] = {
            **self.spending.progress.counts(),
            "spends": self.spending.dump(),
        }
        if tool_calls := self.spending.tool_calls.dump():
            values["called"] = tool_calls
        if self.spending.grants > 1:
            values["granted"] = self.spending.grants
        if (extra := self.root._extra) is not None:
            values["extra"] = extra.dump()
        if self.deadline is not None:
            values["deadline"] = self.deadline.at
        return values

    def merge(self, snapshot: Snapshot) -> None:
        """Merge what another branch or process has written, unless it is known already."""
        if snapshot["version"] > self.version:
            self.load(snapshot)
        elif self.saga is not None and "saga" in snapshot:
            # Two processes may have used the same version numbers: a lower version may contain
            # actions that are not known here.
            entries, other_entries = self.saga.dump(), snapshot["saga"]
            if entries != other_entries:
                self.saga.absorb(other_entries)
        self.spending.merge(snapshot.get("spends", {}))
        if "extra" in snapshot:
            self.extra.merge(snapshot["extra"])

    def absorb(self, part: Snapshot) -> None:
        """Add what a part of it has spent and done, as any process has stored it."""
        self.spending.merge(part.get("spends", {}))
        if self.saga is not None and "saga" in part:
            self.saga.absorb(part["saga"])

    def load(self, snapshot: Snapshot) -> None:
        """Restore the account from what another process has written."""
        self.may_ask = True
        self.version = snapshot.get("version", 0)
        self.seen_at = snapshot.get("seen_at", self.seen_at)
        self.load_counts(snapshot)
        if self.enclosure is not None and "own" in snapshot:
            self.progresses[-1].merge(snapshot["own"], is_latest=True)
        for name, attribute in _PLAIN.items():
            if name in snapshot:
                setattr(self, attribute, deepcopy(snapshot[name]))
        for name, attribute in self._memories.items():
            memory = getattr(self, attribute)
            if memory is not None:
                values = snapshot.get(name, {})
                if isinstance(memory, Saga):
                    memory.absorb(values)
                else:
                    memory.load(values)
        self.base = self.snapshot = snapshot
        if "deadline" in snapshot:
            # The snapshot was written before the pause that this level now comes out of.
            paused_s = max(0.0, self._free_until - self.seen_at)
            self.deadline = Deadline(snapshot["deadline"] + paused_s, "workflow")
        self.pending |= pending_of(snapshot)

    def load_counts(self, counts: Mapping[str, Any]) -> None:
        """Adopt the progress and the grants that another process has counted."""
        spending = self.spending
        if "extra" in counts:
            self.extra.merge(counts["extra"])
        if "called" in counts:
            spending.tool_calls.merge(counts["called"])
        spending.progress.merge(counts, is_latest=self.parent is None)
        spending.grants = max(spending.grants, counts.get("granted", 1))


_ADMITTED = "admitted"


def admit(account: Account, path: str) -> None:
    """Let an agent be asked in this input although its breaker is open: a human has decided so."""
    account.tries[f"{path}#{_ADMITTED}"] = 1


def account_admits(account: Account, path: str) -> bool:
    """Tell whether a human lets an agent be asked although its breaker is open."""
    return bool(account.tries) and f"{path}#{_ADMITTED}" in account.tries


def pending_of(snapshot: Snapshot) -> dict[str, list[Decision]]:
    """Return the decisions in an account's snapshot that still wait for a node, by visit."""
    pending = snapshot.get("pending", {})
    return {
        visit: [Decision(**values) for values in decisions] for visit, decisions in pending.items()
    }


def _dump_paths(
    memories: dict[str, _Memory], base: dict[str, Any], most: int | None
) -> dict[str, Any]:
    """Dump memories by path; if there are more than `most`, the ones used last."""
    if len(memories) == 1 and base.keys() <= memories.keys():
        return {path: memory.dump() for path, memory in memories.items()}
    used_last = islice(reversed(memories.items()), most)
    values_by_path = {path: memory.dump() for path, memory in used_last}
    older = ((path, value) for path, value in reversed(base.items()) if path not in memories)
    room = None if most is None else most - len(values_by_path)
    return dict(reversed((values_by_path | dict(islice(older, room))).items()))
