"""The saga of a run: its actions that changed the world, each done once, undone last first.

The saga decides and remembers; the nodes run the tools and store the entries. An action is
registered before it runs, so that a process that is killed in between leaves an entry of unknown
outcome behind, and not an action without any entry.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self, TypeAlias

from pydantic_core import to_json

from agentgraph.clock import clock
from agentgraph.errors import AgentGraphError, ConfigurationError, kind_of
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Action, Decision, FailureClass
from agentgraph.guards.mechanisms.canonical import exact_digest
from agentgraph.guards.mechanisms.failures import is_control_flow
from agentgraph.guards.mechanisms.saga_entry import (
    Entry,
    EntryState,
    entries_of,
    merge_entries,
    rank,
)
from agentgraph.guards.mechanisms.settings import is_finite, is_whole

_TO_UNDO = frozenset({"started", "waiting", "done"})
_MAY_BEGIN_AGAIN = frozenset({"waiting", "failed"})
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 20.0


@dataclass(frozen=True, slots=True)
class Registration:
    """What the saga decides on an action that is about to begin.

    - run: it is registered, and may run
    - replay: it was done before; `result` is what it returned then
    - unknown: it was started and its outcome is not known: look it up
    - conflict: its key belongs to another action
    - refused: it was undone in this run, or the saga has too many actions
    """

    kind: Literal["run", "replay", "unknown", "conflict", "refused"]
    decision: Decision
    entry: Entry | None = None

    @property
    def result(self) -> object:
        """Return the result of the earlier execution."""
        return None if self.entry is None else self.entry.result


Undo: TypeAlias = Callable[[Entry], Awaitable[object]]


@dataclass(slots=True, eq=False)
class Saga(BuiltInGuard):
    """Remember each action under its key, so that no action is done twice and each can be undone.

    It forgets no action, so its memory is bounded by `limit`: the action after that is refused.
    A failed compensation is tried again up to `retries` times, within `grace_s` seconds after the
    roll-back has started, even where a deadline of the run has passed.
    """

    setting = "saga"
    summary = "Saga(): remembers what tools marked with `@effect` did, and undoes it"
    is_input_wide = True

    retries: int = 2
    grace_s: float = 60.0
    limit: int = 1_000
    _entries: dict[str, Entry] = field(default_factory=dict, init=False, repr=False)
    _raw: dict[str, dict[str, object]] = field(default_factory=dict, init=False, repr=False)
    """The entries as they are dumped, each converted once: a dump is stored at every step."""
    _prefix: str = field(default="", init=False, repr=False)
    """The path of its inner session, with a slash at the end: the prefix of its tools' names."""
    _session: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        faults = []
        if not is_whole(self.retries):
            faults.append(f"Saga(retries={self.retries!r}): give 0 or more")
        if not is_finite(self.grace_s) or self.grace_s < 0:
            faults.append(f"Saga(grace_s={self.grace_s!r}): give 0 seconds or more")
        if not is_whole(self.limit, 1):
            faults.append(f"Saga(limit={self.limit!r}): give a whole number above 0")
        if faults:
            raise ConfigurationError(faults)

    def begin(
        self,
        *,
        key: str,
        tool: str,
        args: Mapping[str, object],
        compensates: bool,
        call_id: str = "",
    ) -> Registration:
        """Register an action before it runs, or return why it must not run (again).

        `key` identifies the call: it is the same when the call is repeated after a kill or a pause.
        `compensates` says whether there is a function that undoes the action, `call_id` which call
        of a model it answers.
        """
        plain_args = _plain(args)
        if not isinstance(plain_args, dict):
            plain_args = dict(args)
        tool = f"{self._prefix}{tool}"
        digest = exact_digest([tool, plain_args])
        earlier = self._entries.get(key)
        if earlier is not None and earlier.input_hash != digest:
            return _conflict(earlier, tool)
        if earlier is not None and earlier.state not in _MAY_BEGIN_AGAIN:
            return _repetition(earlier)
        if earlier is None and len(self._entries) >= self.limit:
            cause = f"{tool} is the action after the last of {self.limit} that a run may register"
            evidence = {"tool": tool, "key": key, "limit": self.limit}
            return Registration("refused", _decision("escalate", cause, evidence))
        number = max((entry.number for entry in self._entries.values()), default=0) + 1
        tries = 1 if earlier is None else earlier.tries + 1
        entry = Entry(
            number,
            key,
            tool,
            plain_args,
            digest,
            compensates=compensates,
            tries=tries,
            session=self._session,
            call_id=call_id,
        )
        self._remember(entry)
        return Registration("run", Decision("allow", "saga"), entry)

    def done(self, key: str, result: object, beside: Mapping[str, object] | None = None) -> Entry:
        """Note that an action is done; `beside` is what it led to in addition to its result."""
        extras = _plain(beside or {})
        return self._move(key, "done", _plain(result), extras if isinstance(extras, dict) else {})

    def waits(self, key: str) -> Entry:
        """Note that an action asks a human first; it begins again after the human's decision."""
        return self._move(key, "waiting")

    def has_begun(self, key: str) -> bool:
        """Tell whether an action was begun under a key, so that it must not be asked for again."""
        entry = self._entries.get(key)
        return entry is not None and entry.state not in _MAY_BEGIN_AGAIN

    def is_waiting(self, key: str) -> bool:
        """Tell whether an action has asked a human first."""
        entry = self._entries.get(key)
        return entry is not None and entry.state == "waiting"

    @property
    def waits_for_any(self) -> bool:
        """Tell whether any action has asked a human first."""
        return any(entry.state == "waiting" for entry in self._entries.values())

    def failed(self, key: str) -> Entry:
        """Note that an action surely changed nothing; if it may have, its state stays "started"."""
        return self._move(key, "failed")

    def compensated(self, key: str) -> Entry:
        """Note that an action was undone."""
        return self._move(key, "compensated")

    def compensation_failed(self, key: str) -> Entry:
        """Note that an action could not be undone."""
        return self._move(key, "compensation_failed")

    def plan(self) -> list[Entry]:
        """Return the actions still to be undone, done or of unknown outcome, the newest first."""
        entries = [e for e in self._entries.values() if e.compensates and e.state in _TO_UNDO]
        own = filter(self._began_inside, entries) if self._session else entries
        return sorted(own, key=lambda entry: (entry.number, entry.key), reverse=True)

    def _began_inside(self, entry: Entry) -> bool:
        """Tell whether an action began in this saga's session, or in a session inside of it."""
        is_inside = f"{entry.session}/".startswith(f"{self._session}/")
        return is_inside and entry.tool.startswith(self._prefix)

    async def roll_back(self, run: Undo, persist: Undo | None = None) -> list[Decision]:
        """Undo all of the plan and return a decision for each; a failure does not stop the rest.

        `run` undoes one entry, limits its own time and raises if it fails. It must be idempotent: a
        process may be killed after the compensation and before that is stored. `persist` stores
        each entry that has changed.
        """
        ends_at = clock().monotonic() + self.grace_s
        decisions = []
        while plan := self.plan():
            decisions.append(await self._undo(plan[0], run, persist, ends_at))
        return decisions

    async def undo_last(self, run: Undo, persist: Undo | None = None) -> Decision | None:
        """Undo the first action of the plan only; None where the plan is empty."""
        plan = self.plan()
        if not plan:
            return None
        return await self._undo(plan[0], run, persist, clock().monotonic() + self.grace_s)

    async def _undo(
        self, entry: Entry, run: Undo, persist: Undo | None, ends_at: float
    ) -> Decision:
        error = await self._run_with_retries(entry, run, ends_at)
        evidence: dict[str, object] = {"tool": entry.tool, "key": entry.key, "number": entry.number}
        if error is None:
            updated_entry = self.compensated(entry.key)
            decision = _decision("allow", f"{entry.tool} was undone", evidence)
        else:
            updated_entry = self.compensation_failed(entry.key)
            kind = evidence["error"] = kind_of(error)
            cause = f"{entry.tool} could not be undone ({kind}): undo it by hand"
            decision = _decision("escalate", cause, evidence, "unsafe_output")
        if persist is not None:
            try:
                await persist(updated_entry)
            except Exception as fault:
                if is_control_flow(fault):
                    raise
                cause = f"{decision.cause}; this could not be stored ({kind_of(fault)})"
                return replace(decision, action="escalate", cause=cause)
        return decision

    async def _run_with_retries(self, entry: Entry, run: Undo, ends_at: float) -> Exception | None:
        """Undo an entry; return the last error if all attempts have failed."""
        attempt = 0
        while True:
            try:
                await run(entry)
                return None
            except Exception as error:
                if is_control_flow(error):
                    raise
                longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(attempt, 8))
                pause = clock().random() * longest
                if attempt >= self.retries or clock().monotonic() + pause >= ends_at:
                    return error
            await clock().sleep(pause)
            attempt += 1

    def fresh(self) -> Self:
        """Return a saga of the same configuration without any entries."""
        return type(self)(self.retries, self.grace_s, self.limit)

    def inside(self, outer: Saga, part: str, session: str) -> Self:
        """Return a saga of this configuration for an inner session, with the memory of `outer`.

        The names of its tools begin with `part`. Its plan has only the actions of that session; the
        plan of the outer saga has them too.
        """
        inner = self.fresh()
        inner._entries, inner._raw = outer._entries, outer._raw
        inner._prefix, inner._session = part, session
        return inner

    def local(self, tool: str) -> str:
        """Return the name of a tool without the path of the session in which it is used."""
        return tool.removeprefix(self._prefix)

    @property
    def session(self) -> str:
        """Return the inner session that this saga is of, "" for that of the whole input."""
        return self._session

    def dump(self) -> dict[str, object]:
        """Return the memory as JSON-able values; of an inner session, its own actions."""
        if not self._session:
            return {"entries": dict(self._raw)}
        own = filter(self._began_inside, self._entries.values())
        return {"entries": {entry.key: self._raw[entry.key] for entry in own}}

    def absorb(self, state: Mapping[str, object]) -> None:
        """Add what `dump` returned elsewhere to the memory, and keep all of it."""
        self.load(merge_entries({"entries": dict(self._raw)}, state))

    def load(self, state: Mapping[str, object]) -> None:
        """Restore the memory from what `dump` returned, and forget everything else."""
        entries = entries_of(state)
        # Cleared, not replaced: the sagas of inner sessions share the two dicts.
        self._entries.clear()
        self._raw.clear()
        for entry in entries.values():
            self._remember(entry)

    def _move(
        self,
        key: str,
        state: EntryState,
        result: object = None,
        beside: Mapping[str, object] | None = None,
    ) -> Entry:
        """Move an action to another state, and return its entry."""
        entry = self._entries.get(key)
        if entry is None:
            raise AgentGraphError(f"no action began under the key {key!r}: begin it first")
        result = entry.result if result is None else result
        further = replace(entry, state=state, result=result, beside=beside or entry.beside)
        # A tool that ends after its action was undone must not make it look done.
        if rank(further) > rank(entry):
            self._remember(further)
        return self._entries[key]

    def _remember(self, entry: Entry) -> None:
        self._entries[entry.key], self._raw[entry.key] = entry, entry.to_dict()


def _conflict(earlier: Entry, tool: str) -> Registration:
    cause = (
        f"{tool} has the key of another action ({earlier.tool}) or of other arguments: "
        "give each action a key of its own"
    )
    evidence = {"tool": tool, "key": earlier.key, "begun": earlier.tool}
    return Registration("conflict", _decision("deny", cause, evidence, "spec_malformed"), earlier)


def _repetition(earlier: Entry) -> Registration:
    evidence = {"tool": earlier.tool, "key": earlier.key, "state": earlier.state}
    if earlier.state == "done":
        return Registration("replay", Decision("allow", "saga", evidence=evidence), earlier)
    if earlier.state == "started":
        cause = f"{earlier.tool} was started before and nobody knows what came of it: look it up"
        return Registration("unknown", _decision("escalate", cause, evidence), earlier)
    cause = f"{earlier.tool} was rolled back in this run: it is not done again under the same key"
    return Registration("refused", _decision("escalate", cause, evidence), earlier)


def _decision(
    action: Action,
    cause: str,
    evidence: Mapping[str, object],
    failure_class: FailureClass | Literal[""] = "",
) -> Decision:
    return Decision(action, "saga", cause, failure_class, evidence)


def _plain(value: object) -> object:
    """Return a value as JSON returns it, so that a loaded entry equals one that was not stored."""
    try:
        return json.loads(to_json(value, serialize_unknown=True, inf_nan_mode="strings"))
    except (ValueError, RecursionError):
        pass  # bytes, a circle, or half of a surrogate pair, which UTF-8 cannot write
    try:
        return json.loads(json.dumps(value, default=repr, skipkeys=True), parse_constant=str)
    except (ValueError, RecursionError):
        return repr(value)
