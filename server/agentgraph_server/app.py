"""The application: what is served, who may ask, where threads are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from agentgraph import Agent, __version__
from agentgraph.storage import LazySaver, lasting_url
from agentgraph_server.catalogue import Catalogue
from agentgraph_server.gate import Gate, keys_from
from agentgraph_server.problems import answer_problems
from agentgraph_server.routes import router

__all__ = ["create_app", "open_stores"]


def create_app(
    *agents: Agent, store: str | None = None, api_keys: Iterable[str] | None = None
) -> FastAPI:
    """Make the application that serves agents.

    `store` holds the threads of agents without a checkpointer: by default what `POSTGRES_URL`
    names, else a SQLite file in the working directory. `api_keys` are by default those of
    `AGENTGRAPH_API_KEYS`, separated by commas; without any, only this machine may ask.
    """
    keys = keys_from(api_keys)
    catalogue = Catalogue(agents, store or lasting_url())
    app = FastAPI(
        title="agentgraph",
        version=__version__,
        description="Agents that answer over HTTP, at once or as a stream of events.",
        lifespan=_stores_open,
    )
    app.state.catalogue = catalogue
    app.include_router(router)
    app.add_middleware(Gate, keys=keys)
    answer_problems(app)
    return app


async def open_stores(app: FastAPI) -> None:
    """Open where threads are kept, so that a store out of reach is known at the start."""
    for saver in _stores(app.state.catalogue):
        await saver.aopen()


@asynccontextmanager
async def _stores_open(app: FastAPI) -> AsyncIterator[None]:
    try:
        await open_stores(app)  # not at the first request: a server without a store is none
        yield
    finally:
        for saver in _stores(app.state.catalogue):
            await saver.aclose()


def _stores(catalogue: Catalogue) -> list[LazySaver]:
    return [saver for saver in catalogue.savers if isinstance(saver, LazySaver)]
