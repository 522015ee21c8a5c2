"""A line chart as SVG: turns to the right, costs upwards, each step ten times the last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, log10

from benchmarks.sessions import Growth

__all__ = ["growth_svg"]

WIDTH, HEIGHT, GAP, MARGIN = 400, 250, 20, 28
LEFT, TOP, BOTTOM = 58, 46, 66
POINTS_EVERY = 10

# Each line: its ink by day and by night.
INKS = {
    "agentgraph, memory": ("#1d64d8", "#6ea8fe"),
    "agentgraph, SQLite": ("#0b8a6a", "#4fd1a8"),
    "agentgraph, Postgres": ("#8a4fd0", "#c39bf5"),
    "langgraph-supervisor, memory": ("#c8471e", "#ff9068"),
}

Line = Sequence[tuple[int, float]]


def growth_svg(grown: Sequence[Growth]) -> str:
    """Draw the time of each turn, and the bytes that it leaves behind."""
    panels = [
        (
            "time of a turn",
            {1: "1 ms", 10: "10 ms", 100: "100 ms", 1000: "1 s", 10_000: "10 s"},
            _times(grown),
        ),
        (
            "bytes kept by a turn",
            {
                1: "1 kB",
                10: "10 kB",
                100: "100 kB",
                1000: "1 MB",
                10_000: "10 MB",
                100_000: "100 MB",
            },
            _bytes(grown),
        ),
    ]
    width, height = 2 * (LEFT + WIDTH) + GAP + MARGIN, TOP + HEIGHT + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="12">',
        "<title>What a turn of two agents costs, over the turns of one session</title>",
        _style(),
        f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
    ]
    for number, (title, marks, lines) in enumerate(panels):
        parts += _panel(number * (LEFT + WIDTH + GAP) + LEFT, title, marks, lines)
    parts += _legend(height - 16)
    return "\n".join([*parts, "</svg>\n"])


def _times(grown: Sequence[Growth]) -> Mapping[str, Line]:
    """Return milliseconds: each point is the fastest of its ten turns."""
    return {
        one.name: [
            (turn, min(one.seconds[turn - POINTS_EVERY : turn]) * 1000)
            for turn in range(POINTS_EVERY, len(one.seconds) + 1, POINTS_EVERY)
        ]
        for one in grown
    }


def _bytes(grown: Sequence[Growth]) -> Mapping[str, Line]:
    """Return kilobytes: each point is the mean of its ten turns."""
    return {
        one.name: [(turn, one.bytes_per_turn(turn) / 1000) for turn in sorted(one.kept)[1:]]
        for one in grown
    }


def _panel(
    left: int, title: str, marks: Mapping[int, str], lines: Mapping[str, Line]
) -> Iterator[str]:
    values = [value for line in lines.values() for _, value in line]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    last = max(turn for line in lines.values() for turn, _ in line)

    def x(turn: float) -> float:
        return left + WIDTH * turn / last

    def y(value: float) -> float:
        return TOP + HEIGHT * (high - log10(value)) / (high - low)

    yield f'<text class="title" x="{left}" y="{TOP - 20}">{title}</text>'
    for power in range(low, high + 1):
        at = y(10.0**power)
        label = marks.get(10**power if power >= 0 else 0, "")
        yield f'<path class="grid" d="M{left},{at:.1f}h{WIDTH}"/>'
        yield f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'
    for turn in range(0, last + 1, last // 5):
        at = TOP + HEIGHT + 18
        yield f'<text x="{x(turn):.1f}" y="{at}" text-anchor="middle">{turn or "turn 1"}</text>'
    for name, line in lines.items():
        points = " ".join(f"{x(turn):.1f},{y(value):.1f}" for turn, value in line)
        yield f'<polyline class="{_class(name)}" points="{points}"><title>{name}</title></polyline>'


def _legend(at: int) -> Iterator[str]:
    left = LEFT
    for name in INKS:
        yield f'<path class="{_class(name)}" d="M{left},{at - 4}h22"/>'
        yield f'<text x="{left + 28}" y="{at}">{name}</text>'
        left += 28 + 7 * len(name) + 24


def _class(name: str) -> str:
    return f"line l{list(INKS).index(name)}"


def _style() -> str:
    day = [f".l{number} {{ stroke: {ink} }}" for number, (ink, _) in enumerate(INKS.values())]
    night = [f".l{number} {{ stroke: {ink} }}" for number, (_, ink) in enumerate(INKS.values())]
    return "\n".join(
        [
            "<style>",
            ".page { fill: #fcfdfe } text { fill: #44546a } .title { font-weight: 600 }",
            ".grid { stroke: #dbe3ee } .line { fill: none; stroke-width: 1.8 }",
            *day,
            "@media (prefers-color-scheme: dark) {",
            ".page { fill: #171b22 } text { fill: #b3c0d4 } .grid { stroke: #333d4d }",
            *night,
            "}",
            "</style>",
        ]
    )
