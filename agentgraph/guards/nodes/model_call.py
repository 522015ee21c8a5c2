"""A model is asked: reserved for, let through by its breaker, timed, and tried again if need be.

The only layer that retries: clients of providers are to be given `max_retries=0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from agentgraph.clock import clock
from agentgraph.errors import AgentGraphError, GuardStopped, ModelError, kind_of
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.breaker import CircuitBreaker, Permit
from agentgraph.guards.mechanisms.failures import Failure, classify
from agentgraph.guards.mechanisms.spending.prices import attributes_of, model_name_of
from agentgraph.guards.nodes.payment import Paying, reserved
from agentgraph.guards.nodes.stage import Overdue, current_stage, in_time
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Guards
from agentgraph.guards.records.account import ANYWHERE, Account
from agentgraph.guards.records.recorder import Recorder
from agentgraph.interception import Answerer, ControlFlow, ModelCall
from agentgraph.running import current_run

_ENDPOINTS = ("azure_endpoint", "openai_api_base")


class CircuitOpen(ModelError):
    """The model's provider has failed too often to be asked just now."""

    code = "circuit_open"


class Answered(NamedTuple):
    """What a model has said, and the permit under which it did."""

    message: AIMessage
    permit: Permit | None


class Asking:
    """One node's model call, with its retries and its fallback."""

    def __init__(
        self, policy: Guards, place: Place, account: Account, recorder: Recorder, asked: ModelCall
    ) -> None:
        self._policy = policy
        self._place = place
        self._account = account
        self._recorder = recorder
        self._asked = asked
        self._name = model_name_of(asked.model)
        self._paying = Paying(policy, place, account, recorder)
        self.has_given_up = False
        """Whether a provider has failed as often as it may be asked again."""

    def corrected(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the messages with what the guards have to tell the model, once."""
        told = self._account.corrections.pop(self._place.spot, None)
        if not told:
            return list(messages)
        text = "\n\n".join(told)
        if messages and isinstance(head := messages[0], SystemMessage):
            # A second one is refused by some providers.
            return [SystemMessage(f"{head.text}\n\n{text}"), *messages[1:]]
        if self._asked.is_foreign:  # whose prompt is put before the messages later
            return [*messages, HumanMessage(text)]
        return [SystemMessage(text), *messages]

    async def answer(self, messages: Sequence[BaseMessage]) -> Answered:
        """Ask the model, again after a failure that may pass, at last its fallback."""
        if self._policy.retry is not None:
            self._policy.retry.first_attempt()
        attempt = 0
        while True:
            heard = _tokens_told(self._place)
            try:
                return await self._ask(self._name, messages, None)
            except (ControlFlow, GuardStopped):
                raise
            except CircuitOpen as refused:
                return await self._instead(refused, messages, refused)
            except Exception as error:
                failure = classify(error)
                # What was streamed has been read: another attempt would say it twice.
                is_committed = _tokens_told(self._place) != heard
                pause = None if is_committed else await self._pause(error, failure, attempt)
                if pause is None:
                    return await self._failed(error, failure, messages, is_committed)
            await clock().sleep(pause)
            attempt += 1

    async def _pause(self, error: Exception, failure: Failure, attempt: int) -> float | None:
        policy = self._policy
        if failure.kind != "transient" or policy.retry is None or policy.backoff is None:
            return None
        deadline = current_stage(self._account.deadline)
        left = deadline.remaining() if deadline is not None else None
        decision = policy.backoff.ask(attempt, retry_after=failure.retry_after, remaining_s=left)
        pause = decision.evidence.get("pause_s")
        if decision.allows:
            decision = policy.retry.ask()
        if not decision.allows:
            await self._recorder.decided(decision)
            return None
        retry = {"retry": attempt + 1, "pause_s": pause}
        grounds = {**retry, "attempts": policy.backoff.attempts, **decision.evidence}
        again = Decision("allow", "retry", _told(error), failure.failure_class, grounds)
        await self._recorder.recorded(again, **retry)
        return pause if isinstance(pause, int | float) else 0.0

    async def _failed(
        self, error: Exception, failure: Failure, messages: Sequence[BaseMessage], told: bool
    ) -> Answered:
        if failure.kind == "transient" and not told:
            return await self._instead(error, messages, None)
        self.has_given_up = failure.kind == "transient"
        decisions, tier = self._policy.decisions, self._policy.tier
        is_asked = tier == "regulated"
        if self.has_given_up:  # and nobody else can go on with what was said
            said = decisions.decide(failure.failure_class, tier, possible=False)
            is_asked = said.action == "escalate"
        if not is_asked:
            grounds = {"kind": failure.kind, "told": told}
            ended = Decision("abort", "failure", _told(error), failure.failure_class, grounds)
            await self._recorder.recorded(ended)  # the error itself is told, and raised
            raise error
        met = Decision("deny", "failure", _told(error), failure.failure_class)
        raise GuardStopped(await self._recorder.by_table(met)) from error

    async def _instead(
        self, error: Exception, messages: Sequence[BaseMessage], refused: CircuitOpen | None
    ) -> Answered:
        """Do what the table says where a provider is down: ask another, escalate, or fail."""
        self.has_given_up = True
        fallback = self._policy.breaker.fallback if self._policy.breaker is not None else None
        if self._asked.is_foreign and not isinstance(fallback, AIMessage):
            fallback = None
        cell = self._policy.decisions.cell("provider_error", self._policy.tier)
        guard = "circuit_breaker" if refused is not None else "retry"
        possible = fallback is not None or cell.action != "fallback"
        met = Decision("deny", guard, _told(error), "provider_error")
        decision = await self._recorder.by_table(met, possible=possible)
        if decision.action == "abort":
            raise error
        if decision.action != "fallback":
            raise GuardStopped(decision) from error
        if isinstance(fallback, AIMessage):
            return Answered(fallback.model_copy(), None)
        answerer: Answerer = fallback  # type: ignore[assignment]  # checked at build
        return await self._ask(model_name_of(answerer), messages, answerer)

    async def _ask(
        self, name: str, messages: Sequence[BaseMessage], answerer: Answerer | None
    ) -> Answered:
        if (late := self._late()) is not None:  # middleware may have taken what its node had
            raise await self._stop(late)
        model = self._asked.model if answerer is None else answerer
        held = await self._paying.reserve(name, model, messages, self._asked)
        permit: Permit | None = None
        parent: int | None = None
        try:
            given = self._permit(_key(name, model))
            if given is not None and not given.decision.allows:
                raise await self._refusal(given.decision)
            permit = given
            parent = self._recorder.note("model", model=name, **reserved(held))
            message = await self._timed(answerer, messages)
        except BaseException as error:
            _settle_permit(error, permit)
            self._paying.fail(error, held, parent)
            raise
        too_fast = self._paying.settle(name, message, held, parent)
        if too_fast is not None:
            await self._slow_down(name, too_fast)
        return Answered(message, permit)

    def _late(self) -> Decision | None:
        """Return what to decide on where its stage, or all of it, has no time left for a call."""
        deadline = current_stage(self._account.deadline)
        decision = deadline.check() if deadline is not None else None
        return None if decision is None or decision.allows else decision

    async def _stop(self, late: Decision) -> GuardStopped:
        return GuardStopped(await self._recorder.by_table(late, possible=False))

    async def _timed(self, answerer: Answerer | None, messages: Sequence[BaseMessage]) -> AIMessage:
        try:
            stage = current_stage(self._account.deadline)
            with in_time(stage, self._policy.deadlines.step_s):
                return await self._asked.ask(answerer, messages)
        except Overdue as over:
            if (late := self._late()) is not None:
                raise await self._stop(late) from over
            raise

    def _permit(self, key: str) -> Permit | None:
        breaker: CircuitBreaker | None = self._policy.breaker
        if breaker is None:
            return None
        run = self._account.run_id
        if (throttle := self._account.throttles.get(key)) is not None:
            # Its pause is all that it asks for: how fast is spent then is watched as before.
            paused = throttle.acquire(run)
            if not paused.decision.allows:
                return paused
            paused.success()
        return breaker.for_key(key).acquire(run)

    async def _refusal(self, decision: Decision) -> Exception:
        if decision.action == "abort":
            return GuardStopped(await self._recorder.decided(decision))
        return CircuitOpen(decision.cause)

    async def _slow_down(self, name: str, decision: Decision) -> None:
        """Do what is done where tokens or dollars are spent too fast: another model goes on."""
        policy, breaker = self._policy, self._policy.breaker
        swaps = policy.decisions.cell("provider_error", policy.tier).action == "fallback"
        has_another = breaker is not None and breaker.fallback is not None and name == self._name
        if breaker is not None and has_another and swaps:
            await self._recorder.decided(decision)
            key = _key(name, self._asked.model)
            # Other inputs have not spent too fast: they keep their model.
            throttle = self._account.throttles.setdefault(key, breaker.fresh(key))
            throttle.acquire(self._account.run_id).failure("cost")
            self._paying.forget_pace()  # what goes on instead has yet to show how fast it spends
        elif ANYWHERE not in self._account.pending:
            self._account.pend(ANYWHERE, await self._recorder.by_table(decision))


def _settle_permit(error: BaseException, permit: Permit | None) -> None:
    """Tell a breaker what became of a call that failed."""
    if permit is None:
        return
    if isinstance(error, ControlFlow) or not isinstance(error, Exception):
        permit.release()
        return
    failure = classify(error)
    if failure.kind == "transient":
        permit.failure("provider", failure.retry_after)
    else:
        permit.release()  # a fault of the call says nothing of the provider's health


def _key(name: str, model: object) -> str:
    """Name what a breaker is of: a model as one provider has it; elsewhere it may be well."""
    for place in attributes_of(model, _ENDPOINTS):
        if isinstance(place, str) and place:
            return f"model:{name}@{place}"
    return f"model:{name}"


def _tokens_told(place: Place) -> int:
    run = current_run()
    return 0 if run is None else run.token_counts.get((place.path, place.visit), 0)


def _told(error: Exception) -> str:
    if isinstance(error, AgentGraphError):
        return str(error)
    return f"the provider failed: {kind_of(error)}"
