"""A human is asked, and what they decide is carried out."""

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
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Guards
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.recorder import Recorder
from agentgraph.interception import wait_for_human


class HumanState(TypedDict, total=False):
    """What one run of one agent asks a human, then what it has been given to say.

    It stays in its graph: of two delegates that wait, even of one agent, each has its own.
    """

    human: dict[str, Any]


class Humans:
    """Whoever looks after one agent."""

    def __init__(self, policy: Guards, place: Place, account: Account, recorder: Recorder) -> None:
        self._policy = policy
        self._place = place
        self._account = account
        self._recorder = recorder

    def ask(self, decision: Decision, text: str) -> dict[str, Any]:
        """Return a question to be kept; it is asked in the next node, whenever that runs."""
        payload: dict[str, Any] = {
            "type": "escalation",
            "failure_class": decision.failure_class,
            "agent": self._place.path,
            "answer": text,
            "evidence": dict(decision.evidence),
        }
        request = self._policy.escalation.ask(decision, self._place.path, payload=payload)
        return {"request": request.model_dump(mode="json")}

    async def decide(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """Wait for a decision and carry it out; None where the run is to end.

        Else what the agent is to say, nothing where its model is asked again.
        """
        request = Request.model_validate(asked["request"])
        answer, overdue = self._answered(request)
        if not overdue.allows:
            await self._recorder.decided(overdue)
        self._recorder.note(
            "human",
            request=request.id,
            decision=answer.type,
            reviewer=answer.reviewer,
            latency_s=round(clock().wall() - request.asked_at, 3),
            message=answer.message,
            **({"edited": _text(answer)} if answer.type == "edit" else {}),
        )
        self._account.suspend(request.asked_at)
        return self._carry_out(request, answer, overdue)

    def _answered(self, request: Request) -> tuple[Answer, Decision]:
        """Ask until the answer is one, or it is too late; nothing stands before the question."""
        shown = request.model_dump(mode="json")
        told = {**shown.pop("payload"), **shown}
        schema = response_schema(request.allowed)
        while True:
            raw = wait_for_human(told, schema)
            overdue = late(request)
            if not overdue.allows:
                return Answer(type="reject", message=overdue.cause), overdue
            try:
                return Answer.read(raw, request.allowed), overdue
            except ValueError as error:
                told = {**told, "error": str(error)}

    def _carry_out(
        self, request: Request, answer: Answer, overdue: Decision
    ) -> dict[str, Any] | None:
        payload: dict[str, Any] = request.payload if isinstance(request.payload, dict) else {}
        match answer.type:
            case "reject":
                evidence = payload.get("evidence") or {}
                asked = Decision("escalate", request.guard, evidence=evidence)
                self._account.closed = asked.reason if overdue.allows else overdue.reason
                return None
            case "respond":
                return {"text": answer.message, "by": "respond"}
            case "edit":
                return {"text": _text(answer), "by": "edit"}
            case "approve" if request.guard == CONFIDENCE:
                return {"text": str(payload.get("answer") or ""), "by": "approve"}
        # What has failed is no answer: it is tried once more, whatever was spent on it.
        self._account.grant(self._place)
        return {}


def _text(answer: Answer) -> str:
    edited = answer.edited
    if isinstance(edited, dict) and isinstance(edited.get("text"), str) and len(edited) == 1:
        return str(edited["text"])
    return edited if isinstance(edited, str) else to_json(edited).decode()
