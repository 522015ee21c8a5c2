"""Which tools change the world, and how what they did is undone or looked up."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from types import FunctionType
from typing import TypeAlias, TypeVar, overload

from langchain_core.runnables.config import run_in_executor
from langchain_core.tools import BaseTool

from agentgraph.errors import ConfigurationError

T = TypeVar("T")

Doing: TypeAlias = Callable[..., object]

_MARK = "__agentgraph_effect__"
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_STARRED = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Effect:
    """What is known of an action that changes the world."""

    compensate: Doing | None = None
    """Undoes it: takes arguments of the tool by name, and `result` and `key` if it wants them."""
    lookup: Doing | None = None
    """Finds out by `key` what came of it: returns the result, or None if it never happened."""
    volatile: tuple[str, ...] = ()
    """The arguments that differ from call to call and tell nothing: ids, timestamps."""
    poll: bool = False
    """Whether it is meant to be called again and again until something changes."""

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
        """Compensate for a call; an argument of the tool goes before a `result` or `key` of ours.

        A function that is not async runs in a thread, as a tool does.
        """
        if self.compensate is None:
            return None
        return await _called(self.compensate, {"result": result, "key": key, **args})

    async def look_up(self, args: Mapping[str, object], *, key: str) -> object:
        """Return what came of the call with this key, None if it never happened."""
        if self.lookup is None:
            return None
        return await _called(self.lookup, {**args, "key": key})


@overload
def effect(target: T, /) -> T: ...


@overload
def effect(
    *,
    compensate: Doing | None = None,
    lookup: Doing | None = None,
    volatile: Sequence[str] = (),
    poll: bool = False,
) -> Callable[[T], T]: ...


def effect(
    target: object = None,
    /,
    *,
    compensate: Doing | None = None,
    lookup: Doing | None = None,
    volatile: Sequence[str] = (),
    poll: bool = False,
) -> object:
    """Mark a tool, or the function that becomes one, as changing the world; it stays what it is.

    `@effect` alone marks what is below it, and so does `effect(function)`: what undoes that is to
    be given by name, `@effect(compensate=function)`. As `@effect(function)` it would itself be
    marked, and called with what is below.
    """
    names = tuple(volatile) if isinstance(volatile, list) else volatile
    # Whatever is no tuple by now is a fault, which Effect tells.
    known = Effect(compensate, lookup, names, poll)  # type: ignore[arg-type]
    if target is None:
        return partial(_marked, known)
    if known != Effect() and not isinstance(target, BaseTool):
        name = getattr(target, "__name__", None) or repr(target)
        raise ConfigurationError(
            f"effect({name}, …): give what undoes a tool by name, as compensate={name}, and what "
            f"is marked on its own: effect(compensate=…)({name})"
        )
    return _marked(known, target)


def effect_of(tool: object, levels: int = _DEEPEST) -> Effect | None:
    """Return the mark of a tool or of the function within it, None if there is none."""
    # A pydantic model is slow to say that it lacks an attribute.
    own = getattr(tool, "__dict__", {})
    found = own.get(_MARK)
    if isinstance(found, Effect):
        return found
    if not own and type(tool) is FunctionType:  # as nearly all are: this is asked of each call
        return None
    is_tool = isinstance(tool, BaseTool)
    for name in ("func", "coroutine"):
        inner = own.get(name) if is_tool else getattr(tool, name, None)
        if inner is not None and levels > 1:
            found = effect_of(inner, levels - 1)
            if found is not None:
                return found
    return None


def _marked(known: Effect, target: T) -> T:
    name = str(getattr(target, "name", None) or getattr(target, "__name__", None) or repr(target))
    if isinstance(target, type) or not (isinstance(target, BaseTool) or callable(target)):
        raise ConfigurationError(f"effect on {name}: it marks a function or a tool, nothing else")
    if faults := _misfits(known, name, _parameters(target)):
        raise ConfigurationError(faults)
    try:
        # A tool is a pydantic model, which takes no attribute that is no field of it.
        object.__setattr__(target, _MARK, known)
    except (AttributeError, TypeError):
        raise ConfigurationError(
            f"effect on {name}: it takes no mark; mark the function where it is defined"
        ) from None
    return target


def _misfits(known: Effect, name: str, taken: frozenset[str] | None) -> list[str]:
    """Say what does not fit a target that takes such arguments; None is: it takes any."""
    if taken is None:
        return []
    told = f"it takes {', '.join(sorted(taken)) or 'nothing'}"
    faults = [
        f"effect on {name}: volatile {one!r} is no argument of it; {told}"
        for one in known.volatile
        if one not in taken
    ]
    offers = (
        ("compensate", known.compensate, {"result", "key"}),
        ("lookup", known.lookup, {"key"}),
    )
    for role, function, extra in offers:
        missing = sorted(_required(function) - taken - extra)
        faults += [f"effect on {name}: {role} needs {one!r}, but {told}" for one in missing]
    return faults


def _parameters(target: object) -> frozenset[str] | None:
    if isinstance(target, BaseTool):
        schema = target.get_input_schema()
        fields = getattr(schema, "model_fields", None) or {}
        return frozenset(target.args) | frozenset(fields)
    parameters = _signature(target)
    if parameters is None or any(one.kind is Parameter.VAR_KEYWORD for one in parameters):
        return None
    return frozenset(one.name for one in parameters if one.kind in _BY_NAME)


def _required(function: Doing | None) -> set[str]:
    """Return the names without which it cannot be called."""
    parameters = _signature(function) if function is not None else None
    return {
        one.name
        for one in parameters or ()
        if one.default is Parameter.empty and one.kind not in _STARRED
    }


def _signature(function: object) -> list[Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):  # some that are written in C have none
        return None


async def _called(function: Doing, offered: Mapping[str, object]) -> object:
    """Call it with as much of what is offered as it takes."""
    parameters = _signature(function)
    if parameters is None or any(one.kind is Parameter.VAR_KEYWORD for one in parameters):
        given = dict(offered)
    else:
        taken = {one.name for one in parameters if one.kind in _BY_NAME}
        given = {name: value for name, value in offered.items() if name in taken}
    call = partial(function, **given)
    made = call() if inspect.iscoroutinefunction(function) else await run_in_executor(None, call)
    return await made if inspect.isawaitable(made) else made
