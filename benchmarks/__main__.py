"""Run all benchmarks, print their table and keep it in RESULTS.md."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measure import Row

RESULTS = Path(__file__).with_name("RESULTS.md")
LIBRARIES = ("agentgraph", "langgraph", "langgraph-checkpoint-sqlite", "langgraph-supervisor")
HEADER = """# What agentgraph costs beside its peers

Written by `make bench`. Each ratio is ours over the peer's, both measured in the same run: turn for
turn in alternation, each turn the fastest of its repetitions, the mean of turns 6-15 ("turn 10") or
176-225 ("turn 200") without the slowest and fastest tenth. The models are functions that answer at
once, so these are the frameworks' own costs; default settings and durability "async" everywhere.
Bytes are the serialised checkpoints, channel values and writes that the in-memory saver holds.

The bare LangGraph is a `StateGraph` of a model node and a `ToolNode`. In a handoff turn our
supervisor transfers and the sub-agent answers (two model calls); in a sticky one the sub-agent,
which kept the conversation, answers (one). langgraph-supervisor transfers, its worker answers and
hands back, and it answers again (three); it has no sticky turn, so both compare with this one.
"""


def main() -> int:
    if find_spec("langgraph_supervisor") is None:
        hint = "pip install -r requirements/bench.txt (or run: make bench)"
        print(f"langgraph-supervisor, with which we compare, is missing: {hint}", file=sys.stderr)
        return 1
    os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")
    rows = asyncio.run(_measured())
    table = _table(rows)
    print(table)
    RESULTS.write_text("\n".join([HEADER, table, "", _versions(), ""]))
    return 0


async def _measured() -> list[Row]:
    from benchmarks.agents import agent_rows, supervisor_rows

    return [*await agent_rows(), *await supervisor_rows()]


def _table(rows: list[Row]) -> str:
    lines = [
        f"| {row.what} | {row.ours:.2f} {row.unit} | {row.theirs:.2f} {row.unit} "
        f"| {row.ratio:.3g} | {'' if row.goal is None else f'≤ {row.goal:.3g}'} | {row.verdict} |"
        for row in rows
    ]
    head = ["| what | ours | theirs | ratio | goal | |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *lines])


def _versions() -> str:
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return f"Python {platform.python_version()}; {libraries}."


if __name__ == "__main__":
    sys.exit(main())
