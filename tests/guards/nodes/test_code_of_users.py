"""Functions of the user beside models and tools: timed, counted and paid as the code of a tool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages.ai import UsageMetadata
from langgraph.runtime import Runtime

from agentgraph import Agent, Intent, Reply, Team, patched, sequence
from agentgraph.clock import clock
from agentgraph.guards import DEFAULT, MemorySink
from agentgraph.testing import ScriptedModel, Turn, call
from tests.guards.guarded_agents import recorded, solo, watched
from tests.guards.metered_models import Driven
from tests.guards.timed_agents import FOREVER_S, guards

USED = UsageMetadata(input_tokens=90, output_tokens=10, total_tokens=100)


def asked() -> ScriptedModel:
    """Return a model that a function of the user asks; each answer uses 100 tokens."""
    return ScriptedModel(lambda _: Turn("Be brief.", usage=USED))


def own(*turns: Any) -> ScriptedModel:
    return ScriptedModel([*turns, Turn("Done.", usage=USED)])


def by_prompt(model: ScriptedModel, **fields: Any) -> Agent:
    async def prompt(messages: Any) -> str:
        return str((await model.ainvoke("how?")).text)

    return solo(own(), system_prompt=prompt, **fields)


def by_sync_prompt(model: ScriptedModel, **fields: Any) -> Agent:
    def prompt(messages: Any) -> str:
        return str(model.invoke("how?").text)

    return solo(own(), system_prompt=prompt, **fields)


def by_history(model: ScriptedModel, **fields: Any) -> Agent:
    def history(messages: Any) -> Any:
        model.invoke("what matters?")
        return messages

    return solo(own(), history=history, **fields)


def by_matcher(model: ScriptedModel, **fields: Any) -> Agent:
    async def matcher(message: str, phrase: str) -> bool:
        return str((await model.ainvoke(message)).text) == "yes"

    return solo(own(), intents=[Intent("hello", "raw", "Hi.", matcher)], **fields)


class Hooked(AgentMiddleware[Any, Any]):
    def __init__(self, model: ScriptedModel) -> None:
        super().__init__()
        self.asked = model


class Before(Hooked):
    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> None:
        await self.asked.ainvoke("is it safe?")


class SyncBefore(Hooked):
    def before_agent(self, state: Any, runtime: Runtime[Any]) -> None:
        self.asked.invoke("is it safe?")


class Around(Hooked):
    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        await self.asked.ainvoke("which model?")
        return await handler(request)


def by(kind: type[Hooked]) -> Callable[..., Agent]:
    return lambda model, **fields: solo(own(), middleware=[kind(model)], **fields)


class AroundTools(Hooked):
    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        await self.asked.ainvoke("may it run?")
        return await handler(request)


def around_tools(model: ScriptedModel, **fields: Any) -> Agent:
    turns = own(Turn("", [call("look", what="it")], usage=USED))
    return solo(turns, middleware=[AroundTools(model)], **fields)


WAYS: dict[str, tuple[Callable[..., Agent], str]] = {
    "a prompt function": (by_prompt, "system_prompt"),
    "a synchronous prompt function": (by_sync_prompt, "system_prompt"),
    "a history function": (by_history, "history"),
    "a matcher": (by_matcher, "matcher"),
    "a hook": (by(Before), "Before.before_model"),
    "a synchronous hook": (by(SyncBefore), "SyncBefore.before_agent"),
    "middleware around a model": (by(Around), "wrap_model_call"),
    "middleware around tools": (around_tools, "wrap_tool_call"),
}
in_all_ways = pytest.mark.parametrize("way", WAYS)


def used(reply: Reply, path: str) -> int:
    usage = reply.usage.by_agent.get(path)
    return 0 if usage is None else usage.total_tokens


@in_all_ways
async def test_the_models_that_a_function_asks_are_counted_and_paid_once(way: str) -> None:
    make, name = WAYS[way]
    sink = MemorySink()
    agent = make(asked(), guards=watched(sink, budget=100_000))
    reply = await agent.ainvoke("go")
    calls = 3 if make is around_tools else 2
    assert (reply.text, reply.close_reason) == ("Done.", None)
    assert len(recorded(sink, "model")) == len(recorded(sink, "settled")) == calls
    assert used(reply, f"a/{name}") == 100
    assert used(reply, "a") == 100 * (calls - 1)


@in_all_ways
async def test_their_usage_is_in_the_reply_without_guards_too(way: str) -> None:
    make, name = WAYS[way]
    reply = await make(asked(), guards=None).ainvoke("go")
    assert (reply.text, used(reply, f"a/{name}")) == ("Done.", 100)


@in_all_ways
async def test_a_model_beyond_the_limit_is_not_asked_and_the_run_ends(way: str) -> None:
    make, name = WAYS[way]
    model, sink = asked(), MemorySink()
    agent = make(model, guards=watched(sink, budget=1))
    reply = await agent.ainvoke("go")
    assert (reply.close_reason, len(model.requests)) == ("cost_budget", 0)
    if make is not around_tools:  # its own model is refused before
        assert f"`{name}` was broken off" in reply.text


@in_all_ways
async def test_a_run_of_an_agent_in_a_function_is_a_part_of_the_input(way: str) -> None:
    make, name = WAYS[way]
    sink = MemorySink()
    inner = Agent("inner", model=asked(), default_tools=False)

    model: Any = asked()

    async def ainvoke(*args: Any, **fields: Any) -> Any:
        return await inner.ainvoke("help")

    def invoke(*args: Any, **fields: Any) -> Any:
        return inner.invoke("help")

    object.__setattr__(model, "ainvoke", ainvoke)
    object.__setattr__(model, "invoke", invoke)
    reply = await make(model, guards=watched(sink)).ainvoke("go")
    assert (reply.text, len(sink.runs())) == ("Done.", 1)
    assert f"a/{name}/inner" in {record.agent for record in recorded(sink, "model")}


def endless(kind: str, stop: threading.Event, **fields: Any) -> Agent:
    """Return an agent with a function that never returns, or not before the event."""

    async def never(*args: Any) -> Any:
        await clock().sleep(FOREVER_S)

    def blocked(*args: Any) -> Any:
        stop.wait(30)

    function = blocked if kind.startswith("a synchronous") else never
    if kind.endswith("prompt function"):
        return solo(own(), system_prompt=function, **fields)
    if kind == "a history function":
        return solo(own(), history=blocked, **fields)
    if kind.endswith("matcher"):
        return solo(own(), intents=[Intent("hello", "raw", "Hi.", function)], **fields)
    hook: Any = type("Hook", (AgentMiddleware,), {"abefore_model": never})
    if function is blocked:
        hook = type("Hook", (AgentMiddleware,), {"before_model": blocked})
    return solo(own(), middleware=[hook()], **fields)


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("layer", ["step", "workflow"])
@pytest.mark.parametrize("kind", ["a prompt function", "a matcher", "a hook"])
async def test_a_function_that_hangs_is_cut_off_and_the_run_ends(
    kind: str, layer: str, stop: threading.Event
) -> None:
    agent = endless(kind, stop, guards=guards(**{f"{layer}_s": 5}))
    with Driven().installed() as time:
        reply, seconds = await time.lasting(agent.ainvoke("go"))
    assert (reply.close_reason, seconds) == (f"deadline:{layer}", 5)
    assert f"cut off after 5 s by the deadline of the {layer}" in reply.text
    assert isinstance(agent.model, ScriptedModel) and not agent.model.requests


@pytest.mark.parametrize(
    "kind",
    [
        "a synchronous prompt function",
        "a history function",
        "a synchronous matcher",
        "a synchronous hook",
    ],
)
async def test_a_synchronous_function_that_hangs_is_left_behind_in_its_thread(
    kind: str, stop: threading.Event
) -> None:
    agent = endless(kind, stop, guards=guards(0.05))
    reply = await agent.ainvoke("go")
    assert reply.close_reason == "deadline:step"
    assert "cut off after 0.05 s by the deadline of the step" in reply.text
    assert isinstance(agent.model, ScriptedModel) and not agent.model.requests


async def test_a_sub_agent_whose_prompt_hangs_ends_at_the_deadline_of_its_stage(
    stop: threading.Event,
) -> None:
    below = endless("a prompt function", stop).replace(name="sub")
    boss = ScriptedModel([call("transfer_to_sub"), "Done."])
    limits = guards(step_s=9, stage_s=5)
    agent = Agent("boss", model=boss, agents=[below], handoff="delegate", guards=limits)
    with Driven().installed() as time:
        reply, seconds = await time.lasting(agent.ainvoke("go"))
    assert (reply.close_reason, seconds) == ("deadline:stage", 5)


async def test_the_next_input_asks_the_prompt_function_again() -> None:
    prompts: list[str] = []

    async def prompt(messages: Any) -> str:
        prompts.append(str(messages[-1].text))
        if len(prompts) == 1:
            await clock().sleep(FOREVER_S)
        return "Be brief."

    agent = solo(own(), system_prompt=prompt, guards=guards(5))
    with Driven().installed() as time:
        reply, _ = await time.lasting(agent.ainvoke("go", thread_id="t"))
        again, _ = await time.lasting(agent.ainvoke("go on", thread_id="t"))
    assert (reply.close_reason, again.close_reason) == ("deadline:step", None)
    assert (again.text, prompts) == ("Done.", ["go", "go on"])


@pytest.mark.parametrize("way", ["a prompt function", "a matcher", "a hook"])
async def test_the_patched_graph_of_an_agent_without_guards_counts_them_too(way: str) -> None:
    make, _ = WAYS[way]
    sink = MemorySink()
    graph: Any = patched(make(asked(), guards=None).graph, watched(sink))
    result = await graph.ainvoke({"messages": [("user", "go")]})
    assert result["messages"][-1].text == "Done."
    assert len(recorded(sink, "model")) == len(recorded(sink, "settled")) == 2


async def test_a_prompt_of_a_team_s_speaker_is_a_part_of_the_input_too() -> None:
    sink = MemorySink()
    speakers = [by_prompt(asked(), name=name, guards=DEFAULT) for name in ("ann", "bob")]
    team = Team(speakers, sequence(["ann", "bob"]), guards=watched(sink))
    result = await team.arun("go")
    assert (result.text, len(sink.runs())) == ("Done.", 1)
    assert len(recorded(sink, "model")) == 4
