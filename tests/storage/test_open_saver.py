from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from agentgraph import Agent
from agentgraph.errors import ConfigurationError, StorageError
from agentgraph.storage import default_saver, open_saver
from agentgraph.testing import ScriptedModel

T = TypeVar("T")

ROOT = Path(__file__).parents[2]

UNREACHABLE = "postgresql://zaphod:heart-of-gold@127.0.0.1:1/magrathea?application_name=trillian"
PARTS = (UNREACHABLE, "zaphod", "heart-of-gold", "127.0.0.1", "magrathea", "trillian")

SCRIPT = """
import sys

from agentgraph import Agent
from agentgraph.testing import ScriptedModel

url, text = sys.argv[1:]
agent = Agent("Solo", model=ScriptedModel(lambda m: f"answer {len(m) // 2}"), checkpointer=url)
print(agent.invoke(text, thread_id="t").text)
"""


def solo(saver: BaseCheckpointSaver[str] | str | None = None) -> Agent:
    model = ScriptedModel(lambda messages: f"answer {len(messages) // 2}")
    return Agent("Solo", model=model, checkpointer=saver)


def run_script(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        env={"PYTHONPATH": str(ROOT), "LANGGRAPH_STRICT_MSGPACK": "true"},
    )


def in_a_loop_of_its_own(work: Coroutine[Any, Any, T]) -> T:
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(work)))
    thread.start()
    thread.join()
    return found[0]


def test_memory_is_the_default_where_the_environment_names_no_database() -> None:
    assert isinstance(default_saver(), InMemorySaver)


def test_memory_url_opens_a_memory_of_its_own() -> None:
    first, second = open_saver("memory"), open_saver("memory")

    assert isinstance(first, InMemorySaver)
    assert first is not second


async def test_agent_takes_a_url(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"

    await solo(url).ainvoke("first", thread_id="t")
    reply = await solo(url).ainvoke("second", thread_id="t")

    assert reply.text == "answer 2"
    assert (tmp_path / "a.db").exists()


async def test_agents_on_one_saver_share_its_threads(tmp_path: Path) -> None:
    saver = open_saver(f"sqlite:///{tmp_path / 'a.db'}")

    await solo(saver).ainvoke("first", thread_id="t")
    reply = await solo(saver).ainvoke("second", thread_id="t")

    assert reply.text == "answer 2"


def test_file_is_opened_on_first_use_and_not_before(tmp_path: Path) -> None:
    agent = solo(f"sqlite:///{tmp_path / 'a.db'}")
    _ = agent.graph

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["mysql://root@host/db", "redis://host", "sqlite://a.db", "a.db"])
def test_unknown_scheme_is_refused_with_those_that_are_known(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"memory, sqlite:///file\.db or postgresql://"):
        open_saver(url)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://zaphod:heart-of-gold@host/magrathea",
        "host=here user=zaphod password=heart-of-gold dbname=magrathea",
    ],
)
def test_refused_url_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_saver(url)

    assert not [part for part in ("zaphod", "heart-of-gold", "magrathea") if part in str(caught)]


async def test_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    agent = solo(f"sqlite:///{tmp_path / 'nowhere' / 'a.db'}")

    with pytest.raises(StorageError, match="cannot open the SQLite file"):
        await agent.ainvoke("hi")


async def test_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("a shopping list, not a database")

    with pytest.raises(StorageError, match="file is not a database"):
        await solo(f"sqlite:///{tmp_path / 'a.db'}").ainvoke("hi")


async def test_file_that_could_not_be_opened_is_tried_again(tmp_path: Path) -> None:
    agent = solo(f"sqlite:///{tmp_path / 'later' / 'a.db'}")
    with pytest.raises(StorageError):
        await agent.ainvoke("hi")
    (tmp_path / "later").mkdir()

    reply = await agent.ainvoke("hi")

    assert reply.text == "answer 1"


async def test_unreachable_postgres_fails_loudly_and_names_no_part_of_its_url(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("POSTGRES_URL", UNREACHABLE)
    caplog.set_level(logging.INFO)

    with pytest.raises(StorageError, match="check POSTGRES_URL") as caught:
        await solo().ainvoke("hi")

    told = "".join(traceback.format_exception(caught.value))
    assert [part for part in PARTS if part in told or part in caplog.text] == []
    assert caught.value.code == "storage"


async def test_url_of_an_unreachable_postgres_is_not_in_the_debug_log_either(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("POSTGRES_URL", UNREACHABLE)
    for name in (None, "psycopg"):
        caplog.set_level(logging.DEBUG, name)

    with pytest.raises(StorageError) as caught:
        await solo().ainvoke("hi")

    assert [part for part in PARTS if part in caplog.text] == []
    assert "connection attempt" not in caplog.text
    assert caught.value.__cause__ is caught.value.__context__ is None


async def test_malformed_postgres_url_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTGRES_URL", "postgresql://zaphod:heart-of-gold@[127.0.0.1/magrathea")

    with pytest.raises(StorageError) as caught:
        await solo().ainvoke("hi")

    told = "".join(traceback.format_exception(caught.value))
    assert [part for part in PARTS if part in told] == []


async def test_unreachable_postgres_is_not_replaced_by_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POSTGRES_URL", UNREACHABLE)
    agent = solo()

    for _ in range(2):
        with pytest.raises(StorageError):
            await agent.ainvoke("hi", thread_id="t")


def test_one_saver_works_on_two_event_loops(tmp_path: Path) -> None:
    saver = open_saver(f"sqlite:///{tmp_path / 'a.db'}")
    agent = solo(saver)

    first = in_a_loop_of_its_own(agent.ainvoke("first", thread_id="t"))
    second = in_a_loop_of_its_own(agent.ainvoke("second", thread_id="t"))
    third = agent.invoke("third", thread_id="t")

    assert [r.text for r in (first, second, third)] == ["answer 1", "answer 2", "answer 3"]


def test_loop_that_ends_leaves_no_thread_behind(tmp_path: Path) -> None:
    agent = solo(f"sqlite:///{tmp_path / 'a.db'}")
    in_a_loop_of_its_own(agent.ainvoke("hi"))
    before = set(threading.enumerate())

    for _ in range(3):
        in_a_loop_of_its_own(agent.ainvoke("hi"))

    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=20)
        assert not thread.is_alive()


async def test_one_saver_works_on_two_event_loops_at_the_same_time(tmp_path: Path) -> None:
    agent = solo(f"sqlite:///{tmp_path / 'a.db'}")

    replies = await asyncio.gather(
        *(agent.ainvoke("hi", thread_id="t") for _ in range(3)),
        *(asyncio.to_thread(agent.invoke, "hi", thread_id="t") for _ in range(3)),
    )

    assert sorted(r.text for r in replies) == [f"answer {n}" for n in range(1, 7)]


async def test_state_is_read_synchronously_while_a_loop_runs(tmp_path: Path) -> None:
    agent = solo(f"sqlite:///{tmp_path / 'a.db'}")
    await agent.ainvoke("hi", thread_id="t")

    state = agent.graph.get_state({"configurable": {"thread_id": "t"}})

    assert [m.text for m in state.values["messages"]] == ["hi", "answer 1"]


async def test_forgotten_thread_begins_anew(tmp_path: Path) -> None:
    agent = solo(f"sqlite:///{tmp_path / 'a.db'}")
    await agent.ainvoke("hi", thread_id="t")

    await agent.aforget("t")

    assert await agent.ahistory("t") == []
    assert (await agent.ainvoke("hi", thread_id="t")).text == "answer 1"


def test_script_that_uses_a_file_ends_by_itself(tmp_path: Path) -> None:
    done = run_script(tmp_path, f"sqlite:///{tmp_path / 'a.db'}", "hi")

    assert (done.returncode, done.stdout, done.stderr) == (0, "answer 1\n", "")


def test_second_process_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"

    texts = [run_script(tmp_path, url, text).stdout for text in ("first", "second")]

    assert texts == ["answer 1\n", "answer 2\n"]


def test_two_processes_write_to_one_file_at_the_same_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    agent = solo(url)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace('thread_id="t"', 'thread_id="other"'))
    other = subprocess.Popen(
        [sys.executable, str(script), url, "hi"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT), "LANGGRAPH_STRICT_MSGPACK": "true"},
    )

    replies: list[str] = []
    while other.poll() is None or not replies:
        replies.append(agent.invoke("hi", thread_id="mine").text)
    out, err = other.communicate(timeout=50)

    assert (out, err) == ("answer 1\n", "")
    assert replies == [f"answer {n}" for n in range(1, len(replies) + 1)]
