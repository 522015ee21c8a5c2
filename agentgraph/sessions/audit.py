"""The audit of a session, read from its log: who acted, what was spent, decided and done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from agentgraph.guards import Record, Trail, folded
from agentgraph.guards.audit.record import RecordKind
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.envelope import Envelope
from agentgraph.sessions.state.fold import fold
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.usage import Usage

_FIGURES = ("input_tokens", "output_tokens", "total_tokens")
_UNDONE = ("compensated", "compensation_failed")


@dataclass(frozen=True, slots=True)
class Audit:
    """What happened in a session, record by record, and what it comes to."""

    records: tuple[Record, ...]
    usage: Usage
    path: tuple[str, ...] = ()
    """The agents in the order in which they acted."""

    @property
    def trail(self) -> Trail:
        """Add the records up."""
        return replace(folded(self.records), path=self.path)

    def to_dict(self) -> dict[str, object]:
        """Return what it comes to as JSON-able values."""
        return {**self.trail.to_dict(), "usage": self.usage.to_dict()}

    def _repr_html_(self) -> str:
        return self.trail._repr_html_()


def audit_of(record: SessionRecord, envelopes: Iterable[Envelope]) -> Audit:
    """Read the audit of a session from its envelopes, which begin with the first."""
    reading = _Reading(SessionState.initial(record))
    records = tuple(one for envelope in envelopes for one in reading.read(envelope))
    return Audit(records, Usage.of_records(reading.used), tuple(reading.path))


class _Reading:
    """Reads one envelope after the other."""

    def __init__(self, state: SessionState) -> None:
        self.used: list[Mapping[str, Mapping[str, Any]]] = []
        self.path: list[str] = []
        self._state = state
        self._run = f"{state.session_id}@0"
        self._seq = 0
        self._steps = 0
        self._at = 0.0
        self._sequence = 0

    def read(self, envelope: Envelope) -> Iterator[Record]:
        """Tell an envelope in records: one of another input belongs to another run."""
        before, self._state = self._state, fold(self._state, envelope)
        self._at, self._sequence = _instant(envelope.created_at), envelope.sequence
        if self._state.input != before.input:
            self._run, self._steps = f"{envelope.session_id}@{envelope.sequence}", 0
            told = {"from": envelope.sender_id, "text": envelope.text}
            yield self._record("input", data=told)
            return
        yield from self._told(envelope)

    def _told(self, envelope: Envelope) -> Iterator[Record]:
        data = envelope.event_data
        match envelope.event_type:
            case ev.EV_PACKET:
                yield from self._acted(envelope.sender_id, data)
            case ev.EV_ROUND_FAILED:
                yield from self._acted(str(data.get("speaker")), data)
                if data.get("code") != "guard":  # whose decision is on record already
                    yield self._decided(str(data.get("speaker")), _failure(data))
            case ev.EV_AUDIT:
                yield from self._audited(data)
            case ev.EV_HANDOFF:
                yield self._handed_over(data)
            case ev.EV_EXPECTATION_VIOLATED:
                yield self._decided("", _violation(data))
            case ev.EV_INTERRUPT:
                yield from self._acted(str(data.get("speaker")), data)
                asked = {"asked": data.get("id"), "payload": data.get("payload")}
                yield self._record("human", str(data.get("speaker")), asked)
            case ev.EV_DECISION:
                answer = {"request": data.get("interrupt_id"), "decision": data.get("decision")}
                yield self._record("human", data={**answer, "reviewer": envelope.sender_id})
            case ev.EV_SESSION_CLOSED:
                yield self._record("end", data={"reason": data.get("reason")})

    def _acted(self, speaker: str, data: Mapping[str, Any]) -> Iterator[Record]:
        """Tell a round: its model calls with their tools, and what they have used."""
        usage = _by_agent(data.get("usage"))
        is_known = "path" in data or "payload" in data
        told = self._walked(data) if is_known else self._seen(speaker, data, usage)
        records = [*told]
        asked: dict[str, int] = {}
        for record in records:
            if record.kind == "model":
                asked.setdefault(record.agent, record.seq)
            if self.path[-1:] != [record.agent]:
                self.path.append(record.agent)
            yield record
        for _ in range(_count(data.get("hops"))):
            yield self._record("handoff", speaker)
        if usage:
            self.used.append(usage)
        for path, figures in usage.items():
            yield self._record("settled", path, _spent(path, figures), parent=asked.get(path))

    def _walked(self, data: Mapping[str, Any]) -> Iterator[Record]:
        """Tell who acted, each with the tools that it has called."""
        steps = [*_objects(data.get("steps"))]
        for agent, times in _stretches(data.get("path")):
            yield from (self._model(agent) for _ in range(times))
            own = [one for one in steps if one.get("agent") == agent.rpartition("/")[2]][:times]
            steps = [one for one in steps if not any(one is said for said in own)]
            for one in own:
                yield from self._tools(agent, one)
            if not times:
                yield self._record("dispatch", agent)

    def _seen(
        self, speaker: str, data: Mapping[str, Any], usage: Mapping[str, Any]
    ) -> Iterator[Record]:
        """Tell who acted as far as it is to be seen, where no guards have noted it."""
        paths = {path.rpartition("/")[2]: path for path in usage}
        records = list(self._called(speaker, data, paths))
        made = sum(one.kind == "model" for one in records)
        # A packet has not room for every call, and none of those who worked below its speaker.
        unseen = self._counted(data, made) - made
        yield from (*records, *(self._model(speaker) for _ in range(unseen)))

    def _called(
        self, speaker: str, data: Mapping[str, Any], paths: Mapping[str, str]
    ) -> Iterator[Record]:
        for step in _objects(data.get("steps")):
            agent = paths.get(str(step.get("agent")), speaker)
            yield self._model(agent)
            yield from self._tools(agent, step)
        if data.get("body"):
            active = data.get("active")
            yield self._model(f"{speaker}/{active}" if active else speaker)

    def _tools(self, agent: str, step: Mapping[str, Any]) -> Iterator[Record]:
        for call in _objects(step.get("calls")):
            told = {name: call.get(name) for name in ("tool", "args", "status")}
            yield self._record("tool", agent, told)

    def _counted(self, data: Mapping[str, Any], made: int) -> int:
        """Return how many model calls the guards have counted in a round, else those in sight."""
        account = data.get("account")
        total = _count(account.get("steps")) if isinstance(account, Mapping) else 0
        before, self._steps = self._steps, max(self._steps, total)
        return max(made, self._steps - before)

    def _model(self, agent: str) -> Record:
        # What it has used is told in one sum for each agent; by itself it adds nothing.
        return self._record("model", agent, {"reserved_usd": "0"})

    def _audited(self, data: Mapping[str, Any]) -> Iterator[Record]:
        agent, entry = str(data.get("agent")), data.get("entry")
        if data.get("kind") == "decision":
            names = ("action", "guard", "cause", "failure_class", "evidence")
            yield self._decided(agent, {name: data.get(name) for name in names})
        elif data.get("kind") == "effect" and isinstance(entry, Mapping):
            kind: RecordKind = "compensated" if entry.get("state") in _UNDONE else "effect"
            told = {name: entry.get(name) for name in ("tool", "key", "state")}
            yield self._record(kind, agent, told)

    def _handed_over(self, data: Mapping[str, Any]) -> Record:
        told = {name: data.get(name) for name in ("target", "reason")}
        is_hop = data.get("target") not in ("human", *self._state.humans)
        return self._record("handoff", str(data.get("from")), {**told, "hop": is_hop})

    def _decided(self, agent: str, decision: Mapping[str, object]) -> Record:
        return self._record("decision", agent, decision=decision)

    def _record(
        self,
        kind: RecordKind,
        agent: str = "",
        data: Mapping[str, object] | None = None,
        *,
        decision: Mapping[str, object] | None = None,
        parent: int | None = None,
    ) -> Record:
        self._seq += 1
        return Record(
            run=self._run,
            seq=self._seq,
            at=self._at,
            kind=kind,
            agent=agent,
            thread=self._state.session_id,
            step=self._steps,
            decision=decision,
            data={"sequence": self._sequence, **(data or {})},
            parent=parent,
        )


def _failure(data: Mapping[str, Any]) -> Mapping[str, object]:
    evidence = {name: data.get(name) for name in ("round", "attempt")}
    action = "abort" if data.get("final") else "replan"
    cause = f"{data.get('code')}: {data.get('message')}"
    return {"action": action, "guard": "round", "cause": cause, "evidence": evidence}


def _violation(data: Mapping[str, Any]) -> Mapping[str, object]:
    cause = f"{data.get('name')} of {data.get('seconds')} s is not kept"
    action = data.get("on_violation")
    return {"action": action, "guard": "expectation", "cause": cause, "evidence": dict(data)}


def _spent(path: str, figures: Mapping[str, Any]) -> dict[str, object]:
    cost = Usage.of_records([{path: figures}]).cost
    told: dict[str, object] = {name: figures.get(name) for name in _FIGURES}
    return told if cost is None else {**told, "usd": str(cost)}


def _by_agent(usage: object) -> Mapping[str, Mapping[str, Any]]:
    given = usage.items() if isinstance(usage, Mapping) else ()
    return {str(path): figures for path, figures in given if isinstance(figures, Mapping)}


def _stretches(path: object) -> Iterator[tuple[str, int]]:
    for one in path if isinstance(path, list) else ():
        if isinstance(one, list) and len(one) == 2 and isinstance(one[0], str):
            yield one[0], _count(one[1])


def _objects(values: object) -> Iterable[Mapping[str, Any]]:
    return [one for one in values if isinstance(one, Mapping)] if isinstance(values, list) else ()


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _instant(created_at: str) -> float:
    try:
        return datetime.fromisoformat(created_at).timestamp()
    except ValueError:
        return 0.0
