"""A session of one keeps what a thread keeps: each program is held on both, and compared."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, NotRequired

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ModelCallLimitMiddleware,
    SummarizationMiddleware,
)
from langchain_core.messages import AnyMessage, BaseMessage, RemoveMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentgraph import Agent, Finish, Guards, Hub, Intent, Patcher
from agentgraph.errors import AgentGraphError
from agentgraph.guards import CostBudget
from agentgraph.testing import ScriptedModel, bad_call, call
from agentgraph.testing.answers import Scripted, Turn
from tests.sessions.single.conversations import Conversation, InSession, OnThread, Seen

Program = Callable[[], tuple[Agent[Any], Callable[[Conversation], Awaitable[None]]]]


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def ask(question: str) -> str:
    """Ask a human."""
    return f"they said {interrupt(question)}"


def scripted(*turns: Scripted) -> ScriptedModel:
    return ScriptedModel(turns)


def agent(name: str, *turns: Scripted, **fields: Any) -> Agent[Any]:
    return Agent(name, f"does {name}", model=scripted(*turns), **{"default_tools": False, **fields})


async def say_all(conversation: Conversation, *texts: Any) -> None:
    for text in texts:
        await conversation.say(text)


def turns(*texts: Any) -> Callable[[Conversation], Awaitable[None]]:
    return lambda conversation: say_all(conversation, *texts)


PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


@program
def tools() -> Any:
    calls: list[Any] = [call("add", a=1, b=2), call("add", a=3, b=4)]
    return agent("desk", calls, "3 and 7", "again", tools=[add]), turns("go", "once more")


@program
def long_answers() -> Any:
    return agent("desk", "x" * 150_000, "é" * 40_000, "short"), turns("go", "on", "and on")


@program
def long_texts() -> Any:
    def sizes(messages: Sequence[BaseMessage]) -> str:
        return f"{len(str(messages[-1].content))} {str(messages[-1].text)[-2:]}"

    long_text = "y" * 300_000 + "é😀!"
    texts = ["x" * 256_000, long_text, [{"type": "text", "text": long_text}], "short"]
    guards = Guards.interactive(budget=CostBudget(tokens=100_000_000))
    desk = Agent("desk", model=ScriptedModel(sizes), default_tools=False, guards=guards)
    return desk, turns(*texts)


class Report(BaseModel):
    lines: list[str]


@program
def long_answers_in_a_form() -> Any:
    lines = ["a line that is not short"] * 4_000
    given = call("Report", lines=lines)
    said = Report(lines=lines).model_dump_json()
    return agent("desk", given, said, response_format=Report), turns("go", "once more")


@program
def sticky_paths() -> Any:
    leaf = agent("leaf", "leaf here", "leaf again")
    mid = agent("mid", call("transfer_to_leaf", reason="deep"), agents=[leaf])
    root = agent("root", call("transfer_to_mid", reason="down"), "root here", agents=[mid])
    return root, turns("hello", "and?", "@supervisor you there?")


@program
def mentions() -> Any:
    root = agent("root", "root", agents=[agent("billing", "billing", "billing again")])
    return root, turns("@billing pay", "and?", "@nobody hello")


@program
def help_is_requested() -> Any:
    billing = agent("billing", call("request_help", reason="who is it?"), default_tools=True)
    calls: list[Any] = [call("transfer_to_billing"), "It is Bob.", "Bob again."]
    return agent("root", *calls, agents=[billing]), turns("pay", "who?")


@program
def delegates() -> Any:
    one, two = agent("one", "one is done"), agent("two", call("add", a=1, b=1), "two", tools=[add])
    calls: list[Any] = [call("transfer_to_one"), call("transfer_to_two")]
    root = agent("root", calls, "both done", "yes", agents=[one, two], handoff="delegate")
    return root, turns("go", "sure?")


@program
def agents_as_tools() -> Any:
    clerk = agent("clerk", "spam", "ham")
    calls: list[Any] = [call("clerk", request="is it spam?")]
    return agent("root", calls, "it is spam", "bye", agents=[clerk.as_tool()]), turns("a", "b")


@program
def questions_at_depth() -> Any:
    leaf = agent(
        "leaf", [call("ask", question="pay?"), call("add", a=1, b=1)], "paid", tools=[ask, add]
    )
    mid = agent("mid", call("transfer_to_leaf"), agents=[leaf])
    root = agent("root", call("transfer_to_mid"), "thanks", agents=[mid])

    async def talk(conversation: Conversation) -> None:
        assert (await conversation.say("pay")).asked == ("pay?",)
        await conversation.decide("yes")
        await conversation.say("@root well?")

    return root, talk


@program
def two_questions_after_each_other() -> Any:
    desk = agent(
        "desk", call("ask", question="a?"), call("ask", question="b?"), "done", tools=[ask]
    )

    async def talk(conversation: Conversation) -> None:
        await conversation.say("go")
        await conversation.decide(1)
        await conversation.decide(2)

    return desk, talk


@program
def two_questions_at_once() -> Any:
    calls: list[Any] = [call("ask", question="a?"), call("ask", question="b?")]
    desk = agent("desk", calls, "done", "bye", tools=[ask])

    async def talk(conversation: Conversation) -> None:
        await conversation.say("go")
        await conversation.decide("x", "y")
        await conversation.say("and?")

    return desk, talk


@program
def a_question_that_is_left_open() -> Any:
    calls: list[Any] = [call("add", a=1, b=2), call("ask", question="pay?")]
    desk = agent("desk", calls, "as you like", "bye", tools=[ask, add])
    return desk, turns("pay", "never mind", "bye")


@program
def a_question_of_a_sub_agent_that_is_left_open() -> Any:
    calls: list[Any] = [call("add", a=1, b=2), call("ask", question="pay?")]
    billing = agent("billing", calls, "as you like", tools=[ask, add])
    root = agent("root", call("transfer_to_billing"), agents=[billing])
    return root, turns("pay", "never mind")


@program
def a_model_that_fails() -> Any:
    calls: list[Any] = [call("add", a=1, b=2), ValueError("no")]
    desk = agent("desk", *calls, "three, then", "bye", tools=[add], guards=Guards(retry=None))
    return desk, turns("go", "and?", "bye")


@program
def malformed_calls() -> Any:
    return agent("desk", bad_call("add"), "hm", "ok", tools=[add]), turns("go", "again")


class Counted(TypedDict):
    count: Annotated[int, operator.add]
    last: str
    seen: Annotated[list[str], operator.add]


@tool
def count(word: str, call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Count a word."""
    message = ToolMessage(f"counted {word}", tool_call_id=call_id)
    return Command(update={"count": 1, "last": word, "seen": [word], "messages": [message]})


@program
def state_of_patchers() -> Any:
    @tool
    def counted(state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Say what was counted."""
        return f"{state.get('count')} {state.get('last')} {state.get('seen')}"

    calls: list[Any] = [
        call("count", word="a"),
        "ok",
        call("count", word="b"),
        call("counted"),
        "ok",
    ]
    desk = agent(
        "desk",
        *calls,
        call("counted"),
        "bye",
        tools=[count, counted],
        patcher=Patcher(lambda graph: graph, state=Counted),
    )
    return desk, turns("a", "b", "c")


class TallyState(AgentState[Any]):
    tally: NotRequired[Annotated[list[str], operator.add]]


class Tally(AgentMiddleware[TallyState, Any]):
    state_schema = TallyState

    def before_model(self, state: TallyState, runtime: Any) -> dict[str, Any]:
        return {"tally": [f"{len(state['messages'])} after {len(state.get('tally') or ())}"]}


@program
def state_of_middleware() -> Any:
    limit = ModelCallLimitMiddleware(thread_limit=3, exit_behavior="end")
    desk = agent("desk", "one", "two", "three", "four", middleware=[Tally(), limit])
    return desk, turns("a", "b", "c", "d")


class Forget(AgentMiddleware[Any, Any]):
    """Removes the oldest message before each turn."""

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        messages = state["messages"]
        return {"messages": [RemoveMessage(messages[0].id)]} if len(messages) > 2 else None


@program
def messages_that_are_removed() -> Any:
    desk = agent("desk", "one", "two", "three", "four", middleware=[Forget()])
    return desk, turns("a", "b", "c", "d")


@program
def all_messages_are_removed() -> Any:
    @tool
    def start_anew(call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Forget all."""
        return Command(update={"messages": [RemoveMessage(REMOVE_ALL_MESSAGES)]})

    desk = agent("desk", "one", call("start_anew"), "anew", "two", tools=[start_anew])
    return desk, turns("a", "b", "c")


@program
def summaries() -> Any:
    summarise = SummarizationMiddleware(
        model=scripted(*[f"summary {n}" for n in range(9)]),
        trigger=("messages", 5),
        keep=("messages", 2),
    )
    desk = agent("desk", *"abcdefg", middleware=[summarise])
    return desk, turns(*"1234567")


@program
def windows() -> Any:
    replies = [str(number) for number in range(30)]
    desk = agent("desk", *replies, history=4)
    return desk, turns(*[f"say {number}" for number in range(30)])


@program
def windows_of_several_agents() -> Any:
    billing = agent("billing", *[f"b{number}" for number in range(12)], history=6)
    root = agent("root", *"abcdefgh", agents=[billing], history=4)
    texts = [f"@{'billing' if number % 5 > 2 else 'root'} {number}" for number in range(20)]
    return root, turns(*texts)


@program
def images() -> Any:
    image = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
    large = {"type": "image", "base64": "A" * 300_000, "mime_type": "image/png"}
    desk = agent("desk", "a cat", "another", "bye")
    question = {"type": "text", "text": "what is it?"}
    return desk, turns([question, image], [question, large, large], "bye")


@program
def large_results() -> Any:
    @tool
    def read(size: int) -> str:
        """Read."""
        return "é" * size

    calls: list[Any] = [
        call("read", size=70_000),
        call("read", size=50_000),
        call("read", size=400_000),
    ]
    desk = agent("desk", calls, "much", "bye", tools=[read], guards=None)
    return desk, turns("go", "and?")


@program
def artifacts() -> Any:
    @tool(response_format="content_and_artifact")
    def find() -> tuple[str, Any]:
        """Find."""
        return "found", {"rows": (1, 2), "of": {3}}

    return agent("desk", call("find"), "ok", "bye", tools=[find]), turns("go", "and?")


@program
def reasoning() -> Any:
    desk = agent("desk", Turn("well", reasoning="let me think"), "bye")
    return desk, turns("go", "and?")


@program
def intents() -> Any:
    billing = agent("billing", "billing here", "again")
    root = agent(
        "root",
        call("add", a=2, b=2),
        "four",
        tools=[add],
        agents=[billing],
        intents=[
            Intent("opening hours", "raw", "9 to 5"),
            Intent("bill", "agent", "billing"),
            Intent("sum", "tool", "add"),
        ],
    )
    return root, turns("Opening hours?", "sum", "bill", "and?")


class Price(BaseModel):
    amount: int
    currency: str = "EUR"


@program
def forms() -> Any:
    billing = agent("billing", "text")
    desk = agent(
        "desk",
        call("Price", amount=3),
        call("Price", amount="much"),
        call("Price", amount=4),
        response_format=Price,
        agents=[billing],
    )
    return desk, turns("how much?", "really?")


@program
def answers_that_miss_their_form() -> Any:
    desk = agent("desk", "three", "three", call("Price", amount=3), response_format=Price)
    return desk, turns("how much?", "really?")


@program
def the_end_of_a_turn() -> Any:
    @tool
    def stop() -> Finish:
        """Stop."""
        return Finish("That is all.")

    return agent("desk", call("stop"), "hello again", tools=[stop]), turns("go", "and?")


@program
def guards_that_end_a_run() -> Any:
    calls: list[Any] = [call("add", a=number, b=1) for number in range(3)]
    desk = agent("desk", *calls, "hello again", tools=[add], guards=Guards(steps=2))
    return desk, turns("go", "and?")


@program
def direct_results() -> Any:
    @tool(return_direct=True)
    def look_up() -> str:
        """Look up."""
        return "the very text"

    return agent("desk", call("look_up"), "bye", tools=[look_up]), turns("go", "and?")


def hanging() -> tuple[Any, asyncio.Event]:
    """Return a tool that never ends, and an event that tells that it has begun."""
    begun = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return "never"

    return hang, begun


@program
def a_run_that_is_cancelled() -> Any:
    hang, begun = hanging()
    calls = [call("add", a=1, b=2), call("hang")]
    desk = agent("desk", *calls, "well", "bye", tools=[add, hang])

    async def talk(conversation: Conversation) -> None:
        await conversation.cut_off("go", begun)
        await say_all(conversation, "and?", "bye")

    return desk, talk


@program
def a_sub_agent_that_is_cancelled() -> Any:
    hang, begun = hanging()
    calls = [call("add", a=1, b=2), call("hang")]
    billing = agent("billing", *calls, "billing goes on", "bye", tools=[add, hang])
    root = agent("root", call("transfer_to_billing"), agents=[billing])

    async def talk(conversation: Conversation) -> None:
        await conversation.cut_off("go", begun)
        await say_all(conversation, "and?", "bye")

    return root, talk


@program
def delegates_that_are_cancelled() -> Any:
    hang, begun = hanging()
    worker = agent("worker", call("add", a=1, b=2), call("hang"), tools=[add, hang])
    calls = call("transfer_to_worker")
    root = agent("root", calls, "I see", "bye", agents=[worker], handoff="delegate")

    async def talk(conversation: Conversation) -> None:
        await conversation.cut_off("go", begun)
        await say_all(conversation, "and?", "bye")

    return root, talk


@asynccontextmanager
async def in_session(served: Agent[Any], url: str) -> AsyncIterator[Conversation]:
    async with await Hub.open(url, serve=[served]) as hub:
        yield InSession(await hub.session(served))


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_session_of_one_keeps_what_a_thread_keeps(name: str, tmp_path: Any) -> None:
    thread_agent, talk = PROGRAMS[name]()
    on_thread = await held(OnThread(thread_agent), talk)
    session_agent, talk = PROGRAMS[name]()
    async with in_session(session_agent, f"sqlite:///{tmp_path / 'sessions.db'}") as conversation:
        in_its_session = await held(conversation, talk)
    assert in_its_session == on_thread
    assert prompts(session_agent) == prompts(thread_agent)


class Recorded:
    """A conversation that records what is seen of it."""

    def __init__(self, inner: Conversation) -> None:
        self.inner = inner
        self.seen: list[Seen | str] = []

    async def say(self, content: Any) -> Seen:
        return await self._record(self.inner.say(content))

    async def decide(self, *decisions: object) -> Seen:
        return await self._record(self.inner.decide(*decisions))

    async def cut_off(self, content: Any, when: asyncio.Event) -> None:
        await self.inner.cut_off(content, when)

    async def history(self) -> list[AnyMessage]:
        return await self.inner.history()

    async def _record(self, answer: Awaitable[Seen]) -> Seen:
        try:
            seen = await answer
        except AgentGraphError as error:
            self.seen.append(f"{type(error).__name__} {error.code}")
            return Seen("", "")
        self.seen.append(seen)
        return seen


async def held(
    conversation: Conversation, talk: Callable[[Conversation], Awaitable[None]]
) -> tuple[Any, ...]:
    recorded = Recorded(conversation)
    await talk(recorded)
    return recorded.seen, shapes(await conversation.history())


def shapes(messages: Sequence[BaseMessage]) -> list[Any]:
    """Return messages without ids and times."""
    ids: dict[Any, int] = {}
    return [
        (
            message.type,
            message.name,
            message.content,
            [
                (c["name"], c["args"], number(ids, c["id"]))
                for c in getattr(message, "tool_calls", ())
            ],
            number(ids, getattr(message, "tool_call_id", None)),
            getattr(message, "status", None),
            getattr(message, "artifact", None),
        )
        for message in messages
    ]


def number(ids: dict[Any, int], key: Any) -> int | None:
    return None if key is None else ids.setdefault(key, len(ids))


def prompts(served: Agent[Any]) -> list[Any]:
    """Return what the models of a tree were shown."""
    models = [model_of(member) for member in tree(served)]
    return [
        [(shapes(request.messages), request.tools) for request in model.requests]
        for model in models
    ]


def model_of(member: Agent[Any]) -> ScriptedModel:
    assert isinstance(member.model, ScriptedModel)
    return member.model


def tree(served: Any) -> list[Agent[Any]]:
    own = getattr(served, "agent", served)
    return [own, *(below for child in own.agents for below in tree(child))]
