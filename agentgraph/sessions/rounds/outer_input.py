"""The input that an inner session serves, where it runs for a turn of something outside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentgraph.guards import Guards
from agentgraph.guards.records.account import Account
from agentgraph.interception import Ledger


@dataclass(frozen=True, slots=True)
class OuterInput:
    """What a team inside a team, or inside an agent, is a part of.

    Guards count what the inner session does with all else of the outer input, and decisions about
    it are on record with both.
    """

    part: str
    """The name of the inner team in the outer one."""
    path: str
    """The same, made unique among inner teams of one name that run side by side."""
    ledger: Ledger | None
    """The log of the outer round; None outside of a session."""
    account: Account | None
    """What guards have counted for the outer input; None where no guards hold for it."""

    def outer_record(self, record: Mapping[str, object]) -> dict[str, object]:
        """Return a record of the inner session as the outer one names its agent."""
        return {**record, "agent": f"{self.part}/{record['agent']}"}

    async def write(self, record: Mapping[str, object]) -> None:
        """Put a decision of the inner session on the outer one's record too."""
        if self.ledger is not None:
            await self.ledger.write(self.outer_record(record))

    def join(self, account: Account, session_id: str, guards: Guards | None) -> None:
        """Count in both accounts what the inner session does, under its own guards' deadline."""
        if self.account is None:
            return
        part = f"{self.part}@{self.ledger.round}" if self.ledger is not None else session_id
        deadline = (
            self.account.inner_deadline(part, guards.deadlines) if guards is not None else None
        )
        account.join(self.account, self.part, session_id, deadline)

    def count_hops(self, hops: int) -> None:
        """Count the handoffs within an inner session that has come to its end."""
        if self.account is not None and hops:
            self.account.hop_count.count(self.ledger.speaker if self.ledger else "", hops)

    @property
    def effects_ledger(self) -> Ledger | None:
        """Where the inner session's effects are written, if the outer one is to undo them.

        None where it has no saga (the inner session writes its own) or runs outside of a session
        (the account alone has them).
        """
        has_saga = self.account is not None and self.account.saga is not None
        return self.ledger if has_saga else None
