"""agentgraph in use: the example support desk, and a conversation with it."""
