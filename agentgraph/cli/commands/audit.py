"""`agentgraph audit`: who acted in a session, what it cost, what was decided and done.

The audit is made from the session's log, without agents or a hub. The table `_WORDS` has, for each
kind of audit record, the function that writes it in words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgraph.cli.exits import errors_reported

if TYPE_CHECKING:
    from agentgraph.guards import Record
    from agentgraph.sessions.audit import Audit


def audit(
    url: Annotated[str, typer.Argument(metavar="URL", show_default=False)],
    session: Annotated[str, typer.Argument(metavar="SESSION", show_default=False)],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: a record in each line, then their sum.")
    ] = False,
) -> None:
    """Print the audit of a session: path, spend, decisions, effects.

    The store is sqlite:///file.db or postgresql://…; the agents' code is not needed.
    """
    import asyncio

    from agentgraph.cli.terminal.text import clean

    with errors_reported():
        audit = asyncio.run(_audit_of(url, session))
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


async def _audit_of(url: str, session_id: str) -> Audit:
    """Read a session's log, and return its audit."""
    from agentgraph.cli.stores import envelopes_of, log_reader, stored_session
    from agentgraph.sessions.audit import audit_of

    async with log_reader(url) as log:
        snapshot = await stored_session(log, session_id)
        envelopes = [e async for e in envelopes_of(log, session_id, upto=snapshot.head)]
    return audit_of(snapshot.record, envelopes)


def _lines(record: Record) -> Iterator[str]:
    """Yield a record as a line, under its envelope's number, then the evidence of a decision."""
    from agentgraph.cli.terminal.text import clip

    words = _WORDS.get(record.kind)
    text = words(record.data, record.decision or {}) if words is not None else ""
    line = clip(" ".join(text.split()))
    if line:
        number = f"{record.data.get('sequence', 0):4} "
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
    return f"{data.get('reviewer')} decides: {clip(_plain(data.get('decision')))}"


def _tool(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    from agentgraph.cli.terminal.text import clip

    failed = ", which fails" if data.get("status") == "error" else ""
    return f"calls {data.get('tool')}({clip(_plain(data.get('args')))}){failed}"


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
    "input": lambda data, decision: f"{data.get('from')} says: {data.get('text')}",
    "tool": _tool,
    "settled": _usage,
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
    yield f"decisions  {len(trail.decisions)}"
    effects = [f"{tool} {state}" for tool, state in trail.effects]
    yield f"effects    {', '.join(effects) or 'none'}"


def _evidence(decision: Mapping[str, object]) -> str:
    """Return the evidence of a decision as names with values."""
    evidence = decision.get("evidence")
    items = evidence.items() if isinstance(evidence, Mapping) else ()
    return ", ".join(f"{name} {_plain(value)}" for name, value in items)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
