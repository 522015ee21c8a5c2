"""`agentgraph audit`: who acted in a session, what it cost, and what was decided and done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgraph.cli.faults import faults_told

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

    with faults_told():
        found = asyncio.run(_audited(url, session))
        if as_json:
            for record in found.records:
                typer.echo(json.dumps(record.to_dict()))
            typer.echo(json.dumps(found.to_dict()))
            return
        for record in found.records:
            for line in _lines(record):
                typer.echo(clean(line).rstrip())
        for line in _sum(found):
            typer.echo(clean(line).rstrip())


async def _audited(url: str, session_id: str) -> Audit:
    from agentgraph.cli.stores import envelopes_of, reading
    from agentgraph.errors import SessionError
    from agentgraph.sessions.audit import audit_of

    async with reading(url) as log:
        stored = await log.load(session_id)
        if stored is None:
            raise SessionError(f"there is no session {session_id!r}", code="unknown_session")
        envelopes = [one async for one in envelopes_of(log, session_id, upto=stored.head)]
    return audit_of(stored.record, envelopes)


def _lines(record: Record) -> Iterator[str]:
    """Tell a record in a line, by the number of its envelope, and the grounds of a decision."""
    from agentgraph.cli.terminal.text import clip

    told = clip(" ".join(_told(record).split()))
    if told:
        number = f"{record.data.get('sequence', 0):4} "
        yield f"{number}{record.agent + ' ' if record.agent else ''}{told}"
        if why := _evidence(record.decision or {}):
            yield f"{' ' * len(number)}  {clip(why)}"


def _told(record: Record) -> str:
    tell = _TOLD.get(record.kind)
    return tell(record.data, record.decision or {}) if tell is not None else ""


def _asked(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    from agentgraph.cli.terminal.text import clip

    if "asked" in data:
        payload = data.get("payload")
        cause = payload.get("cause") if isinstance(payload, Mapping) else None
        return f"asks a human: {clip(cause or _plain(payload))}"
    return f"{data.get('reviewer')} decides: {clip(_plain(data.get('decision')))}"


def _called(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    from agentgraph.cli.terminal.text import clip

    failed = ", which fails" if data.get("status") == "error" else ""
    return f"calls {data.get('tool')}({clip(_plain(data.get('args')))}){failed}"


def _used(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    cost = f", ${data['usd']}" if "usd" in data else ""
    return f"has used {data.get('total_tokens') or 0:,} tokens{cost}"


def _moved(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    if not data.get("target"):
        return "moves the conversation"
    why = f": {data['reason']}" if data.get("reason") else ""
    return f"hands over to {data['target']}{why}"


def _done(data: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    state = str(data.get("state")).replace("_", " ")
    return f"{data.get('tool')}: {state} (key {str(data.get('key'))[:12]})"


# That a model was asked is told in the sum.
_TOLD: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], str]] = {
    "input": lambda data, decision: f"{data.get('from')} says: {data.get('text')}",
    "tool": _called,
    "settled": _used,
    "handoff": _moved,
    "decision": lambda data, decision: (
        f"{decision.get('guard')}: {decision.get('action')}: {decision.get('cause')}"
    ),
    "effect": _done,
    "compensated": _done,
    "human": _asked,
    "end": lambda data, decision: f"closed: {data.get('reason')}",
}


def _sum(audit: Audit) -> Iterator[str]:
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
    done = [f"{tool} {state}" for tool, state in trail.effects]
    yield f"effects    {', '.join(done) or 'none'}"


def _evidence(decision: Mapping[str, object]) -> str:
    evidence = decision.get("evidence")
    shown = evidence.items() if isinstance(evidence, Mapping) else ()
    return ", ".join(f"{name} {_plain(value)}" for name, value in shown)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
