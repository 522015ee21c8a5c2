"""Graphs with asynchronous nodes, run synchronously: all nodes of a run share one loop.

What the nodes share, such as the account of their guards, needs no locks then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import nullcontext
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.config import get_config
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateSnapshot

from agentgraph.blocking.calls import in_caller, run_sync
from agentgraph.blocking.loops import BackgroundLoop, background_loop
from agentgraph.contexts import own_context, scope

T = TypeVar("T")

_loop: ContextVar[BackgroundLoop | None] = ContextVar("agentgraph_loop_of_graph", default=None)
"""The loop of the synchronous run around a graph; unset in its nodes, which may block a loop."""


class LoopedGraph(CompiledStateGraph[Any, Any, Any, Any]):
    """A compiled graph that lends a loop to the asynchronous nodes of each synchronous run."""

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        loop = _loop.get()
        with background_loop() if loop is None else nullcontext(loop) as loop:
            with scope(_loop, loop):
                context = copy_context()
            parts = context.run(super().stream, *args, **kwargs)
            yield from own_context(cast("Generator[Any, None, None]", parts), context)


def run_node(work: Coroutine[Any, Any, T]) -> T:
    """Run a node's coroutine on the loop of the synchronous run around it."""
    loop = _loop.get()
    with scope(_loop, None), scope(_synchronous_task, _current_task()):
        return run_sync(work, loop)


def is_synchronous() -> bool:
    """Tell whether the node around this code is run synchronously."""
    task = _synchronous_task.get()
    return task is not None and task == _current_task()


async def run_graph(
    graph: Runnable[Any, Any],
    values: object,
    config: RunnableConfig | None = None,
    **settings: Any,
) -> Any:
    """Run a graph inside of a node, synchronously if the node is run synchronously.

    It may have a saver then that is synchronous only, or bound to another loop.
    """
    if not is_synchronous() or not isinstance(graph, CompiledStateGraph):
        return await graph.ainvoke(values, config, **settings)
    loop = asyncio.get_running_loop()

    def run() -> Any:
        with scope(_loop, loop):  # the nested nodes share it
            return graph.invoke(values, config, **settings)

    return await in_caller(run)


async def state_of_graph(
    graph: CompiledStateGraph[Any, Any, Any, Any], config: RunnableConfig
) -> StateSnapshot:
    """Read a graph's state inside of a node, synchronously if the node is run synchronously."""
    if not is_synchronous():
        return await graph.aget_state(config)
    return await in_caller(lambda: graph.get_state(config))


_synchronous_task: ContextVar[str | None] = ContextVar("agentgraph_sync_task", default=None)


def _current_task() -> str:
    """Return what is different for each task of a graph, at every level."""
    return str(get_config().get("configurable", {}).get("checkpoint_ns"))
