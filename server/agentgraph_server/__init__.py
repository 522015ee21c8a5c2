"""agentgraph over HTTP: agents as JSON and SSE endpoints, and the example support desk.

`create_app` makes the FastAPI application, `serve` runs it. A request passes `access` (keys), a
route of `routes`, which reads and writes the models of `schemas`, locks its thread in the
`catalogue`, and runs the agent; a stream of events is written by `sse`. All errors become RFC 9457
problems in `problems`.
"""

from agentgraph_server.app import create_app
from agentgraph_server.server import serve

__all__ = ["create_app", "serve"]
