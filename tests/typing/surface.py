"""The types of teams, sessions, rules, guards and tools: programs that users write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, assert_type

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, SummarizationMiddleware
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import InjectedState, ToolRuntime
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from agentgraph import (
    Agent,
    AllOf,
    Always,
    ContextEquals,
    Envelope,
    Finish,
    FromSpeaker,
    Guards,
    Handoff,
    Hub,
    HumanTarget,
    Session,
    Team,
    TeamResult,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    effect,
    patched,
    round_robin,
)
from agentgraph.graphs.compiled import AnyGraph
from agentgraph.guards import (
    AuditTrail,
    CircuitBreaker,
    CostBudget,
    Deadlines,
    Decision,
    DecisionTable,
    Escalation,
    Gate,
    MemorySink,
    Subject,
)
from agentgraph.patching import Patcher, wrap_node
from agentgraph.phases import ConversationPipeline, ConversationRouter, PipelineStage
from agentgraph.routing import (
    Composable,
    Finding,
    RoutingEnvelope,
    RoutingState,
    TransitionDecision,
    register_condition,
)
from agentgraph.sessions import SessionState
from agentgraph.testing import Fault, ScriptedModel, Turn, call
from agentgraph_server import create_app

# -- agents: every kind of value that a field takes


async def prompt(messages: list[AnyMessage]) -> str:
    """Write a prompt."""
    return f"You have {len(messages)} messages."


def last_ten(messages: list[AnyMessage]) -> list[AnyMessage]:
    """Keep the last ten messages."""
    return messages[-10:]


class Context(BaseModel):
    """Who asks."""

    user: str


def injected(
    amount: int, state: Annotated[dict[str, Any], InjectedState], runtime: ToolRuntime
) -> str:
    """Read what a graph injects."""
    return f"{amount} {len(state)} {runtime.tool_call_id}"


async def logged(state: Any, node: Any) -> Any:
    """Log a node."""
    return await node(state)


model = ScriptedModel(lambda messages: "Hello." if messages else call("injected", amount=3))
summary = SummarizationMiddleware(model, trigger=("messages", 20))
agent = Agent(
    "agent",
    "Does it",
    model=model,
    system_prompt=prompt,
    tools=[injected],
    history=last_ten,
    middleware=[summary, ModelCallLimitMiddleware(run_limit=3)],
    patcher=[wrap_node("call_model", logged)],
    guards=Guards.batch(budget=CostBudget(tokens=100)),
    checkpointer=InMemorySaver(),
    store=InMemoryStore(),
    durability="sync",
    context_schema=Context,
)
Agent("a", model="offline", system_prompt=SystemMessage("Be brief."), history=3, guards=None)
Agent("a", patcher=wrap_node("call_model", logged), checkpointer="sqlite:///a.db")
Agent("a", agents=(agent,), tools=(agent.as_tool(), injected))
assert_type(agent.graph, CompiledStateGraph[Any, Any, Any, Any])
agent.invoke("hello", context=Context(user="ann"), config={"tags": ["a"]})
agent.invoke(HumanMessage("hello"))
agent.invoke([HumanMessage("hello"), AIMessage("hi"), HumanMessage("how are you")])


# -- participants of users' own


class Own:
    """A participant with attributes."""

    def __init__(self, graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
        self.name = "own"
        self.description = "Does it itself"
        self.graph = graph


@dataclass(frozen=True)
class Lazy:
    """A participant that compiles at the first use."""

    name: str
    description: str = ""

    @property
    def graph(self) -> CompiledStateGraph[Any, Any, Any, Any]:
        """Return its graph."""
        return self._graph

    @cached_property
    def _graph(self) -> CompiledStateGraph[Any, Any, Any, Any]:
        return create_agent(model, name=self.name)


compiled = create_agent(model, name="compiled")
builder = StateGraph(MessagesState)
builder.add_node("agent", agent.graph)
plain_graph = builder.compile(name="plain")
own, lazy = Own(compiled), Lazy("lazy")
Agent("a", agents=[own, lazy, compiled, plain_graph, agent])
Team([own, lazy, compiled, plain_graph, agent], round_robin(["own", "lazy"]))
patched(plain_graph, Guards.batch(), wrap_node("agent", logged))


def renamed(graph: AnyGraph) -> AnyGraph:
    """Change a graph."""
    return graph


Agent("a", patcher=Patcher(renamed))
Agent("a", patcher=renamed)


# -- rules


@register_condition
@dataclass(frozen=True)
class Long(Composable):
    """The text is long."""

    characters: int

    name: ClassVar[str] = "long"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        """Tell whether it is."""
        return len(str(envelope.event_data.get("body", ""))) > self.characters


rules = TransitionGraph(
    "writer",
    [
        Transition(FromSpeaker("writer") & ContextEquals("ok", True), TerminateTarget("ok")),
        Transition(Long(500) | ~ToolCalled("approve"), "editor", priority=3),
        Transition(AllOf((Always(), FromSpeaker("editor"))), HumanTarget()),
    ],
    max_turns=8,
)
assert_type(rules.check(["writer"]), tuple[Finding, ...])
assert_type(rules.simulate({}, participants=["writer"]).steps[0].decision, TransitionDecision)
pipeline = ConversationPipeline([PipelineStage("intake", "writer")])
router = ConversationRouter(default_agent_id="writer")
Team([agent], pipeline)
Team([agent], router, supervisor="agent", humans=["ann"], guards=None)
Transition("writer", "editor")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- tools and guards


def decide(amount: int) -> Handoff | Finish | str:
    """Decide."""
    return Handoff("agent", reason="large") if amount > 3 else Finish("Done.")


def undo(room: str) -> None:
    """Cancel."""


@effect(compensate=undo)
def book(room: str) -> str:
    """Book."""
    return room


def about_rooms(subject: Subject) -> bool | str:
    """Judge."""
    return "room" in subject.text or "it is about no room"


async def critic(subject: Subject) -> float:
    """Score."""
    return 0.4


guards = Guards.interactive(
    steps=20,
    hops=2,
    loop=None,
    gates=[Gate(invariants=[about_rooms]), Gate(policy=lambda subject: subject.tool != "pay")],
    breaker=CircuitBreaker(fallback=AIMessage("Please call us.")),
    escalation=Escalation(0.8, critic=critic),
    deadlines=Deadlines(step_s=3),
    audit=AuditTrail(MemorySink()),
    stages={"billing": Guards(hops=2)},
    decisions=DecisionTable(),
)
assert_type(guards, Guards)
assert_type(book("12"), str)
Agent("a", tools=[decide, book], guards=guards)
Guards.batch(
    hops=3,
    loop=4,
    retry=0.2,
    budget=1000,
    deadlines=30,
    velocity=50_000,
    escalation=0.7,
    audit=MemorySink(),
    gates={"type": "object"},
    breaker=AIMessage("Please call us."),
    interrupt_on={"pay": True, "mail": ["approve", "reject"]},
)
Guards(gates=Gate(input=about_rooms, schema={"book": {"type": "object"}}))
Guards(deadlines=Deadlines(tool_s=5))
Guards.batch(budget="much")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Guards.batch(step=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# -- sessions


async def watched(envelope: Envelope) -> None:
    """Handle an envelope."""


async def sessions(team: Team) -> Sequence[Envelope]:
    """Hold a session."""
    assert_type(await team.arun("hello", context={"tier": "gold"}), TeamResult)
    async with await Hub.open("memory", serve=[team]) as hub:
        session = await hub.session(team, id="42", ttl="2h", context={"tier": "gold"})
        assert_type(session, Session)
        session.on("ag.packet", watched)
        await session.send("user", "hello")
        state = await session.settled()
        assert_type(state, SessionState)
        async for envelope in session.watch():
            assert_type(envelope, Envelope)
        return await session.history()


def said(messages: list[BaseMessage]) -> str | Turn | Fault:
    """Script a model."""
    return Fault.rate_limit() if len(messages) > 3 else Turn("Hello.", [call("book", room="1")])


app = create_app(agent, Agent("b", model=ScriptedModel(said)), store="memory")
verdict = Decision("allow", "none")
