"""The graphs that the nodes of a graph are or call: find them, and put others in their places."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from langchain_core.runnables import RunnableLambda, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langgraph.graph.state import CompiledStateGraph

from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.graphs.private import RunnableCallable, RunnableSeq


def with_graphs(runnable: Any, swap: Callable[[AnyCompiledGraph], AnyCompiledGraph]) -> Any:
    """Return a node's runnable with `swap(graph)` in the place of each graph that it is or calls.

    A graph that a function calls is found among the values that the function names. Without a
    change the runnable itself is returned.
    """
    return _GraphSwap(swap).of(runnable)


def values_of(runnable: Any) -> list[Any]:
    """Return the values that a node's functions name, such as the model that they ask."""
    values: list[Any] = []
    _GraphSwap(lambda graph: graph, values.append).of(runnable)
    return values


def module_of(runnable: Any) -> str:
    """Return the name of the module of a node's function, "" where it has none."""
    function = getattr(runnable, "func", None) or getattr(runnable, "afunc", None)
    return str(getattr(function, "__module__", ""))


class _GraphSwap:
    """Visits runnables and functions once each, and puts other graphs into them."""

    def __init__(
        self,
        swap: Callable[[AnyCompiledGraph], AnyCompiledGraph],
        see: Callable[[Any], object] = id,
    ) -> None:
        self._swap = swap
        self._see = see
        self._results: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any) -> Any:
        """Return a value with other graphs, or the value itself where it calls none."""
        if id(value) not in self._results:
            self._results[id(value)] = value, value  # a function may name itself
            self._see(value)
            self._results[id(value)] = value, self._copy_of(value)
        return self._results[id(value)][1]

    def _copy_of(self, value: Any) -> Any:
        if isinstance(value, CompiledStateGraph):
            return self._swap(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            owner = self.of(value.__self__)
            return value if owner is value.__self__ else getattr(owner, value.__name__)
        if isinstance(value, partial):
            old = (value.func, *value.args)
            new = [self.of(part) for part in old]
            return value if _same(old, new) else partial(new[0], *new[1:], **value.keywords)
        fields = next((names for kind, names in _PARTS.items() if isinstance(value, kind)), ())
        return self._object(value, fields)

    def _object(self, value: Any, fields: tuple[str, ...]) -> Any:
        result = value
        for name in fields:
            old = getattr(value, name, None)
            parts = old if isinstance(old, list) else [old]
            new = [self.of(part) for part in parts if part is not None]
            if old is not None and not _same(parts, new):
                result = copy.copy(value) if result is value else result
                object.__setattr__(result, name, new if isinstance(old, list) else new[0])
        return result

    def _function(self, function: FunctionType) -> FunctionType:
        closure, space = function.__closure__ or (), function.__globals__
        cells = [*map(_content_of, closure)]
        new_cells = [self.of(value) for value in cells]
        names = {name: space[name] for name in function.__code__.co_names if name in space}
        own = {
            name: value
            for name, value in names.items()
            if getattr(value, "__module__", "") == function.__module__
            or not isinstance(value, FunctionType | type)
        }
        new_names = {name: self.of(value) for name, value in own.items()}
        new_globals = {name: value for name, value in new_names.items() if value is not own[name]}
        if not new_globals and _same(cells, new_cells):
            return function
        pairs = zip(closure, cells, new_cells, strict=True)
        twin = FunctionType(
            function.__code__,
            _Namespace(space, new_globals) if new_globals else space,
            function.__name__,
            function.__defaults__,
            tuple(cell if old is new else CellType(new) for cell, old, new in pairs),
        )
        # No `__wrapped__`: LangGraph would find the graphs of the function that it names.
        for name in ("__kwdefaults__", "__annotations__", "__qualname__", "__module__", "__doc__"):
            setattr(twin, name, getattr(function, name))
        twin.__dict__.update(function.__dict__)
        return twin


class _Namespace(dict[str, Any]):
    """The globals of a function, of which some have other values for this function."""

    def __init__(self, space: dict[str, Any], new_globals: Mapping[str, Any]) -> None:
        super().__init__(new_globals)
        self._space = space

    def __missing__(self, name: str) -> Any:
        return self._space[name]

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or name in self._space


_PARTS: Mapping[type, tuple[str, ...]] = {
    RunnableCallable: ("func", "afunc"),
    RunnableLambda: ("func", "afunc"),
    RunnableSeq: ("steps",),
    RunnableSequence: ("first", "middle", "last"),
    RunnableBindingBase: ("bound",),
}


def _same(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return len(old) == len(new) and all(map(operator.is_, old, new))


def _content_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return None
