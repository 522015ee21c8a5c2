"""Our SSE endpoint beside a bare sse-starlette endpoint that sends the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from benchmarks.bare_sse import frames_of
from benchmarks.measure import Row
from benchmarks.sse_client import Server, open_streams, read_all, read_delays, served

__all__ = ["sse_rows"]

STREAMS = 200
LONG = "/agents/long"
GRAPH = "/graphs/long"
SHORT = "/agents/short"
MORE = "more is better"
SMALL_BUFFER = 16_384  # the kernel's, for a reader who stalls: on loopback it would take megabytes


def sse_rows() -> list[Row]:
    """Measure throughput, delay and memory over loopback, each server in a process of its own."""
    with TemporaryDirectory() as folder:
        recording = Path(folder, "frames.json")
        with served("ours") as ours:
            recording.write_text(json.dumps(_recorded(ours)))
            with served(str(recording)) as bare:
                timed = [*_one_stream(ours, bare), *_delays(ours, bare), *_many(ours, bare)]
        return [*timed, *_memory(str(recording))]


def _recorded(ours: Server) -> dict[str, list[dict[str, str]]]:
    return {name: frames_of(_all_of(ours, f"/agents/{name}")) for name in ("long", "short")}


def _all_of(server: Server, path: str) -> bytes:
    with open_streams(server, path, 1) as streams:
        return read_all(streams)[0]


def _one_stream(ours: Server, bare: Server) -> list[Row]:
    speeds = _speeds({"ours": (ours, LONG), "bare": (bare, LONG), "graph": (bare, GRAPH)}, 1, 12)
    what = "one SSE stream of 2,000 tokens /"
    rows = []
    for peer, name in (("bare", "bare sse-starlette"), ("graph", "bare LangGraph behind it")):
        (rate, cost), (their_rate, their_cost) = speeds["ours"], speeds[peer]
        rows += [
            Row(f"{what} {name}, events", rate, their_rate, None, "k/s", MORE),
            Row(f"{what} {name}, CPU per event", cost, their_cost, None, "µs"),
        ]
    return rows


def _many(ours: Server, bare: Server) -> list[Row]:
    speeds = _speeds({"ours": (ours, SHORT), "bare": (bare, SHORT)}, STREAMS, 2)
    (rate, cost), (their_rate, their_cost) = speeds["ours"], speeds["bare"]
    what = f"{STREAMS} SSE streams of 100 tokens / bare sse-starlette,"
    return [
        Row(f"{what} events", rate, their_rate, None, "k/s", MORE),
        Row(f"{what} CPU per event", cost, their_cost, None, "µs"),
    ]


def _speeds(
    contestants: dict[str, tuple[Server, str]], streams: int, repetitions: int
) -> dict[str, tuple[float, float]]:
    """Return, of the best repetition each, thousands of events per second and µs of CPU per event.

    In alternation; a first one, which warms up, is not counted.
    """
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for _ in range(repetitions + 1):
        for name, (server, path) in contestants.items():
            measured[name].append(_speed(server, path, streams))
    best = {name: [min(of) for of in zip(*m[1:], strict=True)] for name, m in measured.items()}
    return {name: (1e-3 / wall, cpu * 1e6) for name, (wall, cpu) in best.items()}


def _speed(server: Server, path: str, streams: int) -> tuple[float, float]:
    before = server.stats()["cpu_s"]
    began = perf_counter()
    with open_streams(server, path, streams) as opened:
        bodies = read_all(opened)
    wall = perf_counter() - began
    used = server.stats()["cpu_s"] - before
    assert all(b"event: done" in body[-400:] for body in bodies), "a stream was cut off"
    events = sum(body.count(b"event: ") for body in bodies)
    return wall / events, used / events


def _delays(ours: Server, bare: Server) -> list[Row]:
    measured: dict[Server, list[tuple[float, float]]] = {ours: [], bare: []}
    for _ in range(5):
        for server in (ours, bare):
            with open_streams(server, "/agents/paced", 1) as (stream,):
                delays = read_delays(stream)
            measured[server].append((median(delays), quantiles(delays, n=20)[-1]))
    rows = []
    for name, at_ours, at_bare in zip(
        ("median", "95th percentile"),
        *([min(of) for of in zip(*measured[server], strict=True)] for server in (ours, bare)),
        strict=True,
    ):
        what = f"delay of a token, every 2 ms / bare sse-starlette, {name}"
        rows.append(Row(what, at_ours, at_bare, None, "µs", f"{(at_ours - at_bare) / 1e3:+.3f} ms"))
    return rows


def _memory(recording: str) -> list[Row]:
    """Weigh open streams, each time in servers that have had one stream only."""
    rows = []
    for path, reader, buffer in (
        ("/agents/held", "in mid-run", None),
        ("/agents/flood", "whose reader stalls", SMALL_BUFFER),
    ):
        with _fresh(recording, buffer) as servers:
            ours, theirs = (_per_stream(server, path, buffer) for server in servers)
        what = f"memory per stream, {STREAMS} {reader} / bare sse-starlette"
        rows.append(Row(what, ours, theirs, None, "kB"))
    return rows


@contextmanager
def _fresh(recording: str, buffer: int | None) -> Iterator[tuple[Server, Server]]:
    with (
        served("ours", send_buffer=buffer) as ours,
        served(recording, send_buffer=buffer) as bare,
    ):
        for server in (ours, bare):
            _all_of(server, SHORT)
        yield ours, bare


def _per_stream(server: Server, path: str, buffer: int | None) -> float:
    before = server.stats(collect=True)["rss_kb"]
    with open_streams(server, path, STREAMS, receive_buffer=buffer):
        _settle(server)
        return (server.stats(collect=True)["rss_kb"] - before) / STREAMS


def _settle(server: Server) -> None:
    """Wait until a server has no more to do."""
    used = -1.0
    while (now := server.stats()["cpu_s"]) - used > 0.03:
        used = now
        sleep(0.3)
