"""Nodes are run without callbacks where nobody listens, and nobody can tell the difference."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AnyMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config

from agentgraph import Agent
from agentgraph.graphs.compiled import NodeSequence
from agentgraph.graphs.private import RunnableSeq
from agentgraph.testing import ScriptedModel, call

NODES = ["render_system_prompt", "router", "continue_conversation", "call_model"]

place: ContextVar[str] = ContextVar("place", default="outside")


def lookup() -> str:
    """Look something up."""
    return "looked up"


class Listener(BaseCallbackHandler):
    """Notes what begins, with its metadata's node."""

    def __init__(self) -> None:
        self.chains: list[str] = []
        self.models: list[dict[str, Any]] = []

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self.chains.append(str(kwargs.get("name")))

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.models.append(kwargs)


class ModelListener(Listener):
    """Is told of models only."""

    ignore_chain = True


class AsyncListener(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.ended: list[str] = []

    async def on_chain_end(self, outputs: Any, **kwargs: Any) -> None:
        self.ended.append("end")


def solo(**fields: Any) -> Agent:
    return Agent("solo", model=ScriptedModel([call("lookup"), "done"]), tools=[lookup], **fields)


async def test_a_handler_is_told_of_each_node() -> None:
    listener, agent = Listener(), solo()
    await agent.ainvoke("hi", config={"callbacks": [listener]})
    assert [name for name in listener.chains if name in NODES] == [*NODES, "call_model"]


async def test_an_asynchronous_handler_is_told_of_each_end() -> None:
    listener = AsyncListener()
    await solo().ainvoke("hi", config={"callbacks": [listener]})
    assert len(listener.ended) > len(NODES)


async def test_a_handler_of_models_alone_gets_their_nodes_and_no_other_name() -> None:
    listener = ModelListener()
    await solo().ainvoke("hi", config={"callbacks": [listener]})
    assert listener.chains == []
    assert [run["metadata"]["langgraph_node"] for run in listener.models] == ["call_model"] * 2
    assert [run["name"] for run in listener.models] == [None] * 2  # no name in place of its own


async def test_a_handler_of_the_model_itself_gets_the_same_metadata() -> None:
    def seen(config: RunnableConfig) -> tuple[list[Any], list[Any]]:
        own = Listener()
        model = ScriptedModel(["done"], callbacks=[own])
        Agent("solo", model=model).invoke("hi", thread_id="t", config=config)
        (run,) = own.models
        names = [key for key in run["metadata"] if not key.endswith(("_id", "_ns"))]
        return sorted(names), [run["metadata"]["langgraph_node"], run["name"]]

    assert seen({}) == seen({"callbacks": [Listener()]})


async def test_the_config_of_a_node_is_that_of_its_task() -> None:
    seen: list[RunnableConfig] = []

    def prompt(_: list[AnyMessage]) -> str:
        seen.append(get_config())
        return "You help."

    await solo(system_prompt=prompt).ainvoke("hi", thread_id="t")
    metadata = seen[0].get("metadata") or {}
    assert metadata["langgraph_node"] == "render_system_prompt"
    assert seen[0]["configurable"]["thread_id"] == "t"
    assert "run_name" not in seen[0]


async def test_a_variable_that_a_node_sets_is_not_seen_by_others() -> None:
    seen: list[str] = []

    def prompt(_: list[AnyMessage]) -> str:
        place.set("prompt")
        return "You help."

    def answer(_: list[BaseMessage]) -> str:
        seen.append(place.get())
        place.set("model")
        return "done"

    await Agent("solo", model=ScriptedModel(answer), system_prompt=prompt).ainvoke("hi")
    assert seen == ["outside"]
    assert place.get() == "outside"


async def test_a_cancelled_run_ends_its_node_first() -> None:
    entered, cleaned = asyncio.Event(), asyncio.Event()

    async def answer(_: list[BaseMessage]) -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()
        return ""

    task = asyncio.create_task(Agent("solo", model=ScriptedModel(answer)).ainvoke("hi"))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned.is_set()


def test_langgraph_runs_a_node_by_the_sequence_that_it_keeps_in_its_attribute() -> None:
    """What `without_idle_callbacks` takes for granted of LangGraph."""
    node = solo().graph.nodes["call_model"]
    assert type(node).node.attrname == "node"  # type: ignore[attr-defined]  # a cached_property
    assert isinstance(node.node, NodeSequence)
    del vars(node)["node"]
    own = node.node
    assert isinstance(own, RunnableSeq) and not isinstance(own, NodeSequence)
    assert own.steps[0] is node.bound
