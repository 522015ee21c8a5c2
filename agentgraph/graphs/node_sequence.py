"""How a node of our graphs is run where no callback handler would notice it.

LangGraph runs a node and the writers behind it as a sequence, and tells the callback handlers of
the run where each begins and ends. Without handlers, that and the task which it makes for each
node are a twentieth of a turn.
"""

from __future__ import annotations

from contextvars import copy_context
from typing import Any

from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from agentgraph.contexts import in_context
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.graphs.private import RunnableSeq


def without_idle_callbacks(graph: AnyCompiledGraph) -> None:
    """Let the nodes of a graph call no callbacks where no handler is told of nodes."""
    for node in graph.nodes.values():
        if isinstance(node.node, RunnableSeq):
            sequence = NodeSequence(*node.node.steps, trace_policy=node.trace_policy)
            vars(node)["node"] = sequence  # LangGraph caches it there


class NodeSequence(RunnableSeq):
    """A node and its writers.

    Runs below the node name the run of the graph as their parent where the node has none.
    """

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the node in a context of its own, then its writers."""
        if config is None or not _is_unobserved(config):
            return await super().ainvoke(input, config, **kwargs)
        config = config.copy()
        for own in ("run_name", "run_id"):  # they are the node's, and not of what it runs
            config.pop(own, None)  # type: ignore[misc]  # one key after the other
        context = copy_context()
        context.run(var_child_runnable_config.set, config)
        node, *writers = self.steps
        result: Any = await in_context(node.ainvoke(input, config, **kwargs), context)
        for writer in writers:
            result = await writer.ainvoke(result, config)
        return result


def _is_unobserved(config: RunnableConfig) -> bool:
    """Tell whether no callback handler is told where a node begins and ends."""
    manager = config.get("callbacks")
    return isinstance(manager, AsyncCallbackManager) and all(
        handler.ignore_chain for handler in manager.handlers
    )
