"""How much of our code one run visits: `python -m tests.walks` prints a table and the modules.

A walk is a run which is profiled. Its figures count functions of our packages only, without
`agentgraph.testing`, which stands for a provider here. Other frames are looked through, and so are
comprehensions, which later Pythons run without a frame, and the functions that run a node in
LangGraph's place.

- `modules`: in how many of our files a function was called, or went on after an `await`.
- `hops`: how often a function was called by one in another of our files. An `await` which goes on
  is no new call, and the first function of a task, of a thread or of a node has no caller.
- `depth`: how many functions of ours lay on one stack at most.

Each walk is run once before it is profiled, so that imports and caches do not count.
"""

from __future__ import annotations

# First: LangGraph reads the environment of the tests when it is imported.
import tests.conftest  # noqa: F401

# isort: split

import asyncio
import gc
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final, NamedTuple, TypeAlias
from unittest.mock import patch

import httpx

import agentgraph
import agentgraph_server
from agentgraph import Agent, Guards, Hub, Team, sequence
from agentgraph.clock import SystemClock, use_clock
from agentgraph.guards import DEFAULT, Default, Escalation
from agentgraph.sessions.log.sqlite import log as sqlite
from agentgraph.stream import FinalStateEvent
from agentgraph.testing import Fault, ScriptedModel, call
from agentgraph.testing.answers import Scripted
from agentgraph_server import create_app

__all__ = ["WALKS", "Profile", "Profiler", "Visit", "Walk", "listing", "measured"]

_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
_RUN_NODES = frozenset({"NodeSequence.ainvoke", "in_context"})
"""What runs a node in LangGraph's place, and in a context of its own in place of a task."""
_RUNS_EACH = 2
_PATIENCE_S = 30


class Walk(NamedTuple):
    """The figures of one walk."""

    modules: int
    hops: int
    depth: int


class Visit(NamedTuple):
    """A function of ours which was called, or goes on."""

    module: str
    caller: str | None
    """The module of the nearest function of ours below it on the stack."""
    depth: int
    is_new: bool
    """Whether the function begins; False where it goes on after an `await` or a `yield`."""


class Profile(NamedTuple):
    """All visits of a walk, in their order."""

    visits: Sequence[Visit]

    @property
    def modules(self) -> list[str]:
        """Return the modules in the order of their first visits."""
        return list(dict.fromkeys(one.module for one in self.visits))

    @property
    def walk(self) -> Walk:
        """Return the figures."""
        calls = [one for one in self.visits if one.is_new and one.caller is not None]
        hops = sum(one.module != one.caller for one in calls)
        return Walk(len(self.modules), hops, max((one.depth for one in self.visits), default=0))


class Profiler:
    """Record the visits of functions whose files lie in packages, but not in excluded folders."""

    def __init__(self, packages: Sequence[Path], excluded: Sequence[Path] = ()) -> None:
        self._packages = packages
        self._excluded = excluded
        self._modules: dict[str, str | None] = {}
        self._visits: list[Visit] = []
        self._is_recording = False

    @property
    def profile(self) -> Profile:
        """Return what was recorded."""
        return Profile(self._visits)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe this thread, and the threads which are started in the block."""
        previous, previous_of_threads = sys.getprofile(), threading.getprofile()
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(previous)
            threading.setprofile(previous_of_threads)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is called in the block; the collector must not run finalizers in it."""
        is_collecting = gc.isenabled()
        gc.collect()
        gc.disable()
        self._is_recording = True
        try:
            yield
        finally:
            self._is_recording = False
            if is_collecting:
                gc.enable()

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not self._is_recording:
            return
        module = self._module_of(frame)
        if module is None:
            return
        callers = list(self._callers_of(frame))
        caller = callers[0] if callers else None
        # An append is atomic: several threads record.
        self._visits.append(Visit(module, caller, len(callers) + 1, _begins(frame)))

    def _callers_of(self, frame: FrameType) -> Iterator[str]:
        below = frame.f_back
        while below is not None and below.f_code.co_qualname != "in_context":
            module = self._module_of(below)
            if module is not None:
                yield module
            below = below.f_back

    def _module_of(self, frame: FrameType) -> str | None:
        """Return the module of a function of ours, None for any other frame."""
        code = frame.f_code
        # Code at the top level of a module or of a class is not optimized.
        if not code.co_flags & CO_OPTIMIZED or code.co_name in _COMPREHENSIONS:
            return None
        if code.co_qualname in _RUN_NODES:
            return None
        if code.co_filename not in self._modules:
            self._modules[code.co_filename] = self._module_at(Path(code.co_filename))
        return self._modules[code.co_filename]

    def _module_at(self, path: Path) -> str | None:
        if any(path.is_relative_to(folder) for folder in self._excluded):
            return None
        for package in self._packages:
            if path.is_relative_to(package):
                return path.relative_to(package.parent).as_posix()
        return None


def _begins(frame: FrameType) -> bool:
    """Tell whether a call event is the first of its frame.

    It happens at a RESUME instruction, whose argument is 0 at the start of a function and another
    number after a `yield` or an `await`.
    """
    return frame.f_code.co_code[frame.f_lasti + 1] & 3 == 0


class StillClock(SystemClock):
    """A clock that stands still: a sleep ends at once, or never ends."""

    def __init__(self, *, ends_sleeps: bool) -> None:
        self._ends_sleeps = ends_sleeps

    @staticmethod
    def wall() -> float:
        return 1_700_000_000.0

    @staticmethod
    def monotonic() -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        if seconds > 0 and not self._ends_sleeps:
            await asyncio.get_running_loop().create_future()
        await super().sleep(0)


# The walks.

Scenario: TypeAlias = Callable[[Profiler, Path], Awaitable[None]]


def lookup(order: str) -> str:
    """Look an order up."""
    return f"{order} is lost"


def desk(guards: Guards | Default | None) -> Agent:
    """Return a supervisor whose one sub-agent calls a tool and answers."""
    turns: list[Scripted] = [call("lookup", order="A7"), "It is lost."]
    leaf = Agent("Leaf", model=ScriptedModel(turns * _RUNS_EACH), tools=[lookup])
    transfers = [call("transfer_to_Leaf")] * _RUNS_EACH
    return Agent("Root", model=ScriptedModel(transfers), agents=[leaf], guards=guards)


async def streamed(agent: Agent, thread_id: str) -> None:
    """Run an agent to the end of its answer."""
    events = [event async for event in agent.astream("Where is A7?", thread_id=thread_id)]
    final = events[-1]
    assert isinstance(final, FinalStateEvent) and final.text == "It is lost.", final


async def streamed_twice(profiler: Profiler, agent: Agent) -> None:
    """Run an agent, and profile it when it runs on another thread."""
    await streamed(agent, "first")
    with profiler.recording():
        await streamed(agent, "second")


async def supervisor(profiler: Profiler, folder: Path) -> None:
    """Stream the answer of a sub-agent, without guards."""
    await streamed_twice(profiler, desk(None))


async def guarded_supervisor(profiler: Profiler, folder: Path) -> None:
    """Stream the answer of a sub-agent under the default guards."""
    await streamed_twice(profiler, desk(DEFAULT))


async def session(profiler: Profiler, folder: Path) -> None:
    """Have two agents speak in a session which is kept in a SQLite file."""
    speakers = [
        Agent(name, f"does {name}", model=ScriptedModel([f"{name} speaks"] * _RUNS_EACH))
        for name in ("ann", "bob")
    ]
    team = Team(speakers, sequence(["ann", "bob"]))
    async with await Hub.open(f"sqlite:///{folder / 'sessions.db'}", serve=[team]) as hub:
        first, second = await hub.session(team), await hub.session(team)
        await first.send("user", "hello")
        await first.settled()
        with profiler.recording():
            await second.send("user", "hello")
            await second.settled()
        spoken = [one.sender_id for one in await second.history() if one.is_substantive]
        assert spoken == ["user", "ann", "bob"], spoken


async def server(profiler: Profiler, folder: Path) -> None:
    """Answer a prompt over HTTP as server-sent events, without guards."""
    agent = Agent("Solo", model=ScriptedModel(["It is lost."] * _RUNS_EACH), guards=None)
    app = create_app(agent, store="memory")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client,
    ):
        await _post_prompt(client)
        with profiler.recording():
            await _post_prompt(client)


async def _post_prompt(client: httpx.AsyncClient) -> None:
    answer = await client.post("/agents/Solo/stream-completion", json={"prompt": "Where is A7?"})
    assert answer.status_code == 200, answer.text
    assert "event: done" in answer.text, answer.text


async def retry(profiler: Profiler, folder: Path) -> None:
    """Answer after a 429 of the provider, under the default guards."""
    turns: list[Scripted] = [Fault.rate_limit(), "It is lost."]
    await streamed_twice(profiler, Agent("Solo", model=ScriptedModel(turns * _RUNS_EACH)))


async def escalation(profiler: Profiler, folder: Path) -> None:
    """Ask a human about an answer which is in doubt, and go on when it is approved."""
    guards = Guards.interactive(escalation=Escalation(0.85, lambda subject: 0.2))
    model = ScriptedModel(["It is lost."] * _RUNS_EACH)
    agent = Agent("Solo", model=model, guards=guards)
    await _approved(agent, "first")
    with profiler.recording():
        await _approved(agent, "second")


async def _approved(agent: Agent, thread_id: str) -> None:
    reply = await agent.ainvoke("Where is A7?", thread_id=thread_id)
    [question] = reply.interrupts
    reply = await agent.aresume(thread_id, {question.id: "approve"})
    assert reply.text == "It is lost.", reply


WALKS: Final[Mapping[str, Scenario]] = {
    "supervisor": supervisor,
    "guarded supervisor": guarded_supervisor,
    "session": session,
    "server": server,
    "retry": retry,
    "escalation": escalation,
}


# Their measurement.


def measured(name: str) -> Profile:
    """Run a walk, and return its profile."""
    packages = [Path(package.__path__[0]) for package in (agentgraph, agentgraph_server)]
    profiler = Profiler(packages, excluded=[packages[0] / "testing"])
    clock = StillClock(ends_sleeps=name == "retry")

    async def limited(folder: Path) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            await WALKS[name](profiler, folder)

    with (
        TemporaryDirectory() as folder,
        use_clock(clock),
        # The thread of a SQLite log looks for the writes of other processes again and again: how
        # often it does depends on how long a walk takes.
        patch.object(sqlite._FileAccess, "is_due", lambda access: False),
        profiler.installed(),
    ):
        asyncio.run(limited(Path(folder)))
    return profiler.profile


def listing(modules: Sequence[str]) -> str:
    """Return modules as numbered lines."""
    return "\n".join(f"{number:5} {module}" for number, module in enumerate(modules, 1))


def main() -> None:
    """Print the figures of all walks, and the modules of each in the order of first visits."""
    profiles = {name: measured(name) for name in WALKS}
    lines = [f"{'walk':20}{'modules':>9}{'hops':>9}{'depth':>9}"]
    for name, profile in profiles.items():
        lines.append(f"{name:20}" + "".join(f"{figure:9}" for figure in profile.walk))
    for name, profile in profiles.items():
        lines += ["", f"{name}: {WALKS[name].__doc__}", listing(profile.modules)]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
