"""The interceptor of an agent: its nodes ask it before a model call, a tool call or a handoff.

It implements `agentgraph.interception.Interceptor`. Model calls and tool calls are guarded in
`model_call` and `tool_call`, moves of the conversation here. It decides, records the decision, and
returns it or raises `GuardStopped`; the wrappers of the nodes carry it out in the graph, see
`agent_graph`.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables import RunnableConfig

from agentgraph.graphs.task import (
    read_state,
    read_value,
    stores_each_step,
    stores_meanwhile,
    thread_in,
)
from agentgraph.guards.decision import Decision
from agentgraph.guards.guard import Hook
from agentgraph.guards.mechanisms.deadlock import DeadlockMonitor
from agentgraph.guards.nodes.approval import run_approved
from agentgraph.guards.nodes.extra_guards import keeps_running, objection
from agentgraph.guards.nodes.foreign.calls import input_message_id
from agentgraph.guards.nodes.foreign.watch import Watch, watched_by
from agentgraph.guards.nodes.judgement import check_edit, input_of, judge_input, without_input
from agentgraph.guards.nodes.model_call import GuardedModelCall, admit_call
from agentgraph.guards.nodes.site import Site, stop_error
from agentgraph.guards.nodes.tool_call import GuardedToolCall, observe_skipped
from agentgraph.guards.nodes.user_code import run_code
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.effect_log import EffectLog
from agentgraph.guards.records.enclosure import Enclosure, OuterLedger
from agentgraph.guards.records.pending_writes import (
    PendingWrites,
    pending_writes_of,
    resumption_of,
)
from agentgraph.guards.records.registry import account_of, retain
from agentgraph.interception import (
    Admission,
    Code,
    Ledger,
    ModelCall,
    OuterCall,
    Refusal,
    SkippedCall,
    ToolUse,
    current_ledger,
)
from agentgraph.running import Run, current_delegation, current_run

T = TypeVar("T")

_BY_TOOLS = "tools"
"""The author of a deferred answer that comes from a tool and not from a human."""


class NodeInterceptor:
    """The guards of one agent around the calls of one node at a time."""

    def __init__(self, site: Site, values: Mapping[str, Any], *, may_defer: bool = False) -> None:
        self.site = site
        self.account = site.account
        self.may_defer = may_defer
        """Whether the next node may store the account, if nothing in it is urgent."""
        self.begin(values)

    def begin(self, values: Mapping[str, Any]) -> None:
        """Begin at a node, with the channels of its graph: the account, the turn, a human's answer.

        A human's answer counts only for its own input, and for the first call of the node.
        """
        self.values = values
        self.turn: Mapping[str, Any] = values.get("turn") or {}
        answer = values.get("human")
        is_current = answer and answer.get("input") == self.account.input_id and "by" in answer
        self._answer = answer if is_current else None
        self._has_asked = False
        self.notices: list[BaseMessage] = []
        """The notices that replace the messages of a refused input."""
        self.has_answered = False
        """Whether the last answer is the guards' or a human's, and no model's."""
        self._failures: list[tuple[ModelCall, Exception]] = []

    def log_effects_of(self, config: RunnableConfig) -> None:
        """Log what the actions of this input come to, on the thread that its run is stored on."""
        thread = thread_in(config) if self.site.ledger is None else None
        if thread is not None:
            self.account.effect_log = EffectLog(*thread, is_ahead=not stores_each_step(config))

    @property
    def stores_later(self) -> bool:
        """Whether the next node may store the account together with its own changes."""
        account = self.account
        is_urgent = account.has_acted or account.pending or account.corrections or account.closed_by
        return self.may_defer and not is_urgent

    async def judge_input(self, messages: Sequence[BaseMessage]) -> Decision | None:
        """Return the decision that ends the run where a gate refuses what the user says, or None.

        `messages` are the conversation; `notices` then replace what was said.
        """
        ledger = self.site.ledger
        inputs = input_of(messages, self._before_input())
        if ledger is None:
            texts = [str(message.text) for message in inputs]
        else:  # a speaker sees it beside what others have said
            texts = [await ledger.input_text()]
        refusal = await judge_input(self.site, texts)
        if refusal is None:
            return None
        self.notices = without_input(inputs, refusal.cause)
        return await self.site.decide(refusal)

    def _before_input(self) -> str | None:
        """Return the id of the message before this input, "" where that is not known."""
        if "after" in self.turn:
            after: str | None = self.turn["after"]
            return after
        # Whoever stores no thread sends all that was said before, refused or not.
        return "" if self.values.get("guarded") else None

    async def open_model_call(
        self, messages: Callable[[], Sequence[AnyMessage]] | None = None
    ) -> Decision:
        """Decide whether this agent's model may be asked, and count the call.

        Where it is the first one of its node, `messages` returns the conversation.
        """
        if messages is not None and self.site.policy.gates and self.site.policy.judges_input:
            refusal = await self.judge_input(messages())
            if refusal is not None:
                return refusal
        author = None if self._answer is None else self._answer["by"]
        if author not in (None, _BY_TOOLS):
            return Decision("allow", "human")
        decision = self.account.take_pending(self.site.place.visit_key)
        if decision is not None:
            return decision  # it was recorded when it was made
        return await admit_call(self.site) if author is None else Decision("allow", "none")

    async def ask_model(self, call: ModelCall) -> AIMessage:
        """Ask a model until its answer passes, or return the answer of a human or a tool."""
        if self._has_asked:
            await self._reopen(call)
        self._has_asked = True
        answer, self._answer = self._answer, None
        message = None if answer is None else AIMessage(answer["text"])
        if answer is not None and message is not None and answer["by"] != _BY_TOOLS:
            if answer["by"] == "edit":
                await check_edit(self.site, answer["text"], call.messages)
            self.has_answered = True
            return message
        guarded_call = GuardedModelCall(self.site, call)
        try:
            response = await guarded_call.run(message)
            self.has_answered = response is not guarded_call.model_message
            return response
        finally:
            if guarded_call.failure is not None and self.retries_models:
                self._failures.append((call, guarded_call.failure))

    async def _reopen(self, call: ModelCall) -> None:
        """Admit a further model call of the same node, which middleware makes."""
        for failed_call, failure in self._failures:
            # One layer retries: middleware must not repeat a call that this layer has given up on.
            if failed_call.model is call.model and failed_call.messages == call.messages:
                raise failure
        decision = await self.open_model_call()
        if not decision.allows:
            raise stop_error(decision)

    @property
    def retries_models(self) -> bool:
        """Whether the guards try a failed model call again."""
        return self.site.policy.retry is not None

    @property
    def judges_answers(self) -> bool:
        """Whether a gate or a critic judges the answers of this agent's model."""
        return self.site.policy.judges

    def defer_text(self, text: str) -> Mapping[str, Any]:
        """Return the update by which the model's next node judges the answer of a tool."""
        if not self.judges_answers:
            return {}
        self.account.may_ask = True
        return {"human": {"text": text, "by": _BY_TOOLS, "input": self.account.input_id}}

    def run_tool(self, use: ToolUse) -> Coroutine[object, object, object]:
        """Run a tool, if it may run, and observe its answer for loops."""
        if self.site.policy.interrupt_on is None:
            return GuardedToolCall(self.site, use).run()
        return run_approved(self.site, use)

    async def tool_skipped(self, call: SkippedCall) -> None:
        """Count a call that was answered although no tool ran."""
        await observe_skipped(self.site, call)

    def enclosure(self, call: OuterCall) -> Enclosure:
        """Return what the guards know of a tool call of this agent in which a run begins."""
        site = self.site
        account, path = site.account, f"{site.place.path}/{call.tool}"
        ledger = account.outer_ledger
        if call.ledger is not None:
            ledger = OuterLedger(call.ledger, account.path_prefix)
        if call.loop is not _get_running_loop():  # None in a synchronous tool
            ledger = None  # another loop must not use the connections of the log
        return Enclosure(account, site.policy, path, site.place.depth, ledger)

    def watch(self) -> AbstractContextManager[object]:
        """Return what watches the code of a tool: the models and tools that it calls itself."""
        return watched_by(Watch(self.site, is_tool=True))

    async def run_code(self, code: Code[T], turn: Mapping[str, Any] | None = None) -> T:
        """Run code of the user, such as a prompt function, as a tool is run."""
        return await run_code(self, code)

    def time_limit(self) -> AbstractContextManager[object]:
        """Return the time limit of the stage or of the whole run, whichever comes first."""
        return self.site.time_limit()

    async def handoff(
        self,
        target: str,
        digest: str,
        *,
        returns_from: str | None = None,
        levels: int = 0,
        brief: str = "",
    ) -> Refusal | None:
        """Count a move of the conversation; return a refusal if it may not be made."""
        is_return = returns_from is not None
        site, account, policy = self.site, self.account, self.site.policy
        if levels and policy.depth is not None:
            decision = policy.depth.check(site.level + levels)
            if not decision.allows:
                await site.decide(decision)
                return Refusal(decision.guard, decision.cause)
        if policy.extra_guards and (denial := await self._objection_to("on_handoff", target)):
            return denial
        progress = account.spending.progress
        if policy.hops is not None and not is_return:
            decision = policy.hops.check(progress.handoffs, account.spending.grants)
            if not decision.allows:
                await site.decide(decision)
                return Refusal(decision.guard, decision.cause)
        if account.deadlock is not None:
            refusal = await self._refused_as_deadlock(
                account.deadlock, target, digest, brief=brief, returns_from=returns_from
            )
            if refusal is not None:
                return refusal
        if is_return:
            progress.handoffs = 0
        else:
            progress.handoffs += 1
            account.hop_count.count(site.speaker)
        site.record("handoff", source=site.place.path, target=target, hop=not is_return)
        if policy.extra_guards:
            await site.note("handoff", tool=target, data={"hop": not is_return})
        return None

    async def _refused_as_deadlock(
        self,
        monitor: DeadlockMonitor,
        target: str,
        digest: str,
        *,
        brief: str,
        returns_from: str | None,
    ) -> Refusal | None:
        """Return the refusal of a move of agents that tell each other nothing new, else None."""
        branch, source = self.site.place.visit, self.site.place.name
        if brief and monitor.tell(brief, branch=branch):
            self.account.learn(brief)
        decision = monitor.handoff(source=source, target=target, digest=digest, branch=branch)
        if decision.allows and returns_from is not None:
            digest = returns_from
            decision = monitor.give_back(
                worker=source, supervisor=target, state=digest, branch=branch
            )
        if decision.allows:
            return None
        decision = monitor.correct(
            decision, source=source, target=target, digest=digest, branch=branch
        )
        if decision.action == "correct":  # the refusal tells the model
            await self.site.decide(decision)
        else:
            await self._correct_or_postpone(decision)
        return Refusal(decision.guard, decision.cause)

    async def _objection_to(self, hook: Hook, target: str) -> Refusal | None:
        """Return the refusal of a user's guard; the next node may end the run by it."""
        decision = await objection(self.site, hook, tool=target)
        if decision is None:
            return None
        await self.site.decide(decision)
        if not keeps_running(decision):
            self.account.postpone(self.site.place.visit_key, decision)
        return Refusal(decision.guard, decision.cause)

    async def dispatch(self, workers: Sequence[str], *, levels: int = 1) -> Admission:
        """Count the workers that begin now, and say which must wait, and which may not begin.

        They work so many levels below this one.
        """
        site, policy = self.site, self.site.policy
        refusals: dict[int, str] = {}
        guard = ""
        most_at_once: int | None = None
        progress, grants = self.account.spending.progress, self.account.spending.grants
        if policy.depth is not None:
            decision = policy.depth.check(site.level + levels)
            if not decision.allows:
                await site.decide(decision)
                every = range(len(workers))
                return Admission(dict.fromkeys(every, decision.cause), guard=decision.guard)
        if policy.fan_out is not None:
            most_at_once = policy.fan_out.children
            decision = policy.fan_out.ask(len(workers), progress.workers, grants)
            if not decision.allows:
                await site.decide(decision)
                room = policy.fan_out.room(progress.workers, grants) or 0
                refusals = dict.fromkeys(range(room, len(workers)), decision.cause)
                guard = decision.guard
        if beyond_limit := await self._beyond_tool_limit(workers, most_at_once, refusals):
            refusals, guard = {**refusals, **beyond_limit}, "tool_limit"
        count = 0
        for at, worker in enumerate(workers):
            if at in refusals or count == most_at_once:
                continue
            if policy.extra_guards and (denial := await self._objection_to("on_dispatch", worker)):
                refusals[at], guard = denial.why, denial.guard
                continue
            count += 1
            progress.workers += 1
            site.record("dispatch", source=site.place.path, target=worker)
            if policy.extra_guards:
                await site.note("dispatch", tool=worker)
        return Admission(refusals, most_at_once, guard)

    async def _beyond_tool_limit(
        self, workers: Sequence[str], most_at_once: int | None, refusals: Mapping[int, str]
    ) -> Mapping[int, str]:
        """Count the agents that begin as tools, and refuse those beyond the limit of their tool."""
        limit, denials = self.site.policy.tool_limit, {}
        if limit is None:
            return {}
        count = 0
        for at, worker in enumerate(workers):
            if at in refusals or count == most_at_once:
                continue
            decision = limit.ask(worker, "", self.account.spending.tool_calls)
            count += decision.allows
            if not decision.allows:
                await self.site.decide(decision)
                denials[at] = decision.cause
        return denials

    async def report(
        self, worker: str, brief: str, reply: str, message_id: str, work: str = ""
    ) -> None:
        """Count a worker's reply: a worker that always replies the same is stuck."""
        self.account.spending.progress.handoffs = 0
        self.account.learn(reply, f"{worker} {brief}")
        monitor = self.account.deadlock
        if monitor is not None:
            texts = {"worker": worker, "brief": brief, "reply": reply, "message": message_id}
            await self._correct_or_postpone(monitor.dispatch(**texts, work=work))

    async def _correct_or_postpone(self, decision: Decision) -> None:
        """Correct the model, or leave the decision to the next node that can act on it."""
        visit = self.site.place.visit_key
        if decision.allows:
            return
        if decision.action == "correct":
            await self.site.decide(decision)
            self.account.correct(visit, decision.cause)
            return
        self.account.postpone(visit, await self.site.decide_by_table(decision))


# Which interceptor a node has.


def interceptor_of(
    policy: Policy,
    place: Place,
    channels: tuple[str, ...],
    state: Mapping[str, Any],
    config: RunnableConfig,
    *,
    reuses: bool = False,
) -> NodeInterceptor:
    """Return the interceptor at a node of an agent's own graph; guards read these `channels`.

    With `reuses` it is the interceptor of the run's last model node, as long as that is valid.
    """
    run = current_run()
    if reuses and run is not None and (interceptor := _previous(run, place, state)) is not None:
        return interceptor
    ledger = current_ledger()
    values: Mapping[str, Any]
    if "turn" in state and "guarded" in state:
        values = {"turn": state["turn"], "guarded": state["guarded"]}
    else:  # a task of a `Send`, or the first node
        values = read_state(config, channels)
    pending_writes = durable_writes(config, ledger)
    account = _account_at(policy, values, state, run, ledger, pending_writes)
    policy = account.enclosed(policy)
    if run is not None:
        _join_run(run, account, ledger)
    elif pending_writes is not None:
        retain(account)
    if account.may_ask and "human" not in values:
        values = {**values, "human": read_value(config, "human")}  # nodes do not get that channel
    # A run of an agent has no breakpoints, and a waiting model node writes the account itself.
    may_defer = run is not None and ledger is None and stores_meanwhile(config)
    site = site_at(policy, place, account, config, ledger, pending_writes)
    return NodeInterceptor(site, values, may_defer=may_defer)


def _previous(run: Run, place: Place, state: Mapping[str, Any]) -> NodeInterceptor | None:
    """Return the interceptor of the run's last model node, None where it is not valid here.

    It saves reading the state again. It is valid in the same visit, as long as no human was asked
    and no other node or process has written the account.
    """
    interceptor = run.interceptor
    if not isinstance(interceptor, NodeInterceptor) or interceptor.account.may_ask:
        return None
    known_place, turn, snapshot = interceptor.site.place, state.get("turn"), state.get("guarded")
    is_here = known_place.path == place.path and known_place.visit == current_delegation()
    if not is_here or (turn and turn.get("closed")) or snapshot is not interceptor.account.snapshot:
        return None
    interceptor.begin({"turn": turn, "guarded": snapshot})
    return interceptor


def _account_at(
    policy: Policy,
    values: Mapping[str, Any],
    state: Mapping[str, Any],
    run: Run | None,
    ledger: Ledger | None,
    pending_writes: PendingWrites | None,
) -> Account:
    """Return the account of the node's input, merged with the account in the graph's state."""
    turn, snapshot = values.get("turn") or {}, values.get("guarded")
    if ledger is not None:
        account = account_of(policy, ledger.input_id, snapshot, ledger, ledger.id_scope)
    else:
        input_id = turn.get("id") or input_message_id(state.get("messages") or ())
        scope = None if pending_writes is None else pending_writes.saver
        scope = scope if run is None or run.owner is None else run.owner
        account = account_of(policy, input_id, snapshot, None, scope)
    account.closed_by = account.closed_by or turn.get("closed") or ""
    return account


def durable_writes(config: RunnableConfig, ledger: Ledger | None) -> PendingWrites | None:
    """Return the pending writes that record each model call before it is made, None without them.

    In a session the log records the call. Elsewhere calls are recorded where each step is stored
    before the next one: with that durability a kill must lose nothing.
    """
    return pending_writes_of(config) if ledger is None and stores_each_step(config) else None


def site_at(
    policy: Policy,
    place: Place,
    account: Account,
    config: RunnableConfig,
    ledger: Ledger | None,
    pending_writes: PendingWrites | None,
) -> Site:
    """Return the site of an agent in this visit to it."""
    if place.visit != (visit := current_delegation()):
        place = replace(place, visit=visit)
    thread_id = str(config.get("configurable", {}).get("thread_id") or "")
    resumption = resumption_of(config) if ledger is None else None
    policy = policy.at(place.path)
    return Site(policy, place, account, thread_id, ledger, pending_writes, resumption)


def _join_run(run: Run, account: Account, ledger: Ledger | None) -> None:
    """Keep the account alive as long as its run; begin or resume the run's deadlines."""
    if run.account is None and account.version == 0 and ledger is None:
        account.begin(run.began_at + run.reader_wait_s)
    run.account = account if account.parent is None else account.root
    run.enclosed_account = account
    if run.is_resumed:
        account.may_ask = True  # maybe in another process, which knows more
        account.resume(run.id)
