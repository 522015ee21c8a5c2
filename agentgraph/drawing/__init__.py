"""Draw a directed graph as an SVG: boxes in layers, clusters around them.

draw([Node("start", kind="start"), Node("a")], [Edge("start", "a", "begins")])

`levels` splits the graph by its clusters and reverses edges that close a cycle. Each level is laid
out by `layout`: `slots` puts boxes and lines into layers, `positions` chooses their order and their
places within a layer. `svg` writes the result.
"""

from agentgraph.drawing.graph import Edge, Node
from agentgraph.drawing.svg import draw

__all__ = ["Edge", "Node", "draw"]
