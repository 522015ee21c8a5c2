"""What one outside input has used and met so far: one account for all levels of its run.

The parallel branches of a run share it in their process, see `accounts`, and each node that ends
writes the whole of it into the graph's state. It numbers its versions: of two that meet, the later
one has all that the other has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar
from weakref import WeakSet

from agentgraph.clock import clock
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.breaker import CircuitBreaker
from agentgraph.guards.mechanisms.deadlines import Deadline, Deadlines
from agentgraph.guards.mechanisms.deadlock import DeadlockMonitor
from agentgraph.guards.mechanisms.limits import ReplanLimit
from agentgraph.guards.mechanisms.loop import LoopDetector
from agentgraph.guards.mechanisms.saga import Saga
from agentgraph.guards.mechanisms.saga_entry import merge_entries
from agentgraph.guards.mechanisms.spending.budget import Spend
from agentgraph.guards.mechanisms.spending.estimates import Estimates
from agentgraph.guards.mechanisms.spending.input_spend import InputSpend
from agentgraph.guards.mechanisms.velocity import CostVelocity
from agentgraph.guards.place import Place
from agentgraph.guards.records.channel import BY_PATH, BY_SPOT, Dumped, decisions_of
from agentgraph.guards.records.pending_writes import Underway
from agentgraph.guards.records.rounds import Rounds, Tally

if TYPE_CHECKING:
    from agentgraph.guards.policy import Guards


ANYWHERE = ""
"""The spot of what concerns the whole run."""


class _Memory(Protocol):
    def fresh(self) -> Self: ...
    def dump(self) -> dict[str, object]: ...
    def load(self, dumped: Mapping[str, object]) -> None: ...


M = TypeVar("M", bound=_Memory)


class Account:
    """The counts and memories of one outside input."""

    def __init__(self, policy: Guards, input_id: str) -> None:
        self.policy = policy
        self.stored: Dumped = {}
        """What another process has written that this one goes on from."""
        self.input_id = input_id
        self.version = 0
        self.run_id = input_id
        """The outside input that it is of, or is a part of."""
        self.around: Account | None = None
        """The account of what it is a part of."""
        self.part = ""
        """Where in the whole it is, with a slash behind it."""
        self._parts: WeakSet[Account] = WeakSet()
        self._times: dict[str, Deadline] = {}
        """The deadlines that parts of it have by themselves: to try again is no ground for more."""
        self._memories: tuple[str, ...] = _MEMORIES
        self.may_ask = False
        """Whether a human may have been asked, or an answer held back, at some level."""
        self.caught_up: set[tuple[str, str]] = set()
        """The levels of whose graphs it is known where they have paused, and in which run."""
        self.catching_up = asyncio.Lock()
        """Held while that is read."""
        self.moved = Tally()
        self.closed = ""
        """The guard that has ended it."""
        self.is_rolling_back = False
        """Whether what was done in it is being undone."""
        self.deadline: Deadline | None = policy.deadlines.workflow()
        self.seen_at = clock().wall()
        """When it was last written down."""
        self._free_until = 0.0
        """Up to when its time was left out of the deadline."""
        self._resumed_by = ""
        self.spending = InputSpend()
        self._spends: dict[Guards, list[Spend]] = {}
        self.estimates = Estimates()
        self.loops: dict[str, LoopDetector] = {}
        self.deadlock: DeadlockMonitor | None = policy.deadlock and policy.deadlock.fresh()
        self.velocity: CostVelocity | None = policy.velocity and policy.velocity.fresh()
        self.replans: dict[str, ReplanLimit] = {}
        self.saga: Saga | None = policy.saga and policy.saga.fresh()
        self.pending: dict[str, list[Decision]] = {}
        """What was decided where nobody could act on it, by the spot that is to."""
        self.corrections: dict[str, list[str]] = {}
        self.tries: dict[str, int] = {}
        """How often each stage has been told to try again."""
        self.throttles: dict[str, CircuitBreaker] = {}
        """What keeps this input from models on which it has spent too fast, and no other input."""
        self.underway = Underway()
        self.has_acted = False
        """Whether something was done that changed the world, and is not written down yet."""
        self.undoing = asyncio.Lock()
        """Held while an action is undone."""
        self.round = 0
        self.rounds = Rounds()
        self.dumped: Dumped = {}
        """What was written down last."""

    def time_of(self, part: str, deadlines: Deadlines) -> Deadline | None:
        """Return when a part of it has to be done with, however often that is begun."""
        if part not in self._times and (deadline := deadlines.workflow()) is not None:
            self._times[part] = deadline
        return self._times.get(part)

    def join(self, around: Account, part: str, session: str, deadline: Deadline | None) -> None:
        """Become a part of another one: what a session inside of another does counts in both.

        They are under one policy, but that the inner one's deadline may be earlier.
        """
        self.around, self.run_id = around, around.run_id
        self.part = f"{around.part}{part}/"
        self.spending, self.velocity, self.undoing = (
            around.spending,
            around.velocity,
            around.undoing,
        )
        self._spends = {}
        around._parts.add(self)
        found = [one for one in (around.deadline, deadline) if one is not None]
        self.deadline = found[0].shorter(found[-1]) if found else None
        if self.saga is not None and around.saga is not None:
            self.saga = self.saga.inside(around.saga, self.part, session)
        self._memories = _OWN_MEMORIES

    @property
    def whole(self) -> Account:
        """Return the account of the whole input."""
        return self if self.around is None else self.around.whole

    @property
    def steps(self) -> int:
        """Return how many model calls were made, on all levels."""
        return self.spending.steps

    @property
    def granted(self) -> int:
        """Return how often the limits hold."""
        return self.spending.grants

    @property
    def hops(self) -> int:
        """Return how often models have handed the conversation over to peers, on all levels."""
        return self.moved.total + (0 if self.around is None else self.around.hops)

    @property
    def ended_by(self) -> str:
        """Name the guard that has ended it, or all that it is a part of; "" where none has."""
        return self.closed or ("" if self.around is None else self.around.ended_by)

    @property
    def is_undoing(self) -> bool:
        """Tell whether what was done is being undone: then nothing else is done any more."""
        return self.is_rolling_back or (self.around is not None and self.around.is_undoing)

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
            "steps": self.spending.steps,
            "granted": self.spending.grants,
        }
        self._tell_memories(values)
        for name in _KEPT:
            if value := getattr(self, name):
                values[name] = deepcopy(value) if isinstance(value, dict) else value
        if self.deadline is not None:
            values["deadline"] = self.deadline.at
        if self.pending:
            values["pending"] = {
                spot: [one.to_dict() for one in made] for spot, made in self.pending.items()
            }
        self.dumped = values
        return values

    def _see(self, now: float) -> None:
        self.seen_at = now
        if self.around is not None:  # which is at work as long as its parts are
            self.around._see(now)

    def _tell_memories(self, values: dict[str, Any]) -> None:
        """Add what its memories hold as JSON-able values, of each path or spot under its name."""
        for name in self._memories:
            memory = getattr(self, name)
            if memory is not None and any((told := memory.dump()).values()):
                values[name] = told
        for name, most in BY_PATH.items():
            known, stored = getattr(self, name), self.stored.get(name)
            if known or stored:
                values[name] = self._of_paths(known, stored or {}, most)

    def _of_paths(
        self, known: dict[str, _Memory], stored: dict[str, Any], most: int | None
    ) -> dict[str, Any]:
        """Return memories by path; of many visits, those that were at work last."""
        if len(known) == 1 and stored.keys() <= known.keys():
            return {path: one.dump() for path, one in known.items()}
        made = {path: one.dump() for path, one in islice(reversed(known.items()), most)}
        older = ((path, one) for path, one in reversed(stored.items()) if path not in known)
        left = None if most is None else most - len(made)
        return dict(reversed((made | dict(islice(older, left))).items()))

    def has_told(self, dumped: Dumped) -> bool:
        """Whether it is what this account has dumped last: there is nothing new in it."""
        return dumped is self.dumped

    def meet(self, dumped: Dumped) -> None:
        """Go on from what another branch or process has written, if it is not known already."""
        if dumped["version"] > self.version:
            self.load(dumped)
        elif self.saga is not None and "saga" in dumped:
            # Numbered side by side: what that has begun is not known here for all that.
            known, told = self.saga.dump(), dumped["saga"]
            if known != told:
                self.saga.load(merge_entries(known, told))
        self.spending.merge(dumped.get("spends", {}))

    def load(self, dumped: Dumped) -> None:
        """Go on from what another process has written."""
        self.may_ask = True
        self.version = dumped.get("version", 0)
        self.seen_at = dumped.get("seen_at", self.seen_at)
        self._meet_counts(dumped)
        for name in _KEPT:
            if name in dumped:
                setattr(self, name, deepcopy(dumped[name]))
        for name in self._memories:
            memory = getattr(self, name)
            if memory is not None:
                told = dumped.get(name, {})
                memory.load(merge_entries(memory.dump(), told) if name == "saga" else told)
        self.stored = self.dumped = dumped
        if "deadline" in dumped:
            # Of a level that is entered after a pause, which was not known to it.
            paused = max(0.0, self._free_until - self.seen_at)
            self.deadline = Deadline(dumped["deadline"] + paused, "workflow")
        self.pending |= decisions_of(dumped.get("pending", {}))

    def _meet_counts(self, known: Mapping[str, Any]) -> None:
        spending = self.spending
        spending.steps = max(spending.steps, known.get("steps", 0))
        spending.grants = max(spending.grants, known.get("granted", 1))

    def loop(self, spot: str, detector: LoopDetector) -> LoopDetector:
        """Return the loop detector of one run: parallel ones do not fill each other's windows."""
        found = self._memory("loops", self.loops, spot, detector)
        self.loops[spot] = self.loops.pop(spot)  # the last one is the one that was used last
        return found

    def pend(self, spot: str, decision: Decision) -> None:
        """Leave a decision to the next node there that can act."""
        self.pending.setdefault(spot, []).append(decision)

    def take_pending(self, spot: str) -> Decision | None:
        """Return the next decision that was left to a spot, or to whichever comes first, once."""
        for place in (spot, ANYWHERE):
            if left := self.pending.get(place):
                decision = left.pop(0)
                if not left:
                    del self.pending[place]
                return decision
        return None

    def replan_limit(self, path: str, limit: ReplanLimit) -> ReplanLimit:
        """Return how often one stage has been planned anew."""
        return self._memory("replans", self.replans, path, limit)

    def _memory(self, name: str, known: dict[str, M], path: str, kind: M) -> M:
        if path not in known:
            known[path] = kind.fresh()
            if stored := self.stored.get(name, {}).get(path):
                known[path].load(stored)
        return known[path]

    def spends_under(self, policy: Guards) -> list[Spend]:
        """Return from what calls under a policy are paid: the run's account, then inner ones."""
        found = self._spends.get(policy)
        if found is None:
            found = [self.spending.spend(name, budget) for name, budget in policy.budgets]
            self._spends[policy] = found
        return found

    def reconcile(self, known: Mapping[str, Any], speaker: str) -> None:
        """Go on from what the log of a session has of this input."""
        # It has what others did; what a speaker does in its round is not in it before the end.
        own = self.moved.now.get(speaker)
        self.moved = Tally(known.get("hops", 0), {speaker: own} if own else {})
        logged = known.get("account", {})
        self._meet_counts(logged)
        if "deadline" in logged:
            known_at = self.deadline.at if self.stored and self.deadline is not None else 0
            self.deadline = Deadline(max(known_at, logged["deadline"]), "workflow")
        self.spending.reconcile(
            logged.get("spends", {}), known.get("held", {}), known.get("dead", 0)
        )
        if self.saga is not None and known.get("effects"):
            effects = {"entries": known["effects"]}
            self.saga.load(merge_entries(self.saga.dump(), effects))

    def balance(self) -> dict[str, Any]:
        """Return what must not be counted anew where the input goes on elsewhere."""
        values: dict[str, Any] = {"steps": self.steps, "spends": self.spending.dump()}
        if self.granted > 1:
            values["granted"] = self.granted
        if self.deadline is not None:
            values["deadline"] = self.deadline.at
        return values

    @property
    def waits_with_actions(self) -> bool:
        """Tell whether actions wait for a human, or have not begun."""
        waits = self.saga is not None and self.saga.waits_for_any
        return waits or bool(self.underway.registered)

    def correct(self, spot: str, text: str) -> None:
        """Have an agent's model told something with its next call."""
        self.corrections.setdefault(spot, []).append(text)

    def begin(self, at: float) -> None:
        """Count the deadline from when the input came: a prompt that takes long is in it too."""
        if self.deadline is not None:
            self.deadline = self.deadline.shifted(min(0.0, at - self.seen_at))

    def suspend(self, since: float) -> None:
        """Leave the time in which a human has thought out of the deadline."""
        for part in self._parts:
            part.suspend(since)
        now = clock().wall()
        since, self._free_until = max(since, self._free_until), now
        if self.deadline is not None:
            self.deadline = self.deadline.shifted(max(0.0, now - since))

    def resume(self, run_id: str) -> None:
        """Go on after a human's decision: the time since the run was last at work is theirs."""
        if self._resumed_by != run_id:
            self._resumed_by = run_id
            self.suspend(self.seen_at)

    def grant(self, place: Place) -> None:
        """Grant the limits once more: a human has looked at an agent and lets the run go on.

        What was decided on other agents stands, unless a limit that is granted was the ground.
        """
        self.spending.grant()
        level: Account | None = self
        while level is not None:
            level._begin_limits()
            level = level.around
        for spot in (place.spot, ANYWHERE):
            self.pending.pop(spot, None)
        self.replans.pop(place.path, None)
        planned = self.stored.get("replans", {})
        others = {path: one for path, one in planned.items() if path != place.path}
        self.stored = {**self.stored, "replans": others}
        own = f"{place.path}#"
        self.tries = {name: made for name, made in self.tries.items() if not name.startswith(own)}

    def _begin_limits(self) -> None:
        """Begin anew with what holds for all of it."""
        for spot, left in list(self.pending.items()):
            self.pending[spot] = [one for one in left if one.failure_class != "cost_overrun"]
            if not self.pending[spot]:
                del self.pending[spot]
        self.deadline = self.policy.deadlines.workflow()
        self.throttles.clear()
        if self.deadlock is not None:
            self.deadlock = self.deadlock.fresh()
        if self.velocity is not None:
            self.velocity.forget()


_KEPT = ("round", "closed", *BY_SPOT)
_OWN_MEMORIES = ("moved", "deadlock")
"""Those that a part of another account does not share with it."""
_MEMORIES = (*_OWN_MEMORIES, "velocity", "saga")
