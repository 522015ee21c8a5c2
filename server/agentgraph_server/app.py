"""The FastAPI application: routes, access control, stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from agentgraph import __version__
from agentgraph.storage import LazySaver, lasting_url
from agentgraph_server.access import AccessControl, keys_from
from agentgraph_server.catalogue import Catalogue, Served
from agentgraph_server.problems import answer_problems
from agentgraph_server.routes import router


def create_app(
    *agents: Served, store: str | None = None, api_keys: Iterable[str] | None = None
) -> FastAPI:
    """Make the application that serves agents and flows.

    `store` holds the threads of agents without a checkpointer; by default it is `POSTGRES_URL`,
    else a SQLite file in the working directory. `api_keys` default to those of
    `AGENTGRAPH_API_KEYS`, separated by commas; without any, only this machine may ask. Raises
    `ConfigurationError` if two agents have the same name, or a store's URL cannot be used.

        app = create_app(support, store="memory")  # uvicorn runs it
    """
    keys = keys_from(api_keys)
    catalogue = Catalogue(agents, store or lasting_url())
    app = FastAPI(
        title="agentgraph",
        version=__version__,
        description="Agents that answer over HTTP, at once or as a stream of events.",
        lifespan=_open_while_serving,
    )
    app.state.catalogue = catalogue
    app.include_router(router)
    app.add_middleware(AccessControl, keys=keys)
    answer_problems(app)
    return app


async def open_stores(app: FastAPI) -> None:
    """Open the stores of all agents; raise `StorageError` if one cannot be reached."""
    for saver in _lazy_savers(app.state.catalogue):
        await saver.aopen()


@asynccontextmanager
async def _open_while_serving(app: FastAPI) -> AsyncIterator[None]:
    """Open the stores at the start, and close them at the end."""
    try:
        # Not at the first request: a server that cannot reach its store must not start.
        await open_stores(app)
        yield
    finally:
        for saver in _lazy_savers(app.state.catalogue):
            await saver.aclose()


def _lazy_savers(catalogue: Catalogue) -> list[LazySaver]:
    return [saver for saver in catalogue.savers if isinstance(saver, LazySaver)]
