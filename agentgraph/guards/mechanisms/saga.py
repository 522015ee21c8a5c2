"""What changed the world in a run, and how it is undone: last things first."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self, TypeAlias

from pydantic_core import to_json

from agentgraph.clock import clock
from agentgraph.errors import AgentGraphError, ConfigurationError, kind_of
from agentgraph.guards.decision import Action, Decision, FailureClass
from agentgraph.guards.mechanisms.canonical import exact_digest
from agentgraph.guards.mechanisms.deadlines import is_finite
from agentgraph.guards.mechanisms.saga_entry import Entry, EntryState, entries_of, rank

_OPEN = frozenset({"started", "waiting", "done"})
_BEGINS_AGAIN = frozenset({"waiting", "failed"})
_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 20.0


@dataclass(frozen=True, slots=True)
class Begun:
    """What is to become of an action that wants to begin."""

    kind: Literal["run", "replay", "unknown", "conflict", "refused"]
    decision: Decision
    entry: Entry | None = None

    @property
    def result(self) -> object:
        """Return what the action has returned before."""
        return None if self.entry is None else self.entry.result


Undo: TypeAlias = Callable[[Entry], Awaitable[object]]


@dataclass(slots=True, eq=False)
class Saga:
    """Remember each action under its key, so that none is done twice and each can be undone.

    It never forgets one, so that what it remembers is bounded by `limit`: the action after that is
    refused. `grace_s` is the time in which failed compensations are tried again; it starts with the
    roll-back, whatever deadline has passed before.
    """

    retries: int = 2
    grace_s: float = 60.0
    limit: int = 1_000
    _entries: dict[str, Entry] = field(default_factory=dict, init=False, repr=False)
    _told: dict[str, dict[str, object]] = field(default_factory=dict, init=False, repr=False)
    """The entries as they are dumped: what has not changed is not told anew."""
    _part: str = field(default="", init=False, repr=False)
    """Where in the whole it is at work, with a slash behind it."""
    _session: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        faults = []
        if not _is_whole(self.retries) or self.retries < 0:
            faults.append(f"Saga(retries={self.retries!r}): give 0 or more")
        if not is_finite(self.grace_s) or self.grace_s < 0:
            faults.append(f"Saga(grace_s={self.grace_s!r}): give 0 seconds or more")
        if not _is_whole(self.limit) or self.limit < 1:
            faults.append(f"Saga(limit={self.limit!r}): give a whole number above 0")
        if faults:
            raise ConfigurationError(faults)

    def fresh(self) -> Self:
        """Return one of the same configuration that remembers nothing."""
        return type(self)(self.retries, self.grace_s, self.limit)

    def inside(self, outer: Saga, part: str, session: str) -> Self:
        """Return one of the same configuration for an inner session, which adds to an outer one.

        `part` is what the names of all that it does begin with. It plans to undo only what was
        done in that session; the outer one undoes that as well.
        """
        inner = self.fresh()
        inner._entries, inner._told = outer._entries, outer._told
        inner._part, inner._session = part, session
        return inner

    def local(self, tool: str) -> str:
        """Return what a tool is called where it is at work."""
        return tool.removeprefix(self._part)

    def dump(self) -> dict[str, object]:
        """Return what it remembers as JSON-able values."""
        return {"entries": dict(self._told)}

    def load(self, dumped: Mapping[str, object]) -> None:
        """Remember what another has dumped, and nothing else."""
        known = entries_of(dumped)
        for kept in (self._entries, self._told):  # which those inside of it share
            kept.clear()
        for entry in known.values():
            self._remember(entry)

    def begin(self, *, key: str, tool: str, args: Mapping[str, object], compensates: bool) -> Begun:
        """Register an action before it runs, or say why it must not run (again)."""
        given = _plain(args)
        if not isinstance(given, dict):
            given = dict(args)
        tool = f"{self._part}{tool}"
        digest = exact_digest([tool, given])
        known = self._entries.get(key)
        if known is not None and known.input_hash != digest:
            return _conflict(known, tool)
        if known is not None and known.state not in _BEGINS_AGAIN:
            return _again(known)
        if known is None and len(self._entries) >= self.limit:
            cause = f"{tool} is the action after the last of {self.limit} that a run may register"
            evidence = {"tool": tool, "key": key, "limit": self.limit}
            return Begun("refused", _decision("escalate", cause, evidence))
        number = max((entry.number for entry in self._entries.values()), default=0) + 1
        tries = 1 if known is None else known.tries + 1
        entry = Entry(
            number,
            key,
            tool,
            given,
            digest,
            compensates=compensates,
            tries=tries,
            session=self._session,
        )
        self._remember(entry)
        return Begun("run", Decision("allow", "saga"), entry)

    def done(self, key: str, result: object, beside: Mapping[str, object] | None = None) -> Entry:
        """Note that an action has come to its end, with what result, and what that leads to."""
        given = _plain(beside or {})
        return self._move(key, "done", _plain(result), given if isinstance(given, dict) else {})

    def waits(self, key: str) -> Entry:
        """Note that an action asks a human first: it begins again once that is decided."""
        return self._move(key, "waiting")

    def is_waiting(self, key: str) -> bool:
        """Tell whether an action has asked a human first."""
        known = self._entries.get(key)
        return known is not None and known.state == "waiting"

    @property
    def waits_for_any(self) -> bool:
        """Tell whether any action has asked a human first."""
        return any(one.state == "waiting" for one in self._entries.values())

    def failed(self, key: str) -> Entry:
        """Note that an action surely changed nothing; one that may have, stays started."""
        return self._move(key, "failed")

    def compensated(self, key: str) -> Entry:
        """Note that an action was undone."""
        return self._move(key, "compensated")

    def compensation_failed(self, key: str) -> Entry:
        """Note that an action could not be undone."""
        return self._move(key, "compensation_failed")

    def plan(self) -> list[Entry]:
        """Return what is still to be undone, done or of unknown outcome, the last started first."""
        left = [one for one in self._entries.values() if one.compensates and one.state in _OPEN]
        own = filter(self._has_begun, left) if self._session else left
        return sorted(own, key=lambda entry: (entry.number, entry.key), reverse=True)

    def _has_begun(self, entry: Entry) -> bool:
        """Tell whether an action began in its session, or in one inside of that."""
        is_inside = f"{entry.session}/".startswith(f"{self._session}/")
        return is_inside and entry.tool.startswith(self._part)

    async def roll_back(self, run: Undo, persist: Undo | None = None) -> list[Decision]:
        """Undo all that is left and say for each how it went; a failure does not keep the rest.

        `run` undoes one entry: it may be asked again for one that is undone already, bounds its own
        time and raises if it fails. `persist` keeps each entry that has changed.
        """
        ends_at = clock().monotonic() + self.grace_s
        decisions = []
        while plan := self.plan():
            decisions.append(await self._undo(plan[0], run, persist, ends_at))
        return decisions

    async def undo_last(self, run: Undo, persist: Undo | None = None) -> Decision | None:
        """Undo what is still to be undone and began last; None where nothing is."""
        plan = self.plan()
        if not plan:
            return None
        return await self._undo(plan[0], run, persist, clock().monotonic() + self.grace_s)

    async def _undo(
        self, entry: Entry, run: Undo, persist: Undo | None, ends_at: float
    ) -> Decision:
        error = await self._tried(entry, run, ends_at)
        evidence: dict[str, object] = {"tool": entry.tool, "key": entry.key, "number": entry.number}
        if error is None:
            now = self.compensated(entry.key)
            decision = _decision("allow", f"{entry.tool} was undone", evidence)
        else:
            now = self.compensation_failed(entry.key)
            kind = evidence["error"] = kind_of(error)
            cause = f"{entry.tool} could not be undone ({kind}): undo it by hand"
            decision = _decision("escalate", cause, evidence, "unsafe_output")
        if persist is not None:
            try:
                await persist(now)
            except Exception as fault:
                if _is_control_flow(fault):
                    raise
                cause = f"{decision.cause}; this could not be stored ({kind_of(fault)})"
                return replace(decision, action="escalate", cause=cause)
        return decision

    async def _tried(self, entry: Entry, run: Undo, ends_at: float) -> Exception | None:
        """Undo an entry; return the last error if that has failed for good."""
        attempt = 0
        while True:
            try:
                await run(entry)
                return None
            except Exception as error:
                if _is_control_flow(error):
                    raise
                longest = min(_LONGEST_PAUSE_S, _PAUSE_S * 2 ** min(attempt, 8))
                pause = clock().random() * longest
                if attempt >= self.retries or clock().monotonic() + pause >= ends_at:
                    return error
            await clock().sleep(pause)
            attempt += 1

    def _move(
        self,
        key: str,
        state: EntryState,
        result: object = None,
        beside: Mapping[str, object] | None = None,
    ) -> Entry:
        known = self._entries.get(key)
        if known is None:
            raise AgentGraphError(f"no action began under the key {key!r}: begin it first")
        result = known.result if result is None else result
        moved = replace(known, state=state, result=result, beside=beside or known.beside)
        # What comes late does not turn it back: an undone action stays undone.
        if rank(moved) > rank(known):
            self._remember(moved)
        return self._entries[key]

    def _remember(self, entry: Entry) -> None:
        self._entries[entry.key], self._told[entry.key] = entry, entry.to_dict()


def _conflict(known: Entry, tool: str) -> Begun:
    cause = (
        f"{tool} has the key of another action ({known.tool}) or of other arguments: "
        "give each action a key of its own"
    )
    evidence = {"tool": tool, "key": known.key, "begun": known.tool}
    return Begun("conflict", _decision("deny", cause, evidence, "spec_malformed"), known)


def _again(known: Entry) -> Begun:
    evidence = {"tool": known.tool, "key": known.key, "state": known.state}
    if known.state == "done":
        return Begun("replay", Decision("allow", "saga", evidence=evidence), known)
    if known.state == "started":
        cause = f"{known.tool} was started before and nobody knows what came of it: look it up"
        return Begun("unknown", _decision("escalate", cause, evidence), known)
    cause = f"{known.tool} was rolled back in this run: it is not done again under the same key"
    return Begun("refused", _decision("escalate", cause, evidence), known)


def _decision(
    action: Action,
    cause: str,
    evidence: Mapping[str, object],
    failure_class: FailureClass | Literal[""] = "",
) -> Decision:
    return Decision(action, "saga", cause, failure_class, evidence)


def _plain(value: object) -> object:
    """Return a value as JSON gives it back: what is loaded must be as what was not."""
    try:
        return json.loads(to_json(value, serialize_unknown=True, inf_nan_mode="strings"))
    except (
        ValueError,
        RecursionError,
    ):  # bytes, a circle, or half of a surrogate pair, which UTF-8 cannot write
        pass
    try:
        return json.loads(json.dumps(value, default=repr, skipkeys=True), parse_constant=str)
    except (ValueError, RecursionError):
        return repr(value)


def _is_control_flow(error: BaseException) -> bool:
    # By name, as guards do not know LangGraph: a pause for a human is no failure.
    return any(one.__name__ == "GraphBubbleUp" for one in type(error).__mro__)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
