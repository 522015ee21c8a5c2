"""The agentgraph server."""
