"""What this project takes for granted of LangGraph's private parts: a new version may change it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send, interrupt

from agentgraph.graphs import private

THREAD: RunnableConfig = {"configurable": {"thread_id": "t"}}


def run(node: Any, **settings: Any) -> list[RunnableConfig]:
    """Return the configs of a node's tasks, with a checkpointer and below another graph."""
    seen: list[RunnableConfig] = []

    def look(state: MessagesState, config: RunnableConfig) -> Any:
        seen.append(config)
        return node(state, config)

    inner = StateGraph(MessagesState).add_node("look", look).add_edge(START, "look").compile()
    outer = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner")
    compiled: Any = outer.compile(InMemorySaver())
    list(compiled.stream({"messages": [("user", "hi")]}, THREAD, subgraphs=True, **settings))
    return seen


def test_a_task_can_read_its_channels_and_its_own_writes() -> None:
    def node(_: object, config: RunnableConfig) -> dict[str, Any]:
        read = config[private.CONF][private.CONFIG_KEY_READ]
        assert [m.text for m in read("messages", False)] == ["hi"]
        _, channels, _, task = read.args
        assert channels["messages"].is_available()
        assert task.path[0] != private.PUSH and list(task.writes) == []
        return {}

    run(node)


def test_a_sent_task_has_a_path_that_says_so() -> None:
    paths: list[Any] = []

    def send(_: MessagesState) -> list[Send]:
        return [Send("work", {"messages": []})]

    def work(_: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        paths.append(config[private.CONF][private.CONFIG_KEY_READ].args[3].path)
        return {}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("work", work).add_conditional_edges(START, send)
    graph.compile().invoke({"messages": []})
    assert paths[0][0] == private.PUSH


def test_a_config_names_checkpoint_task_durability_and_stream() -> None:
    config = run(lambda *_: {}, durability="sync", stream_mode="updates")[0]
    values = config[private.CONF]
    assert values[private.CONFIG_KEY_THREAD_ID] == "t"
    assert isinstance(values[private.CONFIG_KEY_CHECKPOINTER], InMemorySaver)
    namespace = values[private.CONFIG_KEY_CHECKPOINT_NS].split(private.NS_SEP)
    assert [part.partition(":")[0] for part in namespace] == ["inner", "look"]
    assert set(values[private.CONFIG_KEY_CHECKPOINT_MAP]) == {"", "|".join(namespace[:1])}
    assert private.CONFIG_KEY_TASK_ID in values
    assert values[private.CONFIG_KEY_DURABILITY] == "sync"
    assert values[private.CONFIG_KEY_RUNTIME].context is None
    assert "updates" in values[private.CONFIG_KEY_STREAM].modes


async def test_only_the_first_super_step_of_a_resumed_run_is_told_that_it_is_resumed() -> None:
    told: list[tuple[str, bool]] = []

    def node(name: str) -> Any:
        def look(_: MessagesState, config: RunnableConfig) -> dict[str, Any]:
            told.append((name, bool(config[private.CONF].get(private.CONFIG_KEY_RESUMING))))
            if name == "second" and len(told) == 2:
                raise ConnectionError
            return {}

        return look

    graph: Any = StateGraph(MessagesState)
    for name, after in (("first", START), ("second", "first"), ("third", "second")):
        graph.add_node(name, node(name)).add_edge(after, name)
    compiled = graph.compile(InMemorySaver())
    with pytest.raises(ConnectionError):
        await compiled.ainvoke({"messages": []}, THREAD)
    await compiled.ainvoke(None, THREAD)
    assert told == [("first", False), ("second", False), ("second", True), ("third", False)]


def test_a_task_counts_the_answers_to_its_own_questions() -> None:
    answers: list[int] = []

    def ask(_: object, config: RunnableConfig) -> dict[str, Any]:
        answers.append(len(config[private.CONF][private.CONFIG_KEY_SCRATCHPAD].resume))
        interrupt("well?")
        return {}

    run(ask)
    assert answers == [0]


def test_nodes_hold_functions_of_two_kinds() -> None:
    graph = StateGraph(MessagesState).add_node("a", lambda state: state)
    runnable = graph.nodes["a"].runnable
    assert isinstance(runnable, private.RunnableCallable)
    assert callable(runnable.func) and callable(runnable.afunc)
    step: Any = RunnableLambda(lambda x: x)
    assert len(private.RunnableSeq(step, step).steps) == 2


def test_branches_are_routed_by_the_methods_that_this_project_overrides() -> None:
    for name in ("run", "_route", "_aroute", "_finish"):
        assert callable(getattr(private.BranchSpec, name))
    assert private.BranchSpec._fields[:2] == ("path", "ends")


def test_a_write_can_be_mapped_or_left_out() -> None:
    entry = private.ChannelWriteEntry("a", private.PASSTHROUGH, mapper=lambda _: private.SKIP_WRITE)
    assert entry.channel == "a"
    written: list[Any] = []
    config: RunnableConfig = {private.CONF: {"__pregel_send": written.extend}}
    private.ChannelWrite.do_write(config, [private.ChannelWriteEntry("a", 1)])
    assert written == [("a", 1)]
