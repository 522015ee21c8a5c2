"""Draw a directed graph as an SVG: boxes in layers, clusters around them.

draw([Node("start", kind="start"), Node("a")], [Edge("start", "a", "begins")])
"""

from agentgraph.drawing.graph import Edge, Node
from agentgraph.drawing.svg import draw

__all__ = ["Edge", "Node", "draw"]
