"""Deadlocks between agents: handoffs in a circle, and workers that repeat one reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, cast

from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.canonical import digest as digest_of
from agentgraph.guards.mechanisms.canonical import exact_digest
from agentgraph.guards.mechanisms.repeats.answer import answer_in
from agentgraph.guards.mechanisms.repeats.wording import compare, spelling_free, words_of_brief
from agentgraph.guards.mechanisms.settings import whole_number_faults

_GUARD = "deadlock_monitor"
_ALLOW = Decision("allow", _GUARD)
_SAME_BRIEFS = 3
"""How often a worker may get one brief before its supervisor is corrected, whatever the replies."""
_MAX_KEYS = 64
_MAX_RESULTS = 16
_MOST_NEWS = 50
"""How often words alone, without any work, are taken for progress."""
_MINIMUMS = {"cycle": 1, "occurrences": 2, "stuck_correct": 2, "stuck": 2}


class _Edge(NamedTuple):
    """A handoff, and the digest of the state of the work in which it is made."""

    source: str
    target: str
    digest: str


@dataclass(slots=True)
class DeadlockMonitor(BuiltInGuard):
    """Notice peers that hand over in a circle, and workers that always give the same reply.

    A circle is a deadlock if it has at most `cycle` agents and is made `occurrences` times in the
    same state: where the digest has changed there was progress, and a new circle begins. So there
    is where a supervisor told something new with its transfer. A worker that gives back for the
    `stuck`th time, for whatever reasons, although it was told nothing new, is in a deadlock too.

    When a worker gives the same reply to the same brief for the `stuck_correct`th time, its
    supervisor is corrected; at the `stuck`th time the run ends. For a brief in other words it is
    one time more, and twice as often. Equal replies to the briefs of one message count once, as all
    were sent before any was answered. To different briefs a worker may always reply the same. A
    brief that is sent for the third time, however it is spelled, is corrected whatever the worker
    replies.
    """

    setting = "deadlock"
    summary = "DeadlockMonitor(): handovers in a circle, workers that always say the same"
    is_input_wide = True

    cycle: int = 3
    occurrences: int = 2
    stuck_correct: int = 2
    stuck: int = 3
    _paths: dict[str, list[_Edge]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The last handoffs that closed no cycle, by branch."""
    _cycles: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _refused_edges: dict[str, int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The handoffs that were refused once, to correct the agents."""
    _replies: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _briefs: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The wordings of the last briefs with one reply."""
    _messages: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _news: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    """How often something new was told, and the wordings of what was told last, by branch."""

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
        edge = self._edge(source, target, digest, branch)
        if self._refused_edges and _edge_key(edge, branch) in self._refused_edges:
            names, count = sorted([source, target]), self.occurrences + 1
            return _deadlock(names, count, branch)
        cycle = self._take_cycle(edge, branch)
        if not cycle:
            return _ALLOW
        edges = _canonical_cycle(cycle)
        count = _increment(self._cycles, exact_digest((branch, edges))[:32])
        if count != self.occurrences:
            return _ALLOW
        return _deadlock([edge.source for edge in edges], count, branch)

    def give_back(self, *, worker: str, supervisor: str, state: str, branch: str = "") -> Decision:
        """Decide on a worker's return; `state` identifies the work, whatever the reasons given.

        Ask `handoff` first, which knows those who return for the same reason.
        """
        key = _key(branch, worker, supervisor, state, self._news_of(branch))
        times = _increment(self._replies, key)
        if times < self.stuck:
            return _ALLOW
        cause = f"{worker!r} has asked for help {times} times and was told nothing new in between"
        evidence: dict[str, object] = {
            "cycle": sorted([worker, supervisor]),
            "count": times,
            "branch": branch,
        }
        return Decision("escalate", _GUARD, cause, "deadlock", evidence)

    def tell(self, brief: str, *, branch: str = "") -> bool:
        """Note what is said with a transfer; return whether it tells something new."""
        times, *earlier = (self._news.pop(branch, "") or "0").split("/")
        words = words_of_brief(brief)
        is_new = not compare(words, earlier).alike and int(times) < _MOST_NEWS
        wordings = [*earlier, words][-2 * self.stuck :]
        self._news[branch] = "/".join([str(int(times) + is_new), *wordings])
        _trim(self._news, _MAX_RESULTS)
        return is_new

    def _news_of(self, branch: str) -> str:
        return self._news.get(branch, "").partition("/")[0]

    def _edge(self, source: str, target: str, digest: str, branch: str) -> _Edge:
        news = self._news_of(branch)
        return _Edge(source, target, f"{digest} {news}" if news else digest)

    def correct(
        self, decision: Decision, *, source: str, target: str, digest: str, branch: str = ""
    ) -> Decision:
        """Make a decision on a handoff a correction, if none was made of this handoff yet.

        The caller then refuses the handoff. Who insists on it in the same state is in a deadlock.
        """
        key = _edge_key(self._edge(source, target, digest, branch), branch)
        if key in self._refused_edges:
            return decision
        self._refused_edges[key] = 1
        _trim(self._refused_edges)
        cause = f"{decision.cause}. Do the work, or answer with what is there."
        return replace(decision, action="correct", cause=cause)

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
        reply_digest, brief_digest = digest_of(answer_in(reply))[:32], digest_of(brief)[:32]
        if self._is_in_message(message, _key(branch, worker, "reply", reply_digest)):
            return _ALLOW
        times = _increment(self._replies, _key(branch, worker, reply_digest, brief_digest))
        result = _key(branch, worker, reply_digest, work)
        times_reworded = self._times_worded(result, brief)
        brief_key = _key(branch, worker, spelling_free(brief))
        is_counted = self._is_in_message(message, brief_key)
        times_sent = 0 if is_counted else _increment(self._replies, brief_key)
        evidence: dict[str, object] = {
            "worker": worker,
            "reply": reply_digest,
            "brief": brief_digest,
            "count": max(times, times_reworded),
            "branch": branch,
        }
        cause = f"{worker!r} has given the same reply {max(times, times_reworded)} times"
        if times >= self.stuck or times_reworded >= 2 * self.stuck:
            return Decision("abort", _GUARD, f"{cause}: it is stuck", "deadlock", evidence)
        if times < self.stuck_correct and times_reworded != self.stuck_correct + 1:
            if is_counted or times_sent % _SAME_BRIEFS:
                return _ALLOW
            cause = f"{worker!r} has got the same brief {times_sent} times"
            evidence["count"] = times_sent
        cause += ". Give it what it lacks, send the work to another, or answer with what is there."
        return Decision("correct", _GUARD, cause, "deadlock", evidence)

    def _is_in_message(self, message: str, key: str) -> bool:
        """Tell whether a brief, or a reply, was counted for the same message already."""
        if message and self._messages.get(key) == message:
            return True
        self._messages.pop(key, None)
        self._messages[key] = message
        _trim(self._messages)
        return False

    def _times_worded(self, result: str, brief: str) -> int:
        """Count the briefs with one result that ask for the same as this one, in whatever words.

        A worker that did different work for each brief has other results, though it may answer
        "Done." to all of them.
        """
        earlier = self._briefs.pop(result, "|")
        wordings = [*earlier.split("/"), words_of_brief(brief)]
        self._briefs[result] = "/".join(wordings[-2 * self.stuck :])
        _trim(self._briefs, _MAX_RESULTS)
        return compare(wordings[-1], wordings).alike

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
        if not (self._paths or self._cycles or self._replies or self._news):
            return {}
        return {
            "paths": [
                [branch, [list(edge) for edge in path]] for branch, path in self._paths.items()
            ],
            "cycles": [list(item) for item in self._cycles.items()],
            "refused": [*self._refused_edges],
            "briefs": [list(item) for item in self._briefs.items()],
            "replies": [list(item) for item in self._replies.items()],
            "messages": [list(item) for item in self._messages.items()],
            "news": [list(item) for item in self._news.items()],
        }

    def load(self, state: Mapping[str, object]) -> None:
        """Restore the memory from what `dump` returned."""
        paths = cast(Sequence[tuple[str, Sequence[Sequence[str]]]], state.get("paths", ()))
        self._paths = {branch: [_Edge(*edge) for edge in path] for branch, path in paths}
        self._cycles = dict(cast(Sequence[tuple[str, int]], state.get("cycles", ())))
        self._refused_edges = dict.fromkeys(cast(Sequence[str], state.get("refused", ())), 1)
        self._briefs = dict(cast(Sequence[tuple[str, str]], state.get("briefs", ())))
        self._replies = dict(cast(Sequence[tuple[str, int]], state.get("replies", ())))
        self._messages = dict(cast(Sequence[tuple[str, str]], state.get("messages", ())))
        self._news = dict(cast(Sequence[tuple[str, str]], state.get("news", ())))


def _deadlock(names: list[str], count: int, branch: str) -> Decision:
    arrows = " → ".join([*names, names[0]])
    return Decision(
        "escalate",
        _GUARD,
        f"the handoffs {arrows} were made {count} times without progress: "
        "somebody else has to decide",
        "deadlock",
        {"cycle": names, "count": count, "branch": branch},
    )


def _edge_key(edge: _Edge, branch: str) -> str:
    return _key(branch, *edge)


def _key(*parts: str) -> str:
    return exact_digest(parts)[:32]


def _canonical_cycle(cycle: list[_Edge]) -> list[_Edge]:
    """Rotate a cycle to its alphabetically first name: A → B → A and B → A → B are one."""
    first = min(range(len(cycle)), key=lambda at: cycle[at].source)
    return cycle[first:] + cycle[:first]


def _increment(counts: dict[str, int], key: str) -> int:
    """Count a key once more and return its count; forget the key counted longest ago."""
    count = counts[key] = counts.pop(key, 0) + 1
    _trim(counts)
    return count


def _trim(
    memory: dict[str, int] | dict[str, str] | dict[str, list[_Edge]], most: int = _MAX_KEYS
) -> None:
    if len(memory) > most:
        del memory[next(iter(memory))]
