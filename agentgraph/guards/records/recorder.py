"""What the guards of one agent decide and see, written down before it takes effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentgraph.guards.decision import Decision
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Guards
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.pending_writes import SideNotes
from agentgraph.guards.records.record import RecordKind
from agentgraph.guards.records.trail import ACTS
from agentgraph.interception import Ledger
from agentgraph.stream import GuardEvent, emit


@dataclass(slots=True)
class Recorder:
    """Writes to the audit trail, and in a session to its log."""

    policy: Guards
    place: Place
    account: Account
    thread_id: str = ""
    ledger: Ledger | None = None
    notes: SideNotes | None = None

    @property
    def speaker(self) -> str:
        """Return whose turn it is in a session, "" outside of one."""
        return self.ledger.speaker if self.ledger is not None else ""

    async def decided(self, decision: Decision) -> Decision:
        """Record a decision other than to let something pass, and tell it."""
        await self.recorded(decision)
        await emit(GuardEvent(agent=self.place.path, decision=decision.to_dict()))
        return decision

    async def recorded(self, decision: Decision, **data: object) -> None:
        """Record a decision that whoever looks on is told in another way, or need not know."""
        told = decision.to_dict()
        self._write("decision", data, told)
        if self.ledger is not None:
            await self.ledger.write({"kind": "decision", "agent": self.place.path, **told})

    async def by_table(
        self, decision: Decision, *, made: int = 0, possible: bool = False
    ) -> Decision:
        """Record what the table says of a failure that a guard has met.

        What lets the run go on is `possible` where whoever asks can do it, else what comes after
        it is decided at once.
        """
        policy = self.policy
        if not decision.failure_class:
            return await self.decided(decision)
        said = policy.decisions.decide(
            decision.failure_class,
            policy.tier,
            made=made,
            possible=possible,
            guard=decision.guard,
            cause=decision.cause,
            evidence=decision.evidence,
        )
        return await self.decided(said)

    def note(self, kind: RecordKind, **data: object) -> int | None:
        """Record what is about to happen, or has; return the record's number."""
        return self._write(kind, data)

    async def keep(self, **data: object) -> bool:
        """Write to the log of the session what must outlive a kill; False outside of one."""
        if self.ledger is None:
            return False
        await self.ledger.write({"agent": self.place.path, **data})
        return True

    def settled(self, parent: int | None, data: Mapping[str, object]) -> None:
        """Record what a model call has used."""
        self._write("settled", data, parent=parent)

    def _write(
        self,
        kind: RecordKind,
        data: Mapping[str, object],
        decision: Mapping[str, object] | None = None,
        parent: int | None = None,
    ) -> int | None:
        if self.ledger is not None and kind in ACTS:
            self.ledger.act(self.place.path, asks=kind == "model")
        if self.policy.audit is None:
            return None
        record = self.policy.audit.record(
            self.account.run_id,
            kind,
            agent=f"{self.account.part}{self.place.path}",
            thread=self.thread_id,
            step=self.account.spending.steps,
            decision=decision,
            data=data,
            parent=parent,
        )
        return record.seq
