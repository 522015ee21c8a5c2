"""Topologies: who works when in the work stage, given what is order and what is there.

A topology is a pure function of the plan and of the entries so far; nothing else of a flow depends
on it. So gates, budgets and protections are the same in each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypedDict

from agentgraph.errors import ConfigurationError
from agentgraph.flow.values import Brief, Plan, Summary
from agentgraph.guards.mechanisms.settings import is_whole

Name: TypeAlias = Literal["supervisor", "hierarchical", "handoff", "sop"]
Agree: TypeAlias = Callable[[Sequence[Summary]], bool | Awaitable[bool]]


class Failure(TypedDict):
    """Why a worker has brought nothing."""

    failure_class: str
    guard: str
    cause: str
    is_rejected: bool
    """Whether a human has rejected what it would bring."""


class Entry(TypedDict):
    """What has become of one piece of work, as the flow's state has it."""

    worker: str
    summary: dict[str, Any] | None
    failure: Failure | None
    transfer: str | None
    """The peer that goes on with the work."""


class Item(NamedTuple):
    """One piece of work that may begin now."""

    key: str
    """Identifies it within its attempt."""
    brief: Brief
    shown: tuple[str, ...] = ()
    """The keys of the entries that its worker is shown."""


class Topology(Protocol):
    """The wiring of the work stage."""

    @property
    def name(self) -> str:
        """Return its name, as pictures and audits have it."""
        ...

    @property
    def has_peers(self) -> bool:
        """Whether its workers hand the work over to one another."""
        ...

    def faults(self, plan: Plan, workers: Sequence[str]) -> Iterator[str]:
        """Yield what is wrong with a plan for these workers, beside unknown names."""
        ...

    def due(self, plan: Plan, entries: Mapping[str, Entry]) -> list[Item]:
        """Return the work that may begin now; nothing where the stage is done."""
        ...

    def results(self, plan: Plan, entries: Mapping[str, Entry]) -> list[str]:
        """Return the keys of the entries that are aggregated, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class Supervisor:
    """All briefs at once, each as soon as what it requires is there."""

    name: str = "supervisor"
    has_peers: bool = False

    def faults(self, plan: Plan, workers: Sequence[str]) -> Iterator[str]:
        """Yield the briefs that wait for each other."""
        stuck_briefs = _stuck_briefs(plan)
        if stuck_briefs:
            names = ", ".join(
                f"{number + 1} ({plan.briefs[number].worker})" for number in stuck_briefs
            )
            yield f"briefs {names} require each other: none of them could begin"

    def due(self, plan: Plan, entries: Mapping[str, Entry]) -> list[Item]:
        """Return the briefs that have not begun and whose requirements are there.

        Where nothing else can begin, those whose artifacts nobody has brought are due too: the gate
        before their workers says so.
        """
        bringers = _bringers_of_artifacts(entries)
        known_names = bringers.keys() | {brief.worker for brief in plan.briefs}
        ready: list[Item] = []
        for number, brief in enumerate(plan.briefs):
            keys = [str(n) for n in _requirements(plan, number)]
            if str(number) not in entries and all(_is_done(entries.get(key)) for key in keys):
                keys += [key for name in brief.requires for key in bringers.get(name, ())]
                ready.append(Item(str(number), brief, tuple(dict.fromkeys(keys))))
        due = [item for item in ready if known_names.issuperset(item.brief.requires)]
        if not due and not any(entry.get("failure") for entry in entries.values()):
            return ready
        return due

    def results(self, plan: Plan, entries: Mapping[str, Entry]) -> list[str]:
        """Return one entry for each brief."""
        return [str(number) for number in range(len(plan.briefs)) if str(number) in entries]


@dataclass(frozen=True, slots=True)
class StandardProcedure:
    """One brief per worker, in the order of the workers; each builds on the one before."""

    name: str = "sop"
    has_peers: bool = False

    def faults(self, plan: Plan, workers: Sequence[str]) -> Iterator[str]:
        """Yield where the plan has other workers, or another order."""
        order = [brief.worker for brief in plan.briefs]
        if order != [*workers]:
            yield (
                f"the procedure is {' → '.join(workers)}, and the plan is "
                f"{' → '.join(order) or 'empty'}: give one brief per worker, in this order"
            )

    def due(self, plan: Plan, entries: Mapping[str, Entry]) -> list[Item]:
        """Return the next brief, unless the one before has failed."""
        number = len(entries)
        if number >= len(plan.briefs) or any(entry.get("failure") for entry in entries.values()):
            return []
        return [Item(str(number), plan.briefs[number], tuple(str(n) for n in range(number)))]

    def results(self, plan: Plan, entries: Mapping[str, Entry]) -> list[str]:
        """Return one entry for each brief."""
        return [str(number) for number in range(len(plan.briefs)) if str(number) in entries]


@dataclass(frozen=True, slots=True)
class Handoff:
    """One brief, which peers pass on until one of them answers."""

    name: str = "handoff"
    has_peers: bool = True

    def faults(self, plan: Plan, workers: Sequence[str]) -> Iterator[str]:
        """Yield that there is not exactly one brief."""
        if len(plan.briefs) != 1:
            yield f"peers pass on one brief, and the plan has {len(plan.briefs)}: give exactly one"

    def due(self, plan: Plan, entries: Mapping[str, Entry]) -> list[Item]:
        """Return the brief for whoever has it now; nothing once a peer has answered."""
        number = len(entries)
        brief = plan.briefs[0]
        if not number:
            return [Item("0", brief)]
        target = entries[str(number - 1)].get("transfer")
        if target is None:
            return []
        shown = tuple(str(n) for n in range(number))
        return [Item(str(number), brief.model_copy(update={"worker": target}), shown)]

    def results(self, plan: Plan, entries: Mapping[str, Entry]) -> list[str]:
        """Return the entry of the peer that has answered."""
        return [str(len(entries) - 1)] if entries else []


@dataclass(frozen=True, slots=True)
class Debate:
    """All workers answer, see the answers of the others, and may change their own."""

    rounds: int = 2
    agree: Agree | None = None
    name: str = "debate"
    has_peers: bool = False

    def faults(self, plan: Plan, workers: Sequence[str]) -> Iterator[str]:
        """Yield that fewer than two take part."""
        if len(plan.briefs) < 2:
            yield f"a debate has two briefs or more, and the plan has {len(plan.briefs)}"

    def due(self, plan: Plan, entries: Mapping[str, Entry]) -> list[Item]:
        """Return the briefs of the next round; nothing where all rounds are over."""
        size = len(plan.briefs)
        round, in_round = divmod(len(entries), size)
        is_last = round >= self.rounds or self._has_failures(plan, entries, round - 1)
        if not in_round and is_last:
            return []  # nothing is won by another round after a failure
        shown = tuple(_key(round - 1, n) for n in range(size)) if round else ()
        return [
            Item(_key(round, number), brief, shown)
            for number, brief in enumerate(plan.briefs)
            if _key(round, number) not in entries  # a round may run in waves
        ]

    def answers(self, plan: Plan, entries: Mapping[str, Entry]) -> list[str]:
        """Return the entries of a round that is over, nothing while one is under way."""
        return [] if len(entries) % len(plan.briefs) else self.results(plan, entries)

    def _has_failures(self, plan: Plan, entries: Mapping[str, Entry], round: int) -> bool:
        keys = [_key(round, number) for number in range(len(plan.briefs))]
        return any(key in entries and entries[key].get("failure") for key in keys)

    def results(self, plan: Plan, entries: Mapping[str, Entry]) -> list[str]:
        """Return the entries of the last round."""
        last = (len(entries) - 1) // len(plan.briefs) if entries else 0
        keys = [_key(last, number) for number in range(len(plan.briefs))]
        return [key for key in keys if key in entries]


def debate(rounds: int = 2, agree: Agree | None = None) -> Debate:
    """Return the topology in which all answer, read the others' answers, and answer again.

        Flow("estimate", supervisor=judge, work=[optimist, sceptic], topology=debate(rounds=3))

    It ends early where `agree(summaries)` says so, sync or async, by default where all have given
    one text.
    """
    if not is_whole(rounds, 1):
        raise ConfigurationError(f"debate(rounds={rounds!r}): give 1 or more")
    return Debate(rounds, agree)


_BY_NAME: Mapping[str, Topology] = {
    "supervisor": Supervisor(),
    "hierarchical": Supervisor("hierarchical"),
    "handoff": Handoff(),
    "sop": StandardProcedure(),
}


def topology_of(value: object) -> Topology:
    """Return a topology by its name, or one that `debate()` has made."""
    if isinstance(value, Debate):
        return value
    if not isinstance(value, str) or value not in _BY_NAME:
        names = ", ".join(repr(name) for name in _BY_NAME)
        raise ConfigurationError(f"topology={value!r}: there are {names} and debate()")
    return _BY_NAME[value]


# Requirements between briefs.


def _requirements(plan: Plan, number: int) -> list[int]:
    """Return the briefs whose workers a brief requires."""
    required = {*plan.briefs[number].requires}
    if not required:
        return []
    return [n for n, b in enumerate(plan.briefs) if b.worker in required and n != number]


def _is_done(entry: Entry | None) -> bool:
    return entry is not None and not entry.get("failure")


def _bringers_of_artifacts(entries: Mapping[str, Entry]) -> dict[str, list[str]]:
    """Return the keys of the entries that have brought each artifact."""
    keys: dict[str, list[str]] = {}
    for key, entry in entries.items():
        for name in (entry.get("summary") or {}).get("artifacts") or ():
            keys.setdefault(name, []).append(key)
    return keys


def _stuck_briefs(plan: Plan) -> list[int]:
    """Return the briefs that could never begin."""
    ready: dict[int, bool] = {}
    rest = [*range(len(plan.briefs))]
    while free := [n for n in rest if all(need in ready for need in _requirements(plan, n))]:
        ready.update(dict.fromkeys(free, True))
        rest = [n for n in rest if n not in ready]
    return rest


def _key(round: int, number: int) -> str:
    return f"{round}.{number}"
