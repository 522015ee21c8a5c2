"""The effects of a run that was cut off, for the next run of its thread.

They are in the thread's effect log, whatever its checkpoints show. The next run answers the calls
that were under way with what came of them, and has the effects in its own saga: where that run is
rejected, they are undone with its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.types import StateSnapshot

from agentgraph.agents.run.recovery import is_finished, stored_ids, waits_to_begin
from agentgraph.guards import Effect
from agentgraph.guards.mechanisms.saga_entry import Entry
from agentgraph.guards.nodes.cut_off_actions import answers_to, look_up
from agentgraph.guards.records.account import Account, Snapshot
from agentgraph.guards.records.effect_log import LoggedEffects
from agentgraph.running import Journal, Run

_MAY_HAVE_HAPPENED = frozenset({"started", "waiting", "done"})


@dataclass(frozen=True, slots=True)
class CutOffEffects:
    """What a run that was cut off has done, as far as it could be found out."""

    record: LoggedEffects
    entries: Mapping[str, Entry]
    """Its actions by their keys, after those of unknown outcome were looked up."""

    @property
    def answers(self) -> Mapping[str, ToolMessage]:
        """The answers to the calls that were under way, by the ids of the calls."""
        return answers_to(self.entries.values())

    @property
    def journal(self) -> Journal:
        """The messages of the run that no checkpoint may have."""
        return self.record.journal

    @property
    def is_undoing(self) -> bool:
        """Whether the run was ended by a guard and has actions that are not undone yet."""
        return bool(self.record.undone_by and self._to_carry)

    def is_ahead_of(self, snapshot: StateSnapshot) -> bool:
        """Tell whether the run has acted on messages that its stored state does not have."""
        journal_ids = {message.id for part in self.journal.values() for message in part}
        return not journal_ids <= stored_ids(snapshot)

    def account(self, turn: str = "") -> Snapshot:
        """Return the account with which the next input begins: the effects, and nothing counted.

        Without a `turn` it is the account of the run that was cut off.
        """
        entries = {key: entry.to_dict() for key, entry in self.entries.items()}
        if not turn:
            ending: Mapping[str, Any] = (
                {"closed": self.record.undone_by} if self.record.undone_by else {}
            )
            return {**_account(self.record.turn, entries), **ending}
        return _account(turn, {key: entries[key] for key in self._to_carry})

    def logged_for(self, turn: str, before: set[str | None], journal: Journal) -> LoggedEffects:
        """Return the effects as the log of the next turn has them, until that acts itself."""
        entries: Any = self.account(turn)["saga"]["entries"]
        return LoggedEffects(turn, tuple(sorted(before, key=str)), entries, journal=dict(journal))

    @property
    def _to_carry(self) -> list[str]:
        return [key for key, entry in self.entries.items() if entry.state in _MAY_HAVE_HAPPENED]


def is_cut_off(record: LoggedEffects, latest: CheckpointTuple | None, turn: str | None) -> bool:
    """Tell whether the run that wrote a log was cut off, and no later run has ended since.

    `latest` is the thread's last checkpoint, `turn` the id of its turn.
    """
    if latest is not None and turn == record.turn:
        return not is_finished(latest) and not waits_to_begin(latest)
    return turn in record.before


async def look_up_all(
    record: LoggedEffects, effects: Mapping[str, Effect], earlier: Run | None
) -> CutOffEffects:
    """Look up the actions of unknown outcome whose tools have a `lookup`.

    `earlier` is the run that was cut off, if that was in this process.
    """
    account = None if earlier is None else earlier.account
    running_keys = account.in_flight.running_keys if isinstance(account, Account) else ()
    entries = {
        key: await look_up(entry, effects, running_keys) for key, entry in record.by_key.items()
    }
    return CutOffEffects(record, entries)


def _account(turn: str, entries: Mapping[str, Any]) -> Snapshot:
    return {"input": turn, "version": 0, "saga": {"entries": entries}}
