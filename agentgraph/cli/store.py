"""Where a conversation in the terminal is kept."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentgraph.agents import Agent
from agentgraph.errors import ConfigurationError
from agentgraph.storage import lasting_url

__all__ = ["Kept", "keep"]

_KNOWN = ("sqlite:///", "postgresql://", "postgres://")
_POSTGRES = re.compile(
    r"(postgres(?:ql)?://)(?:[^@/?#]*@)?([\w.,:\[\]-]*(?:/[\w.-]*)?)(?:\?[^@]*)?"
)


@dataclass(frozen=True, slots=True)
class Kept:
    """An agent with its store, and the store's name, which is fit to be shown."""

    agent: Agent
    place: str

    @property
    def lasts(self) -> bool:
        """Whether another process finds the conversation again."""
        return self.place != "memory"


def keep(agent: Agent, url: str | None) -> Kept:
    """Choose the store: the one asked for, the agent's own, the environment's, or a file here."""
    if url is None and agent.checkpointer is not None:
        return Kept(agent, _name_of(agent.checkpointer))
    url = url or lasting_url()
    if url != "memory" and not url.startswith(_KNOWN):
        # Not the URL itself: it may hold a password.
        raise ConfigurationError("--store: write memory, sqlite:///file.db or postgresql://…")
    return Kept(agent.replace(checkpointer=url), _name_of(url))


def _name_of(checkpointer: object) -> str:
    if not isinstance(checkpointer, str):
        name = type(checkpointer).__name__
        return "memory" if name == "InMemorySaver" else f"the agent's own {name}"
    if not checkpointer.startswith("postgres"):
        return checkpointer
    safe = _POSTGRES.fullmatch(checkpointer)
    return f"{safe[1]}{safe[2]}" if safe else "postgresql://…"
