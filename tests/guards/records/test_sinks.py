"""Whatever keeps records gives them back, also after a death, a fork and half a line."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.errors import ConfigurationError
from agentgraph.guards.records.record import Record
from agentgraph.guards.records.sinks import JSONLSink, MemorySink, SQLiteSink

AnySink = MemorySink | JSONLSink | SQLiteSink

ROOT = Path(__file__).parents[3]
WRITER = """
import sys
from agentgraph.guards.records.record import Record
from agentgraph.guards.records import sinks
sink = getattr(sinks, sys.argv[1])(sys.argv[2])
sys.stdin.readline()
for seq in range(1, int(sys.argv[4]) + 1):
    sink.write(Record("tool", run=sys.argv[3], seq=seq, at=0.5, data={"text": "x" * 50}))
    print(seq, flush=True)
sys.stdin.readline()
"""


def made(name: str, folder: Path) -> AnySink:
    match name:
        case "memory":
            return MemorySink()
        case "lines":
            return JSONLSink(folder / "deep" / "audit.jsonl")
    return SQLiteSink(str(folder / "deep" / "audit.db"))


@pytest.fixture(params=["memory", "lines", "sqlite"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> AnySink:
    return made(request.param, tmp_path)


def record(seq: int, run: str = "r", **more: Any) -> Record:
    return Record("tool", run=run, seq=seq, at=0.5, **more)


def writer(kind: str, path: Path, run: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, kind, str(path), run, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
    )


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_a_sink_gives_back_what_it_got_run_by_run(sink: AnySink) -> None:
    assert (sink.read("r"), sink.runs()) == ([], [])
    full = record(1, agent="a", thread="t", step=3, decision={"action": "deny"}, data={"a": [1]})
    for one in (record(2, parent=1), record(1, "other"), full):
        sink.write(one)
    assert sink.read("r") == [full, record(2, parent=1)]
    assert (sink.read("other"), sink.read("none")) == ([record(1, "other")], [])
    assert sink.runs() == ["r", "other"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", ["lines", "sqlite"])
@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            Record,
            run=st.sampled_from(["r", "s\n", "\u2028"]),
            seq=st.integers(1, 9),
            at=st.floats(0, 1e9),
            kind=st.sampled_from(["tool", "end"]),
            agent=st.text(max_size=5),
            data=st.dictionaries(st.text(), JSON),
        ),
        max_size=5,
    )
)
def test_a_file_answers_as_memory_does(
    kind: str, tmp_path_factory: pytest.TempPathFactory, records: list[Record]
) -> None:
    file, memory = made(kind, tmp_path_factory.mktemp("twin")), MemorySink()
    assert not isinstance(file, MemorySink)
    for one in records:
        file.write(one)
        memory.write(one)
        if one.seq == 5:
            file.close()
    assert file.runs() == memory.runs()
    for run in memory.runs():
        assert file.read(run) == memory.read(run)
    file.close()


@pytest.mark.parametrize("kind", ["lines", "sqlite"])
def test_a_record_of_what_json_does_not_know_is_written_all_the_same(
    kind: str, tmp_path: Path
) -> None:
    sink = made(kind, tmp_path)
    hard: list[Any] = [float("nan"), {1: "one"}, b"\xff", object(), "\ud83d", {("a",): "\udc00"}]
    for seq, value in enumerate(hard):
        sink.write(record(seq, data={"value": value}))
    assert [one.seq for one in sink.read("r")] == list(range(len(hard)))
    assert sink.read("r")[4].data == {"value": "\ud83d"}


def test_memory_keeps_the_last_ones() -> None:
    sink = MemorySink(3)
    for seq in range(10):
        sink.write(record(seq))
    assert [one.seq for one in sink.read("r")] == [7, 8, 9]


@pytest.mark.parametrize("limit", [0, -1, True, 2.5, None])
def test_a_limit_that_keeps_nothing_is_a_fault(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="MemorySink"):
        MemorySink(limit)


@pytest.mark.parametrize("path", ["", None, 3])
def test_a_path_that_is_none_is_a_fault(path: Any) -> None:
    for kind in (JSONLSink, SQLiteSink):
        with pytest.raises(ConfigurationError, match="give the path of a file"):
            kind(path)


def test_half_a_last_line_is_no_record_and_swallows_none(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    first = JSONLSink(path)
    first.write(record(1))
    first.write(record(2, data={"text": "ü"}))
    first.close()
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    for cut in range(start, len(whole) - 1):
        path.write_bytes(whole[:cut])
        sink = JSONLSink(path)
        assert sink.read("r") == [record(1)]
        sink.write(record(3))
        assert sink.read("r") == [record(1), record(3)]
        sink.close()


def test_a_line_torn_by_another_process_while_this_one_runs_swallows_none(tmp_path: Path) -> None:
    sink = JSONLSink(tmp_path / "audit.jsonl")
    sink.write(record(1))
    with (tmp_path / "audit.jsonl").open("ab") as other:
        other.write(b'{"run": "r", "se')
    sink.write(record(2))
    assert sink.read("r") == [record(1), record(2)]
    sink.close()


def test_lines_that_are_no_records_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'[]\n3\n{}\n{"run": "r", "seq": "1"}\n\xff\xfe\n\x00\x00\n\n{"seq": 1}\n')
    sink = JSONLSink(path)
    sink.write(record(1))
    assert (sink.read("r"), sink.runs()) == ([record(1)], ["r"])
    sink.close()


def test_a_disk_that_takes_half_a_line_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = JSONLSink(tmp_path / "audit.jsonl")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, line: write(file, line[:7]))
        with pytest.raises(OSError, match="only 7 of"):
            sink.write(record(1))
    sink.write(record(2))
    assert sink.read("r") == [record(2)]
    sink.close()


def test_a_line_reaches_the_disk_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for sync, expected in ((False, 0), (True, 1)):
        sink = JSONLSink(tmp_path / f"{sync}.jsonl", sync=sync)
        sink.flush()
        sink.write(record(1))
        assert len(synced) == expected
        sink.flush()
        assert len(synced) == expected + 1
        synced.clear()
        sink.close()


@pytest.mark.parametrize("kind", ["JSONLSink", "SQLiteSink"])
def test_two_processes_may_write_to_one_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    processes = [writer(kind, path, run, 60) for run in ("a", "b")]
    for process in processes:
        go(process)
    for process in processes:
        process.communicate("\n", timeout=30)
        assert process.returncode == 0
    sink: AnySink = JSONLSink(path) if kind == "JSONLSink" else SQLiteSink(path)
    for run in ("a", "b"):
        assert [one.seq for one in sink.read(run)] == list(range(1, 61))


@pytest.mark.parametrize("kind", ["JSONLSink", "SQLiteSink"])
def test_a_killed_process_loses_nothing_that_it_has_written(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with writer(kind, path, "r", 1_000_000) as process:
        go(process)
        assert process.stdout is not None
        written = [int(process.stdout.readline()) for _ in range(25)][-1]
        process.send_signal(signal.SIGKILL)
        written = max([written, *map(int, process.stdout.read().split())])
        process.wait(30)
    sink: AnySink = JSONLSink(path) if kind == "JSONLSink" else SQLiteSink(path)
    numbers = [one.seq for one in sink.read("r")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= written
    sink.write(record(0))
    assert sink.read("r")[0] == record(0)


@pytest.mark.parametrize("kind", ["lines", "sqlite"])
def test_a_fork_writes_on_with_what_is_its_own(kind: str, tmp_path: Path) -> None:
    sink = made(kind, tmp_path)
    assert not isinstance(sink, MemorySink)
    sink.write(record(1))
    connection = getattr(sink, "_connection", None)
    with sink._lock:  # as a thread would have it that is writing
        child = os.fork()
        if not child:
            signal.alarm(10)
            try:
                sink.write(record(2))
                is_own = connection is None or sink._connection is not connection  # type: ignore[union-attr]
                os._exit(0 if is_own and len(sink.read("r")) == 2 else 3)
            finally:
                os._exit(4)
    assert os.waitpid(child, 0)[1] == 0
    sink.write(record(3))
    assert [one.seq for one in sink.read("r")] == [1, 2, 3]


def test_a_fork_neither_uses_nor_closes_the_connection_of_its_parent(tmp_path: Path) -> None:
    sink = SQLiteSink(tmp_path / "audit.db")
    sink.write(record(1))
    connection = sink._connection
    sink._reset()
    sink.write(record(2))
    assert sink._connection is not connection
    assert connection is not None
    assert connection.execute("SELECT count(*) FROM agentgraph_audit").fetchone() == (2,)


def test_a_file_of_sqlite_is_safe_against_a_loss_of_power(tmp_path: Path) -> None:
    sink = SQLiteSink(tmp_path / "audit.db")
    sink.write(record(1))
    assert sink._ask("PRAGMA journal_mode") == [("wal",)]
    assert str(sink._ask("PRAGMA synchronous")) == "[(2,)]"
    with sqlite3.connect(tmp_path / "audit.db") as other:
        assert other.execute("SELECT run, seq FROM agentgraph_audit").fetchall() == [("r", 1)]
        plan = other.execute("EXPLAIN QUERY PLAN SELECT 1 FROM agentgraph_audit WHERE run = 'r'")
        assert "agentgraph_audit_run" in str(plan.fetchall())
    other.close()


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    JSONLSink(tmp_path / "a").close()
    SQLiteSink(tmp_path / "b").close()
    assert JSONLSink(tmp_path / "a").read("r") == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_opened_fails_at_each_write(tmp_path: Path) -> None:
    for sink in (JSONLSink(tmp_path), SQLiteSink(tmp_path)):
        for _ in range(2):
            with pytest.raises((OSError, sqlite3.Error)):
                sink.write(record(1))


def test_threads_share_a_sink(sink: AnySink) -> None:
    def write(run: str) -> None:
        for seq in range(20):
            sink.write(record(seq, run))
            sink.read(run)

    run_all([lambda run=run: write(run) for run in "abcd"])  # type: ignore[misc]
    for run in "abcd":
        assert [one.seq for one in sink.read(run)] == list(range(20))


def run_all(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_record_is_json_and_back_without_what_is_empty() -> None:
    one = record(1)
    assert one.to_dict() == {"run": "r", "seq": 1, "at": 0.5, "kind": "tool"}
    full = record(2, agent="a", decision={"action": "allow"}, data={"x": 1}, parent=1)
    told = json.loads(json.dumps(full.to_dict()))
    assert Record.from_dict({**told, "of_a_later_version": 1}) == full
