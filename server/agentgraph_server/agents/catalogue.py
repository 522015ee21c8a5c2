"""The catalogue: the served agents and flows by name, and the locks of their threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver

from agentgraph import Agent, AgentGraphError, Flow
from agentgraph.errors import ConfigurationError
from agentgraph.sessions.single.team import team_of
from agentgraph.storage import Claim, LazySaver, open_saver

Saver = BaseCheckpointSaver[str]
Threads = set[tuple[int, str]]
Served: TypeAlias = Agent[Any] | Flow[Any]


class UnknownAgent(AgentGraphError):
    """No agent of this name is served."""

    code = "unknown_agent"


class UnknownThread(AgentGraphError):
    """Nothing was said on this thread."""

    code = "unknown_thread"


class ThreadBusy(AgentGraphError):
    """A turn is under way on this thread."""

    code = "thread_busy"


@dataclass(slots=True)
class ThreadLock:
    """The right to run a turn on a thread, as a context manager."""

    _busy: Threads
    _thread: tuple[int, str]
    _claim: Claim | None
    _is_released: bool = False

    async def release(self) -> None:
        """Unlock the thread, once: at a second call another turn may have locked it."""
        if self._is_released:
            return
        self._is_released = True
        try:
            if self._claim is not None:
                await self._claim.release()
        finally:
            self._busy.discard(self._thread)

    async def __aenter__(self) -> ThreadLock:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


@dataclass(init=False, slots=True)
class Catalogue:
    """The served agents, each with a saver, and the threads that are locked.

    Two turns at once on a thread would both answer the same history. A set locks a thread within
    this process, and the store locks it among processes.
    """

    agents: Mapping[str, Served]
    _busy: Threads = field(default_factory=set)

    def __init__(self, served: Sequence[object], store: str) -> None:
        faults = list(_faults(served))
        if faults:
            raise ConfigurationError(faults)
        self._busy = set()
        agents = [value for value in served if isinstance(value, Agent | Flow)]
        self.agents = {agent.name: _with_store(agent, store) for agent in agents}

    @property
    def savers(self) -> list[Saver]:
        """The savers of all agents, each once."""
        return list({id(saver): saver for saver in map(_saver_of, self.agents.values())}.values())

    def find(self, name: str) -> Served:
        """Return an agent by its name; raise `UnknownAgent` if there is none."""
        try:
            return self.agents[name]
        except KeyError:
            names = ", ".join(self.agents)
            raise UnknownAgent(f"no agent is called {name!r}: there are {names}") from None

    async def lock(self, agent: Served, thread_id: str) -> ThreadLock:
        """Lock a thread, or raise `ThreadBusy`; agents on the same store share their threads.

        Another process may have locked the thread too, if the store supports such locks.
        """
        saver = _saver_of(agent)
        thread = (id(saver), thread_id)
        if thread in self._busy:
            raise _busy(thread_id)
        self._busy.add(thread)
        claim: Claim | None = None
        try:
            if isinstance(saver, LazySaver) and (claim := await saver.atake(thread_id)) is None:
                raise _busy(thread_id)
        except BaseException:
            self._busy.discard(thread)
            raise
        return ThreadLock(self._busy, thread, claim)

    def is_busy(self, agent: Served, thread_id: str) -> bool:
        """Tell whether a turn is under way on a thread."""
        return (id(_saver_of(agent)), thread_id) in self._busy


def _busy(thread_id: str) -> ThreadBusy:
    return ThreadBusy(
        f"a turn is under way on thread {thread_id!r}: wait for its end, or use another"
    )


def _faults(served: Sequence[object]) -> Iterator[str]:
    """Yield why values cannot be served together."""
    if not served:
        yield "nothing to serve: give at least one agent, team, flow or graph"
    names: set[str] = set()
    for value in served:
        try:
            name = team_of(value).name
        except ConfigurationError as error:
            yield from error.faults
            continue
        if name in names:
            yield f"two that are served are called {name!r}: their addresses would be the same"
        names.add(name)


def _with_store(agent: Served, store: str) -> Served:
    """Return the agent with a saver: its own, or one on the server's store."""
    if isinstance(agent.checkpointer, BaseCheckpointSaver):
        return agent
    return agent.replace(checkpointer=open_saver(agent.checkpointer or store))


def _saver_of(agent: Served) -> Saver:
    assert isinstance(agent.checkpointer, BaseCheckpointSaver)  # `_with_store` gives it one
    return agent.checkpointer
