"""The enclosure of a run: the tool call of a guarded agent in which the run has begun.

Such a run is a part of the input that the tool call works for: the guards of both hold over it, and
what it does is counted, recorded and undone with all else of that input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentgraph.guards.policy import Policy
from agentgraph.guards.records.account import Account, RecordsAgents
from agentgraph.interception import Ledger, outer_call


@dataclass(frozen=True, slots=True)
class Enclosure:
    """The agent and the tool in which a run has begun, and the account of their input."""

    account: Account
    policy: Policy
    """The policy of the agent whose tool it is."""
    path: str
    """The path of that agent, and the tool."""
    depth: int
    """The level of that agent in its tree."""
    ledger: RecordsAgents | None = None
    """The log of the session around the tool, if this code runs on the session's loop."""

    def policy_of(self, policy: Policy, account: Account) -> Policy:
        """Return a policy inside of this one; it may tighten this one, and never loosen it.

        Its own steps and its own budget are those of one run, as they are outside of a tool.
        """
        inner = policy.within(self.policy, f"{account.path_prefix}{account.input_id}")
        return inner.for_run(self.policy.steps, policy, account.progresses[-1])

    def account_of(self, policy: Policy, input_id: str) -> Account:
        """Return the account of a run under a policy, as a part of this account."""
        account = Account(policy.within(self.policy).outermost, input_id)
        level, deadline = self.account.level + self.depth, policy.deadlines.workflow()
        account.enclose(self, self.account, f"{self.path}/", level, deadline)
        account.outer_ledger = self.ledger
        return account


@dataclass(frozen=True, slots=True)
class OuterLedger:
    """The log of the session around a tool; `prefix` is before the paths in the session."""

    ledger: Ledger
    prefix: str

    def act(self, agent: str, *, asks: bool) -> None:
        """Note that an agent acts, or asks its model."""
        self.ledger.act(agent.removeprefix(self.prefix), asks=asks)

    async def write(self, agent: str, record: Mapping[str, object]) -> None:
        """Write a record of an agent; it is durable when this returns."""
        await self.ledger.write({**record, "agent": agent.removeprefix(self.prefix)})


def current_enclosure() -> Enclosure | None:
    """Return the enclosure of this code, None where no guarded agent's tool has begun its run."""
    call = outer_call()
    enclosure = None if call is None else call.interceptor.enclosure(call)
    return enclosure if isinstance(enclosure, Enclosure) else None
