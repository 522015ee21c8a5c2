"""Compile a flow: who does what, its nodes and edges, and the guards around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel

from agentgraph.flow.decisions import ESCALATE
from agentgraph.flow.members import (
    Function,
    Member,
    compile_member,
    is_participant,
    transfer_tool,
)
from agentgraph.flow.nodes import STAND_IN, FlowNodes
from agentgraph.flow.spec import FlowSpec
from agentgraph.flow.stage import NO_STAGE, STAGES
from agentgraph.flow.stages.stage_guards import GUARD_CHANNELS, StageGuards, path_of
from agentgraph.flow.state import OUTPUTS, FlowState
from agentgraph.flow.values import Verdict, plan_of
from agentgraph.flow.work import WorkStage
from agentgraph.graphs.compiled import AnyCompiledGraph, AnyGraph, merge_states
from agentgraph.graphs.public_graph import publish
from agentgraph.guards import Effect, GuardedState, Guards, StepLimit
from agentgraph.guards.nodes.agent_graph import COMPENSATE, NodeWrappers, RouteState
from agentgraph.guards.nodes.human import HumanState
from agentgraph.guards.place import Place
from agentgraph.participant import Participant

PRIVATE_CHANNELS = frozenset({*FlowState.__annotations__, *GUARD_CHANNELS} - {*OUTPUTS})
"""The channels of a flow's graph that begin anew with each input."""
GATES = ("plan_gate", "validate_gate")
_ENDS = ("plan", ESCALATE, COMPENSATE, END)
"""Where any stage may lead to when it fails."""


def compile_flow(
    flow: FlowSpec,
    guards: Guards | None,
    path: str,
    effects: MutableMapping[str, Effect],
    saver: BaseCheckpointSaver[Any] | None = None,
) -> AnyCompiledGraph:
    """Compile a flow for its place, under these guards; the effects of its tools are added."""
    nodes = _nodes_of(flow, guards, path, effects)
    states = (FlowState, *((GuardedState, HumanState, RouteState) if guards is not None else ()))
    graph: AnyGraph = StateGraph(merge_states("FlowState", *states))
    _add_stages(graph, nodes)
    if guards is not None:
        wrappers = NodeWrappers(guards, Place(path), GUARD_CHANNELS, effects)
        graph.add_node(ESCALATE, nodes.escalate, destinations=(*STAGES, *GATES, COMPENSATE, END))
        compensate: Any = wrappers.compensate
        graph.add_node(COMPENSATE, compensate, destinations=(COMPENSATE, END))
    compiled_graph = publish(graph, OUTPUTS, OUTPUTS, saver, store=flow.store, name=flow.name)
    return compiled_graph.with_config(recursion_limit=_MOST_STEPS)


_MOST_STEPS = 10_000
"""A flow ends by its guards; LangGraph's limit on super-steps must not come first."""


def _add_stages(graph: AnyGraph, nodes: FlowNodes) -> None:
    ends_of_failures = _ENDS if nodes.guards is not None else ("plan", END)
    workers = tuple(nodes.work.workers)
    ways: Mapping[str, tuple[Any, tuple[str, ...]]] = {
        "plan": (nodes.plan, ("plan_gate",)),
        "plan_gate": (nodes.plan_gate, ("fan_out",)),
        "fan_out": (nodes.fan_out, (*workers, "fan_in")),
        "fan_in": (nodes.fan_in, ("fan_out", "validate")),
        "validate": (nodes.validate, ("validate_gate",)),
        "validate_gate": (nodes.validate_gate, ("finalize",)),
        "finalize": (nodes.finalize, ()),
    }
    for name, (node, ends) in ways.items():
        graph.add_node(name, node, destinations=tuple(dict.fromkeys((*ends, *ends_of_failures))))
    graph.add_edge(START, "plan")
    for name in workers:
        worker: Any = nodes.worker(name)
        graph.add_node(name, worker)
        graph.add_edge(name, "fan_in")


def _policies(flow: FlowSpec, guards: Guards | None, path: str) -> dict[str, Guards]:
    """Return the policy of each stage and of each worker, nothing without guards."""
    if guards is None:
        return {}

    def policy_at(name: str, outer: Guards) -> Guards:
        place = path_of(path, name)
        own = flow.stages.get(name, NO_STAGE).policy or Guards()
        return outer.at(place).at_stage(own, place)

    whole = guards.for_turns(_MOST_PARTS)
    policies: dict[str, Guards] = {name: policy_at(name, whole) for name in STAGES}
    work = policies["fan_out"]
    return policies | {name: policy_at(name, work) for name in flow.workers}


def _member_policy(policy: Guards) -> Guards:
    """Return the policy of a member: without a step limit of the user's, each run has its own."""
    if "steps" in policy.override_names:
        return policy
    return policy.with_guard("steps", StepLimit.of_tier(policy.tier))


_MOST_PARTS = 1_000
"""How many parts a flow may have, each with as many steps as an input of one agent."""


def _nodes_of(
    flow: FlowSpec, guards: Guards | None, path: str, effects: MutableMapping[str, Effect]
) -> FlowNodes:
    policies = _policies(flow, guards, path)

    def compile_part(
        part: Participant | Function, stage: str, at: str, schema: type[BaseModel] | None = None
    ) -> Member | Function:
        if not is_participant(part):
            return part
        place = f"{path}/{stage}"
        policy = policies.get(at)
        level = None if policy is None else _member_policy(policy)
        tools = [*_transfer_tools(flow, at)] if stage == "fan_out" else []
        return compile_member(part, level, place, effects, schema, tools)

    schemas: Mapping[str, type[BaseModel] | None] = {
        "plan": plan_of(flow.brief),
        "critic": Verdict,
        STAND_IN: Verdict,
        "aggregate": None,
        "validate": Verdict,
        "finalize": flow.outcome,
    }
    stages = {"critic": "plan", STAND_IN: "plan", "aggregate": "fan_in"}
    members = {
        name: compile_part(part, stages.get(name, name), stages.get(name, name), schemas[name])
        for name, part in _parts_of(flow)
    }
    if flow.oracle is not None:
        members["oracle"] = flow.oracle
    schema = flow.summary if flow.has_own_summary else None
    workers = {
        name: compile_part(worker, "fan_out", name, schema) for name, worker in flow.workers.items()
    }
    return FlowNodes(
        name=flow.name,
        path=path,
        members=members,
        work=WorkStage(flow.work_topology, workers, flow.brief, flow.summary),
        stages=flow.stages,
        outcome=flow.outcome,
        guards=None if guards is None else StageGuards(policies, path, effects),
    )


def _parts_of(flow: FlowSpec) -> Iterator[tuple[str, Any]]:
    """Yield who plans, criticises, aggregates, validates and finalizes."""
    for name in ("plan", "critic", "aggregate", "validate", "finalize"):
        part = getattr(flow, name)
        if part is None and name != "critic" and flow.supervisor is not None:
            part = flow.supervisor
        # Without a form for the outcome, the aggregate is the outcome.
        if part is not None and not (
            name == "finalize" and flow.finalize is None and flow.outcome is None
        ):
            yield name, part
    if flow.critic is None and flow.supervisor is not None:
        yield STAND_IN, flow.supervisor


def _transfer_tools(flow: FlowSpec, worker: str) -> Iterable[Any]:
    if not flow.work_topology.has_peers:
        return
    for name, peer in flow.workers.items():
        if name != worker:
            yield transfer_tool(name, getattr(peer, "description", "") or "")


@dataclass(frozen=True, slots=True)
class FlowInPlace:
    """A flow in its place below an agent, in a team or in another flow."""

    graph: AnyCompiledGraph
    effects: Mapping[str, Effect]

    def effects_at(self, path: str) -> Mapping[str, Effect]:
        """Return the effects of all tools in it, by path and tool."""
        return self.effects
