"""A human's decision on a run: the question that a guard asks, and what follows from the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json
from typing_extensions import TypedDict

from agentgraph.clock import clock
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.escalation import (
    CONFIDENCE,
    Answer,
    Request,
    late,
    response_schema,
)
from agentgraph.guards.nodes.site import Site
from agentgraph.guards.place import Place
from agentgraph.guards.records.account import ANYWHERE, Account
from agentgraph.interception import wait_for_human


class HumanState(TypedDict, total=False):
    """The channel of what one run of one agent asks a human, then of the answer.

    It stays in the agent's graph: of two delegates that wait, even of one agent, each has its own.
    """

    human: dict[str, Any]


def question(site: Site, decision: Decision, text: str) -> dict[str, Any]:
    """Return a question to be stored; the next node asks it, whenever that runs.

    `text` is the answer that is in doubt, "" where there is none.
    """
    payload: dict[str, Any] = {
        "type": "escalation",
        "failure_class": decision.failure_class,
        "agent": site.place.path,
        "answer": text,
        "evidence": dict(decision.evidence),
    }
    request = site.policy.escalation.ask(decision, site.place.path, payload=payload)
    return {"request": request.model_dump(mode="json")}


async def ask_human(site: Site, channel: Mapping[str, Any]) -> dict[str, Any] | None:
    """Wait for a human's answer to a stored question, and carry it out.

    Returns what the agent is to say, {} where its model is to be asked again, and None where the
    run is to end.
    """
    request = Request.model_validate(channel["request"])
    answer, overdue = _wait(request)
    if not overdue.allows:
        await site.decide(overdue)
    site.record(
        "human",
        request=request.id,
        decision=answer.type,
        reviewer=answer.reviewer,
        latency_s=round(clock().wall() - request.asked_at, 3),
        message=answer.message,
        **({"edited": _text_of(answer)} if answer.type == "edit" else {}),
    )
    site.account.suspend(request.asked_at)
    return _carry_out(site, request, answer, overdue)


def _wait(request: Request) -> tuple[Answer, Decision]:
    """Wait until the answer is a valid one, or it is too late.

    A node that is resumed runs from its start, so nothing with an effect may come before this.
    """
    values = request.model_dump(mode="json")
    payload = {**values.pop("payload"), **values}
    schema = response_schema(request.allowed)
    while True:
        raw = wait_for_human(payload, schema)
        overdue = late(request)
        if not overdue.allows:
            return Answer(type="reject", message=overdue.cause), overdue
        try:
            return Answer.read(raw, request.allowed), overdue
        except ValueError as error:
            payload = {**payload, "error": str(error)}


def _carry_out(
    site: Site, request: Request, answer: Answer, overdue: Decision
) -> dict[str, Any] | None:
    payload: dict[str, Any] = request.payload if isinstance(request.payload, dict) else {}
    match answer.type:
        case "reject":
            evidence = payload.get("evidence") or {}
            origin = Decision("escalate", request.guard, evidence=evidence)
            site.account.closed_by = origin.reason if overdue.allows else overdue.reason
            return None
        case "respond":
            return {"text": answer.message, "by": "respond"}
        case "edit":
            return {"text": _text_of(answer), "by": "edit"}
        case "approve" if request.guard == CONFIDENCE:
            return {"text": str(payload.get("answer") or ""), "by": "approve"}
    # What has failed is no answer: it is tried once more, whatever was spent on it.
    _grant(site.account, site.place)
    return {}


def _grant(account: Account, place: Place) -> None:
    """Grant the limits once more: a human has looked at an agent and lets the run go on.

    What was decided on other agents stands, unless a limit that is granted was the ground.
    """
    account.spending.grant()
    level: Account | None = account
    while level is not None:
        _begin_limits(level)
        level = level.parent
    for visit in (place.visit_key, ANYWHERE):
        account.pending.pop(visit, None)
    account.replans.pop(place.path, None)
    replans = dict(account.base.get("replans", {}))
    replans.pop(place.path, None)
    account.base = {**account.base, "replans": replans}
    own = f"{place.path}#"
    account.tries = {key: count for key, count in account.tries.items() if not key.startswith(own)}


def _begin_limits(account: Account) -> None:
    """Begin anew with the limits that hold for all of an account."""
    for visit, decisions in list(account.pending.items()):
        account.pending[visit] = [d for d in decisions if d.failure_class != "cost_overrun"]
        if not account.pending[visit]:
            del account.pending[visit]
    account.deadline = account.policy.deadlines.workflow()
    account.throttles.clear()
    if account.deadlock is not None:
        account.deadlock = account.deadlock.fresh()
    if account.velocity is not None:
        account.velocity.forget()


def _text_of(answer: Answer) -> str:
    edit = answer.edited
    if isinstance(edit, dict) and isinstance(edit.get("text"), str) and len(edit) == 1:
        return str(edit["text"])
    return edit if isinstance(edit, str) else to_json(edit).decode()
