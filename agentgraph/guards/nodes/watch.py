"""The guards of one agent at work: asked around each of its calls, in the design's order.

It decides, records what it has decided, and says so by a value or by `GuardStopped`; what follows
in the graph is the patcher's.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from agentgraph.errors import GuardStopped
from agentgraph.guards.decision import Decision
from agentgraph.guards.nodes.judgement import Judging
from agentgraph.guards.nodes.model_call import Answered, Asking
from agentgraph.guards.nodes.stage import Overdue, current_stage, in_time
from agentgraph.guards.nodes.tool_call import Using
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Guards
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.pending_writes import Resumption
from agentgraph.guards.records.recorder import Recorder
from agentgraph.history import calls_of
from agentgraph.interception import ModelCall, Refusal, ToolUse, UnrunCall
from agentgraph.running import current_run

_ALLOWED = Decision("allow", "none")
_BY_TOOLS = "tools"
"""Who has given an agent what to say, where no human has."""


class Watch:
    """What holds at one agent, for one outside input."""

    def __init__(
        self,
        policy: Guards,
        place: Place,
        account: Account,
        recorder: Recorder,
        kept: Mapping[str, Any],
        *,
        resumption: Resumption | None = None,
    ) -> None:
        self.policy = policy
        self.place = place
        self.account = account
        self.recorder = recorder
        self.resumption = resumption
        self.is_noted = False
        """Whether what the next node knows is noted, should it wait, and need not be stored now."""
        self.begin(kept)

    def begin(self, kept: Mapping[str, Any]) -> None:
        """Begin at a node, with what its graph has of the account, the turn, and of humans."""
        self.kept = kept
        self.turn: Mapping[str, Any] = kept.get("turn") or {}
        human = kept.get("human")
        is_given = human and human.get("input") == self.account.input_id and "by" in human
        self._given = human if is_given else None
        self._is_asked = False
        self._given_up: list[tuple[ModelCall, Exception]] = []

    @property
    def may_wait(self) -> bool:
        """Whether what is known can be written down by the next node, with what that does."""
        account = self.account
        is_urgent = account.has_acted or account.pending or account.corrections or account.closed
        return self.is_noted and not is_urgent

    @property
    def judges(self) -> bool:
        """Whether a gate or a critic looks at what the model here has said."""
        return self.policy.judges

    @property
    def asks_again(self) -> bool:
        """Whether a model that has failed is asked again, so that nobody else is to."""
        return self.policy.retry is not None

    def held_back(self, text: str) -> Mapping[str, Any]:
        """Keep what tools answer for the model to be judged; nothing where nobody judges."""
        if not self.judges:
            return {}
        self.account.may_ask = True
        return {"human": {"text": text, "by": _BY_TOOLS, "input": self.account.input_id}}

    def timed(self) -> AbstractContextManager[object]:
        """Cut off what takes longer than its stage, or all of the run, may."""
        return in_time(current_stage(self.account.deadline))

    async def opening(self) -> Decision:
        """Decide whether this agent's model may be asked at all, and count that it is."""
        account = self.account
        by = None if self._given is None else self._given["by"]
        if by not in (None, _BY_TOOLS):
            return Decision("allow", "human")
        left = account.take_pending(self.place.spot)
        if left is not None:
            return left  # recorded when it was made
        decision = self._limits() if by is None else _ALLOWED
        return decision if decision.allows else await self._limited(decision)

    async def _limited(self, decision: Decision) -> Decision:
        """Decide what is done about a limit: it is no mistake that a model could mend."""
        return await self.recorder.by_table(decision, possible=False)

    def _limits(self) -> Decision:
        """Count one more model call, unless a limit stands in its way."""
        account, policy = self.account, self.policy
        decision = _ALLOWED
        if policy.steps is not None:
            decision = policy.steps.check(account.spending.steps, account.spending.grants)
        deadline = current_stage(account.deadline)
        if decision.allows and deadline is not None:
            decision = deadline.check()
        if decision.allows:  # counted before the call, so that parallel branches cannot overshoot
            account.spending.steps += 1
        return decision

    async def _step(self) -> None:
        decision = self._limits()
        if not decision.allows:
            raise stopped(await self._limited(decision))

    async def model(self, asked: ModelCall) -> AIMessage:
        """Have a model asked until its answer passes, as often as it may be."""
        if self._is_asked:
            await self._reopen(asked)
        self._is_asked = True
        judging = Judging(self.policy, self.place, self.account, self.recorder)
        given, self._given = self._given, None
        held: Answered | None = None
        if given is not None and given["by"] == _BY_TOOLS:
            held = Answered(AIMessage(given["text"]), None)
        elif given is not None:
            if given["by"] == "edit":
                await judging.pass_edit(given["text"], asked.messages)
            return AIMessage(given["text"])
        asking = Asking(self.policy, self.place, self.account, self.recorder, asked)
        messages = asking.corrected(asked.messages)
        while True:
            try:
                answered, held = held or await asking.answer(messages), None
            except Exception as error:
                if asking.has_given_up and self.asks_again:
                    self._given_up.append((asked, error))
                raise
            said = await self._judged(judging, answered, messages)
            if said is None:
                return answered.message
            if isinstance(said, AIMessage):
                return said
            messages = [*messages, answered.message, *_heard(answered.message, said)]
            await self._step()

    async def _reopen(self, asked: ModelCall) -> None:
        """Ask of a further call in one node, by middleware, what its opening asks of the first."""
        for before, error in self._given_up:
            # One layer tries again: what that has given up on, no middleware asks for once more.
            if before.model is asked.model and before.messages == asked.messages:
                raise error
        decision = await self.opening()
        if not decision.allows:
            raise stopped(decision)

    async def _judged(
        self, judging: Judging, answered: Answered, messages: Sequence[BaseMessage]
    ) -> BaseMessage | None:
        text = judging.text_in(answered.message)
        if text is None:
            if answered.permit is not None:
                answered.permit.success()
            return None
        said: BaseMessage | None = answered.message
        try:
            with self.timed():
                said = await judging.judge(answered, text, messages)
        except Overdue:
            await self._step()
            raise
        finally:
            if said is not None:
                self._unsaid(answered.message)
        return said

    def _unsaid(self, message: AIMessage) -> None:
        """Have an answer that nobody gets in the account of the run all the same: it was paid."""
        run = current_run()
        if run is not None:
            name = str(message.response_metadata.get("model_name") or "")
            run.record_usage(self.place.path, message.usage_metadata, name)

    def tool(self, use: ToolUse) -> Coroutine[object, object, object]:
        """Have a tool run, if it may, and see whether it leads anywhere."""
        return self.using.use(use)

    async def unrun(self, call: UnrunCall) -> None:
        """See a call that nothing ran for: a model may make it again and again."""
        await self.using.unrun(call)

    @property
    def using(self) -> Using:
        """What decides on tools."""
        return Using(
            self.policy,
            self.place,
            self.account,
            self.recorder,
            resumption=self.resumption,
        )

    async def handoff(self, target: str, digest: str, *, is_return: bool = False) -> Refusal | None:
        """Let the conversation move to a peer, or back, or say who does not and why."""
        account, policy = self.account, self.policy
        if policy.hops is not None and not is_return:
            decision = policy.hops.check(account.hops, account.granted)
            if not decision.allows:
                await self.recorder.decided(decision)
                return Refusal(decision.guard, decision.cause)
        if account.deadlock is not None:
            moved = account.deadlock.handoff(
                source=self.place.name, target=target, digest=digest, branch=self.place.visit
            )
            if not moved.allows:
                await self._met(moved)
                if moved.action != "correct":
                    return Refusal(moved.guard, moved.cause)
        if not is_return:
            account.moved.count(self.recorder.speaker)
        self.recorder.note("handoff", source=self.place.path, target=target, hop=not is_return)
        return None

    async def dispatch(self, workers: Sequence[str]) -> Mapping[int, str]:
        """Let workers begin; say of each that must not, by its position, why not."""
        refused: dict[int, str] = {}
        policy = self.policy
        if policy.depth is not None:
            decision = policy.depth.check(self.place.depth + 1)
            if not decision.allows:
                await self.recorder.decided(decision)
                return dict.fromkeys(range(len(workers)), decision.cause)
        if policy.fan_out is not None:
            decision = policy.fan_out.check(len(workers))
            if not decision.allows:
                await self.recorder.decided(decision)
                beyond = range(policy.fan_out.children, len(workers))
                refused = dict.fromkeys(beyond, decision.cause)
        for position, worker in enumerate(workers):
            if position not in refused:
                self.recorder.note("dispatch", source=self.place.path, target=worker)
        return refused

    async def reported(
        self, worker: str, brief: str, reply: str, message_id: str, work: str = ""
    ) -> None:
        """Note what a worker has answered: one that always says the same is stuck."""
        monitor = self.account.deadlock
        if monitor is not None:
            said = {"worker": worker, "brief": brief, "reply": reply, "message": message_id}
            await self._met(monitor.dispatch(**said, work=work))

    async def _met(self, decision: Decision) -> None:
        """Have the model told, or leave it to the next node that can act."""
        if decision.allows:
            return
        if decision.action == "correct":
            await self.recorder.decided(decision)
            self.account.correct(self.place.spot, decision.cause)
            return
        self.account.pend(self.place.spot, await self.recorder.by_table(decision))


def _heard(message: AIMessage, said: BaseMessage) -> list[BaseMessage]:
    """Return what its model hears of an answer; one that was given by a call is answered there."""
    calls = calls_of(message)
    if not calls:
        return [said]
    return [
        ToolMessage(said.text, tool_call_id=c["id"] or "", name=c["name"], status="error")
        for c in calls
    ]


def stopped(decision: Decision) -> GuardStopped:
    """Return the error that carries a decision to the patcher."""
    return GuardStopped(decision, f"{decision.guard}: {decision.cause}")
