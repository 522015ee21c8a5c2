"""A guarded model call: counted, paid from the budget, timed, retried after a failure, and judged.

This is the only layer that retries: clients of providers must have `max_retries=0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from agentgraph.clock import clock
from agentgraph.errors import AgentGraphError, GuardStopped, ModelError, kind_of
from agentgraph.graphs.silence import Silence
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.breaker import Permit
from agentgraph.guards.mechanisms.failures import Failure, classify
from agentgraph.guards.mechanisms.spending.prices import model_name_of
from agentgraph.guards.nodes.extra_guards import end_of_run, objection, tries_again
from agentgraph.guards.nodes.judgement import AnswerWithheld, judge, passes_beside_calls
from agentgraph.guards.nodes.payment import fail, reserve, settle
from agentgraph.guards.nodes.site import Overdue, Site, stop_error
from agentgraph.guards.place import Place
from agentgraph.guards.process import ModelKey
from agentgraph.guards.records.account import ANYWHERE, account_admits
from agentgraph.history import calls_of
from agentgraph.interception import Answerer, ControlFlow, ModelCall
from agentgraph.running import current_run
from agentgraph.sendable import with_whole_calls, without_text


class CircuitOpen(ModelError):
    """The model's provider has failed too often to be asked just now."""

    code = "circuit_open"


class Answer(NamedTuple):
    """A model's message, and the breaker's permit for the call."""

    message: AIMessage
    permit: Permit | None


async def admit_call(site: Site) -> Decision:
    """Return whether one more model may be asked: the decision on the limit that this exceeds.

    The call is counted when it is made.
    """
    account, policy = site.account, site.policy
    if account.level and policy.depth is not None:  # a run in a tool, or a team inside
        decision = policy.depth.check(site.level)
        if not decision.allows:  # it ends this run, and none around it
            return await site.decide(replace(decision, action="abort"))
    decision = account.may_step(policy)
    if decision.allows and (deadline := site.deadline()) is not None:
        decision = deadline.check()
    if decision.allows:
        return decision
    # A limit is no mistake that the model could correct.
    return await site.decide_by_table(decision, possible=False)


class GuardedModelCall:
    """One model call of a node, with its retries, its fallback and its corrections."""

    def __init__(self, site: Site, call: ModelCall) -> None:
        self._site = site
        self._call = call
        self._name = model_name_of(call.model)
        self._key = ModelKey.of(self._name, call.model)
        self._retry = site.policy.retry_of(self._key, is_known=not call.is_foreign)
        self._has_given_up = False
        self.model_message: AIMessage | None = None
        """The last message that a model has given."""
        self.failure: Exception | None = None
        """The provider's error, once all attempts have failed; None before."""

    async def run(self, message: AIMessage | None = None) -> AIMessage:
        """Ask the model until an answer passes, and return that answer.

        A `message` is judged first: then the model is asked only if the message does not pass.
        """
        messages = self._with_corrections(self._call.messages)
        if message is not None:
            return await self._until_it_passes(Answer(message, None), messages, None)
        permit = self._agent_permit()
        if permit is None:
            return await self._until_it_passes(None, messages, None)
        if not permit.decision.allows:
            refusal = replace(permit.decision, failure_class="schema_failure")
            return await self._instead_of_agent(refusal, messages)
        try:
            return await self._until_it_passes(None, messages, permit)
        finally:
            permit.release()  # unless an answer has passed, or has failed for good

    async def _until_it_passes(
        self, answer: Answer | None, messages: list[BaseMessage], agent_permit: Permit | None
    ) -> AIMessage:
        while True:
            if answer is None:
                try:
                    if self._site.policy.extra_guards:
                        answer, messages = await self._admitted(messages)
                    else:
                        answer = await self._attempts(messages)
                except Exception as error:
                    # No other layer may ask again what was given up here.
                    self.failure = error if self._has_given_up else None
                    raise
            if self._site.policy.judges and calls_of(answer.message) and answer.message.text:
                answer = await self._without_refused_text(answer, messages)
            correction = await self._judge(answer, messages, agent_permit)
            if correction is None:
                if not answer.message.tool_calls:
                    self._site.account.learn(answer.message.content)
                return answer.message
            if isinstance(correction, AIMessage):
                return correction
            messages = await self._corrected(answer, messages, correction)
            answer = None

    async def _corrected(
        self, answer: Answer, messages: list[BaseMessage], correction: BaseMessage
    ) -> list[BaseMessage]:
        """Return the messages with an answer that was not accepted, and with what is wrong."""
        message = with_whole_calls(answer.message)
        await self._admit_again()
        return [*messages, message, *_replies(message, correction)]

    async def _admitted(self, messages: list[BaseMessage]) -> tuple[Answer, list[BaseMessage]]:
        """Ask the model as users' guards let it be asked; return what it was asked with too."""
        site = self._site
        decision = await objection(site, "before_model", messages=messages)
        if decision is not None and not tries_again(decision):
            return await self._without_model(decision, messages), messages
        if decision is not None:
            await site.decide(decision)
            messages = self._with_text(messages, decision.cause)
        return await self._attempts(messages), messages

    async def _without_model(self, decision: Decision, messages: list[BaseMessage]) -> Answer:
        """Return the fallback's answer, where a user's guard decides so; else raise."""
        fallback = self._fallback() if decision.action == "fallback" else None
        if fallback is None:
            raise stop_error(await end_of_run(self._site, decision))
        await self._site.decide(decision)
        if isinstance(fallback, AIMessage):
            return Answer(fallback.model_copy(), None)
        return await self._ask(model_name_of(fallback), messages, fallback)

    async def _after_model(
        self, answer: Answer, messages: Sequence[BaseMessage]
    ) -> BaseMessage | None:
        """Return a correction, or a safe answer, where a user's guard refuses an answer."""
        site, message = self._site, answer.message
        decision = await objection(
            site, "after_model", messages=[*messages, message], result=message
        )
        if decision is None:
            return None
        if answer.permit is not None:
            answer.permit.success()
        _record_usage(site.place, message)
        if tries_again(decision):
            await site.decide(decision)
            return HumanMessage(f"Your answer was not accepted: {decision.cause}.")
        if decision.action == "escalate":
            raise AnswerWithheld(await site.decide(decision), str(message.text))
        return (await self._without_model(decision, [*messages])).message

    async def _admit_again(self) -> None:
        """Raise where a limit forbids one more model call of this node."""
        decision = await admit_call(self._site)
        if not decision.allows:
            raise stop_error(decision)

    def _with_corrections(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the messages with the guards' pending corrections, each of which is sent once."""
        corrections = self._site.account.corrections.pop(self._site.place.visit_key, None)
        if not corrections:
            return list(messages)
        return self._with_text(messages, "\n\n".join(corrections))

    def _with_text(self, messages: Sequence[BaseMessage], text: str) -> list[BaseMessage]:
        """Return the messages with a text of the guards."""
        if messages and isinstance(head := messages[0], SystemMessage):
            # Some providers refuse a second system message.
            return [SystemMessage(f"{head.text}\n\n{text}"), *messages[1:]]
        if self._call.is_foreign:  # its node puts a prompt before the messages
            return [*messages, HumanMessage(text)]
        return [SystemMessage(text), *messages]

    def _agent_permit(self) -> Permit | None:
        """Ask the agent's own breaker, None where no gate judges or a human has let it go on."""
        site = self._site
        if not site.policy.gates or account_admits(site.account, site.place.path):
            return None
        breaker = site.policy.agent_breaker(site.place.path)
        return None if breaker is None else breaker.acquire(site.account.run_id)

    async def _instead_of_agent(self, refusal: Decision, messages: list[BaseMessage]) -> AIMessage:
        """Return the fallback's answer while the agent's breaker is open; else a human is asked."""
        fallback = self._fallback()
        if refusal.action == "abort":
            raise stop_error(await self._site.decide(refusal))
        if fallback is None:
            raise stop_error(await self._site.decide(replace(refusal, action="escalate")))
        answer = await self._without_model(replace(refusal, action="fallback"), messages)
        if isinstance(fallback, AIMessage):
            return answer.message
        return await self._until_it_passes(answer, messages, None)

    def _fallback(self) -> Answerer | AIMessage | None:
        """Return who or what answers in the model's place, None where the table has none."""
        policy = self._site.policy
        fallback: Any = policy.breaker.fallback if policy.breaker is not None else None
        if self._call.is_foreign and not isinstance(fallback, AIMessage):
            return None
        swaps = policy.table.cell("provider_error", policy.tier).action == "fallback"
        return fallback if swaps else None

    async def _judge(
        self, answer: Answer, messages: Sequence[BaseMessage], agent_permit: Permit | None
    ) -> BaseMessage | None:
        """Return None for an answer that passes, a correction, or a safe answer in its place."""
        site = self._site
        if site.policy.extra_guards:
            correction = await self._after_model(answer, messages)
            if correction is not None:
                return correction
        text = site.place.answer_of(answer.message) if site.policy.judges else None
        if text is None:
            if answer.permit is not None:
                answer.permit.success()
            return None
        passes = False
        try:
            with site.time_limit():
                correction = await judge(site, text, messages, answer.permit, agent_permit)
                passes = correction is None
        except Overdue:
            await self._admit_again()  # raises where a limit, and not only a gate, ends the run
            raise
        finally:
            if not passes:
                _record_usage(site.place, answer.message)
        return correction

    async def _without_refused_text(
        self, answer: Answer, messages: Sequence[BaseMessage]
    ) -> Answer:
        """Return an answer that calls tools without its text, where that may not be shown."""
        message, permit = answer
        try:
            with self._site.time_limit():
                if await passes_beside_calls(self._site, str(message.text), messages):
                    return answer
        except BaseException:
            if permit is not None:
                permit.release()
            raise
        message = self.model_message = without_text(message)
        return Answer(message, permit)

    async def _attempts(self, messages: Sequence[BaseMessage]) -> Answer:
        """Ask the model, retry after transient failures, and ask its fallback at the end."""
        if self._retry is not None:
            self._retry.first_attempt()
        attempt = 0
        while True:
            token_count = _tokens_streamed(self._site.place)
            try:
                return await self._ask(self._name, messages, None)
            except (ControlFlow, GuardStopped):
                raise
            except CircuitOpen as refusal:
                return await self._fall_back(refusal, messages, "circuit_breaker")
            except Exception as error:
                failure = classify(error)
                # The reader has seen the streamed tokens: another attempt would repeat them.
                is_committed = _tokens_streamed(self._site.place) != token_count
                pause_s = None if is_committed else await self._pause(error, failure, attempt)
                if pause_s is None:
                    return await self._failed(error, failure, messages, is_committed)
            await clock().sleep(pause_s)
            attempt += 1

    async def _pause(self, error: Exception, failure: Failure, attempt: int) -> float | None:
        """Return how long to wait before another attempt, None where there must be none."""
        site, policy = self._site, self._site.policy
        if failure.kind != "transient" or self._retry is None or policy.backoff is None:
            return None
        deadline = site.deadline()
        left_s = deadline.remaining() if deadline is not None else None
        decision = policy.backoff.ask(attempt, retry_after=failure.retry_after, remaining_s=left_s)
        pause_s = decision.evidence.get("pause_s")
        if decision.allows:
            decision = self._retry.ask()
        if not decision.allows:
            await site.decide(decision)
            return None
        retry = {"retry": attempt + 1, "pause_s": pause_s}
        evidence = {**retry, "attempts": policy.backoff.attempts, **decision.evidence}
        again = Decision("allow", "retry", _cause(error), failure.failure_class, evidence)
        await site.record_decision(again, **retry)
        return pause_s if isinstance(pause_s, int | float) else 0.0

    async def _failed(
        self, error: Exception, failure: Failure, messages: Sequence[BaseMessage], is_streamed: bool
    ) -> Answer:
        """Return the fallback's answer after the last attempt has failed, or raise."""
        site, tier = self._site, self._site.policy.tier
        if failure.kind == "transient" and not is_streamed:
            return await self._fall_back(error, messages, "retry")
        self._has_given_up = failure.kind == "transient"
        uses_table = tier == "regulated"
        if self._has_given_up:  # no other model can continue streamed text
            decisions = site.policy.table
            decision = decisions.decide(failure.failure_class, tier, possible=False)
            uses_table = decision.action == "escalate"
        if not uses_table:
            evidence = {"kind": failure.kind, "told": is_streamed}
            end = Decision("abort", "failure", _cause(error), failure.failure_class, evidence)
            await site.record_decision(end)  # the stream has the event of the error itself
            raise error
        denial = Decision("deny", "failure", _cause(error), failure.failure_class)
        raise GuardStopped(await site.decide_by_table(denial)) from error

    async def _fall_back(
        self, error: Exception, messages: Sequence[BaseMessage], guard: str
    ) -> Answer:
        """Do what the table says when a provider is down: ask the fallback, escalate, or fail."""
        self._has_given_up = True
        site, policy = self._site, self._site.policy
        fallback = policy.breaker.fallback if policy.breaker is not None else None
        if self._call.is_foreign and not isinstance(fallback, AIMessage):
            fallback = None
        cell = policy.table.cell("provider_error", policy.tier)
        is_possible = fallback is not None or cell.action != "fallback"
        denial = Decision("deny", guard, _cause(error), "provider_error")
        decision = await site.decide_by_table(denial, possible=is_possible)
        if decision.action == "abort":
            raise error
        if decision.action != "fallback":
            raise GuardStopped(decision) from error
        if isinstance(fallback, AIMessage):
            return Answer(fallback.model_copy(), None)
        answerer: Answerer = fallback  # type: ignore[assignment]  # checked at build
        return await self._ask(model_name_of(answerer), messages, answerer)

    async def _ask(
        self, name: str, messages: Sequence[BaseMessage], answerer: Answerer | None
    ) -> Answer:
        """Ask a model once: reserve, get the breaker's permit, call, settle."""
        site = self._site
        # Middleware may have taken the time that its node had left.
        if (decision := self._overdue()) is not None:
            raise await self._late(decision)
        model = self._call.model if answerer is None else answerer
        payment = await reserve(site, name, model, messages, self._call)
        permit: Permit | None = None
        is_made = False
        try:
            key = self._key if answerer is None else ModelKey.of(name, answerer)
            request = self._permit(key)
            if request is not None and not request.decision.allows:
                raise await self._refusal(request.decision)
            permit = request
            await self._count()
            is_made = True
            payment.record_seq = site.record("model", model=name, **payment.worst_case())
            message = self.model_message = await self._call_in_time(answerer, messages)
        except BaseException as error:
            _settle_permit(error, permit)
            fail(site, error, payment)
            if site.policy.extra_guards and is_made:
                await self._note_failure(error)
            raise
        overspend = settle(site, name, message, payment)
        if site.policy.extra_guards:
            await site.note("model", usage=message.usage_metadata)
        if overspend is not None:
            await self._slow_down(name, overspend)
        return Answer(message, permit)

    async def _note_failure(self, error: BaseException) -> None:
        """Record a failed call for users' guards; a cancelled run has no time left for it."""
        if isinstance(error, Exception) and not isinstance(error, ControlFlow):
            await self._site.note("model", failed=True)

    async def _count(self) -> None:
        """Count one more attempt at a provider, or raise where the step limit forbids it.

        Nothing is awaited between the check and the count: parallel branches must not overshoot.
        """
        account, policy = self._site.account, self._site.policy
        decision = account.may_step(policy)
        if not decision.allows:
            raise stop_error(await self._site.decide_by_table(decision, possible=False))
        account.step()

    def _overdue(self) -> Decision | None:
        """Return a denial where the stage, or the whole input, has no time left for a call."""
        deadline = self._site.deadline()
        decision = deadline.check() if deadline is not None else None
        return None if decision is None or decision.allows else decision

    async def _late(self, decision: Decision) -> GuardStopped:
        return GuardStopped(await self._site.decide_by_table(decision, possible=False))

    async def _call_in_time(
        self, answerer: Answerer | None, messages: Sequence[BaseMessage]
    ) -> AIMessage:
        try:
            step_s = self._site.policy.deadlines.step_s
            return await self._site.cut_off(partial(self._say, answerer, messages), step_s)
        except Overdue as error:
            if (decision := self._overdue()) is not None:
                raise await self._late(decision) from error
            raise

    async def _say(self, answerer: Answerer | None, messages: Sequence[BaseMessage]) -> AIMessage:
        if self._call.is_foreign or not self._site.policy.judges:
            return await self._call.ask(answerer, messages)
        with Silence():  # no stream shows a text that may be refused
            return await self._call.ask(answerer, messages)

    def _permit(self, key: ModelKey) -> Permit | None:
        """Ask the breaker for a permit, which may be a refusal; None where there is no breaker."""
        breaker = self._site.policy.breaker_of(key, is_known=not self._call.is_foreign)
        if breaker is None:
            return None
        run_id = self._site.account.run_id
        if (throttle := self._site.account.throttles.get(key.name)) is not None:
            # Only its cooldown is used: the velocity is measured anew after it.
            permit = throttle.acquire(run_id)
            if not permit.decision.allows:
                return permit
            permit.success()
        return breaker.acquire(run_id)

    async def _refusal(self, decision: Decision) -> Exception:
        """Return the error for a call that the breaker refuses: it ends the run or falls back."""
        if decision.action == "abort":
            return GuardStopped(await self._site.decide(decision))
        return CircuitOpen(decision.cause)

    async def _slow_down(self, name: str, decision: Decision) -> None:
        """React to a spending velocity that is too high: the fallback model takes over."""
        site, policy, breaker = self._site, self._site.policy, self._site.policy.breaker
        velocity = site.account.velocity
        if velocity is not None and velocity.alert:
            velocity.forget()
            evidence = {**decision.evidence, "alert": True}
            await site.decide(replace(decision, action="allow", evidence=evidence))
            return
        swaps = policy.decisions.cell("provider_error", policy.tier).action == "fallback"
        has_another = breaker is not None and breaker.fallback is not None and name == self._name
        if breaker is not None and has_another and swaps:
            await site.decide(decision)
            key = self._key.name
            # A breaker for this input only: other inputs have not spent too fast.
            throttle = site.account.throttles.setdefault(key, breaker.fresh(key))
            throttle.acquire(site.account.run_id).failure("cost")
            if velocity is not None:
                velocity.forget()  # the fallback's velocity is not known yet
        elif ANYWHERE not in site.account.pending:
            site.account.postpone(ANYWHERE, await site.decide_by_table(decision))


def _replies(message: AIMessage, correction: BaseMessage) -> list[BaseMessage]:
    """Return the correction as messages; it answers the calls of a message that has calls."""
    calls = calls_of(message)
    if not calls:
        return [correction]
    return [
        ToolMessage(correction.text, tool_call_id=c["id"] or "", name=c["name"], status="error")
        for c in calls
    ]


def _record_usage(place: Place, message: AIMessage) -> None:
    """Record the usage of a rejected answer: it was paid for."""
    run = current_run()
    if run is not None:
        name = str(message.response_metadata.get("model_name") or "")
        run.record_usage(place.path, message.usage_metadata, name)


def _settle_permit(error: BaseException, permit: Permit | None) -> None:
    """Report the outcome of a failed call to its breaker."""
    if permit is None:
        return
    if isinstance(error, ControlFlow) or not isinstance(error, Exception):
        permit.release()  # an interrupted or cancelled probe must free its slot
        return
    failure = classify(error)
    if failure.kind == "transient":
        permit.failure("provider", failure.retry_after)
    else:
        permit.release()  # a fault of the call says nothing about the provider's health


def _tokens_streamed(place: Place) -> int:
    """Return how many tokens of this visit were streamed: they cannot be taken back."""
    run = current_run()
    return 0 if run is None else run.token_counts.get((place.path, place.visit), 0)


def _cause(error: Exception) -> str:
    if isinstance(error, AgentGraphError):
        return str(error)
    # Without the provider's words: the decision is kept in the audit trail.
    return f"the provider failed: {kind_of(error)}"
