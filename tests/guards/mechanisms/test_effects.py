"""A mark on a tool is found again, keeps the tool what it is, and undoes by name."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import Annotated, Any

import pytest
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, tool

from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.effects import Effect, effect, effect_of


def cancel(order: str) -> str:
    return f"cancelled {order}"


def found(order: str, key: str) -> str | None:
    return f"{order} by {key}" if order == "7" else None


def buy(order: str, amount: int = 1) -> str:
    """Buy something."""
    return f"{amount} of {order}"


async def abuy(order: str) -> str:
    """Buy something, without hurry."""
    return order


class Refund(BaseTool):
    name: str = "refund"
    description: str = "Give money back."

    def _run(self, order: str) -> str:
        return order


@pytest.mark.parametrize("function", [buy, abuy])
def test_a_marked_function_stays_the_function_that_it_was(function: Any) -> None:
    before = inspect.signature(function), function.__doc__, function.__name__
    marked = effect(compensate=cancel, lookup=found)(function)
    assert marked is function
    assert before == (inspect.signature(marked), marked.__doc__, marked.__name__)
    assert inspect.iscoroutinefunction(marked) == (function is abuy)


def test_a_mark_is_found_under_a_tool_and_above_it() -> None:
    known = Effect(cancel, volatile=("order",), poll=True)
    options: Any = {"compensate": cancel, "volatile": ["order"], "poll": True}

    @tool
    @effect(**options)
    def under(order: str) -> str:
        """Do it."""
        return order

    @effect(**options)
    @tool
    def above(order: str) -> str:
        """Do it."""
        return order

    @tool
    @effect(**options)
    async def waiting(order: str) -> str:
        """Do it."""
        return order

    for marked in (under, above, waiting, effect(**options)(Refund())):
        assert isinstance(marked, BaseTool)
        assert effect_of(marked) == known
        assert effect_of(marked.model_copy()) == known
    assert above.invoke({"order": "7"}) == "7"
    assert "effect" not in str(above.model_dump())


def test_a_bare_mark_says_only_that_there_is_an_effect() -> None:
    @tool
    @effect
    def send(to: str) -> str:
        """Send it."""
        return to

    assert effect_of(send) == Effect()
    assert effect_of(Refund()) is None


def test_a_function_that_may_be_either_the_tool_or_what_undoes_it_is_refused() -> None:
    either: Any = effect
    for options in ({"lookup": found}, {"volatile": ["order"]}, {"poll": True}):
        with pytest.raises(ConfigurationError, match="by name, as compensate=cancel"):
            either(cancel, **options)
    assert effect_of(cancel) is None
    assert effect_of(either(Refund(), poll=True)) == Effect(poll=True)


def test_a_mark_survives_a_decorator_between() -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def around(*args: object, **kwargs: object) -> object:
            return function(*args, **kwargs)

        return around

    @effect(poll=True)
    def look(at: str) -> str:
        """Look."""
        return at

    assert effect_of(StructuredTool.from_function(logged(look))) == Effect(poll=True)
    assert effect_of(functools.partial(look, "there")) == Effect(poll=True)


def test_a_method_is_marked_in_its_class() -> None:
    class Shop:
        @effect(volatile=("order",))
        def buy(self, order: str) -> str:
            """Buy something."""
            return order

    assert effect_of(StructuredTool.from_function(Shop().buy)) == Effect(volatile=("order",))
    with pytest.raises(ConfigurationError, match="where it is defined"):
        effect(poll=True)(Shop().buy)


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        ({"volatile": ("when", "who")}, ["'when' is no argument of it; it takes", "'who'"]),
        ({"volatile": "order"}, ["give a tuple of argument names"]),
        ({"compensate": "cancel", "lookup": 3}, ["compensate='cancel'", "lookup=3"]),
        ({"poll": 1}, ["poll=1"]),
        ({"compensate": lambda receipt: receipt}, ["compensate needs 'receipt'"]),
        ({"lookup": lambda key, result: result}, ["lookup needs 'result'"]),
    ],
)
def test_a_mark_that_does_not_fit_is_told_with_all_its_faults(
    options: dict[str, Any], faults: list[str]
) -> None:
    for target in (lambda order, amount=1: order, Refund()):
        with pytest.raises(ConfigurationError) as raised:
            effect(**options)(target)
        assert len(raised.value.faults) == len(faults)
        for told, fault in zip(raised.value.faults, faults, strict=True):
            assert fault in told


@pytest.mark.parametrize("target", [3, Refund, "buy"])
def test_only_functions_and_tools_take_a_mark(target: object) -> None:
    with pytest.raises(ConfigurationError, match="marks a function or a tool"):
        effect(poll=True)(target)


def test_whoever_takes_anything_may_name_anything() -> None:
    @effect(volatile=("whatever",), compensate=lambda **given: given)
    def anything(**given: object) -> object:
        """Do anything."""
        return given

    assert effect_of(anything) is not None


def test_an_argument_that_the_model_does_not_see_is_an_argument() -> None:
    @effect(volatile=("user",))
    @tool
    def pay(order: str, user: Annotated[str, InjectedToolArg]) -> str:
        """Pay."""
        return order + user

    assert effect_of(pay) == Effect(volatile=("user",))


async def test_undoing_gives_what_the_function_takes() -> None:
    args = {"order": "7", "amount": 2}
    assert await Effect(cancel).undo(args, result="r", key="k") == "cancelled 7"
    assert await Effect(lambda **all_of_it: all_of_it).undo(args, result="r", key="k") == {
        **args,
        "result": "r",
        "key": "k",
    }

    async def later(amount: int, result: object, key: str) -> object:
        return amount, result, key

    assert await Effect(later).undo(args, result="r", key="k") == (2, "r", "k")
    assert await Effect().undo(args) is None


async def test_an_argument_of_the_tool_goes_before_ours_but_a_lookup_needs_the_key() -> None:
    def own(key: str, result: str) -> tuple[str, str]:
        return key, result

    assert await Effect(own).undo({"key": "mine"}, result="r", key="ours") == ("mine", "r")
    assert await Effect(lookup=lambda key: key).look_up({"key": "mine"}, key="ours") == "ours"


async def test_a_lookup_tells_the_result_or_none() -> None:
    known = Effect(lookup=found)
    assert await known.look_up({"order": "7"}, key="k") == "7 by k"
    assert await known.look_up({"order": "8"}, key="k") is None
    assert await Effect().look_up({"order": "7"}, key="k") is None


async def test_a_function_that_blocks_does_not_block_the_loop() -> None:
    def blocking() -> str:
        return threading.current_thread().name

    assert await Effect(blocking).undo({}) != threading.current_thread().name


def test_a_function_around_an_object_has_the_mark_of_what_that_holds() -> None:
    class Held:
        def __init__(self) -> None:
            self.func = effect(compensate=cancel)(abuy)

        def __call__(self, order: str) -> Any:
            return self.func(order)

    held = Held()

    @functools.wraps(held)
    def around(order: str) -> Any:
        return held(order)

    assert effect_of(held) == effect_of(around) == Effect(compensate=cancel)
