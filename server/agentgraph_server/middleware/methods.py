"""HEAD and OPTIONS on every route, and the `Allow` header."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ALL_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def allow_header(connection: HTTPConnection) -> str:
    """Return the methods of an address, as `Allow` lists them; "" if there is no such address."""
    return ", ".join(allowed_methods(connection.app.routes, connection.scope))


def allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> Sequence[str]:
    """Return the methods that an address takes, whichever route answers each of them."""
    routes = list(routes)

    def takes(method: str) -> bool:
        return any(route.matches({**scope, "method": method})[0] == Match.FULL for route in routes)

    own = {method for method in ("GET", "POST", "PUT", "PATCH", "DELETE") if takes(method)}
    own |= {"HEAD"} if "GET" in own else set()
    own |= {"OPTIONS"} if own else set()
    return [method for method in ALL_METHODS if method in own]


class Methods:
    """Middleware: OPTIONS is answered for every address, and HEAD as GET without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope.get("method")
        if method == "OPTIONS" and (allow := allow_header(HTTPConnection(scope))):
            await Response(status_code=204, headers={"Allow": allow})(scope, receive, send)
        elif method == "HEAD" and "GET" in allowed_methods(scope["app"].routes, scope):
            await self._head(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the head of GET; a stream, which has no end, ends with its head."""
        is_answered = asyncio.Event()

        async def receive_until_answered() -> Message:
            message = asyncio.ensure_future(receive())
            end = asyncio.ensure_future(is_answered.wait())
            try:
                await asyncio.wait({message, end}, return_when=asyncio.FIRST_COMPLETED)
                return {"type": "http.disconnect"} if is_answered.is_set() else message.result()
            finally:
                message.cancel()
                end.cancel()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                is_answered.set()

        await self._app({**scope, "method": "GET"}, receive_until_answered, send_head)
