"""`make demo`: serves the support desk on the offline model, and converses with it."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

from rich.console import Console

from agentgraph_server.server import make_server
from agentgraph_server.support_desk import support_desk

PORT = 8000
TIMEOUT_S = 30
PROMPTS = (
    "I was charged twice",
    "and my invoice?",
    "@support reset my password",
    "@support let me talk to a human",
    "@support When are you open?",
)


def main() -> None:
    """Converse over HTTP, then keep serving; if `ONCE` is set, end instead."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with running_server() as (address, thread):
        console.print(f"The support desk is served at {address}", style="bold")
        for prompt in PROMPTS:
            converse(address, prompt, console)
        if os.environ.get("ONCE"):
            return
        console.print("\nIt stays up until Ctrl-C. Ask it yourself:\n", style="bold")
        console.print(curl_line(address))
        try:
            thread.join()
        except KeyboardInterrupt:
            console.print("\nGood-bye.")


@contextmanager
def running_server() -> Iterator[tuple[str, threading.Thread]]:
    """Run the server in a thread, with its store in a temporary file; yield address and thread."""
    with tempfile.TemporaryDirectory() as folder, listening_socket() as listener:
        desk = support_desk("offline")
        server = make_server(desk, store=f"sqlite:///{folder}/demo.db", log_level="warning")
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield "http://{}:{}".format(*listener.getsockname()), thread
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def listening_socket() -> Iterator[socket.socket]:
    """Listen on the usual port, or on a free one."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", PORT))
        except OSError:
            listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener


def converse(address: str, prompt: str, console: Console) -> None:
    """Send a prompt, and print the events as they arrive."""
    console.print(f"\nyou      {prompt}", style="bold")
    live_message = None
    for name, data in events(address, prompt):
        if name == "token":
            if live_message != data["message_id"]:
                console.print(f"{data['agent']}: ", end="", style="green")
            live_message = data["message_id"]
            console.print(data["text"], end="")
        elif name == "ai_message" and live_message == data["message_id"]:
            console.print()
        elif line := line_of(name, data):
            console.print(line, style="dim" if name != "ai_message" else None)


def events(address: str, prompt: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Send a prompt to the SSE endpoint, and yield the events."""
    body = json.dumps({"prompt": prompt, "thread_id": "demo"}).encode()
    url, headers = (
        f"{address}/agents/support/stream-completion",
        {"Content-Type": "application/json"},
    )
    with urlopen(Request(url, body, headers), timeout=TIMEOUT_S) as answer:
        name = ""
        for line in answer:
            field, _, value = line.decode().strip().partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)


def line_of(name: str, data: dict[str, Any]) -> str | None:
    """Return an event as a line, None for events without new information."""
    match name:
        case "routing":
            return f"         {data['kind']}: {data['source']} → {data['target']}"
        case "tool_usage":
            return f"         {data['agent']} calls {data['tool']}({data['args']})"
        case "tool_response":
            return f"         {data['tool']}: {data['content']}"
        case "ai_message":
            return f"{data['agent']}: {data['text']}"
        case "error":
            return f"         {data['code']}: {data['message']}"
        case _:
            return None


def curl_line(address: str) -> str:
    """Return a curl command for the same endpoint."""
    body = json.dumps({"prompt": "I forgot my password", "thread_id": "mine"})
    return (
        f"curl -N {address}/agents/support/stream-completion"
        f" -H 'Content-Type: application/json' -d '{body}'"
    )


if __name__ == "__main__":
    main()
