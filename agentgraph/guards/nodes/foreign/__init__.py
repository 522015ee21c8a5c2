"""Guards in graphs that agentgraph did not build: where they are put, and what they see."""
