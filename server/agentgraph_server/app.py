"""The FastAPI application: routes, principals, the hub and the stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from agentgraph import __version__
from agentgraph.engines import LOCAL, Engine, open_engine
from agentgraph.sessions import Hub
from agentgraph.sessions.hub.webhooks import Webhooks
from agentgraph.storage import lasting_url
from agentgraph_server.agents import routes as agents
from agentgraph_server.agents.earlier_threads import EarlierThreads
from agentgraph_server.agents.threads import agent_of, agents_of
from agentgraph_server.api import decisions, health, runs, sessions
from agentgraph_server.api import served as served_routes
from agentgraph_server.api.served import Served, served_by_name
from agentgraph_server.drain import Drain, Refusal
from agentgraph_server.logs import prepare_loggers
from agentgraph_server.middleware.methods import Methods
from agentgraph_server.middleware.origins import Hosts, Origins
from agentgraph_server.middleware.request_log import RequestLog
from agentgraph_server.openapi import document_of, operation_id
from agentgraph_server.principals.access_control import AccessControl
from agentgraph_server.principals.auth import Auth
from agentgraph_server.principals.limits import Limits
from agentgraph_server.principals.principal import OPEN_PATHS
from agentgraph_server.principals.ready_made import auth_of
from agentgraph_server.problems import answer_problems
from agentgraph_server.settings import Settings


def create_app(
    *served: Served,
    store: str | None = None,
    engine: Engine | str | None = None,
    auth: Auth | None = None,
    settings: Settings | None = None,
) -> FastAPI:
    """Make the application that serves agents, teams, flows and graphs.

    `store` holds the sessions; by default it is that of the settings, else `POSTGRES_URL`, else a
    SQLite file in the working directory. `engine` says who drives them: an `Engine`, or its URL; by
    default this server does. `auth` returns the `Principal` that sends a request; by
    default the API keys of the settings do. Without any of both, only this machine may ask.

    Raises `ConfigurationError` if two that are served have the same name, if one of them cannot be
    served, or if a setting, a store's or an engine's URL cannot be used.

        app = create_app(support, store="memory")  # uvicorn runs it
    """
    settings = settings or Settings()
    url = store or settings.store or lasting_url()
    auth = auth_of(settings) if auth is None else auth
    app = FastAPI(
        title="agentgraph",
        version=__version__,
        description="Agents, teams and flows that answer over HTTP, at once or as they work.",
        lifespan=_open_while_serving,
        generate_unique_id_function=operation_id,
    )
    app.openapi = partial(document_of, app)  # type: ignore[method-assign]
    app.state.url = url
    app.state.engine = _engine_of(engine or settings.engine or LOCAL)
    app.state.hub = None
    app.state.drain = Drain()
    app.state.turns = set()
    app.state.opening = asyncio.Lock()
    app.state.open_stores = partial(open_stores, app)
    app.state.settings = settings
    app.state.limits = Limits(
        runs_at_once=settings.runs_at_once,
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
    )
    app.state.served = served_by_name(served)
    app.state.earlier_threads = {
        name: EarlierThreads(agent_of(team), url)
        for name, team in agents_of(app.state.served).items()
    }
    for module in (health, served_routes, sessions, runs, decisions, agents):
        app.include_router(module.router)
    answer_problems(app)
    _add_middleware(app, auth, settings)
    return app


def _engine_of(engine: Engine | str) -> Engine:
    return open_engine(engine) if isinstance(engine, str) else engine


def _add_middleware(app: FastAPI, auth: Auth | None, settings: Settings) -> None:
    """Add what a request passes before its route; what is added last, it passes first."""
    hosts = settings.allowed_hosts
    app.add_middleware(Methods)
    app.add_middleware(Refusal, drain=app.state.drain)
    app.add_middleware(
        AccessControl,
        auth=auth,
        limits=app.state.limits,
        max_body=settings.max_body,
        allowed_hosts=hosts,
    )
    if hosts:
        app.add_middleware(Hosts, names=hosts, open_paths=OPEN_PATHS)
    app.add_middleware(RequestLog, expose_errors=settings.expose_errors)
    if settings.cors_origins:  # before who asks is known: a preflight has no key
        app.add_middleware(Origins, origins=settings.cors_origins)


async def open_stores(app: FastAPI) -> None:
    """Open the hub and the stores, once; raise `StorageError` if one cannot be reached."""
    async with app.state.opening:
        if app.state.hub is None:
            for threads in app.state.earlier_threads.values():
                await threads.open()
            hub = await Hub.open(
                app.state.url, serve=[*app.state.served.values()], engine=app.state.engine
            )
            app.state.webhooks = Webhooks(hub, hosts=app.state.settings.webhook_hosts)
            app.state.webhooks.start()
            app.state.hub = hub


async def _close_stores(app: FastAPI) -> None:
    try:
        # Their clients are told that they have ended: they must not begin again with the next hub.
        await asyncio.gather(*(turn.end() for turn in [*app.state.turns]))
        hub, app.state.hub = app.state.hub, None
        if hub is not None:
            app.state.webhooks.stop()
            await hub.aclose()
    finally:
        for threads in app.state.earlier_threads.values():
            await threads.close()


@asynccontextmanager
async def _open_while_serving(app: FastAPI) -> AsyncIterator[None]:
    """Open the hub and the stores at the start, and close them at the end."""
    settings = app.state.settings
    prepare_loggers(settings.log_level, settings.log_format)
    try:
        # Not at the first request: a server that cannot reach its store must not start.
        await open_stores(app)
        yield
    finally:
        await _close_stores(app)
