"""What graphs of others see of ours: the public channels of agents' and teams' graphs."""

from agentgraph.surface.public_graph import PublicGraph, publish, run_inside, run_whole, whole_state

__all__ = ["PublicGraph", "publish", "run_inside", "run_whole", "whole_state"]
