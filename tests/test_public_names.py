"""The public names are the promised ones, and each says what it is."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import agentgraph

ROOT = Path(__file__).parents[1]

# What makes a group due, and its names in `agentgraph`.
CONTRACT = {
    "agents": (
        "agentgraph/__init__.py",
        "Agent Reply Intent patched Patcher current_history idempotency_key AgentGraphError "
        "__version__ Guards Handoff Finish",
    ),
    "routing": (
        "agentgraph/routing",
        "TransitionGraph Transition AgentTarget HumanTarget TerminateTarget RoundRobinTarget "
        "StayTarget RevertToInitiatorTarget ParallelTarget Always FromSpeaker ToolCalled "
        "ContextEquals AllOf AnyOf Not round_robin sequence",
    ),
    "flow": ("agentgraph/flow", "Flow FlowResult"),
    "sessions": (
        "agentgraph/sessions",
        "Team TeamResult Hub Session Envelope set_context delete_context current_session "
        "report_progress",
    ),
    "effects": ("agentgraph/guards/mechanisms/effects.py", "effect"),
}


def public_modules() -> list[str]:
    paths = (path.relative_to(ROOT) for path in ROOT.glob("agentgraph/**/*.py"))
    names = (path.with_suffix("").parts for path in paths)
    return sorted(
        ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for parts in names
        if parts[-1] == "__init__" or not any(part.startswith("_") for part in parts)
    )


def public_names(module: ModuleType) -> list[str]:
    """The names in `__all__`; without one, those that the module defines for other modules."""
    own = (name for name, thing in vars(module).items() if is_defined_in(module, thing))
    return list(getattr(module, "__all__", None) or (n for n in own if not n.startswith("_")))


def is_defined_in(module: ModuleType, thing: object) -> bool:
    return getattr(thing, "__module__", None) == module.__name__


def undocumented(module: ModuleType) -> list[str]:
    """The public names that are classes or functions and say nothing of themselves."""

    def says_nothing(name: str) -> bool:
        thing = getattr(module, name)
        if not (inspect.isclass(thing) or inspect.isroutine(thing)):
            return False
        doc = thing.__doc__ or ""
        # A dataclass or named tuple without a docstring is given its signature for one.
        return not doc.strip() or doc.startswith(f"{thing.__name__}(")

    return [name for name in public_names(module) if says_nothing(name)]


def test_top_level_names_are_those_of_the_contract() -> None:
    due = [names.split() for path, names in CONTRACT.values() if (ROOT / path).exists()]
    assert set(agentgraph.__all__) == {name for names in due for name in names}


def test_top_level_names_are_sorted() -> None:
    assert list(agentgraph.__all__) == sorted(agentgraph.__all__)


@pytest.mark.parametrize("name", public_modules())
def test_names_of_a_module_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", ())
    assert [each for each in exported if not hasattr(module, each)] == []
    assert len(exported) == len(set(exported))
    assert undocumented(module) == []
