"""A team's turn, early and late in one session: what it takes, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import fmean
from time import perf_counter
from typing import Any, TypeAlias

from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import (
    Agent,
    FromSpeaker,
    Hub,
    HumanTarget,
    Session,
    Team,
    Transition,
    TransitionGraph,
)
from benchmarks.measure import Row, bytes_in
from benchmarks.peers import langgraph_supervisor_of_two
from benchmarks.script import FunctionModel, look_up, question, then_answer
from benchmarks.stores import STORES, Server, Store, new_store, open_hub

__all__ = ["Growth", "session_rows", "team_of_two"]

Turn: TypeAlias = Callable[[int], Awaitable[object]]
Weigh: TypeAlias = Callable[[], Awaitable[int]]

TURNS, PEER_TURNS, STEP_TURNS = 1_000, 200, 60
TURN_10 = (6, 15)
FRESH = 4
"""The new sessions whose turns 6-15 are compared with the old one's, turn for turn."""
WEIGHED = 10
GOAL, KEPT_KB = 1.1, {"round": 5.0, "step": 20.0}


@dataclass(slots=True)
class Growth:
    """What each turn of a conversation took, and what was kept after some of them."""

    name: str
    seconds: list[float] = field(default_factory=list)
    kept: dict[int, int] = field(default_factory=dict)

    def around(self, turn: int) -> float:
        """Return the seconds of a turn: the fastest of ten around it."""
        return min(self.seconds[max(turn - 5, 0) : turn + 5])

    def bytes_per_turn(self, last: int, first: int | None = None) -> float:
        """Return what the turns up to one added on average, by default since the last weighing."""
        before = max(turn for turn in self.kept if turn < last) if first is None else first
        return (self.kept[last] - self.kept[before]) / (last - before)


async def session_rows(server: Server) -> tuple[list[Row], list[Growth]]:
    """Measure a team of two, each of whom calls its tool once in every turn."""
    rows: list[Row] = []
    grown: list[Growth] = []
    for name in STORES:
        with new_store(name, server) as store:
            growth, early, late = await _grown(store)
            file_kb = (
                store.file_bytes() / (TURNS + 2 * FRESH * TURN_10[1]) / 1000 if store.file else None
            )
        bytes_ = [growth.bytes_per_turn(turn) / 1000 for turn in (TURNS, 2 * WEIGHED)]
        rows += [
            Row(f"team turn, {name}: turn 1,000 / turn 10", late, early, GOAL),
            Row(f"bytes kept by a team turn, {name}: turn 1,000 / turn 10", *bytes_, GOAL, "kB"),
        ]
        if file_kb is not None:
            what = "bytes of the SQLite file per team turn, of all / what is stored in it"
            rows.append(Row(what, file_kb, bytes_[0], None, "kB"))
        grown.append(growth)
    peer = await _peer()
    what = "team turn / langgraph-supervisor's with two workers, memory, turn"
    for turn in (10, PEER_TURNS):
        times = [one.around(turn) * 1000 for one in (grown[0], peer)]
        rows.append(Row(f"{what} {turn}", *times, None))
    theirs = peer.bytes_per_turn(PEER_TURNS) / 1000
    with new_store("SQLite", server) as store:
        steps = await _kept_by_steps(store)
    for durability, kept in (("round", grown[1].bytes_per_turn(PEER_TURNS)), ("step", steps)):
        what = f'bytes kept by a team turn, durability "{durability}", SQLite / the same, turn 200'
        rows.append(Row(what, kept / 1000, theirs, None, "kB", _within(kept, durability)))
    return rows, [*grown, peer]


def team_of_two(durability: Any = "round") -> Team:
    """Return a team whose two agents both speak on each input."""
    rules = TransitionGraph(
        "desk",
        [
            Transition(FromSpeaker("user"), "desk"),
            Transition(FromSpeaker("desk"), "orders"),
            Transition(FromSpeaker("orders"), HumanTarget()),
        ],
    )
    return Team([_agent("desk"), _agent("orders")], rules, durability=durability)


def _agent(name: str) -> Agent:
    model = FunctionModel(say=then_answer("look_up", order="A17"))
    return Agent(name, "Knows orders.", model=model, tools=[look_up], system_prompt="Help.")


async def _grown(store: Store) -> tuple[Growth, float, float]:
    """Hold a long session; then its turns beside those of new ones: ms at turn 10 and 1,000."""
    team = team_of_two()
    growth = Growth(f"agentgraph, {store.name}")
    async with open_hub(store, team) as hub:
        old = await hub.session(team, ttl=None)
        await _hold(growth, _turns(old), TURNS, lambda: store.weigh(hub, old))
        late, early = await _beside(hub, team, old)
        assert old.state.turn_count == 3 * (TURNS + FRESH * TURN_10[1]) - 1
    return growth, early * 1000, late * 1000


async def _beside(hub: Hub, team: Team, old: Session) -> tuple[float, float]:
    """Return the seconds of a turn of the old session, and of turns 6-15 of new ones."""
    first, last = TURN_10
    times: dict[str, list[list[float]]] = {key: [[] for _ in range(last)] for key in ("old", "new")}
    for _ in range(FRESH):
        new = await hub.session(team, ttl=None)
        for number in range(last):
            for key, session in (("old", old), ("new", new)):
                times[key][number].append(await _timed(_turns(session), number))
    means = (fmean(min(one) for one in times[key][first - 1 :]) for key in ("old", "new"))
    return next(means), next(means)


async def _kept_by_steps(store: Store) -> float:
    team = team_of_two("step")
    growth = Growth("steps")
    async with open_hub(store, team) as hub:
        session = await hub.session(team, ttl=None)
        await _hold(growth, _turns(session), STEP_TURNS, lambda: store.weigh(hub, session))
    return growth.bytes_per_turn(STEP_TURNS, WEIGHED)


async def _peer() -> Growth:
    """Hold a conversation of two workers of langgraph-supervisor's."""
    saver = InMemorySaver()
    graph = langgraph_supervisor_of_two(saver)
    thread: Any = {"configurable": {"thread_id": "1"}}
    growth = Growth("langgraph-supervisor, memory")
    kept = 0

    async def weigh() -> int:
        # Forgotten as soon as it is weighed, all but what the next turn begins with: it would be
        # 3.6 GB in the end, and the collector would make each turn slower still.
        nonlocal kept
        whole = bytes_in(saver)
        _forget_past(saver)
        kept += whole - bytes_in(saver)
        return kept + bytes_in(saver)

    def turn(number: int) -> Awaitable[object]:
        asked = {"messages": [("user", question(number))]}
        return graph.ainvoke(asked, thread, durability="async")

    await _hold(growth, turn, PEER_TURNS, weigh)
    return growth


def _forget_past(saver: InMemorySaver) -> None:
    [(thread, namespaces)] = saver.storage.items()
    last, stored = max(namespaces[""].items())
    versions = saver.serde.loads_typed(stored[0])["channel_versions"]
    kept = {(thread, "", channel, version) for channel, version in versions.items()}
    namespaces.clear()
    namespaces[""][last] = stored
    for blob in [key for key in saver.blobs if key not in kept]:
        del saver.blobs[blob]
    for written in [key for key in saver.writes if key[1:] != ("", last)]:
        del saver.writes[written]


async def _hold(growth: Growth, turn: Turn, turns: int, weigh: Weigh) -> None:
    for number in range(1, turns + 1):
        growth.seconds.append(await _timed(turn, number))
        if number % WEIGHED == 0:
            growth.kept[number] = await weigh()


def _turns(session: Session) -> Turn:
    async def turn(number: int) -> None:
        await session.send("user", question(number))
        await session.settled()

    return turn


async def _timed(turn: Turn, number: int) -> float:
    began = perf_counter()
    await turn(number)
    return perf_counter() - began


def _within(kept: float, durability: str) -> str:
    goal = KEPT_KB[durability]
    return f"≤ {goal:.0f} kB: {'pass' if kept / 1000 <= goal else '**miss**'}"
