"""The routes that probes ask: whether the server is there, and whether it can do its work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from agentgraph import AgentGraphError, __version__
from agentgraph.errors import kind_of
from agentgraph.remote import Principal
from agentgraph.sessions import Hub
from agentgraph_server.principals.access_control import is_local
from agentgraph_server.principals.principal import Forbidden

router = APIRouter(tags=["health"])

PROBE_S = 5.0
"""How long a part may take to answer; one that takes longer is down."""

_log = logging.getLogger("agentgraph_server")


class Health(BaseModel):
    """That the server is there."""

    status: Literal["ok"] = "ok"
    version: str
    agents: Sequence[str] = Field(default=[], description="What is served, for who may know it.")


class Ok(BaseModel):
    """That the server is there, as LangGraph's clients ask it."""

    ok: bool = True


class Readiness(BaseModel):
    """That the server can do its work, part by part."""

    status: Literal["ready"] = "ready"
    store: Literal["up"] = "up"
    engine: Literal["up"] = "up"


class NotReady(AgentGraphError):
    """The server cannot do its work at present."""

    code = "not_ready"


def _prober(request: Request) -> None:
    """Let those ask who are on this machine, or operate the server."""
    principal: Principal | None = request.state.principal
    if not is_local(request.scope) and (principal is None or not principal.operates):
        raise Forbidden("from other machines this needs the scope 'operate'")


@router.get("/health")
async def tell_health(request: Request) -> Health:
    """Tell that the server is there; everybody may ask, what is served is for principals only."""
    is_known = request.state.principal is not None
    return Health(version=__version__, agents=list(request.app.state.served) if is_known else [])


@router.get("/ok")
async def tell_ok() -> Ok:
    """Tell that the server is there; everybody may ask."""
    return Ok()


@router.get(
    "/ready",
    dependencies=[Depends(_prober)],
)
async def tell_readiness(request: Request) -> Readiness:
    """Ask the store and the engine; 503 says which of them is down, or that the server stops."""
    if request.app.state.drain.has_begun:
        raise NotReady("the server is shutting down: it takes no new work", code="shutdown")
    hub: Hub | None = request.app.state.hub
    if hub is None:
        raise NotReady("the store is not open")
    parts: Mapping[str, Awaitable[None]] = {"store": hub.ping_store(), "engine": hub.engine.check()}
    states = await asyncio.gather(*(_is_up(name, work) for name, work in parts.items()))
    down = [name for name, is_up in zip(parts, states, strict=True) if not is_up]
    if down:
        raise NotReady(f"down: {', '.join(down)}; the server's log says why")
    return Readiness()


async def _is_up(name: str, work: Awaitable[None]) -> bool:
    try:
        async with asyncio.timeout(PROBE_S):
            await work
    except Exception as error:
        _log.warning("the %s is down: %s", name, kind_of(error), exc_info=error)
        return False
    return True


Prober = Annotated[None, Depends(_prober)]
"""Who may ask what operators ask: this machine, and principals that operate the server."""
