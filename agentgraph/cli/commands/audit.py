"""`agentgraph audit`: who acted in a session or a run, what it cost, what was decided and done.

The audit is made from the session's log, or from the records of a sink, without agents or a hub.
The table `_WORDS` has, for each
kind of audit record, the function that writes it in words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgraph.cli.exits import errors_reported, fail
from agentgraph.errors import ConfigurationError, SessionError

if TYPE_CHECKING:
    from agentgraph.guards import Record
    from agentgraph.sessions.audit import Audit


def audit(
    url: Annotated[str, typer.Argument(metavar="URL|FILE", show_default=False)],
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION|RUN|THREAD", show_default=False)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: a record in each line, then their sum.")
    ] = False,
    flows: Annotated[
        bool, typer.Option("--flows", help="Print what all runs of each flow come to.")
    ] = False,
) -> None:
    """Print the audit of a session or of runs: path, spend, decisions, effects.

    The store of sessions is sqlite:///file.db or postgresql://…; a file is that of a JSONLSink or a
    SQLiteSink, whose runs are selected by their id or their thread. Without SESSION, RUN or THREAD
    the runs of the file are listed. With --flows: how many runs of each flow there are, how often
    they succeeded by the oracle, what a success costs, and where they fail. The agents' code is not
    needed.
    """
    import asyncio

    from agentgraph.cli.terminal.text import clean

    with errors_reported():
        if flows:
            _print_flows(url, session, as_json)
            return
        if session is None:
            for line in _listed_runs(url):
                typer.echo(clean(line).rstrip())
            return
        audit = _audit_of_runs(url, session) or asyncio.run(_audit_of(url, session))
        if as_json:
            for record in audit.records:
                typer.echo(json.dumps(record.to_dict()))
            typer.echo(json.dumps(audit.to_dict()))
            return
        for record in audit.records:
            for line in _lines(record):
                typer.echo(clean(line).rstrip())
        for line in _summary(audit):
            typer.echo(clean(line).rstrip())


def _print_flows(url: str, session: str | None, as_json: bool) -> None:
    """Print what the runs of flows come to, a flow in each line as JSON."""
    import asyncio

    from agentgraph.cli.flow_audit import flows_at, lines_of
    from agentgraph.cli.terminal.text import clean

    if session is not None:
        fail("--flows: it is about all runs; leave out the session, run or thread")
    every = asyncio.run(flows_at(url))
    for figures in every:
        for line in (json.dumps(figures.to_dict()),) if as_json else lines_of(figures):
            typer.echo(clean(line))
    if not every and not as_json:
        typer.echo("There are no runs of flows.")


async def _audit_of(url: str, session_id: str) -> Audit:
    """Read a session's log, and return its audit."""
    from agentgraph.cli.stores import envelopes_of, log_reader, stored_session
    from agentgraph.sessions.audit import audit_of

    async with log_reader(url) as log:
        snapshot = await stored_session(log, session_id)
        envelopes = [e async for e in envelopes_of(log, session_id, upto=snapshot.head)]
    return audit_of(snapshot.record, envelopes)


def _audit_of_runs(url: str, name: str) -> Audit | None:
    """Return the audit of the runs of a sink with this id or thread; None where there are none."""
    from agentgraph.cli.stores import audit_sink
    from agentgraph.sessions.audit import audit_of_records

    sink = audit_sink(url)
    if sink is None:
        return None
    runs = {run: sink.read(run) for run in sink.runs()}
    own = [name] if name in runs else [run for run in runs if _thread_of(runs[run]) == name]
    if not own and not url.startswith("sqlite:///"):  # else it may be a session of that file
        raise SessionError(
            f"there is no run and no thread {name!r}: `agentgraph audit {url}` lists them",
            code="unknown_run",
        )
    return audit_of_records(record for run in own for record in runs[run]) if own else None


def _listed_runs(url: str) -> Iterator[str]:
    """Yield a line for each run of a sink: its id, its thread, when it began and how it ended."""
    from agentgraph.cli.stores import audit_sink
    from agentgraph.cli.terminal.text import instant
    from agentgraph.guards import folded

    sink = audit_sink(url)
    if sink is None:
        raise ConfigurationError(
            "give the session beside its store, or the file of a JSONLSink or SQLiteSink"
        )
    for run in sink.runs():
        records = sink.read(run)
        trail = folded(records)
        began = "" if trail.began_at is None else instant(trail.began_at)
        yield f"{run}  {_thread_of(records)}  {began}  {trail.end}"


def _thread_of(records: Sequence[Record]) -> str:
    return next((record.thread for record in records if record.thread), "")


def _lines(record: Record) -> Iterator[str]:
    """Yield a record as a line, under its envelope's number, then the evidence of a decision."""
    from agentgraph.cli.terminal.text import clip

    words = _WORDS.get(record.kind)
    text = words(record.data, record.decision or {}) if words is not None else ""
    line = clip(" ".join(text.split()))
    if line:
        number = f"{record.data.get('sequence') or record.seq:4} "
        yield f"{number}{record.agent + ' ' if record.agent else ''}{line}"
        if evidence := _evidence(record.decision or {}):
            yield f"{' ' * len(number)}  {clip(evidence)}"


def _human(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    """Return a question to a human, or a human's decision, in words."""
    from agentgraph.cli.terminal.text import clip

    if "asked" in data:
        payload = data.get("payload")
        cause = payload.get("cause") if isinstance(payload, Mapping) else None
        return f"asks a human: {clip(cause or _plain(payload))}"
    message = f": {data['message']}" if data.get("message") else ""
    who = data.get("reviewer") or "a human"
    return f"{who} decides: {clip(_plain(data.get('decision')))}{message}"


def _tool(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    from agentgraph.cli.terminal.text import clip

    failed = ", which fails" if data.get("status") == "error" else ""
    args = clip(_plain(data["args"])) if "args" in data else "…"
    return f"calls {data.get('tool')}({args}){failed}"


def _stage(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    """Return what a stage of a flow has come to, in words; "" for its report."""
    end, verdict = data.get("end"), data.get("verdict")
    if isinstance(end, Mapping):
        return f"the flow is {end.get('status')}: {end.get('reason')}"
    if data.get("status") == "reported":
        return ""
    problems = verdict.get("problems") if isinstance(verdict, Mapping) else None
    why = f": {'; '.join(map(str, problems))}" if problems else ""
    return f"{data.get('status')}, attempt {data.get('attempt')}{why}"


def _usage(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    cost = f", ${data['usd']}" if "usd" in data else ""
    return f"has used {data.get('total_tokens') or 0:,} tokens{cost}"


def _handoff(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    if not data.get("target"):
        return "moves the conversation"
    why = f": {data['reason']}" if data.get("reason") else ""
    return f"hands over to {data['target']}{why}"


def _effect(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    state = str(data.get("state")).replace("_", " ")
    return f"{data.get('tool')}: {state} (key {str(data.get('key'))[:12]})"


# Model calls have no entry: the summary has their number.
_WORDS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], str]] = {
    "input": lambda data, decision: f"{data.get('from') or 'user'} says: {data.get('text', '…')}",
    "tool": _tool,
    "settled": _usage,
    "stage": _stage,
    "judgement": lambda data, decision: (
        f"the oracle says: {'a success' if data.get('success') else 'no success'}"
    ),
    "handoff": _handoff,
    "decision": lambda data, decision: (
        f"{decision.get('guard')}: {decision.get('action')}: {decision.get('cause')}"
    ),
    "effect": _effect,
    "compensated": _effect,
    "human": _human,
    "end": lambda data, decision: f"closed: {data.get('reason')}",
}


def _summary(audit: Audit) -> Iterator[str]:
    """Yield the lines below the records: times, path, counts, spend, effects."""
    from agentgraph.cli.terminal.text import instant

    trail, usage = audit.trail, audit.usage
    cost = "" if usage.cost is None else f", ${usage.cost}"
    yield ""
    if trail.began_at is not None:
        yield f"began      {instant(trail.began_at)}"
    if trail.ended_at is not None:
        yield f"ended      {instant(trail.ended_at)}: {trail.end}"
    yield f"path       {' → '.join(trail.path) or 'nobody'}"
    yield f"steps      {trail.steps} model calls, {trail.hops} hops"
    yield f"spend      {trail.spend.total_tokens:,} tokens{cost}"
    for path, part in usage.by_agent.items():
        yield f"             {path}: {part.total_tokens:,}"
    yield f"decisions  {len(trail.decisions)} by guards, {_count_human(audit.records)} by humans"
    effects = [f"{tool} {state}" for tool, state in trail.effects]
    yield f"effects    {', '.join(effects) or 'none'}"


def _count_human(records: Iterable[Record]) -> int:
    return sum(record.kind == "human" and "decision" in record.data for record in records)


def _evidence(decision: Mapping[str, object]) -> str:
    """Return the evidence of a decision as names with values."""
    evidence = decision.get("evidence")
    items = evidence.items() if isinstance(evidence, Mapping) else ()
    return ", ".join(f"{name} {_plain(value)}" for name, value in items)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
