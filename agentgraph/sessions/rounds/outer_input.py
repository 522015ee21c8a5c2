"""The outer input that an inner session serves: its ledger and its account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentgraph.guards import Guards
from agentgraph.guards.records.account import Account
from agentgraph.interception import Ledger


@dataclass(frozen=True, slots=True)
class OuterInput:
    """The outer input of a team that runs inside another team or inside an agent.

    Guards count the inner session's work with the rest of the outer input, and their decisions
    about it are recorded in both sessions.
    """

    part: str
    """The name of the inner team in the outer one."""
    path: str
    """The part's path, unique among inner teams of one name that run side by side."""
    ledger: Ledger | None
    """The ledger of the outer round; None outside of a session."""
    account: Account | None
    """The guards' account of the outer input; None if no guards apply to it."""

    def outer_record(self, record: Mapping[str, object]) -> dict[str, object]:
        """Return a record of the inner session with its agent's name as seen from the outer one."""
        return {**record, "agent": f"{self.part}/{record['agent']}"}

    async def write(self, record: Mapping[str, object]) -> None:
        """Write a decision of the inner session to the outer ledger too."""
        if self.ledger is not None:
            await self.ledger.write(self.outer_record(record))

    def join(self, account: Account, session_id: str, guards: Guards | None) -> None:
        """Count the inner session's work in both accounts, under its own guards' deadline."""
        if self.account is None:
            return
        part = f"{self.part}@{self.ledger.round}" if self.ledger is not None else session_id
        deadline = (
            self.account.inner_deadline(part, guards.deadlines) if guards is not None else None
        )
        account.join(self.account, self.part, session_id, deadline)

    def count_hops(self, hops: int) -> None:
        """Count the handoffs of an inner session that has ended."""
        if self.account is not None and hops:
            self.account.hop_count.count(self.ledger.speaker if self.ledger else "", hops)

    @property
    def effects_ledger(self) -> Ledger | None:
        """The ledger for the inner session's effects, if the outer session has to undo them.

        None if the outer account has no saga (the inner session writes its own effects), or outside
        of a session (only the account has the effects).
        """
        has_saga = self.account is not None and self.account.saga is not None
        return self.ledger if has_saga else None
