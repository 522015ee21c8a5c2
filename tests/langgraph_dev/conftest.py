"""One server of `langgraph dev` for all tests of a process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / ".venv" / "langgraph" / "bin" / "langgraph"
GRAPHS = ("desk", "team", "clerk")
_TRIES, _PAUSE_S = 300, 0.15


@pytest.fixture(scope="session")
def langgraph_dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that has the graphs of `served`."""
    if not PROGRAM.exists():
        pytest.fail("there is no .venv/langgraph: run `make .venv/.langgraph`, which makes it")
    folder = tmp_path_factory.mktemp("langgraph_dev")
    shutil.copy(Path(__file__).with_name("served.py"), folder)
    graphs = {name: f"./served.py:{name}" for name in GRAPHS}
    (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": graphs}))
    port = _free_port()
    log = folder / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [PROGRAM, "dev", "--no-browser", "--no-reload", "--port", str(port)],
            cwd=folder,
            env={**os.environ, "LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _when_ready(f"http://127.0.0.1:{port}", server, log)
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _when_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(_TRIES):
        try:
            if httpx.get(f"{url}/ok").is_success:
                return url
        except httpx.TransportError:
            pass
        try:
            server.wait(_PAUSE_S)
            break  # it has ended
        except subprocess.TimeoutExpired:
            pass
    pytest.fail(f"`langgraph dev` does not answer: {log.read_text()[-3_000:]}")
