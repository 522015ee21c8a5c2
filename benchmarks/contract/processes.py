"""Real processes of a peer: started, killed, let go all at once."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.contract.scenario import Job, Outcome, lines

__all__ = ["Broken", "NotOfferedHere", "Process", "Store", "World"]

ROOT = Path(__file__).parents[2]
LIMIT_S = 120
"""A process that takes longer waits for ever."""

# By the peers' documentation: none of them tells anybody that it ran.
_QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_TRACKING": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "CREWAI_DISABLE_VERSION_CHECK": "true",
    "OTEL_SDK_DISABLED": "true",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "ANONYMIZED_TELEMETRY": "false",
}
_SECRETS = ("API_KEY", "TOKEN", "SECRET")


class Broken(Exception):
    """A peer did not do what the scenario needs it to do."""


class NotOfferedHere(Exception):
    """A peer documents no way to do what is asked."""


@dataclass(frozen=True)
class Process:
    """A process that plays one job."""

    popen: subprocess.Popen[str]

    def wait_for(self, word: str) -> None:
        """Return once it says a word; raise `Broken` where it ends before."""
        assert self.popen.stdout is not None
        said = []
        for line in self.popen.stdout:
            if line.startswith(word):
                return
            said.append(line.strip())
        told = json.loads(said[-1]) if said and said[-1].startswith('{"') else {}
        if "not_offered" in told:
            raise NotOfferedHere(told["not_offered"])
        raise Broken(f"ended before {word}: {told.get('error', 'silence')}")

    def kill(self) -> None:
        self.popen.kill()
        self.popen.communicate()

    def outcome(self) -> dict[str, Any]:
        """Return what it told at its end; "hangs" where it never ends."""
        try:
            output, _ = self.popen.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return {"hangs": True, "error": f"no end within {LIMIT_S} s"}
        for line in reversed(output.splitlines()):
            if line.startswith('{"'):
                return dict(json.loads(line))
        return {"error": f"ended with code {self.popen.returncode} and told nothing"}


@dataclass(frozen=True)
class Store:
    """How a peer's store is made, copied and named."""

    make: Callable[[Path], str]
    copy: Callable[[str, Path], str]


@dataclass(frozen=True)
class World:
    """A store and a ledger that nobody else has, and the processes that work on them."""

    python: Path
    module: str
    folder: Path
    stores: Store
    url: str

    @classmethod
    def new(cls, python: Path, module: str, *, folder: Path, stores: Store) -> World:
        place = folder / f"w{secrets.token_hex(4)}"
        place.mkdir(parents=True)
        return cls(python, module, place, stores, stores.make(place))

    def copy(self) -> World:
        """Return a world that is as this one is now."""
        place = self.folder.with_name(f"w{secrets.token_hex(4)}")
        place.mkdir()
        if self.ledger.exists():
            shutil.copy(self.ledger, place / "ledger")
        return replace(self, folder=place, url=self.stores.copy(self.url, place))

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def lines(self) -> list[str]:
        return lines(self.ledger)

    def start(self, verb: str, **more: Any) -> Process:
        job = Job(verb, self.url, str(self.ledger), **more)
        return Process(
            subprocess.Popen(
                [str(self.python), "-m", self.module, json.dumps(asdict(job))],
                cwd=ROOT,
                env=_environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )

    def told(self, verb: str, **more: Any) -> dict[str, Any]:
        """Play a job, and return all that was told, an error too."""
        told = self.start(verb, **more).outcome()
        if "not_offered" in told:
            raise NotOfferedHere(told["not_offered"])
        return told

    def play(self, verb: str, **more: Any) -> Outcome:
        """Play a job that has to succeed."""
        told = self.told(verb, **more)
        if "outcome" not in told:
            raise Broken(f"{verb}: {told.get('error')}")
        return Outcome(**told["outcome"])

    def kill(self, verb: str, at: str, **more: Any) -> None:
        """Play a job, and kill its process where it hangs."""
        process = self.start(verb, hang=at, **more)
        try:
            process.wait_for("HANGS")
        finally:
            process.kill()


def _environment(home: Path) -> Mapping[str, str]:
    """Return the environment without keys of providers, with a home of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not any(secret in name for secret in _SECRETS) and not name.startswith("AGENTGRAPH_")
    }
    return {**kept, **_QUIET, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
