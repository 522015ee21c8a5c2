"""The audit of a session, read from its log: who acted, what it cost, what was decided and done.

Guards write each decision and effect into the log as an envelope of its own. Model calls and tool
calls are only in the packets, so they are read from these, as far as a packet had room for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from agentgraph.guards import Record, Trail, folded
from agentgraph.guards.records.record import RecordKind
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.envelopes.envelope import Envelope
from agentgraph.sessions.state.fold import fold
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.usage import Usage

_FIGURES = ("input_tokens", "output_tokens", "total_tokens")
_UNDO_STATES = ("compensated", "compensation_failed")


@dataclass(frozen=True, slots=True)
class Audit:
    """The records of a session, and their totals.

        audit = audit_of(session.record, await session.history())
        print(audit.trail, audit.usage)

    It is a snapshot: envelopes that come later are not in it.
    """

    records: tuple[Record, ...]
    usage: Usage
    path: tuple[str, ...] = ()
    """The agents in the order in which they acted."""

    @property
    def trail(self) -> Trail:
        """Return the totals of the records, with the path of the agents."""
        return replace(folded(self.records), path=self.path)

    def to_dict(self) -> dict[str, object]:
        """Return the totals as JSON has them, without the records."""
        return {**self.trail.to_dict(), "usage": self.usage.to_dict()}

    def _repr_html_(self) -> str:
        return self.trail._repr_html_()


def audit_of(record: SessionRecord, envelopes: Iterable[Envelope]) -> Audit:
    """Read the audit of a session from its envelopes, which begin with the first."""
    reader = _Reader(SessionState.initial(record))
    records = tuple(item for envelope in envelopes for item in reader.read(envelope))
    return Audit(records, Usage.of_records(reader.usages), tuple(reader.path))


def audit_of_records(records: Iterable[Record]) -> Audit:
    """Read the audit of runs from the records of a sink."""
    own = tuple(records)
    spend = [record for record in own if record.kind == "settled"]
    usages = [{record.agent: dict(record.data)} for record in spend]
    return Audit(own, Usage.of_records(usages), folded(own).path)


class _Reader:
    """Turns each envelope in turn into records, and folds the envelope into the state."""

    def __init__(self, state: SessionState) -> None:
        self.usages: list[Mapping[str, Mapping[str, Any]]] = []
        self.path: list[str] = []
        self._state = state
        self._run = f"{state.key}@0"
        self._seq = 0
        self._steps = 0
        self._at = 0.0
        self._sequence = 0

    def read(self, envelope: Envelope) -> Iterator[Record]:
        """Yield the records of an envelope; each input from outside begins a run."""
        before, self._state = self._state, fold(self._state, envelope)
        self._at, self._sequence = _instant(envelope.created_at), envelope.sequence
        if envelope.event_type == ev.EV_REWOUND:
            self._run, self._steps = f"{envelope.session_id}@{envelope.sequence}", 0
            data = {"from": envelope.event_data.get("by"), "to": envelope.event_data.get("to")}
            yield self._record("input", data=data)
            return
        if self._state.input != before.input:
            self._run, self._steps = f"{self._state.key}@{envelope.sequence}", 0
            data = {"from": envelope.sender_id, "text": envelope.text}
            yield self._record("input", data=data)
            return
        yield from self._read_event(envelope)

    def _read_event(self, envelope: Envelope) -> Iterator[Record]:
        """Yield the records of an envelope that belongs to the present run."""
        data = envelope.event_data
        match envelope.event_type:
            case ev.EV_PACKET:
                yield from self._read_turn(envelope.sender_id, data)
            case ev.EV_ROUND_FAILED:
                yield from self._read_failure(data)
            case ev.EV_CANCELLED:
                yield from self._read_cancelled(data)
            case ev.EV_AUDIT:
                yield from self._read_audit(data)
            case ev.EV_HANDOFF:
                yield self._handoff(data)
            case ev.EV_EXPECTATION_VIOLATED:
                yield self._decision("", _violation(data))
            case ev.EV_INTERRUPT:
                yield from self._read_turn(str(data.get("speaker")), data)
                question = {"asked": data.get("id"), "payload": data.get("payload")}
                yield self._record("human", str(data.get("speaker")), question)
            case ev.EV_DECISION:
                answer = {"request": data.get("interrupt_id"), "decision": data.get("decision")}
                yield self._record("human", data={**answer, "reviewer": envelope.sender_id})
            case ev.EV_SESSION_CLOSED:
                yield self._record("end", data={"reason": data.get("reason")})

    def _read_turn(self, speaker: str, data: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the records of a turn: its model calls with their tool calls, and its usage."""
        usage = _by_agent(data.get("usage"))
        has_path = "path" in data or "payload" in data
        calls = (
            self._calls_by_path(data) if has_path else self._calls_in_sight(speaker, data, usage)
        )
        first_calls: dict[str, int] = {}
        for record in [*calls]:
            if record.kind == "model":
                first_calls.setdefault(record.agent, record.seq)
            if self.path[-1:] != [record.agent]:
                self.path.append(record.agent)
            yield record
        for _ in range(_count(data.get("hops"))):
            yield self._record("handoff", speaker)
        if usage:
            self.usages.append(usage)
        for path, figures in usage.items():
            yield self._record("settled", path, _spend(path, figures), parent=first_calls.get(path))

    def _read_failure(self, data: Mapping[str, Any]) -> Iterator[Record]:
        yield from self._read_turn(str(data.get("speaker")), data)
        if data.get("code") != "guard":  # the guard's decision has a record already
            yield self._decision(str(data.get("speaker")), _failure(data))

    def _read_cancelled(self, data: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the records of a cancelled round: what its turns have come to, and who did it."""
        steps = data.get("steps")
        by_speaker = steps if isinstance(steps, Mapping) else {}
        turns = [step for name in by_speaker for step in _objects(by_speaker[name])]
        yield from self._read_turn(", ".join(by_speaker), {**data, "steps": turns})
        cancelled = {"cancelled": data.get("speakers"), "reason": data.get("reason")}
        yield self._record("human", data={**cancelled, "reviewer": data.get("by")})

    def _calls_by_path(self, data: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the model calls of a turn whose packet has a path: the agents and their calls."""
        steps = [*_objects(data.get("steps"))]
        for agent, count in _stretches(data.get("path")):
            yield from (self._model(agent) for _ in range(count))
            own = [step for step in steps if step.get("agent") == agent.rpartition("/")[2]][:count]
            steps = [step for step in steps if not any(step is own_step for own_step in own)]
            for step in own:
                yield from self._tools(agent, step)
            if not count:
                yield self._record("dispatch", agent)

    def _calls_in_sight(
        self, speaker: str, data: Mapping[str, Any], usage: Mapping[str, Any]
    ) -> Iterator[Record]:
        """Yield the model calls of a turn without a path, as far as its packet shows them."""
        paths = {path.rpartition("/")[2]: path for path in usage}
        records = list(self._calls_of_steps(speaker, data, paths))
        visible = sum(record.kind == "model" for record in records)
        # A packet has no room for every call, and has no calls of its speaker's sub-agents.
        missing_count = self._model_calls(data, visible) - visible
        yield from (*records, *(self._model(speaker) for _ in range(missing_count)))

    def _calls_of_steps(
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
            fields = {name: call.get(name) for name in ("tool", "args", "status")}
            yield self._record("tool", agent, fields)

    def _model_calls(self, data: Mapping[str, Any], visible: int) -> int:
        """Return a turn's number of model calls: as guards counted, at least the visible ones."""
        account = data.get("account")
        total = _count(account.get("steps")) if isinstance(account, Mapping) else 0
        before, self._steps = self._steps, max(self._steps, total)
        return max(visible, self._steps - before)

    def _model(self, agent: str) -> Record:
        """Return the record of one model call."""
        # The usage of a turn has a record of its own for each agent, so this record adds none.
        return self._record("model", agent, {"reserved_usd": "0"})

    def _read_audit(self, data: Mapping[str, Any]) -> Iterator[Record]:
        """Yield the record of an `EV_AUDIT` envelope: a decision, an effect, the end of a flow."""
        agent, entry = str(data.get("agent")), data.get("entry")
        if data.get("kind") == "decision":
            names = ("action", "guard", "cause", "failure_class", "evidence")
            yield self._decision(agent, {name: data.get(name) for name in names})
        elif data.get("kind") == "effect" and isinstance(entry, Mapping):
            kind: RecordKind = "compensated" if entry.get("state") in _UNDO_STATES else "effect"
            fields = {name: entry.get(name) for name in ("tool", "key", "state")}
            yield self._record(kind, agent, fields)
        elif data.get("kind") == "stage" and isinstance(data.get("data"), Mapping):
            yield self._record("stage", agent, data["data"])

    def _handoff(self, data: Mapping[str, Any]) -> Record:
        """Return the record of a handoff; a handoff to a human is no hop, as no agent follows."""
        fields = {name: data.get(name) for name in ("target", "reason")}
        is_hop = data.get("target") not in ("human", *self._state.humans)
        return self._record("handoff", str(data.get("from")), {**fields, "hop": is_hop})

    def _decision(self, agent: str, decision: Mapping[str, object]) -> Record:
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
            thread=self._state.key,
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


def _spend(path: str, figures: Mapping[str, Any]) -> dict[str, object]:
    cost = Usage.of_records([{path: figures}]).cost
    fields: dict[str, object] = {name: figures.get(name) for name in _FIGURES}
    return fields if cost is None else {**fields, "usd": str(cost)}


def _by_agent(usage: object) -> Mapping[str, Mapping[str, Any]]:
    """Return the usage of a turn by the path of an agent, without malformed entries."""
    items = usage.items() if isinstance(usage, Mapping) else ()
    return {str(path): figures for path, figures in items if isinstance(figures, Mapping)}


def _stretches(path: object) -> Iterator[tuple[str, int]]:
    """Yield each agent with its number of model calls in a row; 0 for an agent without any."""
    for stretch in path if isinstance(path, list) else ():
        if isinstance(stretch, list) and len(stretch) == 2 and isinstance(stretch[0], str):
            yield stretch[0], _count(stretch[1])


def _objects(values: object) -> Iterable[Mapping[str, Any]]:
    if not isinstance(values, list):
        return ()
    return [value for value in values if isinstance(value, Mapping)]


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _instant(created_at: str) -> float:
    try:
        return datetime.fromisoformat(created_at).timestamp()
    except ValueError:
        return 0.0
