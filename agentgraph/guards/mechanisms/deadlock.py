"""Agents that keep each other busy without getting anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, cast

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.canonical import digest as digest_of
from agentgraph.guards.mechanisms.canonical import exact_digest

_GUARD = "deadlock_monitor"
_ALLOW = Decision("allow", _GUARD)
_LENIENCE = 5
_MOST_KEPT = 64
_LEAST = {"cycle": 1, "occurrences": 2, "stuck_correct": 2, "stuck": 2}


class _Edge(NamedTuple):
    source: str
    target: str
    digest: str


@dataclass(slots=True)
class DeadlockMonitor:
    """Notice peers that hand over in a circle, and workers that always give the same reply.

    A circle is of at most `cycle` agents and made `occurrences` times in the same state: a digest
    that has changed is progress. The reply that a worker gives for the `stuck_correct`th time is
    answered by a nudge, for the `stuck`th time by the end; those to one message count once, for
    all of them were asked before any had answered. To other briefs it may be given much more often.
    """

    cycle: int = 3
    occurrences: int = 2
    stuck_correct: int = 2
    stuck: int = 3
    _paths: dict[str, list[_Edge]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _cycles: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _replies: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _messages: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        faults = [
            f"DeadlockMonitor({name}={value!r}): give {least} or more"
            for name, least in _LEAST.items()
            if type(value := getattr(self, name)) is not int or value < least
        ]
        if not faults and self.stuck < self.stuck_correct:
            faults = [
                f"DeadlockMonitor(stuck={self.stuck}): give stuck_correct={self.stuck_correct} "
                "or more, for the nudge comes first"
            ]
        if faults:
            raise ConfigurationError(faults)

    def handoff(self, *, source: str, target: str, digest: str, branch: str = "") -> Decision:
        """Decide on a peer's handoff; `digest` stands for the state in which it is made."""
        closed = self._closed(_Edge(source, target, digest), branch)
        if not closed:
            return _ALLOW
        rotated = _rotated(closed)
        count = _counted(self._cycles, exact_digest((branch, rotated))[:32])
        if count != self.occurrences:
            return _ALLOW
        names = [edge.source for edge in rotated]
        shown = " → ".join([*names, names[0]])
        return Decision(
            "escalate",
            _GUARD,
            f"the handoffs {shown} were made {count} times without progress: "
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
        """Decide on what a worker has replied to its supervisor, who asked in a message.

        `work` stands for what it has found out or done before it replied.
        """
        said, asked = digest_of(reply)[:32], digest_of(brief)[:32]
        key = exact_digest((branch, worker, said))[:32]
        if message and self._messages.get(key) == message:
            return _ALLOW
        self._messages.pop(key, None)
        self._messages[key] = message
        _trim(self._messages)
        count = _counted(self._replies, exact_digest((branch, worker, said, asked))[:32])
        # Whoever has done another thing for each question may answer "Done." as often as asked.
        did = (branch, worker, said, work) if work else (branch, worker, said)
        loose = _counted(self._replies, exact_digest(did)[:32])
        count, loose = max(count, self._weight(loose)), max(count, loose)
        if count < self.stuck_correct:
            return _ALLOW
        told = f"{worker!r} has given the same reply {loose} times"
        evidence: dict[str, object] = {
            "worker": worker,
            "reply": said,
            "brief": asked,
            "count": loose,
            "branch": branch,
        }
        if count >= self.stuck:
            return Decision("abort", _GUARD, f"{told}: it is stuck", "deadlock", evidence)
        told += ". Give it what it lacks, send the work to another, or answer with what is there."
        return Decision("correct", _GUARD, told, "deadlock", evidence)

    def _weight(self, times: int) -> int:
        """Weigh a reply to whatever brief as so many to the same one."""
        # Ten things of a kind may well be answered alike; one that is worded anew again and again
        # cannot be told from them, but by how often.
        weight, rest = divmod(times - 1, _LENIENCE)
        return weight if rest == 0 or weight >= self.stuck else 0

    def _closed(self, edge: _Edge, branch: str) -> list[_Edge]:
        """Walk one edge on; return the cycle that it closes and take that off the path.

        What is taken off is not counted again, so that a second occurrence is a second full turn.
        """
        path = self._paths.pop(branch, [])
        if path and path[-1].target != edge.source:
            path = []
        path = [*path, edge][-self.cycle :]
        starts = [at for at, step in enumerate(path) if step.source == edge.target]
        closed = path[starts[-1] :] if starts else []
        if rest := path[: len(path) - len(closed)]:
            self._paths[branch] = rest
            _trim(self._paths)
        return closed

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

    def load(self, dumped: Mapping[str, object]) -> None:
        """Take the memory that `dump` gave."""
        paths = cast(Sequence[tuple[str, Sequence[Sequence[str]]]], dumped.get("paths", ()))
        self._paths = {branch: [_Edge(*edge) for edge in path] for branch, path in paths}
        self._cycles = dict(cast(Sequence[tuple[str, int]], dumped.get("cycles", ())))
        self._replies = dict(cast(Sequence[tuple[str, int]], dumped.get("replies", ())))
        self._messages = dict(cast(Sequence[tuple[str, str]], dumped.get("messages", ())))


def _rotated(cycle: list[_Edge]) -> list[_Edge]:
    """Begin a cycle at its first name: A → B → A and B → A → B are one."""
    first = min(range(len(cycle)), key=lambda at: cycle[at].source)
    return cycle[first:] + cycle[:first]


def _counted(counts: dict[str, int], key: str) -> int:
    """Count a key once more, as the one seen last; the longest unseen is forgotten."""
    count = counts[key] = counts.pop(key, 0) + 1
    _trim(counts)
    return count


def _trim(kept: dict[str, int] | dict[str, str] | dict[str, list[_Edge]]) -> None:
    if len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]
