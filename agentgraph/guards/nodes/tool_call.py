"""A guarded tool call: run once under its key, if gates and limits allow it, and watched for loops.

A tool marked with `@effect` is an action. Its registration is stored before it runs, and its
outcome after it, so that a run that begins again neither repeats nor forgets it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, cast

from langchain_core.messages import BaseMessage, ToolMessage, convert_to_messages
from pydantic_core import to_json

from agentgraph.errors import kind_of
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.effects import Effect, effect_of
from agentgraph.guards.mechanisms.gates.gate import Subject
from agentgraph.guards.mechanisms.loop import INSTEAD, attempts_beyond_patience
from agentgraph.guards.mechanisms.saga import Registration, Saga
from agentgraph.guards.mechanisms.saga_entry import Entry
from agentgraph.guards.mechanisms.spending.tool_limit import ToolLimit
from agentgraph.guards.nodes.extra_guards import act_on, keeps_running, objection
from agentgraph.guards.nodes.foreign.watch import Forbidden
from agentgraph.guards.nodes.site import Overdue, Site
from agentgraph.interception import (
    ControlFlow,
    LedgerUnavailable,
    Report,
    SkippedCall,
    ToolUse,
    collected_reports,
)
from agentgraph.outcomes import Finish, Handoff, Note, current_notes, take_note
from agentgraph.participant import HANDOFF_TOOL
from agentgraph.patching import written_by

_MOST_SHOWN = 1_000
"""How many characters are shown of an action's arguments, where it answers a different call."""


class RegisterFirst(ControlFlow):
    """The action is registered; it may run once the graph's state has stored the registration."""


class GuardedToolCall:
    """One call of a tool at a site."""

    def __init__(self, site: Site, use: ToolUse) -> None:
        self._site = site
        self._use = use
        self._effect = effect_of(use.tool)

    async def run(self) -> object:
        """Run the tool; return its result, its earlier result, or an answer why it may not run."""
        site, use, effect = self._site, self._use, self._effect
        saga = site.account.saga if effect is not None else None
        if effect is not None and saga is not None:
            earlier = await self._begin(saga, effect)
            if earlier is not None:
                return earlier
        denial = await refusal(site, use)
        if denial is not None:
            if saga is not None:
                await self._keep(saga.failed(use.key))
            return denial
        site.record("tool", tool=use.name, key=use.key)
        try:
            return await (self._run() if saga is None else self._act(saga))
        except Overdue as error:
            if not is_cut_off(error):
                raise
            return await cut_off(site, use, error)
        except Forbidden as stop:
            await site.decide(replace(stop.decision, action="deny"))
            cause = f"`{use.name}` was broken off: {stop.decision.cause}"
            return _answer(
                use, f"Error: {cause}. What it has done so far is not known.", failed=True
            )

    async def _run(self) -> object:
        """Run the tool within its time limit, and observe its answer."""
        site, use, effect = self._site, self._use, self._effect
        limit = site.policy.tool_limit
        reports: Collection[Report] = ()
        try:
            with collected_reports() as reports:
                result = await site.cut_off(use.run, site.policy.deadlines.tool_s, "tool")
        except ControlFlow:
            raise
        except Exception as error:
            if limit is not None:
                limit.end(use.name, use.key, site.account.spending.tool_calls)
            await observe_reports(site, use.name, reports)
            if effect is not None and not is_cut_off(error):
                site.account.in_flight.failed_keys.add(use.key)
            await _observe(site, use, effect, kind_of(error), failed=True)
            raise
        if limit is not None:
            limit.end(use.name, use.key, site.account.spending.tool_calls)
        if reports:
            await observe_reports(site, use.name, reports)
        # A handoff, or a goto to another node, has no result yet that could be observed.
        is_handoff = isinstance(getattr(result, "artifact", None), Handoff)
        if isinstance(result, ToolMessage) and not is_handoff:
            has_failed = result.status == "error"
            await _observe(site, use, effect, result.content, failed=has_failed)
        elif (updates := written_by(result)) is not None:
            content, has_failed = _content_of(updates)
            await _observe(site, use, effect, content, failed=has_failed)
        return result

    # Actions.

    async def _act(self, saga: Saga) -> object:
        """Run a tool that changes the world, and store its outcome."""
        key, running_keys = self._use.key, self._site.account.in_flight.running_keys
        notes = current_notes()
        before = len(notes or ())
        await self._site.account.log_effects()
        running_keys.add(key)  # a call that is cut off stays here: its outcome is unknown
        try:
            result = await self._run()
        except LedgerUnavailable:
            raise
        except ControlFlow:
            running_keys.discard(key)
            await self._keep(saga.waits(key))
            raise
        except Exception as error:
            if not is_cut_off(error):  # else its outcome is unknown
                running_keys.discard(key)
            raise
        running_keys.discard(key)
        if isinstance(result, ToolMessage) and result.status == "error":
            # ToolNode answers "error" to arguments that do not fit: nothing has run.
            await self._keep(saga.failed(key))
        else:
            text = str(result.text) if isinstance(result, ToolMessage) else ""
            await self._keep(saga.done(key, text, beside_of(result, (notes or [])[before:])))
        return result

    async def _begin(self, saga: Saga, effect: Effect) -> ToolMessage | None:
        """Register an action; return an answer with its outcome where it has begun before.

        None means that the action may run now.
        """
        site, use, in_flight = self._site, self._use, self._site.account.in_flight
        if use.key in in_flight.failed_keys:
            in_flight.failed_keys.discard(use.key)
            return None
        if use.key in in_flight.registered_keys:
            in_flight.registered_keys.discard(use.key)
            pending_writes = in_flight.to_mark.pop(use.key, None)
            if pending_writes is None or await pending_writes.mark_begun(use.key):
                return None
        account = site.account
        if account.enclosure is not None:
            account.root.effects[f"{site.path}:{use.name}"] = effect
        has_waited = saga.is_waiting(use.key)
        begin = partial(
            saga.begin,
            key=use.key,
            tool=f"{site.place.path}:{use.name}",
            args=use.args,
            compensates=effect.compensate is not None,
            call_id=use.call_id,
        )
        registration = begin()
        match registration.kind:
            case "run":
                if has_waited and site.resumption is not None and not await self._resumes():
                    return await self._look_up(saga, effect, begin())
                await self._store(registration, has_waited)
                return None
            case "replay":
                return answer_again(registration, use.name)
            case "unknown":
                return await self._look_up(saga, effect, registration)
            case "conflict" if answer := await self._answer_of_another(saga, effect, registration):
                return answer
        return await self._refuse(registration)

    async def _store(self, registration: Registration, has_waited: bool) -> None:
        """Store the registration before the action runs: in the log, or in the graph's state."""
        site, use = self._site, self._use
        entry = registration.entry.to_dict() if registration.entry is not None else {}
        site.record("effect", tool=use.name, key=use.key, state="started")
        is_logged = await site.log(kind="effect", entry=entry)
        # A task that is resumed with a human's answer would lose the answer if it began again.
        if not is_logged and not has_waited:
            site.account.in_flight.registered_keys.add(use.key)
            raise RegisterFirst

    async def _look_up(
        self, saga: Saga, effect: Effect, registration: Registration
    ) -> ToolMessage | None:
        """Look up the outcome of an action that was cut off; None where it must run (again)."""
        use = self._use
        if effect.lookup is not None:
            result = await effect.look_up(use.args, key=use.key)
            if result is None:
                return None  # it never happened, and is still registered
            await self._keep(saga.done(use.key, str(result)))
            return _answer(use, str(result))
        if await self._resumes():
            return None  # the earlier process could not store that the action waits
        return await self._refuse(registration)

    async def _resumes(self) -> bool:
        """Note that the action resumes with a human's answer; False if it did so before."""
        site, key = self._site, self._use.key
        if site.resumption is None or key in site.account.in_flight.running_keys:
            return False
        return await site.resumption.mark_begun(key)

    async def _answer_of_another(
        self, saga: Saga, effect: Effect, registration: Registration
    ) -> ToolMessage | None:
        """Answer with the action that was done under this key with other arguments, None without.

        A round that runs again asks its model again, which may write a call differently.
        """
        use, entry = self._use, registration.entry
        if entry is not None and entry.state == "started" and effect.lookup is not None:
            result = await effect.look_up(entry.args, key=use.key)
            if result is not None:
                entry = saga.done(use.key, str(result))
                await self._keep(entry)
        if entry is None or entry.state != "done":
            return None
        await self._site.decide(registration.decision)
        answer = answer_again(replace(registration, entry=entry), use.name)
        args = to_json(entry.args, fallback=str, inf_nan_mode="null").decode()[:_MOST_SHOWN]
        prefix = f"Not executed anew: `{use.name}` was called with {args} before, and answered: "
        return answer.model_copy(update={"content": prefix + str(answer.text)})

    async def _refuse(self, registration: Registration) -> ToolMessage:
        """Answer that an action is not run: its outcome is unknown, or its arguments differ."""
        # The model gets this answer in any case, also where the run ends or a human is asked.
        site = self._site
        decision = await site.decide_by_table(registration.decision, possible=True)
        if decision.action in ("escalate", "abort"):
            site.account.postpone(site.place.visit_key, decision)
        return _answer(self._use, f"Not executed: {decision.cause}.", failed=True)

    async def _keep(self, entry: Entry) -> None:
        """Record the outcome of an action in the audit trail, and in a session in its log."""
        site = self._site
        site.account.has_acted = True
        site.record("effect", tool=entry.tool, key=entry.key, state=entry.state)
        await site.log_effect(entry)
        await site.note("effect", tool=self._use.name, failed=entry.state == "failed")


async def cut_off(site: Site, use: ToolUse, error: Overdue) -> ToolMessage:
    """Record that a call has had its time, and return its answer: the run goes on."""
    cause = f"`{use.name}` was {error}"
    evidence = {"tool": use.name, "limit_s": site.policy.deadlines.tool_s}
    await site.decide(Decision("deny", "deadline", cause, evidence={"layer": "tool", **evidence}))
    return _answer(use, f"Error: {cause}. What it has done so far is not known.", failed=True)


def is_cut_off(error: Exception) -> bool:
    """Tell whether a call was cut off by its own limit, and not by that of a stage or an input."""
    return isinstance(error, Overdue) and error.layer == "tool"


# Whether a tool may run.


async def refusal(
    site: Site, use: ToolUse, messages: Sequence[BaseMessage] | None = None
) -> ToolMessage | None:
    """Return the answer that says why a tool may not run, None where it may."""
    decision = await denial_of(site, use, messages)
    return None if decision is None else denial_message(use, decision)


def denial_message(use: ToolUse, decision: Decision) -> ToolMessage:
    """Return the answer to a call that a decision denies."""
    return _answer(use, f"Not executed: {decision.cause}.", failed=True)


async def denial_of(
    site: Site, use: ToolUse, messages: Sequence[BaseMessage] | None = None
) -> Decision | None:
    """Return the recorded decision that a tool may not run, None where it may.

    `messages` are the conversation, if it is not that of the tool call around this code.
    """
    account, visit = site.account, site.place.visit_key
    if account.ended_by and effect_of(use.tool) is not None:
        cause = f"{account.ended_by} has ended the run: nothing more is to be done"
        return await site.decide(Decision("deny", "saga", cause))
    for spend in account.spends_under(site.policy):
        if (decision := spend.exhausted()) is not None:
            account.postpone(visit, await site.decide_by_table(decision))
            return decision
    deadline = site.deadline()
    late = deadline.check() if deadline is not None else None
    if late is not None and not late.allows:
        return late  # the next model node makes the same decision, and acts on it
    denial = await _denied_by_gate(site, use) if site.policy.gates else None
    if denial is None and site.policy.extra_guards:
        denial = await _denied_by_extra_guard(site, use, messages)
    if denial is None and site.policy.tool_limit is not None:
        return await _denied_by_limit(site, use, site.policy.tool_limit)
    return denial


async def _denied_by_extra_guard(
    site: Site, use: ToolUse, messages: Sequence[BaseMessage] | None
) -> Decision | None:
    """Return the decision of a user's guard that does not let a call pass, else None."""
    decision = await objection(
        site, "before_tool", messages=messages, tool=use.name, args=use.args, call_id=use.call_id
    )
    if decision is None:
        return None
    await site.decide(decision)
    if not keeps_running(decision):
        site.account.postpone(site.place.visit_key, decision)
    await _observe(site, use, effect_of(use.tool), "", failed=True, has_run=False)
    return decision


async def _denied_by_limit(site: Site, use: ToolUse, limit: ToolLimit) -> Decision | None:
    """Return the denial of a call beyond the limit of its tool, else None and count the call."""
    if use.name not in limit.tools:
        return None
    account = site.account
    decision = limit.ask(use.name, use.key, account.spending.tool_calls)
    if decision.allows:
        account.has_acted = True  # the count is stored with this node
        return None
    await site.decide(decision)
    await _observe(site, use, effect_of(use.tool), "", failed=True, has_run=False)
    return decision


async def _denied_by_gate(site: Site, use: ToolUse) -> Decision | None:
    """Return the denial of a call that fails a gate, else None; it counts as a failed call."""
    place = site.place
    context = {"agent": place.path, "steps": site.account.spending.progress.steps}
    subject = Subject(place.name, use.name, use.args, context=context)
    for gate in site.policy.gates:
        result = await site.until_deadline(gate.check_call(subject, place.path))
        if isinstance(result, Decision):
            return result  # the next model node makes the same decision, and acts on it
        validation = result.to_dict()
        if result.checks:
            site.record("gate", tool=use.name, **validation)
        if not result.passed:
            evidence: Mapping[str, object] = {"validation": validation}
            decision = Decision("deny", "gate", result.cause, result.failure_class, evidence)
            await site.decide(decision)
            await _observe(site, use, effect_of(use.tool), "", failed=True, has_run=False)
            return decision
    return None


# Loops.


async def observe_answer(site: Site, use: ToolUse, answer: ToolMessage) -> None:
    """Record and observe the answer of a tool that ran without guards around it."""
    site.record("tool", tool=use.name)
    has_failed = answer.status == "error"
    await _observe(site, use, effect_of(use.tool), answer.content, failed=has_failed)


async def observe_reports(site: Site, tool: str, reports: Collection[Report]) -> None:
    """Record and observe the steps that a tool has reported, each as a call of its own."""
    for name, args, result, has_failed in reports:
        site.record("tool", tool=name, within=tool, failed=has_failed)
        call = SkippedCall(name, args, "", "", has_failed)
        await _observe(site, call, None, result, failed=has_failed)


async def observe_skipped(site: Site, call: SkippedCall) -> None:
    """Observe a call that was answered although no tool ran."""
    effect = effect_of(site.place.tools.get(call.name))
    await _observe(site, call, effect, call.answer, failed=call.failed)


async def _observe(
    site: Site,
    use: ToolUse | SkippedCall,
    effect: Effect | None,
    result: object,
    *,
    failed: bool,
    has_run: bool = True,
) -> None:
    """Show a call to the loop detector; a loop is acted on by the model's next call or node."""
    account, visit, detector = site.account, site.place.visit_key, site.policy.loop
    if has_run and site.policy.extra_guards:
        await _note_call(site, use, result, failed=failed)
    if not failed and isinstance(use, ToolUse):
        account.spending.progress.handoffs = 0
        account.learn(result, f"{use.name} {use.args!r}")
    if detector is None:
        return
    decision = account.loop(visit, detector).observe(
        tool=use.name,
        args=use.args,
        result=result,
        failed=failed,
        volatile=effect.volatile if effect is not None else _volatile_in_move(use.name),
        poll=effect.poll if effect is not None else False,
        message=use.message_id,
    )
    if decision.action == "correct":
        if visit in account.pending:
            return  # the run ends: nobody would read it
        await site.decide(decision)
        account.correct(visit, decision.cause)
    elif attempts := attempts_beyond_patience(decision):
        final = await site.decide_by_table(decision, attempts=attempts, possible=True)
        if final.action == "correct":
            account.correct(visit, f"{final.cause}. {INSTEAD}")
        else:
            account.postpone(visit, final)


async def _note_call(
    site: Site, use: ToolUse | SkippedCall, result: object, *, failed: bool
) -> None:
    """Record a call that has run, and ask the guards of users about its answer."""
    call_id = use.call_id if isinstance(use, ToolUse) else ""
    args = use.args if isinstance(use.args, Mapping) else {"input": use.args}
    await site.note(
        "tool", tool=use.name, call_id=call_id, args=use.args, result=result, failed=failed
    )
    decision = await objection(
        site,
        "after_tool",
        tool=use.name,
        args=args,
        call_id=call_id,
        result=result,
        failed=failed,
    )
    if decision is not None:
        await act_on(site, decision)


def _volatile_in_move(tool: str) -> tuple[str, ...]:
    """Return what does not make a move of the conversation another one: why it is to be made."""
    is_move = tool in (HANDOFF_TOOL, "request_help") or tool.startswith("transfer_to_")
    return ("reason", "summary") if is_move else ()


def _content_of(updates: Sequence[Mapping[str, Any]]) -> tuple[object, bool]:
    """Return what a tool writes to the state, without ids, and whether it reports a failure."""
    messages_written = [update.get("messages") or [] for update in updates]
    messages = [m for part in messages_written for m in convert_to_messages(_as_list(part))]
    has_failed = any(isinstance(m, ToolMessage) and m.status == "error" for m in messages)
    rest = [{name: update[name] for name in update if name != "messages"} for update in updates]
    return [rest, [[m.type, m.content] for m in messages]], has_failed


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# Answers.


def _answer(use: ToolUse, text: str, *, failed: bool = False) -> ToolMessage:
    status = "error" if failed else "success"
    return ToolMessage(text, tool_call_id="", name=use.name, status=status)


def beside_of(result: object, notes: Sequence[Note]) -> dict[str, Any]:
    """Return what is stored of an action beside its text: its notes, and the next agent or node."""
    beside: dict[str, Any] = {"notes": list(notes)} if notes else {}
    artifact = result.artifact if isinstance(result, ToolMessage) else None
    if isinstance(artifact, Handoff):
        beside["handoff"] = asdict(artifact)
    elif isinstance(artifact, Finish):
        beside["finish"] = asdict(artifact)
    return beside


def answer_again(registration: Registration, tool: str) -> ToolMessage:
    """Return the answer of an action that was done before, and add its notes again."""
    beside: Mapping[str, Any] = registration.entry.beside if registration.entry is not None else {}
    for note in beside.get("notes", ()):
        take_note(cast(Note, note))
    outcome: Handoff | Finish | None = None
    if "handoff" in beside:
        outcome = Handoff(**beside["handoff"])
    elif "finish" in beside:
        outcome = Finish(**beside["finish"])
    return ToolMessage(str(registration.result), tool_call_id="", name=tool, artifact=outcome)
