"""The scenario that each peer plays, and the side of it that runs in the peer's own environment.

A run has the steps draft, charge and report, then asks a human, then pays. Each step does what it
does by one line in a ledger, a file that no framework knows: `charge` and `pay` stand for effects.
This module needs nothing but Python: it is imported beside each peer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

__all__ = ["STEPS", "Job", "NotOffered", "Outcome", "Peer", "astep", "lines", "play", "step"]

STEPS = ("draft", "charge", "report")
_HANGS = "HANGS"
_POLL_S = 0.001
_HOME = (None, "", "localhost", "::1", "127.0.0.1")


@dataclass(frozen=True)
class Job:
    """What a process is ordered to do: a verb, and where the run is stored."""

    verb: str
    store: str
    ledger: str
    run: str = "r"
    hang: str = ""
    value: str = ""
    misfit: bool = False
    barrier: str = ""
    """A file that exists once all who take part may go."""


@dataclass
class Outcome:
    """What a framework says of a run: "asks" waits for a human, "ended" is over."""

    status: str
    state: dict[str, Any] = field(default_factory=dict)
    """What it has recorded, without ids and times."""
    answer: str = ""
    """What the gated step said in the end: "paid" or "refused"."""
    name: str = ""
    """The name under which the run, or the fork, is addressed from now on; "" is the run's own."""


class NotOffered(Exception):
    """The framework documents no way to do this."""


class Peer(Protocol):
    """A framework with its documented way of persistence and resume; each method is a process."""

    async def begin(self) -> Outcome:
        """Begin a run, and return when it asks."""

    async def resume(self) -> Outcome:
        """Go on with a run whose process was killed."""

    async def answer(self) -> Outcome:
        """Answer the question of the run, or of the fork, that `job.run` names, by `job.value`."""

    async def state(self) -> Outcome:
        """Read what is recorded of the run that `job.run` names, "none" if nothing is."""

    async def fork(self) -> Outcome:
        """Fork the run where it asks, until the fork asks too; the outcome has its name."""

    async def tear(self) -> Outcome:
        """Cut the newest record of the run in half, as a torn write leaves it."""


_job: Job | None = None


def job() -> Job:
    assert _job is not None, "no job is played"
    return _job


def step(name: str) -> None:
    """Do a step: one line, synced; hang before or after it where the job says so."""
    if _hangs(f"{name}:before"):
        threading.Event().wait()
    _append(name)
    if _hangs(f"{name}:after"):
        threading.Event().wait()


async def astep(name: str) -> None:
    """Do a step of an event loop, which goes on with other work while the step hangs."""
    if _hangs(f"{name}:before"):
        await asyncio.Event().wait()
    _append(name)
    if _hangs(f"{name}:after"):
        await asyncio.Event().wait()


def lines(ledger: str | Path) -> list[str]:
    """Return what was done, in its order."""
    path = Path(ledger)
    return path.read_text("utf-8").split() if path.exists() else []


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def wait_for_the_others() -> None:
    """Say that this process is ready, and return when all may go."""
    if job().barrier:
        print("READY", flush=True)
        while not os.path.exists(job().barrier):
            time.sleep(_POLL_S)


def _stay_at_home(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse to look up and to reach any other machine: no peer needs one."""
    if event == "socket.getaddrinfo" and arguments[0] not in _HOME:
        raise OSError(f"{arguments[0]!r} is another machine")
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = str(arguments[1][0])
        if host not in _HOME and not host.startswith("127."):
            raise OSError(f"{host} is another machine")


def play(peer: type[Any], arguments: Sequence[str] | None = None) -> None:
    """Play one job on a peer, and print its outcome as the last line."""
    global _job
    sys.addaudithook(_stay_at_home)
    _job = Job(**json.loads((arguments or sys.argv[1:])[0]))
    try:
        outcome = asyncio.run(getattr(peer(), _job.verb)())
        told = {"outcome": vars(outcome)}
    except NotOffered as error:
        told = {"not_offered": str(error)}
    except BaseException as error:
        told = {"error": f"{type(error).__name__}: {error}"[:400]}
    print(json.dumps(told, default=str), flush=True)
    # Threads of the framework must not keep the process: what it has not stored by now, it lost.
    os._exit(0)


def _append(name: str) -> None:
    file = os.open(job().ledger, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(file, f"{name}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)


def _hangs(point: str) -> bool:
    if point != job().hang:
        return False
    print(f"{_HANGS} {point}", flush=True)
    return True
