"""From `module:agent`, as it is typed on a command line, to the Agent."""

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
    """What is wrong with one target."""


def load(targets: Iterable[str]) -> list[Agent]:
    """Import the agents; whatever is wrong with any of them is told at once."""
    _look_in(Path.cwd())
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
    where, _, name = (target, "", "") if target.endswith(".py") else target.rpartition(":")
    if not where:
        where, name = name, ""
    if not where:
        raise _Fault("give MODULE:AGENT or FILE.py:AGENT")
    module = _from_file(Path(where)) if where.endswith(".py") else _imported(where)
    return _as_agent(_named(module, name)) if name else _only_one(module)


def _imported(name: str) -> ModuleType:
    if name.startswith(".") or "/" in name or os.sep in name:
        raise _Fault("this is no name of a module: write package.module, or FILE.py for a file")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise _raised(f"importing {name} failed", error) from error
        raise _Fault(
            f"there is no module {error.name}, here or among those installed: "
            "run this where the module is, or name its file, FILE.py:AGENT"
        ) from None
    except (Exception, SystemExit) as error:
        raise _raised(f"importing {name} failed", error) from error


def _from_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise _Fault("there is no such file")
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        root, parts = root.parent, [root.name, *parts]
    _look_in(root)
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    module = _imported(name)
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path:
        raise _Fault(f"another module has the name {name}, {found or 'a built-in one'}: rename it")
    return module


def _named(module: ModuleType, name: str) -> object:
    value: object = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise _Fault(f"there is no {part!r} in it; {_listed(module)}") from None
        except Exception as error:
            raise _raised(f"reading {name} failed", error) from error
    return value


def _only_one(module: ModuleType) -> Agent:
    found = list({id(agent): agent for agent in _agents_in(module).values()}.values())
    if len(found) != 1:
        raise _Fault(f"say which agent; {_listed(module)}")
    return found[0]


def _as_agent(value: object) -> Agent:
    if isinstance(value, Agent):
        return value
    if not callable(value):
        raise _Fault(f"this is no Agent but {_kind(value)}")
    made = _called(value)
    if inspect.iscoroutine(made):
        made.close()
        raise _Fault("this is an async function: it has to return an Agent at once")
    if not isinstance(made, Agent):
        raise _Fault(f"calling it returned no Agent but {_kind(made)}")
    return made


def _called(function: Callable[[], object]) -> object:
    try:
        inspect.signature(function).bind()
    except ValueError:
        pass  # it does not tell its signature: the call will show
    except TypeError as error:
        raise _Fault(
            f"this is no Agent but {_kind(function)} that cannot be called without arguments: "
            f"{error}"
        ) from None
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise _raised("calling it failed", error) from error


def _raised(what: str, error: BaseException) -> _Fault:
    """Tell what code of the user's raised, and where."""
    told = "".join(traceback.format_exception_only(error)).strip()
    return _Fault(f"{what}{_place_of(error)}\n{told}")


def _place_of(error: BaseException) -> str:
    """Return the last line of the user's that was run; Python's own importing is none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    own = [f for f in frames if "importlib" not in f.filename]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def _agents_in(module: ModuleType) -> dict[str, Agent]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Agent)}


def _listed(module: ModuleType) -> str:
    names = ", ".join(sorted(_agents_in(module)))
    return f"its agents are: {names}" if names else "it has no agents"


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _look_in(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
