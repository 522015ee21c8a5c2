"""agentgraph over HTTP: agents as JSON and SSE endpoints, and the example support desk.

`create_app` makes the FastAPI application, `serve` runs it. `principals` says who asks; `api` has
the routes of sessions, runs and decisions, `agents` those of agents' threads; `streams` and `wire`
are what goes over the wire. `problems` turns all errors into RFC 9457 problems.
"""

from agentgraph.remote import Principal
from agentgraph_server.app import create_app
from agentgraph_server.principals.auth import Auth, Unauthorized, first_of
from agentgraph_server.principals.key_file import key_file_auth
from agentgraph_server.principals.ready_made import key_auth
from agentgraph_server.principals.tokens import ClaimNames, jwt_auth
from agentgraph_server.server import serve
from agentgraph_server.settings import Settings

__all__ = [
    "Auth",
    "ClaimNames",
    "Principal",
    "Settings",
    "Unauthorized",
    "create_app",
    "first_of",
    "jwt_auth",
    "key_auth",
    "key_file_auth",
    "serve",
]
