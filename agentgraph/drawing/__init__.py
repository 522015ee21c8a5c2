"""A directed graph as a picture: boxes in layers, clusters around them, one SVG and no more."""

from agentgraph.drawing.graph import Edge, Node
from agentgraph.drawing.svg import draw

__all__ = ["Edge", "Node", "draw"]
