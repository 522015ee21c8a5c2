from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel

from agentgraph.clock import clock, new_id, use_clock
from agentgraph.testing import (
    FakeClock,
    Fault,
    IllegalHistory,
    ScriptedModel,
    ScriptExhausted,
    Turn,
    bad_call,
    call,
    check_history,
)
from agentgraph.timeouts import paused_limits

ASK: list[BaseMessage] = [HumanMessage("hello")]


@tool
def refund(reason: str) -> str:
    """Refund a customer."""
    return f"refunded: {reason}"


def merged(chunks: Sequence[Any]) -> AIMessageChunk:
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert isinstance(total, AIMessageChunk)
    return total


def without_ids(message: AIMessage) -> tuple[object, ...]:
    calls = [{**one, "id": None} for one in [*message.tool_calls, *message.invalid_tool_calls]]
    return (
        message.content,
        calls,
        message.usage_metadata,
        message.response_metadata,
        message.additional_kwargs,
    )


json_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
calls = st.builds(
    lambda name, args: ToolCall(name=name, args=args, id=None, type="tool_call"),
    st.text(min_size=1),
    st.dictionaries(st.text(), json_values, max_size=3),
) | st.builds(bad_call, st.text(min_size=1))


# -- what the model says


@given(st.builds(Turn, st.text(), st.lists(calls, max_size=4)))
def test_streamed_chunks_add_up_to_the_generated_message(turn: Turn) -> None:
    model = ScriptedModel([turn, turn])
    said, streamed = model.invoke(ASK), merged(list(model.stream(ASK)))
    assert without_ids(streamed) == without_ids(said)
    assert streamed.chunk_position == "last"


@pytest.mark.parametrize(
    "message",
    [
        AIMessage("plain words"),
        AIMessage([{"type": "text", "text": "a block"}, {"type": "text", "text": "another"}]),
        AIMessage([], tool_calls=[{**call("a"), "id": "1"}]),
        AIMessage("", additional_kwargs={"refusal": "no"}, response_metadata={"x": 1}),
        AIMessage("", additional_kwargs={"tool_calls": []}, tool_calls=[{**call("a"), "id": "1"}]),
    ],
)
def test_a_given_message_is_said_as_it_is_and_streams_to_the_same(message: AIMessage) -> None:
    model = ScriptedModel([message, message])
    said, streamed = model.invoke(ASK), merged(list(model.stream(ASK)))
    assert said == message.model_copy(update={"id": said.id})
    assert streamed.content == message.content
    assert streamed.tool_calls == message.tool_calls
    assert streamed.usage_metadata is None
    assert message.id is None


def test_text_is_streamed_by_word_and_a_call_in_several_chunks() -> None:
    model = ScriptedModel([Turn("Let me  see.\n", [call("refund", reason="twice")])])
    chunks = list(model.stream(ASK))
    assert [chunk.text for chunk in chunks if chunk.text] == ["Let", " me", "  see.", "\n"]
    parts = [part for chunk in chunks for part in chunk.tool_call_chunks]
    assert len(parts) == 3
    assert [part["name"] for part in parts] == ["refund", None, None]
    assert chunks[-1].usage_metadata is not None


async def test_async_stream_and_invoke_say_the_same_as_sync() -> None:
    turn = Turn("one two", [call("a", x=1)])
    model = ScriptedModel([turn] * 4)
    said = [
        model.invoke(ASK),
        await model.ainvoke(ASK),
        merged(list(model.stream(ASK))),
        merged([chunk async for chunk in model.astream(ASK)]),
    ]
    assert all(without_ids(one) == without_ids(said[0]) for one in said)


def test_usage_counts_words_and_can_be_given() -> None:
    usage = UsageMetadata(input_tokens=900, output_tokens=100, total_tokens=1000)
    model = ScriptedModel(["four words are said", Turn("hi", usage=usage)])
    counted = model.invoke([SystemMessage("be kind"), HumanMessage("and brief please")])
    assert counted.usage_metadata == {"input_tokens": 5, "output_tokens": 4, "total_tokens": 9}
    assert model.invoke(ASK).usage_metadata == usage


def test_ids_are_new_for_each_saying_unless_given() -> None:
    given_id: ToolCall = {**call("b"), "id": "mine"}
    model = ScriptedModel(lambda _: [call("a"), given_id])
    with FakeClock().installed():
        first, second = model.invoke(ASK), ScriptedModel(lambda _: call("a")).invoke(ASK)
    assert first.tool_calls[1]["id"] == "mine"
    ids = {first.id, second.id, first.tool_calls[0]["id"], second.tool_calls[0]["id"]}
    assert len(ids) == 4
    assert None not in ids


async def test_a_function_sees_the_messages_and_may_be_async() -> None:
    async def echo(messages: list[BaseMessage]) -> str:
        await clock().sleep(0)
        return f"you said {messages[-1].text}"

    assert (await ScriptedModel(echo).ainvoke(ASK)).text == "you said hello"
    assert ScriptedModel(lambda messages: messages[-1].text).invoke(ASK).text == "hello"


def test_sync_code_can_wait_for_an_async_function() -> None:
    async def late(messages: list[BaseMessage]) -> str:
        await clock().sleep(0)
        return "late"

    assert ScriptedModel(late).invoke(ASK).text == "late"


def test_asking_beyond_the_end_says_how_long_the_script_was() -> None:
    model = ScriptedModel(["only"])
    model.invoke(ASK)
    with pytest.raises(ScriptExhausted, match=r"has 1 turn, and turn 2 .*hello") as caught:
        model.invoke(ASK)
    assert isinstance(caught.value, AssertionError)
    assert len(model.requests) == 2


@pytest.mark.parametrize("turn", [None, 3, ["text", call("a")], {"name": "no arguments"}])
def test_what_is_no_turn_is_refused(turn: Any) -> None:
    with pytest.raises(TypeError, match="No turn"):
        ScriptedModel([turn]).invoke(ASK)


def test_a_bare_text_is_no_script() -> None:
    with pytest.raises(TypeError, match=r"\[text\]"):
        ScriptedModel("hello")


# -- tools


def test_bound_tools_are_on_the_record_of_the_original() -> None:
    native = {"type": "web_search"}
    named = {"type": "custom_20260101", "name": "memory"}
    model = ScriptedModel(["one", "two"])
    bound = model.bind_tools([refund, native, named], tool_choice="any", parallel_tool_calls=False)
    model.invoke(ASK)
    bound.invoke([SystemMessage("be kind"), *ASK])
    first, second = model.requests
    assert model.requests is bound.requests
    assert (first.tools, first.tool_choice, first.system) == ((), None, "")
    assert (second.tools, second.tool_choice, second.system) == (
        ("refund", "memory"),
        "any",
        "be kind",
    )
    assert second.specs[1:] == (native, named)
    assert second.options == {"parallel_tool_calls": False}
    assert second.messages == (SystemMessage("be kind"), *ASK)


def test_tools_given_with_bind_are_seen_too() -> None:
    model = ScriptedModel(["one"])
    model.bind(tools=[{"name": "memory"}]).invoke(ASK)
    assert model.requests[0].tools == ("memory",)


def test_copies_share_the_script() -> None:
    model = ScriptedModel(["one", "two", "three"])
    texts = [m.invoke(ASK).text for m in (model.bind_tools([refund]), copy.deepcopy(model), model)]
    assert texts == ["one", "two", "three"]


def test_a_model_that_cannot_bind() -> None:
    with pytest.raises(NotImplementedError):
        ScriptedModel(["hi"], binds_tools=False).bind_tools([refund])


def test_what_is_no_tool_is_refused() -> None:
    with pytest.raises(ValueError, match="Unsupported"):
        ScriptedModel(["hi"]).bind_tools([3])  # type: ignore[list-item]


def test_structured_output() -> None:
    class City(BaseModel):
        """A city."""

        name: str

    model = ScriptedModel([call("City", name="Paris")] * 2)
    assert model.with_structured_output(City).invoke(ASK) == City(name="Paris")
    assert model.requests[0].tools == ("City",)
    schema = {"title": "City", "description": "A city.", "type": "object", "properties": {}}
    assert model.bind_tools([schema]).with_config().invoke(ASK).tool_calls[0]["name"] == "City"
    assert model.requests[1].tools == ("City",)


def tool_loop(model: BaseChatModel) -> Any:
    bound = model.bind_tools([refund])

    async def ask(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([refund]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


async def test_tool_calls_survive_langgraph_streaming_messages() -> None:
    model = ScriptedModel([call("refund", reason="twice"), "It is done."])
    tokens: list[str] = []
    final: dict[str, Any] = {}
    async for mode, data in tool_loop(model).astream(
        {"messages": ASK}, stream_mode=["messages", "values"]
    ):
        if mode == "messages" and isinstance(data[0], AIMessageChunk):
            tokens.append(data[0].text)
        elif mode == "values":
            final = data
    assert [m.text for m in final["messages"]] == ["hello", "", "refunded: twice", "It is done."]
    assert [token for token in tokens if token] == ["It", " is", " done."]


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
async def test_tool_calls_survive_the_event_protocol() -> None:
    model = ScriptedModel([Turn("Wait.", [call("refund", reason="twice")]), "It is done."])
    run = await tool_loop(model).astream_events({"messages": ASK}, version="v3")
    final = await run.output()
    assert [m.text for m in final["messages"]][1:] == ["Wait.", "refunded: twice", "It is done."]


async def test_thirty_runs_at_a_time_get_each_turn_once() -> None:
    model = ScriptedModel([f"turn {n}" for n in range(60)])

    async def ask_twice() -> list[str]:
        first = await model.ainvoke(ASK)
        return [first.text, await asyncio.to_thread(lambda: model.invoke(ASK).text)]

    texts = await asyncio.gather(*(ask_twice() for _ in range(30)))
    assert sorted(text for pair in texts for text in pair) == sorted(f"turn {n}" for n in range(60))
    assert len(model.requests) == 60


# -- faults


def test_an_error_is_raised_once_and_the_script_goes_on() -> None:
    model = ScriptedModel([TimeoutError("too slow"), "again"])
    with pytest.raises(TimeoutError, match="too slow"):
        model.invoke(ASK)
    assert model.invoke(ASK).text == "again"


async def test_rate_limit_and_server_error_look_like_the_providers() -> None:
    model = ScriptedModel([Fault.rate_limit(1.5), Fault.server_error(503), Fault.rate_limit()])
    with pytest.raises(openai.RateLimitError) as limited:
        model.invoke(ASK)
    with pytest.raises(openai.InternalServerError) as failed:
        [chunk async for chunk in model.astream(ASK)]
    with pytest.raises(openai.RateLimitError) as unlimited:
        await model.ainvoke(ASK)
    assert limited.value.response.headers["retry-after"] == "1.5"
    assert failed.value.status_code == 503
    assert "retry-after" not in unlimited.value.response.headers


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
async def test_a_cut_stream_gives_half_and_raises(error: Exception | None) -> None:
    model = ScriptedModel([Fault.cut("one two three four", error)] * 2)
    heard = ""
    with pytest.raises(type(error) if error else openai.APIConnectionError):
        async for chunk in model.astream(ASK):
            heard += chunk.text
    assert heard == "one two"
    with pytest.raises(type(error) if error else openai.APIConnectionError):
        await model.ainvoke(ASK)


def test_malformed_arguments_arrive_as_an_invalid_call() -> None:
    model = ScriptedModel([[bad_call("refund"), call("b")]] * 2)
    for message in (model.invoke(ASK), merged(list(model.stream(ASK)))):
        assert [one["name"] for one in message.invalid_tool_calls] == ["refund"]
        assert [one["name"] for one in message.tool_calls] == ["b"]
        assert message.invalid_tool_calls[0]["id"]


def test_a_bad_call_must_be_bad() -> None:
    with pytest.raises(ValueError, match="can read"):
        bad_call("refund", '{"reason": "cut o')


async def test_delays_wait_on_the_clock_and_add_up() -> None:
    with FakeClock().installed() as time:
        model = ScriptedModel([Fault.delay(2, Fault.delay(1, Fault.rate_limit()))])
        answer = asyncio.create_task(model.ainvoke(ASK))
        await time.asleep()
        time.advance(2.9)
        assert not answer.done()
        time.advance(0.1)
        with pytest.raises(openai.RateLimitError):
            await answer


def test_sync_code_waits_out_a_delay() -> None:
    class Impatient(FakeClock):
        async def sleep(self, seconds: float) -> None:
            self.advance(seconds)

    with Impatient().installed() as time:
        assert ScriptedModel([Fault.delay(3, "late")]).invoke(ASK).text == "late"
    assert time.monotonic() == 3


async def test_sync_code_inside_a_loop_cannot_wait() -> None:
    with pytest.raises(RuntimeError, match="running event loop"):
        ScriptedModel([Fault.delay(3, "late")]).invoke(ASK)
    assert ScriptedModel(["at once"]).invoke(ASK).text == "at once"


# -- histories


def said(*ids: str | None, bad: str | None = None) -> AIMessage:
    good: list[ToolCall] = [{**call("a"), "id": one} for one in ids]
    return AIMessage(
        "", tool_calls=good, invalid_tool_calls=[{**bad_call("b"), "id": bad}] if bad else []
    )


def answer(call_id: str) -> ToolMessage:
    return ToolMessage("done", tool_call_id=call_id)


USER, SYSTEM = HumanMessage("hello"), SystemMessage("be kind")


@pytest.mark.parametrize(
    "history",
    [
        [USER],
        [SYSTEM, USER],
        [USER, USER, AIMessage("hi"), AIMessage("there"), USER],
        [SYSTEM, USER, said("1", "2"), answer("2"), answer("1")],
        [USER, said("1", bad="2"), answer("1"), answer("2"), said("3"), answer("3"), USER],
    ],
)
def test_legal_histories(history: list[BaseMessage]) -> None:
    check_history(history)


@pytest.mark.parametrize(
    ("history", "why"),
    [
        ([], "is empty"),
        ([USER, AIMessage("hi")], "ends with the assistant"),
        ([USER, said("1")], r"ends before the answer to \['1'\]"),
        ([USER, said("1", bad="2"), answer("1")], r"ends before the answer to \['2'\]"),
        ([answer("1"), USER], "Message 0 .tool. answers no open call"),
        ([USER, said("1"), answer("1"), answer("1")], "Message 3 .tool. answers no open call"),
        ([USER, said("1"), answer("2")], "answers no open call"),
        ([USER, said("1"), USER, answer("1")], "comes before the answer"),
        ([USER, said("1"), said("2"), answer("1"), answer("2")], "comes before the answer"),
        ([USER, said("1"), answer("1"), said("1"), answer("1")], "uses the call id 1 again"),
        ([USER, said("1", "1"), answer("1")], "uses the call id 1 again"),
        ([USER, said("1", bad="1"), answer("1")], "uses the call id 1 again"),
        ([USER, said(None), answer("")], "without an id"),
        ([USER, SYSTEM], "only be the first"),
        ([SYSTEM, SYSTEM, USER], "only be the first"),
        ([USER, RemoveMessage(id="1"), USER], "instruction to a reducer"),
    ],
)
def test_illegal_histories(history: list[BaseMessage], why: str) -> None:
    with pytest.raises(IllegalHistory, match=why):
        check_history(history)
    with pytest.raises(IllegalHistory):
        ScriptedModel(["never said"]).invoke(history or ASK[:0])


def is_legal(history: list[BaseMessage]) -> bool:
    """Say the same from another side: each speaker with the run of answers behind it."""
    speakers = [i for i, m in enumerate(history) if not isinstance(m, ToolMessage)]
    made: list[str] = []
    for start, end in pairwise([*speakers, len(history)]):
        first, answers = history[start], history[start + 1 : end]
        own = [*first.tool_calls, *first.invalid_tool_calls] if isinstance(first, AIMessage) else []
        made += [str(one["id"]) for one in own]
        answered = [m.tool_call_id for m in answers if isinstance(m, ToolMessage)]
        if sorted(answered) != sorted(str(one["id"]) for one in own):
            return False
    return (
        speakers[:1] == [0]
        and len(made) == len(set(made))
        and not any(isinstance(m, SystemMessage) for m in history[1:])
        and not isinstance(history[-1], AIMessage)
    )


ids = st.sampled_from("123")
speech: st.SearchStrategy[BaseMessage] = st.one_of(
    st.just(USER),
    st.just(SYSTEM),
    st.builds(lambda good: said(*good), st.lists(ids, max_size=2)),
    st.builds(lambda bad: said(bad=bad), ids),
    st.builds(answer, ids),
)


@st.composite
def nearly_legal(draw: st.DrawFn) -> list[BaseMessage]:
    history: list[BaseMessage] = [SYSTEM] if draw(st.booleans()) else []
    names = iter("abcdefghijklmnop")
    for size in draw(st.lists(st.integers(0, 2), max_size=4)):
        made = [next(names) for _ in range(size)]
        history += [USER, said(*made), *map(answer, draw(st.permutations(made)))]
    history.append(USER)
    for index in draw(st.lists(st.integers(0, len(history) - 1), max_size=1)):
        history[index : index + 1] = draw(st.lists(speech, max_size=1))
    return history


@given(nearly_legal() | st.lists(speech, max_size=5))
def test_exactly_the_legal_histories_pass(history: list[BaseMessage]) -> None:
    try:
        check_history(history)
    except IllegalHistory:
        assert not is_legal(history)
    else:
        assert is_legal(history)


def test_a_lenient_model_takes_any_history() -> None:
    assert ScriptedModel(["hi"], strict=False).invoke([AIMessage("I was first")]).text == "hi"


def test_an_illegal_history_is_on_the_record_and_costs_no_turn() -> None:
    model = ScriptedModel(["hi"])
    with pytest.raises(IllegalHistory):
        model.invoke([AIMessage("I was first")])
    assert model.invoke(ASK).text == "hi"
    assert len(model.requests) == 2


# -- the clock


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    time, woken = FakeClock(), list[str]()

    async def sleep(name: str, seconds: float) -> None:
        await time.sleep(seconds)
        woken.append(name)

    tasks = [
        asyncio.create_task(sleep(name, seconds))
        for name, seconds in [("late", 3), ("early", 1), ("also early", 1), ("never", 9)]
    ]
    await time.asleep(4)
    time.advance(0.5)
    assert time.sleepers == 4
    time.advance(2.5)
    await asyncio.gather(*tasks[:3])
    assert woken == ["early", "also early", "late"]
    assert time.sleepers == 1
    tasks[-1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert time.sleepers == 0


async def test_tenths_of_a_second_add_up() -> None:
    time = FakeClock()
    sleeper = asyncio.create_task(time.sleep(1))
    await time.asleep()
    for _ in range(10):
        time.advance(0.1)
    await sleeper
    assert time.monotonic() == 1


async def test_a_sleep_of_nothing_lets_others_run() -> None:
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    await FakeClock().sleep(0)
    await FakeClock().sleep(-1)
    assert ran.is_set()


async def test_a_woken_sleeper_that_is_cancelled_is_forgotten() -> None:
    time = FakeClock()
    sleeper = asyncio.create_task(time.sleep(1))
    await time.asleep()
    time.advance(1)
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    await clock().sleep(0)


async def test_who_is_cut_off_cleans_up_undisturbed() -> None:
    time, done = FakeClock(), list[str]()

    async def work() -> int:
        try:
            with time.timeout(5):
                try:
                    await asyncio.Event().wait()
                finally:
                    with paused_limits():  # as whoever tells an event to a reader does
                        await time.sleep(0)
                    for _ in range(5):
                        await time.sleep(0)
                    done.append("tidied")
        except TimeoutError:
            done.append("late")
        return (asyncio.current_task() or pytest.fail()).cancelling()

    working = asyncio.create_task(work())
    await time.sleep(0)
    time.advance(9)
    assert (await working, done) == (0, ["tidied", "late"])


@pytest.mark.parametrize("is_before", [True, False])
async def test_a_limit_that_was_left_cuts_nobody_off_whoever_stops_it_then(is_before: bool) -> None:
    """A task that was begun within the limit waits for a reader when that is over."""
    time, left = FakeClock(), asyncio.Event()

    async def aside() -> None:
        if not is_before:
            await left.wait()
        with paused_limits():
            await left.wait()

    with time.timeout(5):
        child = asyncio.create_task(aside())
        await time.sleep(0)
    left.set()
    await child
    time.advance(9)
    for _ in range(5):
        await time.sleep(0)
    assert (asyncio.current_task() or pytest.fail()).cancelling() == 0


async def test_it_can_be_advanced_from_another_thread() -> None:
    time = FakeClock()
    sleeper = asyncio.create_task(time.sleep(60))
    await time.asleep()
    await asyncio.to_thread(time.advance, 60)
    await sleeper


def test_a_sleeper_whose_loop_is_gone_is_skipped() -> None:
    time = FakeClock()

    async def leave_one_asleep() -> None:
        waiting: Awaitable[None] = time.sleep(1)
        asyncio.get_running_loop().call_soon(asyncio.ensure_future, waiting)
        await time.asleep()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave_one_asleep())
    pending = asyncio.all_tasks(loop)
    loop.close()
    time.advance(1)
    assert time.sleepers == 0
    for task in pending:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_the_wall_can_be_set_back_without_the_monotonic() -> None:
    time = FakeClock(datetime(2026, 11, 18, tzinfo=UTC))
    time.advance(60)
    assert datetime.fromtimestamp(time.wall(), UTC) == datetime(2026, 11, 18, 0, 1, tzinfo=UTC)
    time.set_wall(datetime(2020, 1, 1, tzinfo=UTC))
    assert (time.wall(), time.monotonic()) == (1_577_836_800, 60)
    time.advance(1)
    assert (time.wall(), time.monotonic()) == (1_577_836_801, 61)


def test_time_cannot_be_advanced_backwards() -> None:
    with pytest.raises(ValueError, match="set_wall"):
        FakeClock().advance(-1)


def test_random_and_ids_follow_the_seed() -> None:
    def draw(seed: int) -> list[object]:
        time = FakeClock(seed=seed)
        return [time.random(), time.random(), time.new_id(), time.new_id()]

    assert draw(1) == draw(1)
    assert not set(draw(1)) & set(draw(2))
    assert uuid.UUID(FakeClock(seed=-1).new_id())


async def test_installed_holds_for_the_block_and_what_it_starts() -> None:
    before = clock()
    with FakeClock().installed() as time:
        assert clock() is time
        assert await asyncio.create_task(asyncio.to_thread(clock)) is time
        assert new_id() == FakeClock().new_id()
    assert clock() is before
    with use_clock(time):
        assert clock() is time


@pytest.fixture
def stopped() -> Any:
    with FakeClock().installed() as time:
        yield time


async def test_a_sync_fixture_installs_it_for_an_async_test(stopped: FakeClock) -> None:
    assert clock() is stopped
