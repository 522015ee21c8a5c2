"""Synchronous code that waits for asynchronous code, and the other way round, without deadlocks.

Every synchronous call has an event loop for itself, and every blocking function a thread for
itself: neither ever waits until another call has finished.
"""

from agentgraph.blocking.calls import (
    Abort,
    in_caller,
    in_thread,
    iterate_sync,
    loop_of,
    loops_waiting,
    on_loop,
    on_loop_of_stores,
    run_sync,
    run_to_end,
    without_aborts,
)
from agentgraph.blocking.graphs import (
    LoopedGraph,
    is_synchronous,
    run_graph,
    run_node,
    state_of_graph,
)
from agentgraph.blocking.loops import background_loop

__all__ = [
    "Abort",
    "LoopedGraph",
    "background_loop",
    "in_caller",
    "in_thread",
    "is_synchronous",
    "iterate_sync",
    "loop_of",
    "loops_waiting",
    "on_loop",
    "on_loop_of_stores",
    "run_graph",
    "run_node",
    "run_sync",
    "run_to_end",
    "state_of_graph",
    "without_aborts",
]
