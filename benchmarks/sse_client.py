"""A client that does as little as it can: what it costs would blur what the servers cost."""

from __future__ import annotations

import json
import os
import re
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from urllib.request import urlopen

__all__ = ["Server", "open_streams", "read_all", "read_delays", "served"]

BODY = b'{"prompt":"Go on"}'
BUFFER = 1 << 16
TIMEOUT_S = 60.0
_STAMP = re.compile(rb'"text":"(\d+) "')


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    port: int

    def stats(self, *, collect: bool = False) -> dict[str, float]:
        address = f"http://127.0.0.1:{self.port}/stats?collect={collect}"
        with urlopen(address, timeout=TIMEOUT_S) as response:
            stats: dict[str, float] = json.load(response)
        return stats

    def ask(self, path: str, *, receive_buffer: int | None = None) -> socket.socket:
        """Send a request, and leave the answer to be read."""
        opened = socket.socket()
        if receive_buffer is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        opened.settimeout(TIMEOUT_S)
        opened.connect(("127.0.0.1", self.port))
        head = (
            f"POST {path}/stream-completion HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        )
        opened.sendall(head.encode() + BODY)
        return opened


@contextmanager
def served(what: str, *, send_buffer: int | None = None) -> Iterator[Server]:
    """Run a server until the end of the block."""
    command = [sys.executable, "-m", "benchmarks.sse_server", what]
    command += [] if send_buffer is None else [str(send_buffer)]
    environment = {k: v for k, v in os.environ.items() if k != "AGENTGRAPH_API_KEYS"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield Server(int(process.stdout.readline()))
        finally:
            process.kill()


@contextmanager
def open_streams(
    server: Server, path: str, count: int, *, receive_buffer: int | None = None
) -> Iterator[list[socket.socket]]:
    """Have so many streams open for the length of a block."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(server.ask(path, receive_buffer=receive_buffer))
            for _ in range(count)
        ]


def read_all(streams: list[socket.socket]) -> list[bytes]:
    """Read streams to their ends."""
    pieces: dict[int, list[bytes]] = {stream.fileno(): [] for stream in streams}
    with selectors.DefaultSelector() as ready:
        for stream in streams:
            ready.register(stream, selectors.EVENT_READ)
        while ready.get_map():
            for key, _ in ready.select(TIMEOUT_S):
                data = os.read(key.fd, BUFFER)
                pieces[key.fd].append(data)
                if not data:
                    ready.unregister(key.fd)
    return [b"".join(all_of_one) for all_of_one in pieces.values()]


def read_delays(stream: socket.socket) -> list[float]:
    """Read a paced stream to its end: the microseconds from each token's stamp to its arrival."""
    delays: list[float] = []
    while data := stream.recv(BUFFER):
        now = perf_counter_ns()
        delays += [(now - int(stamp)) / 1e3 for stamp in _STAMP.findall(data)]
    return delays
