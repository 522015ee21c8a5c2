"""agentgraph over HTTP: agents as JSON and SSE endpoints, and the example support desk.

`create_app` makes the FastAPI application, `serve` runs it. `access` checks a request's key. A
route of `routes` reads and writes the models of `schemas`, locks the thread in the `catalogue`, and
runs the agent; `sse` writes a stream of events. `problems` turns all errors into RFC 9457 problems.
"""

from agentgraph_server.app import create_app
from agentgraph_server.principals.principal import Principal
from agentgraph_server.server import serve
from agentgraph_server.settings import Settings

__all__ = ["Principal", "Settings", "create_app", "serve"]
