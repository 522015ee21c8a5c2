"""Finds the agent, flow or team that `module:agent` or `file.py:agent` names on a command line.

This imports the user's code, which may raise anything: its errors are reported with their place in
that code, without frames of agentgraph.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeAlias, TypeGuard, TypeVar

from langgraph.graph.state import CompiledStateGraph

from agentgraph.agents import Agent
from agentgraph.errors import ConfigurationError
from agentgraph.flow import Flow
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.sessions import Team

Target: TypeAlias = Agent[Any] | Flow[Any] | Team
"""What can be run."""
Served: TypeAlias = Target | AnyCompiledGraph
"""What can be served."""
K = TypeVar("K", bound=Served)


class _Fault(Exception):
    """Why a target does not name what it is to name."""


@dataclass(frozen=True, slots=True)
class Kinds(Generic[K]):
    """What a command works with, and its names in errors."""

    types: tuple[type[K], ...]
    label: str

    def holds(self, value: object) -> TypeGuard[K]:
        """Tell whether a value is of one of these types."""
        return isinstance(value, self.types)


AGENTS: Kinds[Agent[Any]] = Kinds((Agent,), "Agent")
SERVED: Kinds[Served] = Kinds(
    (Agent, Flow, Team, CompiledStateGraph), "Agent, Flow, Team or compiled graph"
)
TARGETS: Kinds[Target] = Kinds((Agent, Flow, Team), "Agent, Flow or Team")


def load(targets: Iterable[str]) -> list[Agent[Any]]:
    """Import the agents; raise `ConfigurationError` with the faults of all targets at once."""
    return load_all(targets, AGENTS)


def load_all(targets: Iterable[str], kinds: Kinds[K]) -> list[K]:
    """Import what the targets name; raise `ConfigurationError` with all faults at once."""
    _add_to_path(Path.cwd())
    values, faults = [], []
    for target in targets:
        try:
            values.append(_value_of(target, kinds))
        except _Fault as fault:
            faults.append(f"{target}: {fault}")
    if faults:
        raise ConfigurationError(faults)
    return values


def _value_of(target: str, kinds: Kinds[K]) -> K:
    """Return what one target names; raise `_Fault` if there is none."""
    source, _, name = (target, "", "") if target.endswith(".py") else target.rpartition(":")
    if not source:
        source, name = name, ""
    if not source:
        raise _Fault("give MODULE:AGENT or FILE.py:AGENT")
    module = _import_file(Path(source)) if source.endswith(".py") else _import(source)
    if not name:
        return _only_value(module, kinds)
    return _as_kind(_attribute(module, name, kinds), kinds)


def _import(name: str) -> ModuleType:
    """Import a module; distinguish a missing module from one whose import fails."""
    if name.startswith(".") or "/" in name or os.sep in name:
        raise _Fault("this is no name of a module: write package.module, or FILE.py for a file")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise _user_code_fault(f"importing {name} failed", error) from error
        raise _Fault(
            f"there is no module {error.name}, here or among those installed: "
            "run this where the module is, or name its file, FILE.py:AGENT"
        ) from None
    except (Exception, SystemExit) as error:
        raise _user_code_fault(f"importing {name} failed", error) from error


def _import_file(path: Path) -> ModuleType:
    """Import a file under the name that it has in its package, so that its own imports work."""
    path = path.resolve()
    if not path.is_file():
        raise _Fault("there is no such file")
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        root, parts = root.parent, [root.name, *parts]
    _add_to_path(root)
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    module = _import(name)
    file = getattr(module, "__file__", None)
    if file is None or Path(file).resolve() != path:
        raise _Fault(f"another module has the name {name}, {file or 'a built-in one'}: rename it")
    return module


def _attribute(module: ModuleType, name: str, kinds: Kinds[K]) -> object:
    """Return the object at a dotted name in a module."""
    value: object = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise _Fault(f"there is no {part!r} in it; {_list_of(module, kinds)}") from None
        except Exception as error:
            raise _user_code_fault(f"reading {name} failed", error) from error
    return value


def _only_value(module: ModuleType, kinds: Kinds[K]) -> K:
    """Return the module's only agent, which may have several names; raise `_Fault` otherwise.

    Of a module with flows and teams, an agent that works in one of them is not meant.
    """
    values = {id(value): value for value in _values_in(module, kinds).values()}
    candidates = [*values.values()]
    candidates = [c for c in candidates if not isinstance(c, Agent)] or candidates
    if len(candidates) != 1:
        raise _Fault(f"say which agent; {_list_of(module, kinds)}")
    return candidates[0]


def _as_kind(value: object, kinds: Kinds[K]) -> K:
    """Return an agent, or the agent that the user's function returns; raise `_Fault` otherwise.

    An async function is refused, and its coroutine closed: otherwise asyncio would warn that it was
    never awaited.
    """
    if kinds.holds(value):
        return value
    if not callable(value):
        raise _Fault(f"this is no {kinds.label} but {_kind(value)}")
    result = _call(value, kinds)
    if inspect.iscoroutine(result):
        result.close()
        raise _Fault(f"this is an async function: it has to return an {kinds.label} at once")
    if not kinds.holds(result):
        raise _Fault(f"calling it returned no {kinds.label} but {_kind(result)}")
    return result


def _call(function: Callable[[], object], kinds: Kinds[K]) -> object:
    """Call the user's function without arguments."""
    try:
        inspect.signature(function).bind()
    except ValueError:
        pass  # a built-in without a signature: the call itself decides
    except TypeError as error:
        raise _Fault(
            f"this is no {kinds.label} but {_kind(function)} "
            f"that cannot be called without arguments: {error}"
        ) from None
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise _user_code_fault("calling it failed", error) from error


def _user_code_fault(message: str, error: BaseException) -> _Fault:
    """Return a fault for an error of the user's code, with its place and its text."""
    text = "".join(traceback.format_exception_only(error)).strip()
    return _Fault(f"{message}{_location_of(error)}\n{text}")


def _location_of(error: BaseException) -> str:
    """Return the last line of the user's code in the traceback; frames of importlib are skipped."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    own = [f for f in frames if "importlib" not in f.filename]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def _values_in(module: ModuleType, kinds: Kinds[K]) -> dict[str, K]:
    return {name: value for name, value in vars(module).items() if kinds.holds(value)}


def _list_of(module: ModuleType, kinds: Kinds[K]) -> str:
    values = _values_in(module, kinds)
    if not values:
        return "it has no agents"
    words = {"agents": Agent, "flows": Flow, "teams": Team}
    *first, last = (
        word for word, kind in words.items() if any(isinstance(v, kind) for v in values.values())
    )
    every = f"{', '.join(first)} and {last}" if first else last
    return f"its {every} are: {', '.join(sorted(values))}"


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
