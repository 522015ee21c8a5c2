"""Routing: rules, as data, that decide who speaks next, and a pure function that evaluates them.

graph = TransitionGraph("writer", [
    Transition(FromSpeaker("writer") & ContextEquals("done", True), TerminateTarget("done")),
    Transition(FromSpeaker("writer"), "editor"),
    Transition(FromSpeaker("editor"), "writer"),
], max_turns=10)
graph.check(["writer", "editor"])
graph.simulate(["a draft", "better", "done"], participants=["writer", "editor"])

The built-in conditions are in `conditions` and `composites`, the targets in `targets`. `rules`
decides, `explain` and `describe` put a decision into words, `simulate` plays a graph. `analysis`
checks and draws a graph, `document` stores it. To add a condition of your own, see
`register_condition`.
"""

from agentgraph.routing.analysis.check import Finding
from agentgraph.routing.composites import AllOf, AnyOf, Composable, Not
from agentgraph.routing.conditions import (
    Always,
    ContextBelow,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromActiveAgent,
    FromChannelType,
    FromSource,
    FromSpeaker,
    HasActiveAgent,
    InPhase,
    IntentIn,
    IsAddressed,
    ToolCalled,
    TurnIs,
)
from agentgraph.routing.decision import Action, Rule, TransitionDecision
from agentgraph.routing.document.registry import (
    Registry,
    default_registry,
    register_condition,
    register_model,
    register_target,
)
from agentgraph.routing.explain import Explanation, Verdict
from agentgraph.routing.graph import TransitionGraph
from agentgraph.routing.patterns import feedback, round_robin, sequence, star
from agentgraph.routing.protocols import (
    HUMAN,
    RoutingEnvelope,
    RoutingState,
    TransitionCondition,
    TransitionTarget,
)
from agentgraph.routing.questions import ModelChoice, ModelCondition, Question
from agentgraph.routing.rules import Transition
from agentgraph.routing.simulate import Script, SimulatedTurn, Simulation, Step
from agentgraph.routing.targets import (
    ActiveAgentTarget,
    AddressedTarget,
    AgentTarget,
    HumanTarget,
    ParallelTarget,
    PhaseTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
)

__all__ = [
    "HUMAN",
    "Action",
    "ActiveAgentTarget",
    "AddressedTarget",
    "AgentTarget",
    "AllOf",
    "Always",
    "AnyOf",
    "Composable",
    "ContextBelow",
    "ContextEquals",
    "ContextIn",
    "ContextThreshold",
    "Explanation",
    "Finding",
    "FromActiveAgent",
    "FromChannelType",
    "FromSource",
    "FromSpeaker",
    "HasActiveAgent",
    "HumanTarget",
    "InPhase",
    "IntentIn",
    "IsAddressed",
    "ModelChoice",
    "ModelCondition",
    "Not",
    "ParallelTarget",
    "PhaseTarget",
    "Question",
    "Registry",
    "RevertToInitiatorTarget",
    "RoundRobinTarget",
    "RoutingEnvelope",
    "RoutingState",
    "Rule",
    "Script",
    "SimulatedTurn",
    "Simulation",
    "StayTarget",
    "Step",
    "TerminateTarget",
    "ToolCalled",
    "Transition",
    "TransitionCondition",
    "TransitionDecision",
    "TransitionGraph",
    "TransitionTarget",
    "TurnIs",
    "Verdict",
    "default_registry",
    "feedback",
    "register_condition",
    "register_model",
    "register_target",
    "round_robin",
    "sequence",
    "star",
]
