from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph import Agent, Guards, effect
from agentgraph.agents.picture import picture_of
from agentgraph.drawing import Edge, Node, draw
from agentgraph.guards import DEFAULT, CostBudget, Default, Escalation

SVG = "{http://www.w3.org/2000/svg}"
NAMES = st.sampled_from([f"n{number}" for number in range(9)])
CLUSTERS = st.lists(st.sampled_from("abc"), max_size=4).map(tuple)


class Rect(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Rect) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: Rect) -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )


class Picture:
    """A drawing, read back: what it shows, by the tooltips."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        [page] = self.root.findall(f"{SVG}rect")
        self.page = rect_of(page)
        self.nodes: dict[str, Rect] = {}
        self.clusters: dict[str, Rect] = {}
        self.edges: Counter[str] = Counter()
        self.classes: dict[str, str] = {}
        for group in self.root.findall(f"{SVG}g"):
            kind, title = group.get("class", ""), group.findtext(f"{SVG}title") or ""
            self.classes[title] = kind
            if kind.startswith("edge"):
                self.edges[title] += "part" not in kind
            else:
                shapes = self.nodes if kind.startswith("node") else self.clusters
                shapes[title] = rect_of(group.find(f"{SVG}rect"))

    def group(self, title: str) -> ElementTree.Element:
        found = [g for g in self.root.iter(f"{SVG}g") if g.findtext(f"{SVG}title") == title]
        assert found
        return found[0]


def rect_of(element: ElementTree.Element | None) -> Rect:
    assert element is not None
    x, y = float(element.get("x", 0)), float(element.get("y", 0))
    return Rect(x, y, x + float(element.get("width", 0)), y + float(element.get("height", 0)))


def title_of(edge: Edge) -> str:
    return f"{edge.source} → {edge.target}{f': {edge.label}' if edge.label else ''}"


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Node], list[Edge]]:
    names = draw(st.lists(NAMES, unique=True))
    nodes = [
        Node(
            name,
            kind=draw(st.sampled_from(["box", "start", "end"])),
            cluster=draw(CLUSTERS),
            highlighted=draw(st.booleans()),
        )
        for name in names
    ]
    edge = st.builds(
        Edge, NAMES, NAMES, st.sampled_from(["", "a label", "x"]), st.booleans(), st.booleans()
    )
    return nodes, draw(st.lists(edge, max_size=20))


@given(graphs())
def test_any_graph_is_drawn_whole_and_nothing_lies_on_anything(
    graph: tuple[list[Node], list[Edge]],
) -> None:
    nodes, edges = graph

    picture = Picture(draw(nodes, edges))

    named = {node.id for node in nodes} | {n for e in edges for n in (e.source, e.target)}
    assert picture.nodes.keys() == named
    assert picture.edges == Counter(map(title_of, edges)) | Counter()
    boxes = [*picture.nodes.values()]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert all(picture.page.holds(box) for box in (*boxes, *picture.clusters.values()))


@given(graphs())
def test_a_cluster_holds_its_own_and_nothing_else(graph: tuple[list[Node], list[Edge]]) -> None:
    nodes, edges = graph
    clusters_of = {node.id: node.cluster for node in nodes}

    picture = Picture(draw(nodes, edges))

    for title, cluster in picture.clusters.items():
        path = tuple(title.split("/"))
        for name, box in picture.nodes.items():
            inside = clusters_of.get(name, ())[: len(path)] == path
            assert cluster.holds(box) if inside else not cluster.overlaps(box)
        for other_title, other in picture.clusters.items():
            other_path = tuple(other_title.split("/"))
            if other_path[: len(path)] == path:
                assert cluster.holds(other)
            elif path[: len(other_path)] != other_path:
                assert not cluster.overlaps(other)


@given(graphs())
def test_the_same_graph_gives_the_same_picture(graph: tuple[list[Node], list[Edge]]) -> None:
    assert draw(*graph) == draw(*graph)


@given(st.text(), st.text(), st.text(min_size=1), st.text())
def test_a_hostile_text_is_only_text(name: str, label: str, cluster: str, edge: str) -> None:
    node = Node(name, label, cluster=(cluster,))
    plain = ElementTree.fromstring(draw([Node("a", cluster=("c",))], [Edge("a", "b", "label")]))

    root = ElementTree.fromstring(draw([node, Node("b")], [Edge(name, "b", edge)]))

    assert {each.tag for each in root.iter()} <= {each.tag for each in plain.iter()}
    assert {name for each in root.iter() for name in each.attrib} <= {
        name for each in plain.iter() for name in each.attrib
    }


def test_markup_in_a_label_is_shown_as_it_was_written() -> None:
    hostile = "<script>alert('1')</script>&\x00\x1b"
    svg = draw([Node("a", hostile)], [Edge("a", "a", '"/><image href="http://x"/>')])

    assert "<script" not in svg and "<image" not in svg
    assert Picture(svg).group("a").findtext(f"{SVG}text") == hostile[:-2] + "\ufffd\ufffd"


def test_a_picture_needs_nothing_from_elsewhere() -> None:
    svg = draw([Node("a"), Node("b")], [Edge("a", "b", "label")])

    assert re.findall(r"https?://\S+?(?=\")", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"href|@import|url\(|<script|font-face", svg)


def test_every_rule_of_style_is_for_the_picture_alone() -> None:
    style = re.search(r"<style>(.*?)</style>", draw([], []), re.DOTALL)
    assert style is not None
    selectors = re.findall(r"^([^{@}]+) \{", style[1], re.MULTILINE)

    assert selectors
    assert all(
        each.strip().startswith(".ag-drawing ")
        for selector in selectors
        for each in selector.split(",")
    )


def test_a_dashed_edge_is_dashed_and_a_highlighted_one_stands_out() -> None:
    edges = [Edge("a", "b", dashed=True), Edge("b", "c", highlighted=True), Edge("c", "d")]
    picture = Picture(draw([], edges))
    dashed, lit, plain = (picture.group(title_of(e)).find(f"{SVG}path") for e in edges)

    assert dashed is not None and lit is not None and plain is not None
    assert "stroke-dasharray" in dashed.attrib and "stroke-dasharray" not in plain.attrib
    assert lit.get("stroke") != plain.get("stroke")
    assert picture.classes["b → c"] == "edge on"


def test_a_chain_runs_down_in_one_line() -> None:
    picture = Picture(draw([], [Edge("a", "b"), Edge("b", "c")]))
    a, b, c = (picture.nodes[name] for name in "abc")

    assert a.bottom < b.top and b.bottom < c.top
    assert {(box.left + box.right) / 2 for box in (a, b, c)} == {(a.left + a.right) / 2}


def test_an_edge_back_leaves_the_order_of_the_nodes_as_it_is() -> None:
    picture = Picture(draw([Node("a")], [Edge("c", "a"), Edge("a", "b"), Edge("b", "c")]))

    assert picture.nodes["a"].top < picture.nodes["b"].top < picture.nodes["c"].top


def test_an_arrow_ends_at_its_target() -> None:
    edges = [Edge("a", "b"), Edge("b", "a"), Edge("a", "c"), Edge("c", "c")]
    nodes = [Node("a", cluster=("x",)), Node("b", cluster=("x", "y")), Node("c")]
    picture = Picture(draw(nodes, edges))

    for edge in edges:
        tips = [
            tuple(map(float, tip.get("points", "").split()[0].split(",")))
            for group in picture.root.iter(f"{SVG}g")
            if (group.findtext(f"{SVG}title") or "").startswith(title_of(edge))
            for tip in group.iter(f"{SVG}polygon")
        ]
        [(x, y)] = tips
        box = picture.nodes[edge.target]
        assert box.left <= x <= box.right and box.top <= y <= box.bottom


def test_a_line_runs_down_through_the_borders_of_clusters_in_one_piece() -> None:
    nodes = [Node("a", cluster=("x", "y")), Node("b", cluster=("z",))]
    picture = Picture(draw(nodes, [Edge("a", "b")]))
    paths = [
        path.get("d", "")
        for group in picture.root.iter(f"{SVG}g")
        if group.findtext(f"{SVG}title") == "a → b"
        for path in group.iter(f"{SVG}path")
    ]
    heights = sorted([float(y) for y in re.findall(r"[V,]([\d.]+)", path)] for path in paths)

    assert len(heights) == 4
    assert all(piece == sorted(piece) for piece in heights)
    assert [piece[-1] for piece in heights[:-1]] == [piece[0] for piece in heights[1:]]
    assert heights[0][0] == picture.nodes["a"].bottom
    assert heights[0][-1] == picture.clusters["x/y"].bottom
    assert heights[-1][0] == picture.clusters["z"].top
    assert heights[-1][-1] == picture.nodes["b"].top


def test_labels_of_edges_lie_on_no_box_and_on_no_other_label() -> None:
    nodes = [Node(name) for name in ("planner", "writer", "reviewer")]
    edges = [
        Edge(source.id, target.id, f"rule {source.id} {target.id}")
        for source in nodes
        for target in nodes
    ]
    picture = Picture(draw(nodes, edges))
    labels = []
    for edge in edges:
        text = picture.group(title_of(edge)).find(f"{SVG}text")
        assert text is not None
        x, y = float(text.get("x", 0)), float(text.get("y", 0))
        half = 0.3 * 11 * len(edge.label)
        labels.append(Rect(x - half, y - 6, x + half, y + 6))

    shapes = [*labels, *picture.nodes.values()]
    assert not [pair for pair in combinations(shapes, 2) if pair[0].overlaps(pair[1])]
    assert all(picture.page.holds(label) for label in labels)


def test_a_large_graph_takes_no_long_time() -> None:
    edges = [Edge(f"n{n * 7919 % 200}", f"n{n * n * 31 % 200}", dashed=True) for n in range(400)]
    nodes = [Node(f"n{number}", cluster=("c",) * (number % 3)) for number in range(200)]
    started = time.process_time()

    draw(nodes, edges)

    assert time.process_time() - started < 1


def test_a_long_chain_and_deep_clusters_do_not_reach_the_limit_of_recursion() -> None:
    chain = draw([], [Edge(f"n{number}", f"n{number + 1}") for number in range(5000)])
    deep = draw([Node("n", cluster=("c",) * 1500)], [Edge("n", "n")])

    assert chain.count('class="node box"') == 5001
    assert deep.count('class="cluster"') == 1500


def test_a_dense_graph_does_not_grow_without_bound() -> None:
    edges = [Edge(f"n{a}", f"n{b}") for a in range(120) for b in range(a)]

    assert len(draw([], edges)) < 8_000_000


def tree() -> Agent:
    inner = Agent("inner", "Works", model="offline")
    billing = Agent("billing", "Answers billing questions", model="offline", agents=[inner])
    return Agent("support", model="offline", agents=[billing])


def test_the_picture_of_an_agent_shows_its_tree() -> None:
    picture = Picture(tree().svg())

    assert picture.clusters.keys() == {"billing", "billing/inner"}
    assert {"__start__", "call_model", "billing:router", "billing:inner:call_tools"} <= (
        picture.nodes.keys()
    )
    assert picture.classes["__start__"] == "node start"
    assert picture.classes["billing:__end__"] == "node end"


def test_the_picture_of_an_agent_has_every_edge_and_dashes_those_that_depend() -> None:
    agent = tree().replace(deep=True, guards=None)
    graph = agent.graph.get_graph(xray=True)
    picture = Picture(agent.svg())

    assert picture.edges == Counter(f"{edge.source} → {edge.target}" for edge in graph.edges)
    for edge in graph.edges:
        path = picture.group(f"{edge.source} → {edge.target}").find(f"{SVG}path")
        assert path is not None
        assert ("stroke-dasharray" in path.attrib) == edge.conditional


def paying(mark: Callable[[Any], Any] = lambda tool: tool) -> Any:
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    return mark(pay)


REGULATED = Guards.regulated(velocity=None, budget=CostBudget(tokens=1))
SURE = Escalation(0.5, critic=lambda subject: 1.0)
UNDONE = effect(compensate=lambda amount: f"refunded {amount}")


@pytest.mark.parametrize(
    ("guards", "tool", "drawn"),
    [
        (DEFAULT, paying(), set()),
        (REGULATED, paying(), {"await_human"}),
        (Guards.interactive(stages={"billing": REGULATED}), paying(), {"await_human"}),
        (Guards.interactive(escalation=SURE), paying(), {"await_human"}),
        (DEFAULT, paying(effect), {"await_human"}),
        (DEFAULT, paying(UNDONE), {"await_human", "compensate"}),
        (None, paying(UNDONE), set()),
    ],
    ids=["default", "tier", "stage", "critic", "effect", "compensated", "none"],
)
def test_nodes_of_guards_are_drawn_where_a_run_may_come_to_them(
    guards: Guards | Default | None, tool: Any, drawn: set[str]
) -> None:
    billing = Agent("billing", model="offline", tools=[tool])
    agent = Agent("support", model="offline", agents=[billing], guards=guards)

    for nodes in (set(Picture(agent.svg()).nodes), set(re.findall(r"(\S+)\(", agent.mermaid()))):
        names = {name.replace("\\3a", ":") for name in nodes}
        found = {name for name in names if name.endswith(("await_human", "compensate"))}
        assert found == {f"{at}{name}" for name in drawn for at in ("", "billing:")}


def test_a_foreign_graph_keeps_its_nodes_whatever_they_are_called() -> None:
    from langgraph.graph import START, MessagesState, StateGraph

    builder = StateGraph(MessagesState)
    builder.add_node("await_human", lambda state: {})
    builder.add_edge(START, "await_human")
    agent = Agent("support", model="offline", agents=[builder.compile(name="desk")])

    names = [name for name in Picture(agent.svg()).nodes if name.endswith("await_human")]

    assert names == ["desk:await_human"]


@pytest.mark.parametrize("name", ["yes", "no"])
def test_the_name_of_a_branch_is_written_on_its_edge(name: str) -> None:
    from langgraph.graph import END, START, MessagesState, StateGraph

    builder = StateGraph(MessagesState)
    builder.add_node("ask", lambda state: {})
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", lambda state: "no", {"yes": "ask", "no": END})

    assert f">{name}</text>" in picture_of(builder.compile().get_graph())
