from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeAlias

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    ToolMessage,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from agentgraph import Agent
from agentgraph.agents.nodes.state import Turn, merge_messages, merge_turn
from agentgraph.testing import ScriptedModel

Write: TypeAlias = "list[BaseMessage] | BaseMessage"

IDS = st.sampled_from(["a", "b", "c", "d"])
TEXTS = st.sampled_from(["x", "y", ""])
MESSAGES: st.SearchStrategy[BaseMessage] = st.one_of(
    st.builds(HumanMessage, TEXTS, id=st.none() | IDS),
    st.builds(AIMessage, TEXTS, id=st.none() | IDS),
    st.builds(AIMessageChunk, content=TEXTS, id=st.none() | IDS),
    st.builds(ToolMessage, TEXTS, tool_call_id=IDS, id=st.none() | IDS),
)
REMOVALS: st.SearchStrategy[RemoveMessage] = (IDS | st.just(REMOVE_ALL_MESSAGES)).map(
    lambda message_id: RemoveMessage(id=message_id)
)
WRITES: st.SearchStrategy[Write] = st.one_of(
    MESSAGES, st.lists(MESSAGES | REMOVALS, max_size=4), REMOVALS
)
BATCHES = st.lists(WRITES, max_size=5)
STATES = st.lists(MESSAGES, max_size=4).map(lambda messages: merge_messages([], [messages]))

TURNS: st.SearchStrategy[Turn] = st.builds(
    lambda turn_id, closed: Turn(id=turn_id, closed=closed),
    st.sampled_from(["one", "two"]),
    st.sampled_from([None, "max_steps"]),
)


@given(STATES, BATCHES, BATCHES)
def test_merge_does_not_depend_on_where_batches_are_cut(
    state: list[AnyMessage], first: list[Write], second: list[Write]
) -> None:
    in_two = merge_messages(merge_messages(state, first), second)
    at_once = merge_messages(deepcopy(state), deepcopy(first + second))

    assert in_two == at_once


@given(STATES, BATCHES)
def test_merge_does_not_depend_on_how_a_write_is_wrapped(
    state: list[AnyMessage], writes: list[Write]
) -> None:
    flat = [one for write in writes for one in (write if isinstance(write, list) else [write])]

    assert merge_messages(state, writes) == merge_messages(state, [flat])


@given(STATES, BATCHES)
def test_merge_gives_every_message_an_id_of_its_own(
    state: list[AnyMessage], writes: list[Write]
) -> None:
    ids = [message.id for message in merge_messages(state, writes)]

    assert all(ids)
    assert len(set(ids)) == len(ids)


@given(STATES, BATCHES)
def test_merge_changes_none_of_what_it_is_given(
    state: list[AnyMessage], writes: list[Write]
) -> None:
    before = repr((state, writes))

    merge_messages(state, writes)

    assert repr((state, writes)) == before


def test_message_with_a_known_id_replaces_the_old_one_in_its_place() -> None:
    state = [HumanMessage("x", id="a"), AIMessage("y", id="b")]

    merged = merge_messages(state, [[HumanMessage("z", id="a")]])

    assert [(m.id, m.text) for m in merged] == [("a", "z"), ("b", "y")]


def test_removal_takes_out_the_message_with_that_id() -> None:
    state = [HumanMessage("x", id="a"), AIMessage("y", id="b")]

    merged = merge_messages(state, [RemoveMessage(id="a")])

    assert [m.id for m in merged] == ["b"]


def test_removal_of_an_unknown_id_does_nothing() -> None:
    state = [HumanMessage("x", id="a")]

    assert merge_messages(state, [RemoveMessage(id="nobody")]) == state


def test_removal_of_all_keeps_what_comes_after_it() -> None:
    state = [HumanMessage("x", id="a")]
    write = [AIMessage("y", id="b"), RemoveMessage(id=REMOVE_ALL_MESSAGES), AIMessage("z", id="c")]

    merged = merge_messages(state, [write])

    assert [m.id for m in merged] == ["c"]


def test_equal_texts_without_ids_stay_two_messages() -> None:
    merged = merge_messages([], [[HumanMessage("again"), HumanMessage("again")]])

    assert [m.text for m in merged] == ["again", "again"]


def test_chunks_are_stored_as_whole_messages() -> None:
    merged = merge_messages([], [AIMessageChunk(content="x", id="a")])

    assert [type(m) for m in merged] == [AIMessage]


@given(TURNS, TURNS)
def test_merging_accounts_again_changes_nothing(left: Turn, right: Turn) -> None:
    once = merge_turn(left, right)

    assert merge_turn(once, right) == once
    assert merge_turn(once, once) == once


def test_turn_of_an_older_store_is_merged_with_a_new_one() -> None:
    stored: Any = {"id": "t", "agent": "a", "steps": 3, "closed": None}

    merged = merge_turn(stored, Turn(id="t", agent="a", closed="max_steps"))

    assert merged["closed"] == "max_steps"


def test_accounts_of_a_new_input_replace_the_old_ones() -> None:
    old = Turn(id="one", closed="max_steps")

    assert merge_turn(old, Turn(id="two", closed=None)) == {"id": "two", "closed": None}


def test_accounts_closed_in_one_branch_stay_closed() -> None:
    closed = Turn(id="t", closed="max_steps")
    open_one = Turn(id="t", closed=None)

    assert merge_turn(closed, open_one)["closed"] == "max_steps"
    assert merge_turn(open_one, closed)["closed"] == "max_steps"


async def test_bytes_of_a_turn_do_not_grow_with_the_history() -> None:
    saver = InMemorySaver()
    agent = Agent("a", model=ScriptedModel(lambda _: "an answer"), checkpointer=saver)

    async def kept_by(turns: int) -> int:
        before = sum(len(blob) for _, blob in saver.blobs.values())
        for _ in range(turns):
            await agent.ainvoke("a question", thread_id="t")
        return sum(len(blob) for _, blob in saver.blobs.values()) - before

    await kept_by(20)
    early = await kept_by(60)
    await kept_by(140)
    late = await kept_by(60)

    assert late < 2.5 * early
