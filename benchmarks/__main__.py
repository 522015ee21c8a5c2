"""Run all benchmarks, print their table and keep it in RESULTS.md."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from importlib.metadata import version
from importlib.util import find_spec
from math import isnan
from pathlib import Path

from benchmarks.measure import Row

RESULTS = Path(__file__).with_name("RESULTS.md")
GROWTH = Path(__file__).with_name("growth.svg")
LIBRARIES = (
    "langgraph-agentgraph",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "langgraph-supervisor",
    "ag2",
    "sse-starlette",
    "uvicorn",
)
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

Who speaks next is decided in a chain of rules, each for another speaker, in its middle; AG2's fold
reads the graph from its dict each time, and counts the turn. CPU time, the fastest of 15.

A guarded step is a model call and the tool call that follows it; a run of 20 has 20 model calls.
"All guards" are those of the interactive tier, and a policy, an invariant, a grounding check, a
critic, a budget in dollars and a ceiling for the speed of spending; the audit trail is in memory.
With and without them in alternation, each run on a thread of its own; CPU time. A tool with @effect
is registered before it runs, which is one super-step more. A file's price depends on the disk: in
SQLite each record of a step is synced.

A flow plans, has 8 or 50 workers work at once, aggregates and validates; its map-reduce is a
`StateGraph` with `Send` whose nodes make the same model calls, one node for each of the four.
Workers are functions that ask a model (a node that asks one, beside them), agents without tools
(the same node), or agents with a tool that is called once (a graph of a model and a `ToolNode`).
Both store each step before the next (durability "sync"), a flow each finished worker too. A flow
has the guards of the batch tier. CPU time, turns 2-6, each on a thread of its own.

The streams run over loopback, from servers in processes of their own (uvicorn, in-memory threads);
fastest of the repetitions, each server in its turn. The bare endpoint is FastAPI and sse-starlette,
whose generator yields, as dicts whose `data` is ready text, the frames of one recorded run of ours:
the same bytes, but no model, no graph and no JSON, so its figures are the floor. "Bare LangGraph
behind it" has the same model as ours, in a graph without a saver; it sends text and id as JSON.
Events are thousands per second, whole turns included. The delay runs from the making of a token to
its arrival at the client. Memory is resident: 200 open streams less none, over 200; in mid-run 50
tokens have been sent, and a reader who stalls has read none of endless tokens of 1 kB.

In a team's turn one message has two agents speak, each of whom calls its tool once: four model
calls. Of one session's 1,000 turns the last are measured in alternation with the first ones of four
new sessions on the same store. "turn 1,000 / turn 10" and "last / first" compare ours with ours:
what they tell is that nothing grows. langgraph-supervisor's two workers do the same in seven model
calls, once and to turn 200. What is kept is the sum of all stored values: log, snapshot and inbox,
and checkpoints of either; `growth.svg` shows it turn by turn. Postgres runs without fsync.

In a session of one an agent with a tool answers alone: in each turn two model calls and one call of
the tool. Beside bare LangGraph it has its default guards; its session and its peer's thread are in
a file each.

An append is one packet of 400 bytes, each awaited, the faster of two repetitions; "decided,
folded and appended" is all that a round's end does, which is what AG2's `post_envelope` does too
(AG2 on SQLite: 500 packets only, as each takes longer than the last). The bare loop commits the
same rows with the driver alone and awaits each commit, on SQLite that of a thread. AG2's hub reads
and folds its logs when it is opened. Our hub is in use:
it has opened another session before, 30 times, and the connection of the SELECT has made it before.
A milestone is a state that the log stores every 500 envelopes. Of 200 sessions each has three
turns, all at once in one process; the time runs from the message to the moment when both agents
have answered.
"""


def main() -> int:
    missing = [peer for peer in ("langgraph_supervisor", "ag2") if find_spec(peer) is None]
    if missing:
        hint = "pip install -r requirements/bench.txt (or run: make bench)"
        print(f"{', '.join(missing)}, to compare with, is missing: {hint}", file=sys.stderr)
        return 1
    os.environ.update(LANGSMITH_TRACING="false", LANGCHAIN_TRACING_V2="false")
    from benchmarks.chart import growth_svg
    from benchmarks.crowd import crowd_table
    from benchmarks.logs import log_rows
    from benchmarks.routing import routing_rows
    from benchmarks.sessions import session_rows
    from benchmarks.single import single_rows
    from benchmarks.sse import sse_rows
    from benchmarks.stores import postgres_server

    rows = [*asyncio.run(_measured()), *routing_rows(), *sse_rows()]
    with postgres_server() as server:
        turns, grown = asyncio.run(session_rows(server))
        rows += [*turns, *asyncio.run(single_rows(server)), *asyncio.run(log_rows(server))]
        crowds = crowd_table(server)
    table = _table(rows)
    print(table, crowds, sep="\n\n")
    RESULTS.write_text("\n".join([HEADER, table, "", crowds, "", _versions(), ""]))
    GROWTH.write_text(growth_svg(grown))
    return 0


async def _measured() -> list[Row]:
    from benchmarks.agents import agent_rows, streamed_rows, supervisor_rows
    from benchmarks.flows import flow_rows
    from benchmarks.guards import guard_rows

    return [
        *await agent_rows(),
        *await streamed_rows(),
        *await supervisor_rows(),
        *await guard_rows(),
        *await flow_rows(),
    ]


def _table(rows: list[Row]) -> str:
    lines = [
        f"| {row.what} | {row.ours:.2f} {row.unit} | {_theirs(row)} "
        f"| {'' if isnan(row.theirs) else f'{row.ratio:.3g}'} "
        f"| {'' if row.goal is None else f'≤ {row.goal:.3g}'} | {row.verdict} |"
        for row in rows
    ]
    head = ["| what | ours | theirs | ratio | goal | |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *lines])


def _theirs(row: Row) -> str:
    return "-" if isnan(row.theirs) else f"{row.theirs:.2f} {row.unit}"


def _versions() -> str:
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    quick = [name for name in ("uvloop", "httptools") if find_spec(name)]
    return f"Python {platform.python_version()}; {libraries} (with {' and '.join(quick) or 'h11'})."


if __name__ == "__main__":
    sys.exit(main())
