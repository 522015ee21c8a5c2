"""The types of agents, replies and streams: what type checkers must accept, and what refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, TypeVar, assert_type

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.types import Command
from pydantic import BaseModel

from agentgraph import Agent, Envelope, Hub, Intent, Reply, Team, sequence
from agentgraph.agents import Interrupt
from agentgraph.stream import AnyEvent, Event, RoutingKind
from agentgraph.testing import ScriptedModel


class Invoice(BaseModel):
    """An invoice."""

    total: int


@dataclass
class Parcel:
    """A parcel."""

    weight: int


class Address(TypedDict):
    """An address."""

    street: str


def look_up(number: int) -> str:
    """Look an invoice up."""
    return f"invoice {number}"


async def send(number: int) -> str:
    """Send an invoice."""
    return f"invoice {number}"


@tool
def cancel(number: int) -> str:
    """Cancel an invoice."""
    return f"invoice {number}"


plain = Agent("plain")
billing = Agent("billing", "Answers billing questions", response_format=Invoice)

assert_type(plain, Agent[None])
assert_type(billing, Agent[Invoice])
assert_type(Agent("a", response_format=Parcel), Agent[Parcel])
assert_type(Agent("a", response_format=Address), Agent[Address])
assert_type(Agent("a", response_format={"title": "A"}), Agent[dict[str, Any]])
assert_type(Agent("a", response_format=ToolStrategy(Invoice)), Agent[Invoice])
assert_type(Agent("a", response_format=ProviderStrategy(Address)), Agent[Address])
assert_type(Agent[Invoice]("a", response_format=Invoice), Agent[Invoice])
# Type checkers have no type for a union that is a value: the argument of the class says it.
either = Agent[Invoice | Parcel]("a", response_format=Invoice | Parcel)
assert_type(either, Agent[Invoice | Parcel])
assert_type(either.invoke("hello").output, Invoice | Parcel | None)


Form = TypeVar("Form")


def reader(form: type[Form], is_short: bool) -> Agent[Form]:
    """A type argument goes through a function."""
    optional = Agent("a", response_format=Invoice if is_short else None)
    assert_type(optional.invoke("hello").output, Invoice | None)
    return Agent("reader", response_format=form)


def changes(schema: dict[str, object]) -> None:
    """A change of other fields keeps the type; another form changes it."""
    assert_type(billing.replace(model="offline", name="other"), Agent[Invoice])
    assert_type(billing.replace(deep=True, guards=None), Agent[Invoice])
    assert_type(billing.replace(response_format=Parcel), Agent[Parcel])
    assert_type(billing.replace(response_format=None), Agent[None])
    assert_type(plain.replace(response_format=schema), Agent[dict[str, Any]])


async def replies() -> None:
    """Every call's reply has the output of its agent."""
    assert_type(plain.invoke("hello"), Reply[None])
    assert_type(plain.invoke("hello").output, None)
    reply = await billing.ainvoke([HumanMessage("hello")], thread_id="1")
    assert_type(reply, Reply[Invoice])
    assert_type(reply.output, Invoice | None)
    assert_type(await billing.aresume("1", {"q": "yes"}), Reply[Invoice])
    assert_type(billing.resume("1", {"q": "yes"}), Reply[Invoice])
    if reply.output is not None:
        assert_type(reply.output.total, int)
    print(reply.output.total)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    print(plain.invoke("hello").output.total)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


async def questions(reply: Reply[Invoice]) -> str:
    """The payload of a question is whatever a tool gave to `interrupt`."""
    [question] = reply.interrupts
    assert_type(question, Interrupt)
    assert_type(question.response_schema, Mapping[str, object] | None)
    amount: int = question.payload["amount"]
    answer = await billing.aresume(reply.thread_id, {question.id: amount > 3})
    return answer.text


async def events() -> None:
    """The type of an event decides on its fields."""
    async for event in billing.astream(Command(resume={"q": 1}), thread_id="1"):
        told(event)
    for event in plain.stream("hello"):
        told(event)
    async for item in Team([plain], sequence(["plain"])).astream("hello"):
        if isinstance(item, Envelope):
            print(item.text)
        else:
            told(item)


def told(event: AnyEvent) -> None:
    """Narrow an event by its type."""
    print(event.agent, event.sequence, event.to_dict())
    if event.type == "token" or event.type == "ai_message":
        assert_type(event.text, str)
    elif event.type == "tool_usage":
        assert_type(event.args, Mapping[str, object])
    elif event.type == "tool_response":
        assert_type(event.content, str)
    elif event.type == "routing":
        assert_type(event.kind, RoutingKind)
    elif event.type == "guard":
        assert_type(event.decision, Mapping[str, object])
    elif event.type == "interrupt":
        print(event.payload["amount"], event.id)
    elif event.type == "error":
        assert_type(event.code, str)
    elif event.type == "message":
        assert_type(event.close_reason, str | None)
    print(event.text)  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue]
    if event.type == "tokens":  # type: ignore[comparison-overlap]
        print("a type that no event has")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEvent(Event):
    """An event of the user's own."""

    type: ClassVar[str] = "time"

    seconds: float


async def own_events() -> list[float]:
    """Events of one's own are found among values of the type `Event`."""
    events: list[Event] = [event async for event in plain.astream("hello")]
    return [event.seconds for event in events if isinstance(event, TimeEvent)]


def matched(event: AnyEvent) -> str:
    """Tell events apart by `match`."""
    match event.type:
        case "token":
            return event.text
        case "tool_usage":
            return event.tool
        case _:
            return ""


graph = create_agent(ScriptedModel([]), name="graph")
team = Team([plain, billing, graph], sequence(["plain", "billing"]), supervisor=plain)
desk = Agent(
    "desk",
    model=ScriptedModel(["Hello."]),
    agents=[billing, plain.as_tool(), graph, team],
    tools=[look_up, send, cancel, {"type": "web_search"}, plain],
    intents=[Intent("when are you open", "raw", "Always.")],
    system_prompt=lambda messages: f"{len(messages)} messages",
    history=lambda messages: messages[-3:],
)
only_agents = Agent("only", agents=[plain, billing], tools=[plain])
inherited: list[Agent] = [plain, billing]
from_list = Team(inherited, sequence(["plain"]))

Agent("a", tols=[look_up])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
Agent("a", agents=[look_up])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
Agent("a", handoff="stick")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
Agent("a", response_format=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
Team(["plain"], sequence(["plain"]))  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def sessions() -> None:
    """Sessions give envelopes, and the events of the agents."""
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        stream: AsyncIterator[Envelope | AnyEvent] = session.stream()
        async for item in stream:
            if not isinstance(item, Envelope) and item.type == "token":
                assert_type(item.text, str)


def messages_of(reply: Reply) -> list[str]:
    """Read the messages of any agent's reply."""
    assert_type(reply, Reply[object])
    return [str(message.text) for message in reply.messages if isinstance(message, AIMessage)]


print(messages_of(plain.invoke("hello")), messages_of(billing.invoke("hello")))
