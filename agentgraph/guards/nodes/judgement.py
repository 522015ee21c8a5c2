"""The judgement of an answer: by the gates of its stage, then by a critic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from agentgraph.errors import GuardStopped
from agentgraph.guards.decision import Decision, FailureClass
from agentgraph.guards.mechanisms.breaker import Permit
from agentgraph.guards.mechanisms.gates.gate import Document, Subject, ValidationResult
from agentgraph.guards.nodes.site import Site, stop_error
from agentgraph.guards.policy import Policy

INPUT = "input"
"""What a refusal of an input names as its layer: the run is ended by "gate:input"."""
_TRIES_AGAIN = ("correct", "replan")
_GOES_ON = (*_TRIES_AGAIN, "fallback")


class AnswerWithheld(GuardStopped):
    """An answer, as `text`, that a human must see before it is sent."""

    def __init__(self, decision: Decision, text: str) -> None:
        super().__init__(decision, f"{decision.guard}: {decision.cause}")
        self.text = text


async def judge(
    site: Site,
    text: str,
    messages: Sequence[BaseMessage],
    permit: Permit | None,
    agent_permit: Permit | None = None,
) -> BaseMessage | None:
    """Return None for an answer that passes, else a correction for its model, or a safe answer.

    Raises `AnswerWithheld` where a human must decide, `GuardStopped` where the run must end.
    `permit` belongs to the model call: an answer that fits no schema is a failure of the provider.
    `agent_permit` belongs to the agent: its breaker opens where all tries were used up.
    """
    subject = _subject(site, text, messages)
    try:
        failure = await _failed_gate(site, subject)
    except BaseException:
        if permit is not None:
            permit.release()  # the answer was not judged to its end
        raise
    if permit is not None:
        permit.success(valid=failure is None or failure.failure_class != "schema_failure")
    if failure is not None:
        return await _refuse(site, failure, text, agent_permit)
    if agent_permit is not None:
        agent_permit.success()
    if site.policy.escalation.critic is not None:
        await _criticize(site, subject, text)
    return None


async def judge_input(site: Site, texts: Sequence[str]) -> Decision | None:
    """Return the decision that ends the run where a gate refuses what a user says, else None.

    Each gate judges the texts of an input once, before the first model call under it.
    """
    passed_gates = site.account.root.input_gates
    for gate in site.policy.gates:
        if not gate.judges_input or any(gate is passed_gate for passed_gate in passed_gates):
            continue
        for text in texts:
            context = {"agent": site.place.path}
            subject = Subject(site.place.name, text=text, context=context)
            result = await site.until_deadline(gate.check_input(subject, site.place.path))
            if isinstance(result, Decision):
                return result
            site.record("gate", of="input", **result.to_dict())
            if not result.passed:
                evidence = {"layer": INPUT, "validation": result.to_dict()}
                return Decision("abort", "gate", result.cause, result.failure_class, evidence)
        passed_gates.append(gate)
    return None


def without_input(inputs: Sequence[HumanMessage], cause: str) -> list[BaseMessage]:
    """Return notices that replace the messages of a refused input: no model must ever see them."""
    text, about = f"[A message was refused: {cause}]", {"agentgraph": {"refused": True}}
    return [
        HumanMessage(text, id=message.id, response_metadata=about)
        for message in inputs
        if message.id
    ]


def input_of(messages: Sequence[BaseMessage], after: str | None) -> list[HumanMessage]:
    """Return the human messages of an input, which are those after a message; None means all.

    Where that message is unknown, they are the last ones, which no other message separates. The
    notice of an input that was refused before is none of them.
    """
    ids = [message.id for message in messages]
    is_known = after is None or after in ids
    first = ids.index(after) + 1 if after is not None and is_known else 0
    humans: list[HumanMessage] = []
    for message in reversed(messages[first:]):
        about = message.response_metadata.get("agentgraph") or {}
        if isinstance(message, HumanMessage) and not about.get("refused"):
            humans.insert(0, message)
        elif humans and not is_known:
            break
    return humans


async def judge_once(site: Site, text: str, messages: Sequence[BaseMessage]) -> AIMessage | None:
    """Return None for an answer that passes, else the safe answer; its model is not asked again.

    Raises as `judge` does.
    """
    subject = _subject(site, text, messages)
    failure = await _failed_in_time(site, subject)
    if failure is None:
        if site.policy.escalation.critic is not None:
            with site.time_limit():
                await _criticize(site, subject, text)
        return None
    failure_class = failure.failure_class or "schema_failure"
    cell = site.policy.table.cell(failure_class, site.policy.tier)
    safe_answer = _safe_answer(site.policy) if cell.action == "fallback" else None
    evidence = {"validation": failure.to_dict()}
    denial = Decision("deny", "gate", failure.cause, failure_class, evidence)
    decision = await site.decide_by_table(denial, possible=safe_answer is not None)
    if decision.action == "escalate":
        raise AnswerWithheld(decision, text)
    if safe_answer is None or decision.action != "fallback":
        raise GuardStopped(decision, f"gate: {failure.cause}")
    return safe_answer.model_copy()


async def passes_beside_calls(site: Site, text: str, messages: Sequence[BaseMessage]) -> bool:
    """Tell whether a text may be shown that a model has written beside calls of tools.

    It is no answer: the calls may run without it, and nobody is asked about it.
    """
    subject = _subject(site, text, messages)
    failure = await _failed_gate(site, subject)
    if failure is not None:
        evidence: Mapping[str, object] = {"validation": failure.to_dict()}
        decision = Decision("deny", "gate", failure.cause, failure.failure_class, evidence)
    elif site.policy.escalation.critic is not None:
        score = await site.policy.escalation.score(subject)
        if score.allows:
            return True
        decision = Decision("deny", score.guard, score.cause, score.failure_class, score.evidence)
    else:
        return True
    await site.decide(decision)
    return False


async def check_edit(site: Site, text: str, messages: Sequence[BaseMessage]) -> None:
    """Check a human's edit by the gates; raise `AnswerWithheld`, to ask again, where it fails."""
    if site.place.fits is not None and not site.place.fits(text):
        cause = "the edit is not in the form of the answer"
        decision = Decision("escalate", "gate", cause, "schema_failure")
        raise AnswerWithheld(await site.decide(decision), text)
    failure = await _failed_in_time(site, _subject(site, text, messages))
    if failure is not None:
        evidence = {"validation": failure.to_dict()}
        cause = f"the edit does not pass: {failure.cause}"
        decision = Decision("escalate", "gate", cause, failure.failure_class, evidence)
        raise AnswerWithheld(await site.decide(decision), text)


async def _failed_in_time(site: Site, subject: Subject) -> ValidationResult | None:
    """Return what `_failed_gate` does; raise `GuardStopped` where the deadline passes before."""
    failure = await site.until_deadline(_failed_gate(site, subject))
    if isinstance(failure, Decision):
        raise stop_error(await site.decide_by_table(failure))
    return failure


async def _failed_gate(site: Site, subject: Subject) -> ValidationResult | None:
    """Return the result of the first gate that a subject fails, if any; record each gate's."""
    for gate in site.policy.gates:
        if not gate.judges_work:
            continue
        result = await gate.check(subject, "post", site.place.path)
        site.record("gate", **result.to_dict())
        if not result.passed:
            return result
    return None


async def _criticize(site: Site, subject: Subject, text: str) -> None:
    """Ask the critic for the score of an answer; raise `AnswerWithheld` where it is too low."""
    decision = await site.policy.escalation.score(subject)
    data = {"stage": site.place.path, "phase": "post", "passed": decision.allows}
    site.record("gate", **data, **decision.evidence)
    if not decision.allows:
        raise AnswerWithheld(await site.decide(decision), text)


async def _refuse(
    site: Site, result: ValidationResult, text: str, agent_permit: Permit | None
) -> BaseMessage:
    """Return a correction or a safe answer for an answer that did not pass, or raise.

    Attempts are counted by stage and failure, so that answers that fail in two ways have, for each
    of them, as many attempts as the table says.
    """
    failure, tries = result.failure_class or "schema_failure", site.account.tries
    counter = f"{site.place.path}#{failure}"
    attempts = tries.get(counter, 0)
    decision = _decide(site, result, failure, attempts, text)
    await site.decide(decision)
    has_tries = site.policy.table.cell(failure, site.policy.tier).action in _TRIES_AGAIN
    are_used_up = has_tries and decision.action not in _TRIES_AGAIN
    # A refusal by a policy says nothing of the agent's health.
    if agent_permit is not None and are_used_up and failure == "schema_failure":
        agent_permit.failure("schema", is_final=True)
    if decision.action in _GOES_ON:
        tries[counter] = attempts + 1
    if decision.action in _TRIES_AGAIN:
        return HumanMessage(f"Your answer was not accepted: {result.cause}. Give another one.")
    safe_answer = _safe_answer(site.policy)
    if decision.action == "fallback" and safe_answer is not None:
        return safe_answer.model_copy()
    if decision.action == "escalate":
        raise AnswerWithheld(decision, text)
    raise GuardStopped(decision, f"gate: {result.cause}")


def _decide(
    site: Site, result: ValidationResult, failure: FailureClass, attempts: int, text: str
) -> Decision:
    """Decide by the table, as long as another attempt may bring something new.

    An attempt counts as a new plan of the stage: where the limit of plans is reached, or this plan
    was tried before, the decision is at once the action that the table has after the attempts.
    """
    policy, path = site.policy, site.place.path
    evidence: Mapping[str, Any] = {"validation": result.to_dict()}
    decide = partial(policy.table.decide, tier=policy.tier, made=attempts)
    grounds: dict[str, Any] = {"guard": "gate", "cause": result.cause, "evidence": evidence}
    decision = decide(failure, possible=_is_possible(policy, failure), **grounds)
    if decision.action not in _TRIES_AGAIN:
        return decision
    limit = site.account.replan_limit(path, policy.replans).ask(path, plan=text)
    if limit.action == "replan":
        return decision
    grounds |= {"guard": limit.guard, "evidence": {**evidence, **limit.evidence}}
    if limit.failure_class:
        is_possible = _is_possible(policy, limit.failure_class)
        grounds |= {"cause": limit.cause, "possible": is_possible}
        return decide(limit.failure_class, **grounds)
    grounds["cause"] = f"{result.cause}; {limit.cause}"
    return decide(failure, possible=False, **grounds)


def _is_possible(policy: Policy, failure: FailureClass) -> bool:
    """Tell whether the table's action can be carried out: a fallback needs a safe answer."""
    cell = policy.table.cell(failure, policy.tier)
    return cell.action != "fallback" or _safe_answer(policy) is not None


def _safe_answer(policy: Policy) -> AIMessage | None:
    """Return the breaker's fallback for a failing provider, if that is a fixed message."""
    fallback = policy.breaker.fallback if policy.breaker is not None else None
    return fallback if isinstance(fallback, AIMessage) else None


def _subject(site: Site, text: str, messages: Sequence[BaseMessage]) -> Subject:
    """Return the subject of a gate: an answer, with the tools' results as its documents."""
    account, place = site.account, site.place
    context = {"agent": place.path, "steps": account.steps, "hops": account.hops}
    return Subject(place.name, text=text, context=context, documents=[*_documents(messages)])


def _documents(messages: Sequence[BaseMessage]) -> Iterator[Document]:
    """Yield the tools' results as documents: those they retrieved, else the text of the result."""
    for message in messages:
        if not isinstance(message, ToolMessage) or message.status == "error":
            continue
        artifact = message.artifact if isinstance(message.artifact, list | tuple) else ()
        documents = [item for item in artifact if hasattr(item, "page_content")]
        for number, document in enumerate(documents):
            name = document.id or document.metadata.get("id") or f"{message.tool_call_id}/{number}"
            yield Document(str(name), str(document.page_content))
        if not documents:
            yield Document(message.tool_call_id, str(message.text))
