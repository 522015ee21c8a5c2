"""A human is asked, and what they decide is carried out."""

from __future__ import annotations

from typing import Any

from agentgraph.clock import clock
from agentgraph.guards.account import Account
from agentgraph.guards.decision import Decision
from agentgraph.guards.escalation import Answer, Request, late, response_schema
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Guards
from agentgraph.guards.recorder import Recorder
from agentgraph.sentry import wait_for_human

__all__ = ["Humans"]


class Humans:
    """Whoever looks after one agent."""

    def __init__(self, policy: Guards, place: Place, account: Account, recorder: Recorder) -> None:
        self._policy = policy
        self._place = place
        self._account = account
        self._recorder = recorder

    def ask(self, decision: Decision, text: str) -> None:
        """Put a question down; it is asked in the next node, and the same whenever that runs."""
        payload: dict[str, Any] = {
            "type": "escalation",
            "failure_class": decision.failure_class,
            "agent": self._place.path,
            "answer": text,
            "evidence": dict(decision.evidence),
        }
        request = self._policy.escalation.ask(decision, self._place.path, payload=payload)
        self._account.requests[self._place.spot] = request.model_dump(mode="json")

    async def decide(self) -> bool:
        """Wait for a decision and carry it out; False where the run is to end."""
        request = Request.model_validate(self._account.requests[self._place.spot])
        answer = self._answered(request)
        overdue = late(request)
        if not overdue.allows:
            await self._recorder.decided(overdue)
            answer = Answer(type="reject", message=overdue.cause)
        await self._recorder.note(
            "human",
            request=request.id,
            decision=answer.type,
            reviewer=answer.reviewer,
            latency_s=round(clock().wall() - request.asked_at, 3),
            message=answer.message,
        )
        del self._account.requests[self._place.spot]
        self._account.suspend(request.asked_at)
        return await self._carry_out(request, answer, overdue)

    def _answered(self, request: Request) -> Answer:
        """Ask until the answer is one; nothing stands before the first question."""
        shown = request.model_dump(mode="json")
        told = {**shown.pop("payload"), **shown}
        schema = response_schema(request.allowed)
        while True:
            raw = wait_for_human(told, schema)
            try:
                return Answer.read(raw, request.allowed)
            except ValueError as error:
                told = {**told, "error": str(error)}

    async def _carry_out(self, request: Request, answer: Answer, overdue: Decision) -> bool:
        account, spot = self._account, self._place.spot
        payload: dict[str, Any] = request.payload if isinstance(request.payload, dict) else {}
        held = str(payload.get("answer") or "")
        match answer.type:
            case "reject":
                evidence = payload.get("evidence") or {}
                asked = Decision("escalate", request.guard, evidence=evidence)
                account.closed = asked.reason if overdue.allows else overdue.reason
                return False
            case "respond":
                account.give(spot, answer.message, by="respond")
            case "edit":
                account.give(spot, _text(answer), by="edit")
            case "approve" if held:
                account.give(spot, held, by="approve")
            case "approve":
                account.grant()
        return True


def _text(answer: Answer) -> str:
    from pydantic_core import to_json

    edited = answer.edited
    if isinstance(edited, dict) and isinstance(edited.get("text"), str) and len(edited) == 1:
        return str(edited["text"])
    return edited if isinstance(edited, str) else to_json(edited).decode()
