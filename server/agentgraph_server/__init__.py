"""agentgraph over HTTP: agents as JSON and SSE endpoints, and the example support desk."""

from agentgraph_server.app import create_app
from agentgraph_server.server import serve

__all__ = ["create_app", "serve"]
