"""Deadlocks between agents: handoffs in a circle, and workers that repeat one reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, cast

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.canonical import digest as digest_of
from agentgraph.guards.mechanisms.canonical import exact_digest
from agentgraph.guards.mechanisms.settings import whole_number_faults

_GUARD = "deadlock_monitor"
_ALLOW = Decision("allow", _GUARD)
_LENIENCE = 5
"""How many equal replies to different briefs count as much as one more to the same brief."""
_MAX_KEYS = 64
_MINIMUMS = {"cycle": 1, "occurrences": 2, "stuck_correct": 2, "stuck": 2}


class _Edge(NamedTuple):
    """A handoff, and the digest of the state of the work in which it is made."""

    source: str
    target: str
    digest: str


@dataclass(slots=True)
class DeadlockMonitor:
    """Notice peers that hand over in a circle, and workers that always give the same reply.

    A circle is a deadlock if it has at most `cycle` agents and is made `occurrences` times in the
    same state: where the digest has changed there was progress, and a new circle begins.

    When a worker gives the same reply for the `stuck_correct`th time, its supervisor is corrected;
    at the `stuck`th time the run ends. Equal replies to the briefs of one message count once, as
    all were sent before any was answered. To different briefs a worker may give the same reply much
    more often.
    """

    cycle: int = 3
    occurrences: int = 2
    stuck_correct: int = 2
    stuck: int = 3
    _paths: dict[str, list[_Edge]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The last handoffs that closed no cycle, by branch."""
    _cycles: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _replies: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _messages: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        faults = [*whole_number_faults(self, _MINIMUMS)]
        if not faults and self.stuck < self.stuck_correct:
            faults = [
                f"DeadlockMonitor(stuck={self.stuck}): give stuck_correct={self.stuck_correct} "
                "or more, for the nudge comes first"
            ]
        if faults:
            raise ConfigurationError(faults)

    def handoff(self, *, source: str, target: str, digest: str, branch: str = "") -> Decision:
        """Decide on a peer's handoff; `digest` identifies the state in which it is made.

        `branch` names the part of a run whose handoffs follow each other.
        """
        cycle = self._take_cycle(_Edge(source, target, digest), branch)
        if not cycle:
            return _ALLOW
        edges = _canonical_cycle(cycle)
        count = _increment(self._cycles, exact_digest((branch, edges))[:32])
        if count != self.occurrences:
            return _ALLOW
        names = [edge.source for edge in edges]
        arrows = " → ".join([*names, names[0]])
        return Decision(
            "escalate",
            _GUARD,
            f"the handoffs {arrows} were made {count} times without progress: "
            "somebody else has to decide",
            "deadlock",
            {"cycle": names, "count": count, "branch": branch},
        )

    def dispatch(
        self,
        *,
        worker: str,
        brief: str,
        reply: str,
        branch: str = "",
        message: str = "",
        work: str = "",
    ) -> Decision:
        """Decide on the reply of a worker to a brief that its supervisor sent in a message.

        `work` is a digest of what the worker found out or did before it replied, "" for nothing.
        """
        reply_digest, brief_digest = digest_of(reply)[:32], digest_of(brief)[:32]
        key = exact_digest((branch, worker, reply_digest))[:32]
        if message and self._messages.get(key) == message:
            return _ALLOW
        self._messages.pop(key, None)
        self._messages[key] = message
        _trim(self._messages)
        count = _increment(
            self._replies, exact_digest((branch, worker, reply_digest, brief_digest))[:32]
        )
        # A worker that did different work for each brief may answer "Done." to all of them.
        result = (branch, worker, reply_digest, work) if work else (branch, worker, reply_digest)
        loose = _increment(self._replies, exact_digest(result)[:32])
        count, loose = max(count, self._weight(loose)), max(count, loose)
        if count < self.stuck_correct:
            return _ALLOW
        cause = f"{worker!r} has given the same reply {loose} times"
        evidence: dict[str, object] = {
            "worker": worker,
            "reply": reply_digest,
            "brief": brief_digest,
            "count": loose,
            "branch": branch,
        }
        if count >= self.stuck:
            return Decision("abort", _GUARD, f"{cause}: it is stuck", "deadlock", evidence)
        cause += ". Give it what it lacks, send the work to another, or answer with what is there."
        return Decision("correct", _GUARD, cause, "deadlock", evidence)

    def _weight(self, times: int) -> int:
        """Convert a number of replies to different briefs into one of replies to the same brief."""
        # A worker may well give one answer to ten items of a kind. A supervisor that rewords one
        # brief again and again looks the same, and only the number of replies tells them apart.
        weight, rest = divmod(times - 1, _LENIENCE)
        return weight if rest == 0 or weight >= self.stuck else 0

    def _take_cycle(self, edge: _Edge, branch: str) -> list[_Edge]:
        """Add an edge to the path; return the cycle that it closes, and remove it from the path.

        The edges of the cycle are not counted again: a second occurrence is a second full turn.
        """
        path = self._paths.pop(branch, [])
        if path and path[-1].target != edge.source:
            path = []
        path = [*path, edge][-self.cycle :]
        starts = [at for at, step in enumerate(path) if step.source == edge.target]
        cycle = path[starts[-1] :] if starts else []
        if rest := path[: len(path) - len(cycle)]:
            self._paths[branch] = rest
            _trim(self._paths)
        return cycle

    def fresh(self) -> Self:
        """Return the same monitor for another run."""
        return replace(self)

    def dump(self) -> dict[str, object]:
        """Return the memory as JSON-able values."""
        if not (self._paths or self._cycles or self._replies or self._messages):
            return {}
        return {
            "paths": [
                [branch, [list(edge) for edge in path]] for branch, path in self._paths.items()
            ],
            "cycles": [list(item) for item in self._cycles.items()],
            "replies": [list(item) for item in self._replies.items()],
            "messages": [list(item) for item in self._messages.items()],
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Restore the memory from what `dump` returned."""
        paths = cast(Sequence[tuple[str, Sequence[Sequence[str]]]], state.get("paths", ()))
        self._paths = {branch: [_Edge(*edge) for edge in path] for branch, path in paths}
        self._cycles = dict(cast(Sequence[tuple[str, int]], state.get("cycles", ())))
        self._replies = dict(cast(Sequence[tuple[str, int]], state.get("replies", ())))
        self._messages = dict(cast(Sequence[tuple[str, str]], state.get("messages", ())))


def _canonical_cycle(cycle: list[_Edge]) -> list[_Edge]:
    """Rotate a cycle to its alphabetically first name: A → B → A and B → A → B are one."""
    first = min(range(len(cycle)), key=lambda at: cycle[at].source)
    return cycle[first:] + cycle[:first]


def _increment(counts: dict[str, int], key: str) -> int:
    """Count a key once more and return its count; forget the key counted longest ago."""
    count = counts[key] = counts.pop(key, 0) + 1
    _trim(counts)
    return count


def _trim(memory: dict[str, int] | dict[str, str] | dict[str, list[_Edge]]) -> None:
    if len(memory) > _MAX_KEYS:
        del memory[next(iter(memory))]
