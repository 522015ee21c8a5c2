"""The mark of tools that change the world: how an action is undone, or looked up after a kill.

`@effect` puts the mark on a tool or its function, `effect_of` reads it from a tool.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from types import FunctionType
from typing import TypeAlias, TypeVar, overload

from langchain_core.tools import BaseTool

from agentgraph.blocking import in_thread
from agentgraph.errors import ConfigurationError

T = TypeVar("T")

Function: TypeAlias = Callable[..., object]

_MARK = "__agentgraph_effect__"
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_MAX_LEVELS = 8


@dataclass(frozen=True, slots=True)
class Effect:
    """How the actions of a tool that changes the world are undone, looked up and compared."""

    compensate: Function | None = None
    """Undoes an action; gets the tool's arguments by name, and `result` and `key` if it wants."""
    lookup: Function | None = None
    """Looks up an action by its `key`: returns its result, or None if it never happened."""
    volatile: tuple[str, ...] = ()
    """The arguments that differ from call to call without a meaning: ids, timestamps."""
    poll: bool = False
    """Whether the tool is meant to be called again and again until something changes."""

    def __post_init__(self) -> None:
        faults = [
            f"Effect({name}={value!r}): give a function"
            for name, value in (("compensate", self.compensate), ("lookup", self.lookup))
            if value is not None and not callable(value)
        ]
        if not isinstance(self.volatile, tuple) or not all(
            isinstance(name, str) for name in self.volatile
        ):
            faults.append(f"Effect(volatile={self.volatile!r}): give a tuple of argument names")
        if not isinstance(self.poll, bool):
            faults.append(f"Effect(poll={self.poll!r}): give True or False")
        if faults:
            raise ConfigurationError(faults)

    async def undo(
        self, args: Mapping[str, object], *, result: object = None, key: str = ""
    ) -> object:
        """Compensate for a call.

        The `compensate` function gets those of the tool's arguments, and of `result` and `key`,
        that it takes. Where the tool itself has an argument named `result` or `key`, the function
        gets that one. A function that is not async runs in a thread, as a tool does.
        """
        if self.compensate is None:
            return None
        return await _call(self.compensate, {"result": result, "key": key, **args})

    async def look_up(self, args: Mapping[str, object], *, key: str) -> object:
        """Return the result of the call with this key, None if it never happened."""
        if self.lookup is None:
            return None
        return await _call(self.lookup, {**args, "key": key})


@overload
def effect(target: T, /) -> T: ...


@overload
def effect(
    *,
    compensate: Function | None = None,
    lookup: Function | None = None,
    volatile: Sequence[str] = (),
    poll: bool = False,
) -> Callable[[T], T]: ...


def effect(
    target: object = None,
    /,
    *,
    compensate: Function | None = None,
    lookup: Function | None = None,
    volatile: Sequence[str] = (),
    poll: bool = False,
) -> object:
    """Mark a tool, or the function that becomes one, as changing the world, and return it.

        @effect(compensate=cancel_order, lookup=find_order)
        async def order(item: str) -> str: ...

    Bare `@effect` marks the tool below it. The function that undoes a tool is always given by
    keyword: `@effect(cancel_order)` would mark `cancel_order` itself. Raises `ConfigurationError`
    where a function needs an argument that the tool does not have.
    """
    names = tuple(volatile) if isinstance(volatile, list) else volatile
    # `names` that is still no tuple is a fault, which `Effect` raises with all others.
    mark = Effect(compensate, lookup, names, poll)  # type: ignore[arg-type]
    if target is None:
        return partial(_put_mark, mark)
    if mark != Effect() and not isinstance(target, BaseTool):
        name = getattr(target, "__name__", None) or repr(target)
        raise ConfigurationError(
            f"effect({name}, …): give what undoes a tool by name, as compensate={name}, and what "
            f"is marked on its own: effect(compensate=…)({name})"
        )
    return _put_mark(mark, target)


def effect_of(tool: object, levels: int = _MAX_LEVELS) -> Effect | None:
    """Return the mark of a tool or of the function within it, None if there is none."""
    # By `__dict__`: on a pydantic model `getattr` of a missing attribute is slow.
    own = getattr(tool, "__dict__", {})
    mark = own.get(_MARK)
    if isinstance(mark, Effect):
        return mark
    # The usual case, decided early, as this is asked at each call.
    if not own and type(tool) is FunctionType:
        return None
    is_tool = isinstance(tool, BaseTool)
    for name in ("func", "coroutine"):
        inner = own.get(name) if is_tool else getattr(tool, name, None)
        if inner is not None and levels > 1:
            mark = effect_of(inner, levels - 1)
            if mark is not None:
                return mark
    return None


def _put_mark(mark: Effect, target: T) -> T:
    name = str(getattr(target, "name", None) or getattr(target, "__name__", None) or repr(target))
    if isinstance(target, type) or not (isinstance(target, BaseTool) or callable(target)):
        raise ConfigurationError(f"effect on {name}: it marks a function or a tool, nothing else")
    if faults := _misfits(mark, name, _parameters(target)):
        raise ConfigurationError(faults)
    try:
        # Past `setattr`: a tool is a pydantic model, which refuses attributes beside its fields.
        object.__setattr__(target, _MARK, mark)
    except (AttributeError, TypeError):
        raise ConfigurationError(
            f"effect on {name}: it takes no mark; mark the function where it is defined"
        ) from None
    return target


def _misfits(mark: Effect, name: str, parameters: frozenset[str] | None) -> list[str]:
    """Return what does not fit between a mark and a target; `parameters` None takes any name."""
    if parameters is None:
        return []
    hint = f"it takes {', '.join(sorted(parameters)) or 'nothing'}"
    faults = [
        f"effect on {name}: volatile {parameter!r} is no argument of it; {hint}"
        for parameter in mark.volatile
        if parameter not in parameters
    ]
    offers = (
        ("compensate", mark.compensate, {"result", "key"}),
        ("lookup", mark.lookup, {"key"}),
    )
    for role, function, extra in offers:
        needs = sorted(_required(function) - parameters - extra)
        faults += [
            f"effect on {name}: {role} needs {parameter!r}, but {hint}" for parameter in needs
        ]
    return faults


def _parameters(target: object) -> frozenset[str] | None:
    """Return the names of the arguments of a tool or function, None where it takes any."""
    if isinstance(target, BaseTool):
        schema = target.get_input_schema()
        fields = getattr(schema, "model_fields", None) or {}
        return frozenset(target.args) | frozenset(fields)
    return _argument_names(target)


def _argument_names(function: object) -> frozenset[str] | None:
    """Return the names of a function's arguments, None where it takes any or hides them."""
    parameters = _signature(function)
    if parameters is None or any(p.kind is Parameter.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters if parameter.kind in _BY_NAME)


def _required(function: Function | None) -> set[str]:
    """Return the names of the arguments that a function must get."""
    parameters = _signature(function) if function is not None else None
    return {
        parameter.name
        for parameter in parameters or ()
        if parameter.default is Parameter.empty and parameter.kind not in _VARIADIC
    }


def _signature(function: object) -> list[Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):  # some functions that are written in C have no signature
        return None


async def _call(function: Function, arguments: Mapping[str, object]) -> object:
    """Call a function with those arguments that it takes; in a thread where it is not async."""
    names = _argument_names(function)
    accepted = {name: v for name, v in arguments.items() if names is None or name in names}
    call = partial(function, **accepted)
    outcome = call() if inspect.iscoroutinefunction(function) else await in_thread(call)
    return await outcome if inspect.isawaitable(outcome) else outcome
