"""A human's decision on a run: the question that a guard asks, and what follows from the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from agentgraph.guards.nodes.extra_guards import let_pass
from agentgraph.guards.nodes.site import Site, close
from agentgraph.guards.place import Place
from agentgraph.guards.records.account import ANYWHERE, Account, admit
from agentgraph.interception import wait_for_human
from agentgraph.running import current_run


class HumanState(TypedDict, total=False):
    """The channel with the question of one visit to an agent to a human, then with the answer.

    It does not leave the agent's graph: of two waiting delegates, even visits to the same agent,
    each has its own channel.
    """

    human: dict[str, Any]


def question(site: Site, decision: Decision, text: str) -> dict[str, Any]:
    """Return the update that stores a question; the next node asks it.

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

    Returns the agent's answer as an update, {} where its model must be asked again, None where the
    run must end.
    """
    request = Request.model_validate(channel["request"])
    answer, overdue = wait_for_answer(request)
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
    update = _carry_out(site, request, answer, overdue)
    if site.policy.extra_guards:
        await site.note("suspension", failed=answer.type == "reject")
        if update is not None and not update:
            await site.note("grant")
    return update


def wait_for_answer(
    request: Request, edits: Callable[[Request, Answer], str] = lambda request, answer: ""
) -> tuple[Answer, Decision]:
    """Wait until there is a valid answer, or the request is overdue.

    `edits` returns what is wrong with an edit. A node that is resumed runs from its start, so
    nothing with an effect may come before this.
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
            answer = Answer.read(raw, request.allowed)
            if answer.type == "edit" and (fault := edits(request, answer)):
                raise ValueError(fault)
            return answer, overdue
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
            end = origin if overdue.allows else overdue
            failure_class = str(payload.get("failure_class") or "")
            close(site.account, end.reason, end.cause or "a human has rejected it", failure_class)
            if (run := current_run()) is not None:
                run.is_rejected = True
            return None
        case "respond":
            return {"text": answer.message, "by": "respond"}
        case "edit":
            return {"text": _text_of(answer), "by": "edit"}
        case "approve" if request.guard == CONFIDENCE:
            return {"text": str(payload.get("answer") or ""), "by": "approve"}
    # A failure is no answer that could be approved: the agent tries once more, with new limits.
    _grant(site.account, site.place)
    if any(guard.name == request.guard for guard in site.policy.extra):
        let_pass(site.account, site.place.path, request.guard)
    return {}


def _grant(account: Account, place: Place) -> None:
    """Grant the limits once more: a human has looked at an agent and lets the run go on.

    Decisions on other agents stay, unless their ground was a limit that is granted here.
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
    admit(account, place.path)


def _begin_limits(account: Account) -> None:
    """Reset the limits that apply to a whole account."""
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
