"""How much of our code one run visits may fall, but not rise; and the profiler counts right."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.walks import WALKS, Profile, Profiler, Visit, Walk, listing, measured

# Measured with Python 3.11. The figures do not depend on time: clocks stand still, and only what
# each walk does by itself counts. Lower a ceiling as soon as its figure has fallen.
CEILINGS = {
    "supervisor": Walk(modules=38, hops=253, depth=14),
    "guarded supervisor": Walk(modules=70, hops=722, depth=17),
    "session": Walk(modules=105, hops=1141, depth=21),
    "server": Walk(modules=109, hops=733, depth=22),
    "retry": Walk(modules=56, hops=295, depth=18),
    "escalation": Walk(modules=65, hops=411, depth=17),
}


def faults_of(name: str, profile: Profile, ceiling: Walk) -> list[str]:
    """Name the figures of a walk which are above its ceiling, and the modules visited."""
    figures = zip(Walk._fields, profile.walk, ceiling, strict=True)
    faults = [
        f"the walk {name!r} has {figure} {field}, but its ceiling is {most}"
        for field, figure, most in figures
        if figure > most
    ]
    return [*faults, f"it visits\n{listing(profile.modules)}"] if faults else []


def test_each_walk_has_a_ceiling() -> None:
    assert CEILINGS.keys() == WALKS.keys()


@pytest.mark.parametrize("name", CEILINGS)
def test_a_walk_visits_no_more_than_its_ceiling(name: str) -> None:
    faults = faults_of(name, measured(name), CEILINGS[name])
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("field", Walk._fields)
def test_a_figure_above_its_ceiling_is_named_with_the_modules_visited(field: str) -> None:
    profile = Profile([Visit("a.py", None, 1, True), Visit("b.py", "a.py", 2, True)])
    figures = profile.walk
    assert figures == Walk(modules=2, hops=1, depth=2)
    assert faults_of("short", profile, figures) == []

    most = getattr(figures, field) - 1
    fault, modules = faults_of("short", profile, figures._replace(**{field: most}))

    assert fault == f"the walk 'short' has {most + 1} {field}, but its ceiling is {most}"
    assert modules == "it visits\n    1 a.py\n    2 b.py"


# The profiler.


def compiled(path: str, source: str, **names: Any) -> dict[str, Any]:
    """Return the names of a made-up module, in which some are defined beforehand."""
    exec(compile(source, path, "exec"), names)
    return names


def profiled(work: Callable[[], object]) -> Profile:
    """Profile a call; the package is `/made/up`, without its folder `excluded`."""
    profiler = Profiler([Path("/made/up")], excluded=[Path("/made/up/excluded")])
    with profiler.installed(), profiler.recording():
        work()
    return profiler.profile


def test_a_call_into_another_module_is_a_hop() -> None:
    b = compiled("/made/up/b.py", "def second(): return 1")
    a = compiled("/made/up/a.py", "def first(): return second() + second()", **b)

    profile = profiled(a["first"])

    assert profile.modules == ["up/a.py", "up/b.py"]
    assert profile.walk == Walk(modules=2, hops=2, depth=2)


def test_a_call_within_a_module_is_no_hop() -> None:
    a = compiled("/made/up/a.py", "def first(): return second()\ndef second(): return 1")

    assert profiled(a["first"]).walk == Walk(modules=1, hops=0, depth=2)


def test_frames_of_libraries_and_of_excluded_folders_are_looked_through() -> None:
    library = compiled("/made/library.py", "def called(function): return function()")
    passing = "def passed(function): return called(function)"
    excluded = compiled("/made/up/excluded/c.py", passing, **library)
    source = "def second(): return 1\ndef third(): return passed(second)"
    b = compiled("/made/up/b.py", source, **excluded)
    a = compiled("/made/up/a.py", "def first(): return passed(third)", **b)

    profile = profiled(a["first"])

    assert profile.modules == ["up/a.py", "up/b.py"]
    assert profile.walk == Walk(modules=2, hops=1, depth=3)


def test_comprehensions_and_code_at_the_top_level_are_no_functions() -> None:
    square = "def square(n): return n * n"
    many = "def many(): return [square(n) for n in (1, 2)] + list(square(n) for n in (1, 2))"
    a = compiled("/made/up/a.py", f"{square}\n{many}")

    assert profiled(a["many"]).walk == Walk(modules=1, hops=0, depth=2)
    assert profiled(lambda: compiled("/made/up/b.py", "class Empty: pass")).walk == Walk(0, 0, 0)


def test_a_lambda_is_a_function() -> None:
    a = compiled("/made/up/a.py", "second = lambda: 1")
    b = compiled("/made/up/b.py", "def first(): return second()", **a)

    assert profiled(b["first"]).walk == Walk(modules=2, hops=1, depth=2)


def test_a_generator_is_entered_once_however_often_it_is_resumed() -> None:
    b = compiled("/made/up/b.py", "def numbers():\n yield 1\n yield 2")
    a = compiled("/made/up/a.py", "def first(): return sum(numbers())", **b)

    profile = profiled(a["first"])

    assert len(profile.visits) == 4
    assert profile.walk == Walk(modules=2, hops=1, depth=2)


def test_a_coroutine_is_entered_once_however_often_it_waits() -> None:
    waiting = "async def second():\n await turn()\n await turn()"
    b = compiled("/made/up/b.py", waiting, turn=_turn_of_the_loop)
    a = compiled("/made/up/a.py", "async def first():\n await second()\n await second()", **b)

    profile = profiled(lambda: asyncio.run(a["first"]()))

    assert len(profile.visits) > 3
    assert profile.walk == Walk(modules=2, hops=2, depth=2)


async def _turn_of_the_loop() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.get_loop().call_soon(future.set_result, None)
    await future


def test_what_began_before_the_recording_and_goes_on_in_it_is_visited_without_a_hop() -> None:
    b = compiled("/made/up/b.py", "def numbers():\n yield 1\n yield 2")
    a = compiled("/made/up/a.py", "def first(): return next(begun)", begun=b["numbers"]())
    next(a["begun"])

    assert profiled(a["first"]).walk == Walk(modules=2, hops=0, depth=2)


def test_the_first_function_of_a_thread_is_visited_and_has_no_caller() -> None:
    b = compiled("/made/up/b.py", "def second(): return 1")
    source = "def first():\n thread = Thread(target=second)\n thread.start()\n thread.join()"
    a = compiled("/made/up/a.py", source, Thread=threading.Thread, **b)

    profile = profiled(a["first"])

    assert profile.modules == ["up/a.py", "up/b.py"]
    assert profile.walk == Walk(modules=2, hops=0, depth=1)


def test_nothing_is_recorded_outside_of_the_recording() -> None:
    a = compiled("/made/up/a.py", "def first(): return 1")
    profiler = Profiler([Path("/made/up")])
    with profiler.installed():
        a["first"]()
        with profiler.recording():
            pass
        a["first"]()

    assert profiler.profile.visits == []
