"""An answer is judged: by the gates of its stage, then by a critic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from agentgraph.errors import GuardStopped
from agentgraph.guards.decision import Decision, FailureClass
from agentgraph.guards.mechanisms.gates.gate import Document, Subject, ValidationResult
from agentgraph.guards.mechanisms.limits import ReplanLimit
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Guards
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.recorder import Recorder

if TYPE_CHECKING:
    from agentgraph.guards.nodes.model_call import Answered


_TRIES_AGAIN = ("correct", "replan")
_GOES_ON = (*_TRIES_AGAIN, "fallback")


class Held(GuardStopped):
    """An answer that a human must see before anybody else."""

    def __init__(self, decision: Decision, text: str) -> None:
        super().__init__(decision, f"{decision.guard}: {decision.cause}")
        self.text = text


class Judging:
    """The gates after a stage, and its confidence."""

    def __init__(self, policy: Guards, place: Place, account: Account, recorder: Recorder) -> None:
        self._policy = policy
        self._place = place
        self._account = account
        self._recorder = recorder

    def text_in(self, message: AIMessage) -> str | None:
        """Return what is to be judged of an answer, None where there is nothing."""
        return self._place.answer_of(message) if self._policy.judges else None

    async def judge(
        self, answered: Answered, text: str, messages: Sequence[BaseMessage]
    ) -> BaseMessage | None:
        """Return None for an answer that passes, what its model is to be told, or a safe answer."""
        permit = answered.permit
        subject = subject_of(self._place, messages, text, self._account)
        try:
            failed = await self._gated(subject)
        except BaseException:
            if permit is not None:
                permit.release()  # nobody knows what the answer was worth
            raise
        if permit is not None:
            permit.success(valid=failed is None or failed.failure_class != "schema_failure")
        if failed is not None:
            return await self._refused(failed, text)
        if self._policy.escalation.critic is not None:
            await self._weighed(subject, text)
        return None

    async def _weighed(self, subject: Subject, text: str) -> None:
        """Have a critic say how sure one can be of an answer; what is in doubt is held."""
        decision = await self._policy.escalation.score(subject)
        told = {"stage": self._place.path, "phase": "post", "passed": decision.allows}
        self._recorder.note("gate", **told, **decision.evidence)
        if not decision.allows:
            raise Held(await self._recorder.decided(decision), text)

    async def pass_edit(self, text: str, messages: Sequence[BaseMessage]) -> None:
        """Let what a human has written pass the gates; what does not goes back to them."""
        if self._place.fits is not None and not self._place.fits(text):
            cause = "the edit is not in the form of the answer"
            decision = Decision("escalate", "gate", cause, "schema_failure")
            raise Held(await self._recorder.decided(decision), text)
        failed = await self._gated(subject_of(self._place, messages, text, self._account))
        if failed is not None:
            told = {"validation": failed.to_dict()}
            cause = f"the edit does not pass: {failed.cause}"
            decision = Decision("escalate", "gate", cause, failed.failure_class, told)
            raise Held(await self._recorder.decided(decision), text)

    def _limit(self) -> ReplanLimit:
        return self._account.replan_limit(self._place.path, self._policy.replans)

    async def _gated(self, subject: Subject) -> ValidationResult | None:
        for gate in self._policy.gates:
            result = await gate.check(subject, "post", self._place.path)
            self._recorder.note("gate", **result.to_dict())
            if not result.passed:
                return result
        return None

    async def _refused(self, result: ValidationResult, text: str) -> BaseMessage:
        failure = result.failure_class or "schema_failure"
        counted = f"{self._place.path}#{failure}"
        made = self._account.tries.get(counted, 0)
        decision = self._decided(result, failure, made, text)
        await self._recorder.decided(decision)
        if decision.action in _GOES_ON:
            self._account.tries[counted] = made + 1
        if decision.action in _TRIES_AGAIN:
            return HumanMessage(f"Your answer was not accepted: {result.cause}. Give another one.")
        if decision.action == "fallback" and self._safe is not None:
            return self._safe.model_copy()
        if decision.action == "escalate":
            raise Held(decision, text)
        raise GuardStopped(decision, f"gate: {result.cause}")

    @property
    def _safe(self) -> AIMessage | None:
        """What is said instead of what must not be."""
        fallback = self._policy.breaker.fallback if self._policy.breaker is not None else None
        return fallback if isinstance(fallback, AIMessage) else None

    def _is_possible(self, failure: FailureClass) -> bool:
        """Whether what the table says of a failure can be done: a safe answer has to be there."""
        cell = self._policy.decisions.cell(failure, self._policy.tier)
        return cell.action != "fallback" or self._safe is not None

    def _decided(
        self, result: ValidationResult, failure: FailureClass, made: int, text: str
    ) -> Decision:
        """Decide by the table, as long as another try may bring something new."""
        evidence: Mapping[str, Any] = {"validation": result.to_dict()}
        decide = partial(self._policy.decisions.decide, tier=self._policy.tier, made=made)
        told: dict[str, Any] = {"guard": "gate", "cause": result.cause, "evidence": evidence}
        decision = decide(failure, possible=self._is_possible(failure), **told)
        if decision.action not in _TRIES_AGAIN:
            return decision
        limit = self._limit().ask(self._place.path, plan=text)
        if limit.action == "replan":
            return decision
        told |= {"guard": limit.guard, "evidence": {**evidence, **limit.evidence}}
        if limit.failure_class:
            told |= {"cause": limit.cause, "possible": self._is_possible(limit.failure_class)}
            return decide(limit.failure_class, **told)
        told["cause"] = f"{result.cause}; {limit.cause}"
        return decide(failure, possible=False, **told)


def subject_of(
    place: Place, messages: Sequence[BaseMessage], text: str, account: Account
) -> Subject:
    """Return what a gate looks at: an answer, and what tools have found for it."""
    context = {"agent": place.path, "steps": account.steps, "hops": account.hops}
    return Subject(place.name, text=text, context=context, documents=[*_documents(messages)])


def _documents(messages: Sequence[BaseMessage]) -> Iterator[Document]:
    for message in messages:
        if not isinstance(message, ToolMessage) or message.status == "error":
            continue
        found = message.artifact if isinstance(message.artifact, list | tuple) else ()
        retrieved = [one for one in found if hasattr(one, "page_content")]
        for number, one in enumerate(retrieved):
            name = one.id or one.metadata.get("id") or f"{message.tool_call_id}/{number}"
            yield Document(str(name), str(one.page_content))
        if not retrieved:
            yield Document(message.tool_call_id, str(message.text))
