"""Finds the agent that `module:agent` or `file.py:agent` names on a command line.

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
from pathlib import Path
from types import ModuleType

from agentgraph.agents import Agent
from agentgraph.errors import ConfigurationError


class _Fault(Exception):
    """Why a target does not name an agent."""


def load(targets: Iterable[str]) -> list[Agent]:
    """Import the agents; raise `ConfigurationError` with the faults of all targets at once."""
    _add_to_path(Path.cwd())
    agents, faults = [], []
    for target in targets:
        try:
            agents.append(_agent_of(target))
        except _Fault as fault:
            faults.append(f"{target}: {fault}")
    if faults:
        raise ConfigurationError(faults)
    return agents


def _agent_of(target: str) -> Agent:
    """Return the agent of one target; raise `_Fault` if there is none."""
    source, _, name = (target, "", "") if target.endswith(".py") else target.rpartition(":")
    if not source:
        source, name = name, ""
    if not source:
        raise _Fault("give MODULE:AGENT or FILE.py:AGENT")
    module = _import_file(Path(source)) if source.endswith(".py") else _import(source)
    return _as_agent(_attribute(module, name)) if name else _only_agent(module)


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


def _attribute(module: ModuleType, name: str) -> object:
    """Return the object at a dotted name in a module."""
    value: object = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise _Fault(f"there is no {part!r} in it; {_agent_list(module)}") from None
        except Exception as error:
            raise _user_code_fault(f"reading {name} failed", error) from error
    return value


def _only_agent(module: ModuleType) -> Agent:
    """Return the module's only agent, which may have several names; raise `_Fault` otherwise."""
    agents = list({id(agent): agent for agent in _agents_in(module).values()}.values())
    if len(agents) != 1:
        raise _Fault(f"say which agent; {_agent_list(module)}")
    return agents[0]


def _as_agent(value: object) -> Agent:
    """Return an agent, or the agent that the user's function returns; raise `_Fault` otherwise.

    An async function is refused, and its coroutine closed: otherwise asyncio would warn that it was
    never awaited.
    """
    if isinstance(value, Agent):
        return value
    if not callable(value):
        raise _Fault(f"this is no Agent but {_kind(value)}")
    result = _call(value)
    if inspect.iscoroutine(result):
        result.close()
        raise _Fault("this is an async function: it has to return an Agent at once")
    if not isinstance(result, Agent):
        raise _Fault(f"calling it returned no Agent but {_kind(result)}")
    return result


def _call(function: Callable[[], object]) -> object:
    """Call the user's function without arguments."""
    try:
        inspect.signature(function).bind()
    except ValueError:
        pass  # a built-in without a signature: the call itself decides
    except TypeError as error:
        raise _Fault(
            f"this is no Agent but {_kind(function)} that cannot be called without arguments: "
            f"{error}"
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


def _agents_in(module: ModuleType) -> dict[str, Agent]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Agent)}


def _agent_list(module: ModuleType) -> str:
    names = ", ".join(sorted(_agents_in(module)))
    return f"its agents are: {names}" if names else "it has no agents"


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
