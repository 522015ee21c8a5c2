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
"""As many equal replies to different briefs weigh as one more to the same brief."""
_MAX_KEYS = 64
_MINIMUMS = {"cycle": 1, "occurrences": 2, "stuck_correct": 2, "stuck": 2}


class _Edge(NamedTuple):
    """A handoff in a state of the work, which the digest stands for."""

    source: str
    target: str
    digest: str


@dataclass(slots=True)
class DeadlockMonitor:
    """Notice peers that hand over in a circle, and workers that always give the same reply.

    A circle has at most `cycle` agents and is made `occurrences` times in the same state: where the
    digest has changed there was progress, and it is another circle.

    A reply that a worker gives for the `stuck_correct`th time is answered by a correction of its
    supervisor, for the `stuck`th time by the end of the run. Equal replies to the briefs of one
    message count once, as all were sent before any was answered. To different briefs the same reply
    may be given much more often.
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
        """Decide on a peer's handoff; `digest` stands for the state in which it is made.

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

        `work` stands for what the worker has found out or done before it replied, "" for nothing.
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
        """Return as how many replies to one brief so many replies to different briefs count."""
        # Ten items of a kind may well be answered alike. A supervisor that puts one brief into new
        # words again and again looks the same, and differs only by the number of times.
        weight, rest = divmod(times - 1, _LENIENCE)
        return weight if rest == 0 or weight >= self.stuck else 0

    def _take_cycle(self, edge: _Edge, branch: str) -> list[_Edge]:
        """Add an edge to the path; return the cycle that it closes and remove that from the path.

        Its edges are not counted again, so that a second occurrence is a second full turn.
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
        """Take the memory that `dump` gave."""
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
    """Count a key once more; the key that was counted longest ago is forgotten."""
    count = counts[key] = counts.pop(key, 0) + 1
    _trim(counts)
    return count


def _trim(memory: dict[str, int] | dict[str, str] | dict[str, list[_Edge]]) -> None:
    if len(memory) > _MAX_KEYS:
        del memory[next(iter(memory))]
