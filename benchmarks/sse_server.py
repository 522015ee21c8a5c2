"""One server in a process of its own: `python -m benchmarks.sse_server ours`, or what was recorded.

It says its port on the first line, and on /stats what it has used.
"""

from __future__ import annotations

import gc
import json
import socket
import sys
from pathlib import Path
from time import process_time
from typing import Any

import uvicorn
from fastapi import FastAPI

__all__ = ["main"]


def main(what: str, send_buffer: str = "") -> None:
    app = _ours() if what == "ours" else _bare(what)
    app.add_api_route("/stats", _stats)
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    if send_buffer:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, int(send_buffer))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run([listening])


def _ours() -> FastAPI:
    from agentgraph import Agent
    from agentgraph_server import create_app
    from benchmarks.streams import STREAMS, StreamModel

    agents = [Agent(name, model=StreamModel(source=source)) for name, source in STREAMS.items()]
    return create_app(*agents, store="memory")


def _bare(recording: str) -> FastAPI:
    from benchmarks.bare_sse import bare_app

    return bare_app(json.loads(Path(recording).read_text()))


async def _stats(collect: bool = False) -> dict[str, Any]:
    used = process_time()
    if collect:
        gc.collect()
    return {"cpu_s": used, "rss_kb": _resident_kb()}


def _resident_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
