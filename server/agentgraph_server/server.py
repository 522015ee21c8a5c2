"""Run the server until a signal stops it: `serve`."""

from __future__ import annotations

import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from agentgraph.engines import Engine
from agentgraph.errors import ConfigurationError
from agentgraph_server.api.served import Served
from agentgraph_server.app import create_app, open_stores
from agentgraph_server.drain import GRACE_S
from agentgraph_server.logs import uvicorn_config
from agentgraph_server.principals.access_control import is_loopback
from agentgraph_server.principals.auth import Auth
from agentgraph_server.settings import ENV_KEYS, Settings


def serve(
    *served: Served,
    host: str = "127.0.0.1",
    port: int = 8000,
    store: str | None = None,
    engine: Engine | str | None = None,
    auth: Auth | None = None,
    settings: Settings | None = None,
) -> None:
    """Serve agents, teams, flows and graphs until a signal stops the server.

    Raises `ConfigurationError` if other machines can reach `host` but anybody may ask.
    """
    make_server(
        *served, host=host, port=port, store=store, engine=engine, auth=auth, settings=settings
    ).run()


class _Server(uvicorn.Server):
    """A uvicorn server that ends normally after a signal; uvicorn's own raises the signal again."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        # Before uvicorn does: it would report an unreachable store with a stack trace.
        await open_stores(self._app)
        await super().serve(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.force_exit:
            await self._app.state.drain.run(self._app)  # while it listens: to say that it stops
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit |= self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def make_server(
    *served: Served,
    host: str = "127.0.0.1",
    port: int = 8000,
    store: str | None = None,
    engine: Engine | str | None = None,
    auth: Auth | None = None,
    settings: Settings | None = None,
    log_level: str | None = None,
) -> uvicorn.Server:
    """Return the server that `serve` runs, not yet listening; its `run` blocks.

    Raises `ConfigurationError` if other machines can reach `host` but anybody may ask, or for what
    `create_app` cannot serve.
    """
    settings = settings or Settings()
    if not is_loopback(host) and auth is None and not settings.knows_principals:
        raise ConfigurationError(
            f"host={host!r} can be reached by others: set {ENV_KEYS}, or serve on 127.0.0.1"
        )
    app = create_app(*served, store=store, engine=engine, auth=auth, settings=settings)
    config = uvicorn.Config(
        app,
        host,
        port,
        log_config=uvicorn_config(settings.log_format),
        log_level=log_level or settings.log_level,
        timeout_graceful_shutdown=round(GRACE_S),
    )
    return _Server(config, app)
