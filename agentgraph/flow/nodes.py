"""The nodes of a flow's graph: its five stages, the gates between them, and the human.

    plan → plan_gate → fan_out → (a node per worker) → fan_in → validate → validate_gate → finalize

A stage writes what it has made, and its report. Where it fails, or its gate does not let pass what
it has made, `decisions` says where the flow goes on: to a new plan, to a human, or to its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.graph import END
from langgraph.types import Command, Overwrite, Send
from pydantic import BaseModel
from pydantic_core import to_json

from agentgraph.agents.run.inputs import Block
from agentgraph.flow import decisions, prompts
from agentgraph.flow.decisions import NextStep
from agentgraph.flow.members import Function, Member, as_json, call_function
from agentgraph.flow.stage import NO_STAGE, Stage
from agentgraph.flow.stage_run import StageRun
from agentgraph.flow.stages.failure import StageFailure, class_of_guard, failure_in
from agentgraph.flow.stages.stage_guards import StageGuards
from agentgraph.flow.state import (
    FlowState,
    HumanValue,
    ReportValues,
    finished_end,
    new_run,
    new_turn,
)
from agentgraph.flow.topology import Entry, Item
from agentgraph.flow.values import Plan, Summary, Verdict, plan_of, text_of_summary
from agentgraph.flow.work import WorkStage, available_names, state_of_task
from agentgraph.guards.nodes.agent_graph import COMPENSATE
from agentgraph.guards.nodes.human import ask_human
from agentgraph.guards.nodes.interceptor import NodeInterceptor
from agentgraph.guards.records.account import Account
from agentgraph.interception import current_interceptor
from agentgraph.running import current_delegation, current_round_key, current_run, history

STAND_IN = "supervisor_as_critic"
"""The member that judges a plan after a malformed one, where the flow has no critic."""

Work: TypeAlias = Callable[[StageRun], Awaitable[Command[Any]]]


@dataclass(frozen=True, slots=True)
class FlowNodes:
    """The nodes of one flow in its place; made once for each place, and shared by all runs."""

    name: str
    path: str
    members: Mapping[str, Member | Function]
    """Who does what: by `plan`, `critic`, `aggregate`, `validate`, `finalize`, `oracle`."""
    work: WorkStage
    stages: Mapping[str, Stage]
    outcome: type[BaseModel] | None
    guards: StageGuards | None

    # The five stages, and the gates between them.

    async def plan(self, state: FlowState, config: RunnableConfig) -> Command[Any]:
        """Plan the work: by the supervisor or a function, else one brief for each worker."""
        begin = self._begin(state)
        state = cast("FlowState", {**state, **begin})

        async def work(stage: StageRun) -> Command[Any]:
            await stage.check_before(state["task"])
            plan = as_json(await self._make_plan(stage, state))
            return _pass(stage, "plan_gate", {"plan": plan}, plan)

        return await self._run("plan", state, config, work, begin)

    async def plan_gate(self, state: FlowState, config: RunnableConfig) -> Command[Any]:
        """Check the plan: its form, its workers, the critic's view of it, the user's gate."""

        async def work(stage: StageRun) -> Command[Any]:
            stage.output = state["plan"]
            plan = stage.read(plan_of(self.work.brief), state["plan"])
            faults = [*self._plan_faults(plan)]
            stage.note("after", "plan", faults)
            if faults:
                raise StageFailure("spec_malformed", "plan", "; ".join(faults), faults)
            await self._ask_critic(stage, state, plan)
            await stage.check_after(as_json(plan))
            return _pass(stage, "fan_out", {}, None)

        return await self._run("plan", state, config, work, is_gate=True)

    async def fan_out(self, state: FlowState, config: RunnableConfig) -> Command[Any]:
        """Begin the work that is due, as much at once as the guards let begin."""

        async def work(stage: StageRun) -> Command[Any]:
            plan, entries = self.work.plan_in(state), self.work.entries_in(state)
            stage.is_part = bool(entries)
            if not entries:
                await stage.tell("started")
                await stage.check_before(as_json(plan))
            wave = self.work.wave(stage, self.work.topology.due(plan, entries), self.stages)
            admission = await stage.admit([item.brief.worker for item in wave])
            refusals = [(wave[at], cause) for at, cause in admission.refusals.items()]
            items = [item for at, item in enumerate(wave) if at not in admission.refusals]
            tasks = [Send(item.brief.worker, {"sent": _task_of(item)}) for item in items]
            command = _pass(stage, tasks[: admission.most_at_once] or "fan_in", {}, None)
            return _with_refusals(
                command, await self._refuse(admission.guard, refusals, state, config)
            )

        return await self._run("fan_out", state, config, work, tells=False)

    def worker(self, name: str) -> Callable[[FlowState, RunnableConfig], Awaitable[Any]]:
        """Return the node of one worker: what it brings, or why it brings nothing."""

        async def node(state: FlowState, config: RunnableConfig) -> dict[str, Any]:
            state = state_of_task(state, config, is_guarded=self.guards is not None)
            stage = self._stage("fan_out", state, config, name, str(state["sent"]["key"]))
            key, entry, report = await self.work.run(stage, state, config)
            await stage.record({"reports": report}, config)
            return {"entries": {key: entry}, "reports": report, **_account_of(stage)}

        return node

    async def fan_in(self, state: FlowState, config: RunnableConfig) -> Command[Any]:
        """Make one result of the summaries, once all work is done."""

        async def work(stage: StageRun) -> Command[Any]:
            human_value = human_value_at("fan_in", state)
            if human_value is None:
                if not await self.work.is_over(state):
                    return Command(goto="fan_out")
                is_whole = not self.work.has_failures(state)
                await self._stage("fan_out", state, config).tell("finished", {"passed": is_whole})
            await stage.tell("started")
            aggregate = (
                await self._aggregate(stage, state) if human_value is None else human_value["value"]
            )
            await stage.check_after(aggregate)
            await stage.tell("finished", {"passed": True})
            return _pass(
                stage, "validate", {"aggregate": aggregate, "human_value": None}, aggregate
            )

        return await self._run("fan_in", state, config, work, tells=False)

    async def validate(self, state: FlowState, config: RunnableConfig) -> Command[Any]:
        """Get the verdict on the aggregate."""

        async def work(stage: StageRun) -> Command[Any]:
            stage.output, summaries = state["aggregate"], self.work.summaries_in(state)
            await stage.check_before(state["aggregate"], available_names(summaries))
            verdict = as_json(await self._judge(stage, state, summaries))
            return _pass(stage, "validate_gate", {"verdict": verdict}, verdict)

        return await self._run("validate", state, config, work)

    async def validate_gate(self, state: FlowState, config: RunnableConfig) -> Command[Any]:
        """Let pass what was accepted with enough confidence."""

        async def work(stage: StageRun) -> Command[Any]:
            human_value = human_value_at("validate", state)
            aggregate = state["aggregate"] if human_value is None else human_value["value"]
            stage.output = aggregate
            if human_value is None:
                self._check_verdict(stage, stage.read(Verdict, state["verdict"]))
            await stage.check_after(aggregate)
            return _pass(stage, "finalize", {"aggregate": aggregate, "human_value": None}, None)

        return await self._run("validate", state, config, work, is_gate=True)

    async def finalize(self, state: FlowState, config: RunnableConfig) -> Command[Any]:
        """Make the outcome, and end the flow with it."""

        async def work(stage: StageRun) -> Command[Any]:
            human_value = human_value_at("finalize", state)
            if human_value is None:
                names = available_names(self.work.summaries_in(state))
                stage.output = state["aggregate"]
                await stage.check_before(state["aggregate"], names)
                outcome = await self._make_outcome(stage, state)
            else:
                outcome = self._in_form(stage, human_value["value"])
            await stage.check_after(outcome)
            text = outcome if isinstance(outcome, str) else to_json(outcome).decode()
            success = await self._ask_oracle(stage, outcome)
            end = finished_end("finished", outcome, text, success)
            message = AIMessage(end["text"], id=f"outcome_{_turn_id(state)}")
            update = {"end": end, "human_value": None, "messages": [message]}
            return _pass(stage, END, update, outcome)

        return await self._run("finalize", state, config, work)

    async def escalate(self, state: FlowState, config: RunnableConfig) -> Command[Any]:
        """Ask a human, and go on as the human decides; it does nothing before the question."""
        ask = state["ask"]
        assert ask is not None
        stage = self._stage(ask["stage"], state, config)
        interceptor = stage.interceptor
        assert interceptor is not None
        await stage.catch_up(config)
        answer = await ask_human(interceptor.site, interceptor.values["human"])
        step = decisions.after_human(state, ask, answer, interceptor.account)
        update = {
            "guarded": interceptor.account.dump(),
            "human": {},
            "ask": None,
            "human_value": None,
        }
        await stage.record(step.update, config)
        return self._follow(step, state, update, interceptor.account)

    # Who does the stages.

    async def _make_plan(self, stage: StageRun, state: FlowState) -> Plan:
        planner, schema = self.members.get("plan"), plan_of(self.work.brief)
        if planner is None:
            names = [*self.work.workers][: 1 if self.work.topology.has_peers else None]
            briefs = [{"worker": name, "task": state["task"]} for name in names]
            return stage.read(schema, {"briefs": briefs})
        problems, headroom = state["problems"], decisions.headroom(stage)
        workers = ((name, _about(worker)) for name, worker in self.work.workers.items())
        text = prompts.plan_request(state["task"], workers, self.work.topology, problems, headroom)
        plan: Plan = await stage.ask(planner, text, schema, (state["task"], problems))
        return plan

    def _plan_faults(self, plan: Plan) -> list[str]:
        if not plan.briefs:
            return ["the plan has no briefs"]
        workers, names = self.work.workers, {brief.worker for brief in plan.briefs}
        faults = []
        for number, brief in enumerate(plan.briefs, 1):
            if brief.worker not in workers:
                faults.append(
                    f"brief {number} is for {brief.worker!r}, who is no worker: there are "
                    f"{', '.join(workers)}"
                )
            faults += [
                f"brief {number} requires {name!r}, who has no brief"
                for name in brief.requires
                if name in workers and name not in names
            ]
        return faults or [*self.work.topology.faults(plan, [*workers])]

    async def _ask_critic(self, stage: StageRun, state: FlowState, plan: Plan) -> None:
        critic = self.members.get("critic")
        if critic is None and state.get("needs_critic"):
            critic = self.members.get(STAND_IN)
        if critic is None:
            return
        text = prompts.critic_request(state["task"], plan)
        verdict = await stage.ask(critic, text, Verdict, (plan,))
        problems = [] if verdict.accepted else [*verdict.problems] or ["the critic refuses it"]
        stage.note("after", "critic", problems, verdict.confidence)
        if problems:
            raise StageFailure("spec_malformed", "critic", "; ".join(problems), problems)

    async def _aggregate(self, stage: StageRun, state: FlowState) -> Any:
        self.work.check_results(state)
        summaries = self.work.summaries_in(state)
        await stage.check_work(self.stages.get("fan_out", NO_STAGE), as_json(summaries))
        await stage.check_before(as_json(summaries), available_names(summaries))
        aggregator = self.members.get("aggregate")
        if aggregator is None:
            return "\n\n".join(text_of_summary(summary) for summary in summaries)
        text = prompts.aggregate_request(state["task"], summaries)
        return as_json(await stage.ask(aggregator, text, None, (summaries,)))

    async def _judge(
        self, stage: StageRun, state: FlowState, summaries: Sequence[Summary]
    ) -> Verdict:
        judge, aggregate = self.members.get("validate"), state["aggregate"]
        if judge is None:
            return Verdict(accepted=True)
        text = prompts.validate_request(state["task"], aggregate, summaries)
        verdict: Verdict = await stage.ask(judge, text, Verdict, (aggregate,))
        return verdict

    def _check_verdict(self, stage: StageRun, verdict: Verdict) -> None:
        problems = [*verdict.problems] or ["no reason is given"]
        stage.note("after", "verdict", () if verdict.accepted else problems)
        if not verdict.accepted:
            cause = f"the result was not accepted: {'; '.join(problems)}"
            raise StageFailure("schema_failure", "validate", cause, problems)
        decisions.check_confidence(stage, verdict.confidence)

    async def _make_outcome(self, stage: StageRun, state: FlowState) -> Any:
        finisher, aggregate = self.members.get("finalize"), state["aggregate"]
        if finisher is not None:
            text = prompts.finalize_request(state["task"], aggregate)
            return as_json(await stage.ask(finisher, text, self.outcome, (aggregate,)))
        return self._in_form(stage, aggregate)

    def _in_form(self, stage: StageRun, value: object) -> Any:
        return value if self.outcome is None else as_json(stage.read(self.outcome, value))

    async def _ask_oracle(self, stage: StageRun, outcome: Any) -> bool | None:
        """Return what the oracle says; one that raises says nothing, and the outcome stands."""
        oracle = self.members.get("oracle")
        if oracle is None or isinstance(oracle, Member):
            return None
        value = outcome if self.outcome is None else self.outcome.model_validate(outcome)
        try:
            return bool(await call_function(oracle, value))
        except GraphBubbleUp:
            raise
        except Exception as error:
            await stage.note_error("oracle", error)
            return None

    # Running a stage.

    def _begin(self, state: FlowState) -> dict[str, Any]:
        """Return the channels at the begin of an input, nothing where a plan is made anew."""
        if state.get("again"):
            return {}
        last, run = _input_in(state), current_run()
        if state.get("attempt") == 0:  # a run of the flow itself has begun the turn
            return new_run(str(last.text), state["turn"])
        interceptor, visit = current_interceptor(), ""
        turn_id = f"input_{last.id}" if run is None else run.id
        if isinstance(interceptor, NodeInterceptor):  # of the agent whose sub-agent the flow is
            turn_id, newest = interceptor.account.input_id, history(cast("dict[str, Any]", state))
            visit = f"{current_delegation()}{newest[-1].id if newest else ''}"
        turn = new_turn(current_round_key() or turn_id, self.name, visit)
        return new_run(str(last.text), turn)

    async def _run(
        self,
        name: str,
        state: FlowState,
        config: RunnableConfig,
        work: Work,
        begin: Mapping[str, Any] | None = None,
        *,
        is_gate: bool = False,
        tells: bool = True,
    ) -> Command[Any]:
        """Run a stage, or the gate behind it, and go where it leads to.

        With `tells` its begin and its end are told; a stage of several nodes does that itself.
        """
        stage = self._stage(name, state, config)
        stage.is_part = is_gate
        await stage.catch_up(config)
        tells = tells and not is_gate
        command = await self._command_of(stage, state, work, begin, tells=tells)
        await stage.record(cast("dict[str, Any]", command.update or {}), config)
        return command

    async def _command_of(
        self,
        stage: StageRun,
        state: FlowState,
        work: Work,
        begin: Mapping[str, Any] | None,
        *,
        tells: bool,
    ) -> Command[Any]:
        account = None if stage.site is None else stage.site.account
        if account is not None and (guard := account.ended_by):
            return self._follow(decisions.ended_by(guard, account), state, {}, account)
        if tells:
            await stage.tell("started")
        try:
            command = await stage.in_time(partial(work, stage))
        except GraphBubbleUp:
            raise
        except Exception as error:
            failure = failure_in(error)
            if stage.name == "plan" and failure.failure_class == "schema_failure":
                failure.failure_class = "spec_malformed"
            stage.note_failure(failure)
            step = await decisions.decide(stage, state, failure)
            update = {**_with_begin(begin, {"reports": stage.report()}), **_account_of(stage)}
            return self._follow(step, state, update, account)
        if tells:
            await stage.tell("finished", {"passed": True})
        own = cast("dict[str, Any]", command.update or {})
        return Command(goto=command.goto, update={**_with_begin(begin, own), **_account_of(stage)})

    def _follow(
        self, step: NextStep, state: FlowState, update: Mapping[str, Any], account: Account | None
    ) -> Command[Any]:
        """Return the command to where the flow goes on after a decision."""
        goto = step.goto
        if goto == "plan":
            update = {**update, "again": True}
        if goto == END and (end := step.update.get("end")):
            message = AIMessage(str(end["text"]), id=f"outcome_{_turn_id(state)}")
            update = {**update, "messages": [message]}
            if end["status"] == "aborted":
                update["stopped_by"] = end["reason"]
            saga = None if account is None else account.saga
            # Below an agent its root undoes what is done: there all branches of the run meet.
            is_root = "/" not in self.path
            if is_root and end["status"] == "aborted" and saga is not None and saga.plan():
                goto = COMPENSATE
        return Command(goto=goto, update={**update, **step.update})

    def _stage(
        self,
        name: str,
        state: FlowState,
        config: RunnableConfig,
        worker: str = "",
        key: str = "",
    ) -> StageRun:
        at = worker or name
        interceptor = None if self.guards is None else self.guards.at(at, state, config)
        settings = self.stages.get(at, NO_STAGE)
        attempt = state.get("attempt") or 1
        media, turn = _media_in(_input_in(state)), _turn_id(state)
        visit = str((state.get("turn") or {}).get("since") or "")
        return StageRun(
            name, attempt, self.path, settings, media, worker, key, turn, interceptor, visit
        )

    async def _refuse(
        self,
        guard: str,
        refusals: Sequence[tuple[Item, str]],
        state: FlowState,
        config: RunnableConfig,
    ) -> tuple[dict[str, Entry], dict[str, ReportValues]]:
        """Return the entries and the reports of the work that may not begin."""
        entries: dict[str, Entry] = {}
        reports: dict[str, ReportValues] = {}
        for item, cause in refusals:
            worker = self._stage("fan_out", state, config, item.brief.worker, item.key)
            failure = StageFailure(class_of_guard(guard), guard, cause)
            entry, verdict = self.work.failed(worker, failure)
            await worker.tell("failed", verdict)
            entries[f"{worker.attempt}/{item.key}"] = entry
            reports |= worker.report()
        return entries, reports


def _pass(
    stage: StageRun, goto: str | Sequence[Send], update: Mapping[str, Any], output: object
) -> Command[Any]:
    """Return the command to the next node, with the report of a stage that has passed."""
    report = stage.report(output) if stage.verdicts or output is not None else {}
    return Command(goto=goto, update={**update, "reports": report})


def _with_begin(begin: Mapping[str, Any] | None, update: Mapping[str, Any]) -> dict[str, Any]:
    """Return an update with the channels of a new run: nothing of an earlier one is left."""
    if not begin:
        return {**update}
    return {**begin, **update, "reports": Overwrite(update.get("reports") or {})}


def _account_of(stage: StageRun) -> dict[str, Any]:
    return {} if stage.site is None else {"guarded": stage.site.account.dump()}


def _with_refusals(
    command: Command[Any], refusals: tuple[Mapping[str, Entry], Mapping[str, ReportValues]]
) -> Command[Any]:
    """Return a command that writes the work that may not begin, too."""
    update = cast("dict[str, Any]", command.update)
    entries, reports = refusals
    update = {**update, "entries": entries, "reports": {**update["reports"], **reports}}
    return Command(goto=command.goto, update=update)


def _task_of(item: Item) -> dict[str, Any]:
    return {"key": item.key, "brief": as_json(item.brief), "shown": [*item.shown]}


def _about(worker: Member | Function) -> str:
    if isinstance(worker, Member):
        return worker.description
    return (getattr(worker, "__doc__", None) or "").partition("\n")[0]


def _input_in(state: FlowState) -> AnyMessage:
    """Return the message with the task: the last one of the human."""
    messages = history(cast("Mapping[str, Any]", state))
    humans = [m for m in messages if isinstance(m, HumanMessage)]
    return (humans or messages)[-1] if messages else HumanMessage("", id="nothing")


def _media_in(message: AnyMessage) -> list[Block]:
    """Return the images and files of a message."""
    blocks = message.content if isinstance(message.content, list) else ()
    return [b for b in blocks if isinstance(b, Mapping) and b.get("type") != "text"]


def human_value_at(stage: str, state: FlowState) -> HumanValue | None:
    """Return what a human has given in place of what a stage makes, None where none has."""
    human_value = state.get("human_value")
    return human_value if human_value is not None and human_value["stage"] == stage else None


def _turn_id(state: FlowState) -> str:
    return str((state.get("turn") or {}).get("id") or "")
