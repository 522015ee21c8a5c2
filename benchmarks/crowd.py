"""Two hundred sessions at once in one hub: `python -m benchmarks.crowd memory` prints its line."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from agentgraph import Session
from benchmarks.script import question
from benchmarks.sessions import team_of_two
from benchmarks.stores import STORES, Server, Store, new_store, open_hub

__all__ = ["crowd_table"]

SESSIONS, TURNS = 200, 3
GOAL = 0.9


@dataclass(frozen=True, slots=True)
class Crowd:
    """What all of them together have come to."""

    turns_per_s: float
    median_ms: float
    p95_ms: float
    alone_ms: float
    kb_per_session: float


def crowd_table(server: Server) -> str:
    """Hold all sessions on each store, in a process of its own."""
    head = [
        "| 200 sessions at once | turns/s | median | 95th percentile | one alone | memory each "
        f"| turns of memory's, ≥ {GOAL:g} |",
        "|---|---|---|---|---|---|---|",
    ]
    crowds = {name: _in_its_process(name, server) for name in STORES}
    in_memory = crowds["memory"].turns_per_s
    lines = [_line(name, crowd, crowd.turns_per_s / in_memory) for name, crowd in crowds.items()]
    return "\n".join([*head, *lines])


def _line(name: str, crowd: Crowd, share: float) -> str:
    return (
        f"| {name} | {crowd.turns_per_s:.0f} | {crowd.median_ms:.0f} ms | {crowd.p95_ms:.0f} ms "
        f"| {crowd.alone_ms:.1f} ms | {crowd.kb_per_session:.0f} kB "
        f"| {share:.2f}: {'pass' if share >= GOAL else '**miss**'} |"
    )


def _in_its_process(name: str, server: Server) -> Crowd:
    with new_store(name, server) as store:
        command = [sys.executable, "-m", "benchmarks.crowd", store.name, store.url]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Crowd(**json.loads(done.stdout))


async def _crowd(store: Store) -> Crowd:
    team = team_of_two()
    async with open_hub(store, team) as hub:
        alone: list[float] = []
        for _ in range(3):  # the first ones compile the graph and open the store
            alone += await _talk(await hub.session(team))
        before = _resident_kb()
        sessions = [await hub.session(team) for _ in range(SESSIONS)]
        began = perf_counter()
        times = await asyncio.gather(*map(_talk, sessions))
        took = perf_counter() - began
        each = [one for some in times for one in some]
        return Crowd(
            len(each) / took,
            median(each) * 1000,
            quantiles(each, n=20)[-1] * 1000,
            min(alone) * 1000,
            (_resident_kb() - before) / SESSIONS,
        )


async def _talk(session: Session) -> list[float]:
    """Return the seconds from each message to the moment when both have answered it."""
    times: list[float] = []
    for turn in range(TURNS):
        began = perf_counter()
        await session.send("user", question(turn))
        await session.settled()
        times.append(perf_counter() - began)
    assert session.state.turn_count == 3 * TURNS - 1
    return times


def _resident_kb() -> int:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def main(name: str, url: str) -> None:
    crowd = asyncio.run(_crowd(Store(name, url)))
    print(json.dumps({key: getattr(crowd, key) for key in Crowd.__slots__}))


if __name__ == "__main__":
    main(*sys.argv[1:])
