"""Middleware around calls under guard: it may ask again, and takes back no decision."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, effect
from agentgraph.errors import ModelError
from agentgraph.graphs.public_graph import whole_state
from agentgraph.guards import (
    AuditTrail,
    Backoff,
    CostBudget,
    Deadlines,
    Escalation,
    Gate,
    Guards,
    MemorySink,
    Record,
)
from agentgraph.stream import TokenEvent
from agentgraph.testing import Fault, ScriptedModel, Turn, call
from tests.guards.guarded_agents import (
    Hurried,
    answers,
    audited,
    calls,
    for_ever,
    is_legal,
    look,
    recorded,
    solo,
    streamed,
    watched,
    words_of,
)

Stack = list[AgentMiddleware[Any, Any]]

SPARE = "the spare speaks"


@pytest.fixture
def clock() -> Iterator[Hurried]:
    with Hurried().installed() as installed:
        yield installed


class Swallows(AgentMiddleware[Any, Any]):
    """Answer for whatever fails, once it has failed twice."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        for _ in range(2):
            try:
                return await handler(request)
            except Exception:
                continue
        return AIMessage("All is well.")

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        for _ in range(2):
            try:
                return await handler(request)
            except Exception:
                continue
        return ToolMessage("All is well.", tool_call_id=request.tool_call["id"])


class SwallowsInAThread(AgentMiddleware[Any, Any]):
    """Answer for whatever fails, in a synchronous wrapper."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        try:
            return handler(request)
        except Exception:
            return handler(request)


class InAPool(AgentMiddleware[Any, Any]):
    """Have the handler called by a thread of a pool, as a limit of time may."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(handler, request).result()

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(handler, request).result()


class Renames(AgentMiddleware[Any, Any]):
    """Raise something else in place of what failed."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        try:
            return await handler(request)
        except Exception as error:
            raise RuntimeError("something has failed") from error


class Asks(AgentMiddleware[Any, Any]):
    """Ask the model several times, side by side or not, and take the last answer."""

    def __init__(self, times: int, *, at_once: bool = False) -> None:
        super().__init__()
        self.times, self.at_once = times, at_once

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        if self.at_once:
            return (await asyncio.gather(*(handler(request) for _ in range(self.times))))[-1]
        return [await handler(request) for _ in range(self.times)][-1]


def retrying(times: int = 2) -> ModelRetryMiddleware:
    return ModelRetryMiddleware(max_retries=times, initial_delay=0)


STACKS: dict[str, Callable[[ScriptedModel], Stack]] = {
    "fallback": lambda spare: [ModelFallbackMiddleware(spare)],
    "retry": lambda spare: [retrying()],
    "swallows": lambda spare: [Swallows()],
    "in a thread": lambda spare: [SwallowsInAThread()],
    "renames": lambda spare: [Renames()],
    "nested": lambda spare: [
        Swallows(),
        retrying(),
        SwallowsInAThread(),
        ModelFallbackMiddleware(spare),
    ],
}


@pytest.fixture(params=STACKS)
def around(request: pytest.FixtureRequest) -> Callable[[ScriptedModel], Stack]:
    return STACKS[request.param]


def refusing(field: str) -> Gate:
    check: Any = lambda subject: SPARE in subject.text or "not like this"  # noqa: E731
    return Gate(policy=check) if field == "policy" else Gate(invariants=[check])


# What guards have decided


ENDED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "gate": ("Never.", {"gates": refusing("invariants")}, "gate"),
    "budget": (call("look", what="it"), {"budget": CostBudget(tokens=200)}, "cost_budget"),
}

LEFT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "provider": (Fault.server_error(), {"tier": "regulated"}, "provider_error"),
    "unsafe": ("A secret.", {"tier": "regulated", "gates": refusing("policy")}, "unsafe_output"),
    "critic": ("Perhaps.", {"escalation": Escalation(0.5, lambda subject: 0.1)}, ""),
}


@pytest.mark.parametrize("case", ENDED)
async def test_no_middleware_goes_on_where_a_guard_has_ended_the_run(
    clock: Hurried, around: Callable[[ScriptedModel], Stack], case: str
) -> None:
    turn, fields, reason = ENDED[case]
    alone, model, spare = for_ever(turn), for_ever(turn), for_ever(SPARE)
    await solo(alone, guards=watched(**fields)).ainvoke("go")
    sink = MemorySink()
    agent = solo(model, guards=watched(sink, **fields), middleware=around(spare))
    reply = await agent.ainvoke("go", thread_id="t")
    assert (words_of(reply), reply.close_reason) == ("", reason)
    assert (len(model.requests), len(spare.requests)) == (len(alone.requests), 0)
    assert [action for _, _, action in audited(sink)].count("abort") == 1
    assert is_legal(await agent.ahistory("t"))


@pytest.mark.parametrize("case", LEFT)
async def test_no_middleware_answers_for_the_human_to_whom_a_guard_has_left_it(
    clock: Hurried, around: Callable[[ScriptedModel], Stack], case: str
) -> None:
    turn, fields, failure = LEFT[case]
    alone, model, spare = for_ever(turn), for_ever(turn), for_ever(SPARE)
    await solo(alone, guards=watched(**fields)).ainvoke("go")
    sink = MemorySink()
    agent = solo(model, guards=watched(sink, **fields), middleware=around(spare))
    reply = await agent.ainvoke("go", thread_id="t")
    (question,) = reply.interrupts
    assert question.payload["failure_class"] == failure
    assert (reply.text, len(model.requests)) == ("", len(alone.requests))
    assert [action for _, _, action in audited(sink)].count("escalate") == 1
    told = {"type": "respond", "message": "Ann has seen to it."}
    reply = await agent.aresume("t", {question.id: told})
    assert (reply.text, len(spare.requests)) == ("Ann has seen to it.", 0)


async def test_a_stop_does_not_wait_for_the_pauses_of_a_retry_middleware() -> None:
    middleware = ModelRetryMiddleware(max_retries=2, initial_delay=1e6, max_delay=1e6)
    guards = watched(gates=refusing("invariants"))
    agent = solo(for_ever("Never."), guards=guards, middleware=[middleware])
    async with asyncio.timeout(30):
        assert (await agent.ainvoke("go")).close_reason == "gate"


async def test_what_is_answered_side_by_side_does_not_take_a_stop_back() -> None:
    model = for_ever("Done.")
    agent = solo(model, guards=watched(steps=2), middleware=[Asks(3, at_once=True)])
    reply = await agent.ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 2)


# What has failed


async def test_what_the_guards_have_given_up_on_no_middleware_has_asked_again(
    clock: Hurried,
) -> None:
    model, sink = for_ever(Fault.server_error()), MemorySink()
    middleware = ModelRetryMiddleware(max_retries=2, initial_delay=0, on_failure="error")
    agent = solo(model, guards=watched(sink, backoff=Backoff(0, 0, 2)), middleware=[middleware])
    with pytest.raises(ModelError, match="InternalServerError"):
        await agent.ainvoke("go")
    assert len(model.requests) == 2
    assert audited(sink)[-1] == ("a", "retry", "abort")


async def test_no_middleware_has_said_again_what_has_been_told(clock: Hurried) -> None:
    model = ScriptedModel([Fault.cut("one two three four"), "one two three four"])
    agent = solo(model, guards=watched(), middleware=[retrying()])
    events = await streamed(agent)
    told = "".join(event.text for event in events if isinstance(event, TokenEvent))
    assert (told, len(model.requests)) == ("one two", 1)


@pytest.mark.parametrize("fields", [{"retry": None}, {"tier": "batch"}])
async def test_another_model_may_still_stand_in_where_no_policy_forbids_it(
    clock: Hurried, fields: dict[str, Any]
) -> None:
    spare = for_ever(SPARE)
    middleware = [ModelFallbackMiddleware(spare)]
    agent = solo(for_ever(Fault.server_error()), guards=watched(**fields), middleware=middleware)
    assert (await agent.ainvoke("go")).text == SPARE


async def test_a_request_that_was_changed_is_asked_of_the_same_model(clock: Hurried) -> None:
    class Shortens(AgentMiddleware[Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            try:
                return await handler(request)
            except Exception:
                return await handler(request.override(messages=request.messages[-1:]))

    model = ScriptedModel(["One.", Fault.server_error(), Fault.server_error(), "Two."])
    guards = watched(backoff=Backoff(0, 0, 2))
    agent = solo(model, guards=guards, middleware=[Shortens()])
    await agent.ainvoke("one", thread_id="t")
    assert (await agent.ainvoke("two", thread_id="t")).text == "Two."


@pytest.mark.parametrize("guards", [None, Guards.interactive(retry=None)])
async def test_a_retry_middleware_tries_again_where_no_guard_does(guards: Guards | None) -> None:
    model = ScriptedModel([Fault.server_error(), Fault.server_error(), "Done."])
    agent = solo(model, guards=guards, middleware=[retrying()])
    assert (await agent.ainvoke("go")).text == "Done."


async def test_a_retry_middleware_tries_again_what_guards_do_not() -> None:
    model = ScriptedModel([ValueError("no answer in it"), "Done."])
    agent = solo(model, guards=watched(), middleware=[retrying()])
    assert (await agent.ainvoke("go")).text == "Done."


# What is counted


async def test_each_call_that_middleware_makes_is_a_step() -> None:
    model = for_ever(call("look", what="it"), call("look", what="that"), "Done.")
    agent = solo(model, guards=watched(steps=calls(5)), middleware=[Asks(2)])
    reply = await agent.ainvoke("go", thread_id="t")
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 5)
    assert is_legal(await agent.ahistory("t"))


async def test_middleware_that_asks_once_costs_one_step() -> None:
    agent = solo(
        ScriptedModel([call("look", what="it"), "Done."]),
        guards=watched(steps=2),
        middleware=[Asks(1), Swallows()],
    )
    reply = await agent.ainvoke("go")
    assert (reply.text, reply.close_reason) == ("Done.", None)


async def test_a_call_after_the_word_of_a_human_is_a_step() -> None:
    model = for_ever("Perhaps.", "Certainly.")
    escalation = Escalation(0.5, lambda subject: 0.9 if "C" in subject.text else 0.1)
    guards = watched(steps=1, escalation=escalation)
    agent = solo(model, guards=guards, middleware=[Asks(2)])
    (question,) = (await agent.ainvoke("go", thread_id="t")).interrupts
    told = {"type": "respond", "message": "Ann has seen to it."}
    reply = await agent.aresume("t", {question.id: told})
    assert (reply.close_reason, len(model.requests)) == ("max_steps", 1)


# What takes time


@pytest.mark.parametrize("left_s", [0.0, 0.5])
async def test_no_call_begins_once_middleware_has_used_up_the_time(
    clock: Hurried, left_s: float
) -> None:
    class Slow(AgentMiddleware[Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            clock.advance(60 - left_s)
            return await handler(request)

    model = ScriptedModel(["Late."])
    guards = watched(deadlines=Deadlines(None, None, 60))
    reply = await solo(model, guards=guards, middleware=[Slow()]).ainvoke("go")
    assert (words_of(reply), reply.close_reason) == ("", "deadline:workflow")
    assert model.requests == []


async def test_no_further_call_begins_once_the_ones_before_have_used_up_the_time(
    clock: Hurried,
) -> None:
    class Slow(AgentMiddleware[Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            for _ in range(3):
                last = await handler(request)
                clock.advance(40)
            return last

    model = for_ever("Done.")
    guards = watched(deadlines=Deadlines(None, None, 60))
    reply = await solo(model, guards=guards, middleware=[Slow()]).ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("deadline:workflow", 2)


# Tools


class Full(MemorySink):
    """A sink that is full once a tool is used, or an action is in some state."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def write(self, record: Record) -> None:
        if self.at in (record.kind, record.data.get("state")):
            raise OSError("the disk is full")
        super().write(record)


TOOL_STACKS: dict[str, Stack] = {
    "none": [],
    "retry": [ToolRetryMiddleware(max_retries=2, initial_delay=0)],
    "swallows": [Swallows()],
}


def paying(at: str, stack: str, *calls: Any) -> tuple[Agent, list[str]]:
    """Return an agent that pays, whose trail is full at some point, and what it has paid for."""
    paid: list[str] = []

    @effect()
    async def pay(item: str) -> str:
        """Pay for something."""
        paid.append(item)
        return f"paid for {item}"

    guards = watched(audit=AuditTrail(Full(at), on_failure="stop"))
    model = ScriptedModel([list(calls), "Done."])
    return solo(model, pay, guards=guards, middleware=TOOL_STACKS[stack]), paid


@pytest.mark.parametrize("stack", TOOL_STACKS)
@pytest.mark.parametrize("items", [("tea",), ("tea", "milk")])
async def test_no_tool_is_used_that_cannot_be_recorded_whatever_stands_around_it(
    stack: str, items: tuple[str, ...]
) -> None:
    agent, paid = paying("tool", stack, *(call("pay", item=item) for item in items))
    reply = await agent.ainvoke("go", thread_id="t")
    assert (words_of(reply), reply.close_reason, paid) == ("", "audit", [])
    history = await agent.ahistory("t")
    assert answers(history) == ["Not executed: audit has ended the turn"] * len(items)
    assert is_legal(history)


@pytest.mark.parametrize("stack", TOOL_STACKS)
@pytest.mark.parametrize("items", [("tea",), ("tea", "milk")])
async def test_what_a_tool_has_done_is_told_though_the_run_ends_there(
    stack: str, items: tuple[str, ...]
) -> None:
    agent, paid = paying("done", stack, *(call("pay", item=item) for item in items))
    reply = await agent.ainvoke("go", thread_id="t")
    assert (reply.close_reason, sorted(paid)) == ("audit", sorted(items))
    history = await agent.ahistory("t")
    assert answers(history) == [f"paid for {item}" for item in items]
    assert is_legal(history)


async def test_an_action_is_stored_before_it_runs_though_middleware_catches_all() -> None:
    stored: list[Any] = []
    agent: Agent

    @effect()
    async def pay(item: str) -> str:
        """Pay for something."""
        state = await whole_state(agent.graph, {"configurable": {"thread_id": "t"}})
        stored.append(state.values["guarded"])
        return f"paid for {item}"

    model = ScriptedModel([call("pay", item="tea"), "Done."])
    agent = solo(
        model,
        pay,
        guards=watched(),
        middleware=[Swallows()],
        durability="sync",
        checkpointer=InMemorySaver(),
    )
    reply = await agent.ainvoke("go", thread_id="t")
    assert (reply.text, answers(reply.messages)) == ("Done.", ["paid for tea"])
    (kept,) = stored
    assert "started" in str(kept)


async def test_middleware_may_still_answer_for_a_tool_that_asks_a_human() -> None:
    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    model = ScriptedModel([call("ask"), "Done."])
    agent = solo(model, ask, guards=watched(), middleware=[Swallows()])
    reply = await agent.ainvoke("go")
    assert (reply.text, answers(reply.messages)) == ("Done.", ["All is well."])


async def test_a_tool_that_asks_a_human_inside_of_retries_is_asked_once() -> None:
    def ask() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    sink = MemorySink()
    model = ScriptedModel([call("ask"), "Done."])
    middleware = TOOL_STACKS["retry"]
    agent = solo(model, ask, look, guards=watched(sink), middleware=middleware)
    (question,) = (await agent.ainvoke("go", thread_id="t")).interrupts
    reply = await agent.aresume("t", {question.id: "yes"})
    assert (reply.text, answers(reply.messages)) == ("Done.", ["yes"])
    assert len(recorded(sink, "tool")) == 2


async def test_a_handler_in_a_thread_of_a_pool_is_under_guard_too() -> None:
    sink = MemorySink()
    model = ScriptedModel([call("look", what="tea"), "Done."])
    agent = solo(model, look, middleware=[InAPool()], guards=watched(sink))
    assert (await agent.ainvoke("go", thread_id="t")).text == "Done."
    told = [one.text for one in await agent.ahistory("t") if one.type == "tool"]
    assert told == ["nothing of tea"]
    assert [one.kind for one in sink.read(sink.runs()[0]) if one.kind in ("model", "tool")] == [
        "model",
        "tool",
        "model",
    ]


async def test_a_handler_in_a_thread_of_a_pool_works_without_guards() -> None:
    model = ScriptedModel([call("look", what="tea"), "Done."])
    agent = solo(model, look, middleware=[InAPool()], guards=None)
    assert [one.text for one in (await agent.ainvoke("go")).messages][1:] == [
        "nothing of tea",
        "Done.",
    ]


class Writes(AgentMiddleware[Any, Any]):
    """Let a model write much more than it says of itself."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(model_settings={"max_tokens": 30_000}))


@pytest.mark.parametrize("tools", [(), (look,)])
async def test_how_much_middleware_lets_a_model_write_is_reckoned_with(tools: Any) -> None:
    model = ScriptedModel(["Done."])
    model.__dict__["max_tokens"] = 100  # it says so, and is told otherwise
    policy = watched(budget=CostBudget(tokens=5_000))
    agent = Agent("a", model=model, tools=tools, middleware=[Writes()], guards=policy)
    assert (await agent.ainvoke("go")).close_reason == "cost_budget"
    assert model.requests == []


async def test_a_model_that_writes_more_than_it_was_taken_to_is_reckoned_anew() -> None:
    used = UsageMetadata(input_tokens=50, output_tokens=9_000, total_tokens=9_050)
    model = ScriptedModel(lambda _: Turn(calls=[call("look", what="it")], usage=used))
    reply = await solo(model, guards=watched(budget=CostBudget(tokens=20_000))).ainvoke("go")
    assert reply.close_reason == "cost_budget"
    assert len(model.requests) == 2
