"""The nodes of an agent's graph, one module each."""
