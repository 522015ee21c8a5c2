"""A tool is used: once under its key, if its gate lets it, and seen for what it leads to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, cast

from langchain_core.messages import ToolMessage, convert_to_messages
from pydantic_core import to_json

from agentgraph.errors import kind_of
from agentgraph.guards.decision import Decision
from agentgraph.guards.mechanisms.effects import Effect, effect_of
from agentgraph.guards.mechanisms.gates.gate import Subject
from agentgraph.guards.mechanisms.loop import INSTEAD
from agentgraph.guards.mechanisms.saga import Registration, Saga
from agentgraph.guards.mechanisms.saga_entry import Entry
from agentgraph.guards.nodes.stage import current_stage, in_time
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Guards
from agentgraph.guards.records.account import Account
from agentgraph.guards.records.pending_writes import Resumption
from agentgraph.guards.records.recorder import Recorder
from agentgraph.interception import ControlFlow, LedgerLost, ToolUse, UnrunCall
from agentgraph.outcomes import Finish, Handoff, Note, current_notes, take_note
from agentgraph.patching import written_by

_SHOWN = 1_000
"""How much is shown of the arguments of an action in whose place another one was called."""


class RegisterFirst(ControlFlow):
    """The action is registered; it may run once that is stored."""


class Using:
    """One tool call."""

    def __init__(
        self,
        policy: Guards,
        place: Place,
        account: Account,
        recorder: Recorder,
        *,
        resumption: Resumption | None = None,
    ) -> None:
        self._policy = policy
        self._place = place
        self._account = account
        self._recorder = recorder
        self._resumption = resumption
        """Where it goes on with what a human has decided."""

    async def use(self, use: ToolUse) -> object:
        """Run the tool, or say why not."""
        effect = effect_of(use.tool)
        saga = self._account.saga if effect is not None else None
        if effect is not None and saga is not None:
            known = await self._known(saga, effect, use)
            if known is not None:
                return known
        refusal = await self.refusal(use)
        if refusal is not None:
            if saga is not None:
                await self._kept(saga.failed(use.key))
            return refusal
        self._recorder.note("tool", tool=use.name, key=use.key)
        if saga is None:
            return await self._run(use, effect)
        return await self._act(saga, use, effect)

    async def _act(self, saga: Saga, use: ToolUse, effect: Effect | None) -> object:
        """Run a tool that changes the world, and keep what came of it."""
        notes = current_notes()
        before = len(notes or ())
        self._account.underway.running.add(use.key)  # it stays there where this is cut off
        try:
            result = await self._run(use, effect)
        except LedgerLost:
            raise
        except ControlFlow:
            self._account.underway.running.discard(use.key)
            await self._kept(saga.waits(use.key))
            raise
        except Exception:
            self._account.underway.running.discard(use.key)
            raise
        self._account.underway.running.discard(use.key)
        if isinstance(result, ToolMessage) and result.status == "error":
            # An answer that says "error" is one to arguments that do not fit: nothing has run.
            await self._kept(saga.failed(use.key))
        else:
            text = str(result.text) if isinstance(result, ToolMessage) else ""
            await self._kept(saga.done(use.key, text, beside_of(result, (notes or [])[before:])))
        return result

    async def _known(self, saga: Saga, effect: Effect, use: ToolUse) -> ToolMessage | None:
        """Register an action; return what came of it where it has run before."""
        if use.key in self._account.underway.tried:
            self._account.underway.tried.discard(use.key)
            return None
        if use.key in self._account.underway.registered:
            self._account.underway.registered.discard(use.key)
            notes = self._account.underway.promises.pop(use.key, None)
            if notes is None or await notes.begins(use.key):
                return None
        has_waited = saga.is_waiting(use.key)
        begin = partial(
            saga.begin,
            key=use.key,
            tool=f"{self._place.path}:{use.name}",
            args=use.args,
            compensates=effect.compensate is not None,
        )
        begun = begin()
        match begun.kind:
            case "run":
                if has_waited and self._resumption is not None and not await self._goes_on(use):
                    return await self._looked_up(saga, effect, use, begin())
                await self._register(begun, use, has_waited)
                return None
            case "replay":
                return given_again(begun, use.name)
            case "unknown":
                return await self._looked_up(saga, effect, use, begun)
            case "conflict" if done := await self._done_otherwise(saga, effect, use, begun):
                return done
        return await self._not_done(use, begun)

    async def _done_otherwise(
        self, saga: Saga, effect: Effect, use: ToolUse, begun: Registration
    ) -> ToolMessage | None:
        """Tell what was done in the place of a call: a round that runs again may word it anew."""
        entry = begun.entry
        if entry is not None and entry.state == "started" and effect.lookup is not None:
            found = await effect.look_up(entry.args, key=use.key)
            if found is not None:
                entry = saga.done(use.key, str(found))
                await self._kept(entry)
        if entry is None or entry.state != "done":
            return None
        await self._recorder.decided(begun.decision)
        answer = given_again(replace(begun, entry=entry), use.name)
        args = to_json(entry.args, fallback=str, inf_nan_mode="null").decode()[:_SHOWN]
        told = f"Not executed anew: `{use.name}` was called with {args} before, and answered: "
        return answer.model_copy(update={"content": told + str(answer.text)})

    async def _register(self, begun: Registration, use: ToolUse, has_waited: bool) -> None:
        """Have an action stored before it runs, in the log or in the graph's state."""
        entry = begun.entry.to_dict() if begun.entry is not None else {}
        self._recorder.note("effect", tool=use.name, key=use.key, state="started")
        kept = await self._recorder.keep(kind="effect", entry=entry)
        if not kept and not has_waited:  # else its task would lose what the human has decided
            self._account.underway.registered.add(use.key)
            raise RegisterFirst

    async def _looked_up(
        self, saga: Saga, effect: Effect, use: ToolUse, begun: Registration
    ) -> ToolMessage | None:
        """Find out what came of an action that was cut off; None where it is to run (again)."""
        if effect.lookup is not None:
            found = await effect.look_up(use.args, key=use.key)
            if found is None:
                return None  # it never happened: it is registered still
            await self._kept(saga.done(use.key, str(found)))
            return _answer(use, str(found))
        if await self._goes_on(use):
            return None  # in another process, which could not store that it waits
        return await self._not_done(use, begun)

    async def _goes_on(self, use: ToolUse) -> bool:
        """Note that it goes on with what a human has decided; False where it did so before."""
        if self._resumption is None or use.key in self._account.underway.running:
            return False
        return await self._resumption.begins(use.key)

    async def _not_done(self, use: ToolUse, begun: Registration) -> ToolMessage:
        # The model is told, whatever it makes of that.
        decision = await self._recorder.by_table(begun.decision, possible=True)
        if decision.action in ("escalate", "abort"):
            self._account.pend(self._place.spot, decision)
        return _answer(use, f"Not executed: {decision.cause}.", failed=True)

    async def _kept(self, entry: Entry) -> None:
        self._account.has_acted = True
        self._recorder.note("effect", tool=entry.tool, key=entry.key, state=entry.state)
        await self._recorder.keep(kind="effect", entry=entry.to_dict())

    async def refusal(self, use: ToolUse) -> ToolMessage | None:
        """Say why a tool may not run, None where it may."""
        ended_by = self._account.ended_by
        if ended_by and effect_of(use.tool) is not None:
            cause = f"{ended_by} has ended the run: nothing more is to be done"
            await self._recorder.decided(Decision("deny", "saga", cause))
            return _answer(use, f"Not executed: {cause}.", failed=True)
        decision = self._exhausted()
        if decision is not None:
            self._account.pend(self._place.spot, await self._recorder.by_table(decision))
            return _answer(use, f"Not executed: {decision.cause}.", failed=True)
        deadline = current_stage(self._account.deadline)
        late = deadline.check() if deadline is not None else None
        if late is not None and not late.allows:
            # The next model's node meets the same, and acts on it.
            return _answer(use, f"Not executed: {late.cause}.", failed=True)
        if not self._policy.gates:
            return None
        context = {"agent": self._place.path, "steps": self._account.spending.steps}
        subject = Subject(self._place.name, use.name, use.args, context=context)
        for gate in self._policy.gates:
            result = await gate.check_call(subject, self._place.path)
            validation = result.to_dict()
            if result.checks:
                self._recorder.note("gate", tool=use.name, **validation)
            if not result.passed:
                told: Mapping[str, object] = {"validation": validation}
                denied = Decision("deny", "gate", result.cause, result.failure_class, told)
                await self._recorder.decided(denied)
                await self._observe(use, effect_of(use.tool), "", failed=True)
                return _answer(use, f"Not executed: {result.cause}.", failed=True)
        return None

    def _exhausted(self) -> Decision | None:
        for spend in self._account.spends_under(self._policy):
            if (spent := spend.exhausted()) is not None:
                return spent
        return None

    async def _run(self, use: ToolUse, effect: Effect | None) -> object:
        try:
            with in_time(current_stage(self._account.deadline)):
                result = await use.run()
        except ControlFlow:
            raise
        except Exception as error:
            if effect is not None:
                self._account.underway.tried.add(use.key)
            await self._observe(use, effect, kind_of(error), failed=True)
            raise
        # What comes of a wish to move, or where else a tool leads, is to be seen yet.
        is_wish = isinstance(getattr(result, "artifact", None), Handoff)
        if isinstance(result, ToolMessage) and not is_wish:
            failed = result.status == "error"
            await self._observe(use, effect, result.content, failed=failed)
        elif (updates := written_by(result)) is not None:
            told, failed = _told(updates)
            await self._observe(use, effect, told, failed=failed)
        return result

    async def seen(self, use: ToolUse, told: ToolMessage) -> None:
        """See what somebody else's tool has answered."""
        self._recorder.note("tool", tool=use.name)
        effect = effect_of(use.tool)
        await self._observe(use, effect, told.content, failed=told.status == "error")

    async def unrun(self, call: UnrunCall) -> None:
        """See a call that nothing ran for."""
        effect = effect_of(self._place.tools.get(call.name))
        await self._observe(call, effect, call.told, failed=call.failed)

    async def _observe(
        self, use: ToolUse | UnrunCall, effect: Effect | None, result: object, *, failed: bool
    ) -> None:
        if self._policy.loop is None:
            return
        decision = self._account.loop(self._place.spot, self._policy.loop).observe(
            tool=use.name,
            args=use.args,
            result=result,
            failed=failed,
            volatile=effect.volatile if effect is not None else (),
            poll=effect.poll if effect is not None else False,
            message=use.message_id,
        )
        if decision.action == "correct":
            await self._recorder.decided(decision)
            self._account.correct(self._place.spot, decision.cause)
        elif not decision.allows:
            told: Any = decision.evidence
            decided = await self._recorder.by_table(decision, made=told["made"], possible=True)
            if decided.action == "correct":
                self._account.correct(self._place.spot, f"{decided.cause}. {INSTEAD}")
            else:
                self._account.pend(self._place.spot, decided)


def _told(updates: Sequence[Mapping[str, Any]]) -> tuple[object, bool]:
    """Return what a tool writes to the state, but for the ids, and whether it says it failed."""
    given = [update.get("messages") or [] for update in updates]
    messages = [m for one in given for m in convert_to_messages(_listed(one))]
    failed = any(isinstance(m, ToolMessage) and m.status == "error" for m in messages)
    others = [{name: update[name] for name in update if name != "messages"} for update in updates]
    return [others, [[m.type, m.content] for m in messages]], failed


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _answer(use: ToolUse, text: str, *, failed: bool = False) -> ToolMessage:
    status = "error" if failed else "success"
    return ToolMessage(text, tool_call_id="", name=use.name, status=status)


def beside_of(result: object, notes: Sequence[Note]) -> dict[str, Any]:
    """Return what a tool has current_notes, and who goes on after it."""
    beside: dict[str, Any] = {"notes": list(notes)} if notes else {}
    decided = result.artifact if isinstance(result, ToolMessage) else None
    if isinstance(decided, Handoff):
        beside["handoff"] = asdict(decided)
    elif isinstance(decided, Finish):
        beside["finish"] = asdict(decided)
    return beside


def given_again(begun: Registration, tool: str) -> ToolMessage:
    """Answer a call with what came of it before."""
    beside: Mapping[str, Any] = begun.entry.beside if begun.entry is not None else {}
    for note in beside.get("notes", ()):
        take_note(cast(Note, note))
    decided: Handoff | Finish | None = None
    if "handoff" in beside:
        decided = Handoff(**beside["handoff"])
    elif "finish" in beside:
        decided = Finish(**beside["finish"])
    return ToolMessage(str(begun.result), tool_call_id="", name=tool, artifact=decided)
