from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from agentgraph.errors import ConfigurationError
from agentgraph.routing import (
    AgentTarget,
    Always,
    Composable,
    FromSpeaker,
    Registry,
    RoutingEnvelope,
    RoutingState,
    ToolCalled,
    Transition,
    TransitionCondition,
    TransitionGraph,
    default_registry,
    register_condition,
    register_target,
)
from tests.routing.document.documents import document, faults, part, rule
from tests.routing.samples import REGISTRY, Answers, AtLeast, ByPhase, Raises

if TYPE_CHECKING:
    from tests.routing.samples import State as OnlyForTypeCheckers


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Rich(Composable):
    color: Color
    since: datetime
    limits: tuple[int, ...] = ()
    cached: int = field(default=0, init=False)

    name: ClassVar[str] = "rich"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return True


class Plain:
    name: ClassVar[str] = "plain"

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        return True


class Keeps(Plain):
    name: ClassVar[str] = "keeps"

    def __init__(self) -> None:
        self.limit = 3


@dataclass(frozen=True)
class Calls(Plain):
    function: Callable[[], bool]

    name: ClassVar[str] = "calls"


class Slotted(Plain):
    __slots__ = ("limit",)
    name: ClassVar[str] = "slotted"

    def __init__(self, limit: int) -> None:
        self.limit = limit


class Pair(tuple[int, int], Plain):
    name: ClassVar[str] = "pair"


@dataclass(frozen=True)
class Fails(Plain):
    name: ClassVar[str] = "fails"

    def __post_init__(self) -> None:
        raise ZeroDivisionError("by nought")


@dataclass(frozen=True)
class Unreadable(Plain):
    state: OnlyForTypeCheckers | None = None

    name: ClassVar[str] = "unreadable"


@pytest.fixture
def own() -> Iterator[Registry]:
    registry = Registry()
    for kind in (Rich, Plain, Keeps, Calls, Fails, AtLeast, Raises):
        registry.register_condition(kind)
    registry.register_target(ByPhase)
    yield registry


def test_arguments_of_one_s_own_come_back_with_their_types(own: Registry) -> None:
    rich = Rich(Color.RED, datetime(2026, 1, 2, tzinfo=UTC), (1, 2))
    graph = TransitionGraph(
        "a", [Transition(AtLeast(1, (rich, Raises())), ByPhase("x", AgentTarget("b")))]
    )

    back: Any = TransitionGraph.loads(graph.dumps(), own)

    assert back == graph
    assert type(back.transitions[0].when.of[0].color) is Color


@pytest.mark.parametrize("hint", [Collection, Iterable, Sequence])
def test_conditions_are_read_from_whatever_holds_many(own: Registry, hint: Any) -> None:
    kind: Any = make_dataclass(
        "Many",
        [("of", hint[TransitionCondition])],
        bases=(Plain,),
        namespace={"name": "many"},
        frozen=True,
    )
    own.register_condition(kind)
    graph = TransitionGraph("a", [Transition(kind((ToolCalled("t"), FromSpeaker("a"))), "b")])

    assert TransitionGraph.loads(graph.dumps(), own) == graph
    assert graph.routing_tools == {"t"}


def test_class_without_arguments_need_not_be_a_dataclass(own: Registry) -> None:
    graph = TransitionGraph("a", [Transition(Plain(), "b")])

    assert isinstance(TransitionGraph.loads(graph.dumps(), own).transitions[0].when, Plain)
    assert faults(document(rule(part("plain", x=1))), own) == (
        "transitions[0].when.args: there is no key 'x': there are none",
    )


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        (Keeps(), "keeps cannot be written: make its class a dataclass"),
        (Slotted(3), "slotted cannot be written: make its class a dataclass"),
        (Pair((1, 2)), "pair cannot be written: make its class a dataclass"),
        (Answers(Always()), "'answer' of answers holds a Always, which JSON does not have"),
        (Answers({1}), "'answer' of answers holds a set, which JSON does not have"),
        (Answers([(1,)]), "'answer' of answers would come back as [[1]]: annotate what it is"),
        (Calls(lambda: True), "'function' of calls cannot be written as JSON"),
        (AtLeast(1, (3,)), "3 is no condition and no target"),  # type: ignore[arg-type]
        (AtLeast(10**5000, ()), "'count' of at_least holds a number of more than 4,300 digits"),
        (Raises(b"\xff"), "'message' of raises cannot be written"),  # type: ignore[arg-type]
    ],
    ids=[
        "keeps",
        "slotted",
        "pair",
        "condition",
        "set",
        "tuple",
        "calls",
        "no_condition",
        "huge",
        "bytes",
    ],
)
def test_what_cannot_be_stored_is_refused_when_it_is_written(condition: Any, told: str) -> None:
    graph = TransitionGraph("a", [Transition(condition, "b"), Transition(condition, "c")])

    with pytest.raises(ConfigurationError) as caught:
        graph.to_dict()

    assert caught.value.faults[0].startswith(told)
    assert [finding.code for finding in graph.check(["a", "b", "c"])]


def test_annotations_that_cannot_be_read_are_told() -> None:
    with pytest.raises(ConfigurationError, match=r"the annotations of .*Unreadable"):
        TransitionGraph("a", [Transition(Unreadable(), "b")])


def test_annotations_that_cannot_be_read_are_told_with_their_place_beside_all_else() -> None:
    registry = Registry()
    registry.register_condition(Unreadable)

    first, second = faults(
        document(rule(part("unreadable", state=None)), rule(part("nothing"))), registry
    )

    assert first.startswith("transitions[0].when.args: the annotations of")
    assert second.startswith("transitions[1].when: no condition is registered as 'nothing'")


def test_whatever_a_constructor_of_one_s_own_raises_is_told(own: Registry) -> None:
    assert faults(document(rule(part("fails")), rule(part("calls", function=1))), own) == (
        "transitions[0].when.args: ZeroDivisionError: by nought",
        "transitions[1].when.args.function: Input should be callable",
    )


def test_registry_of_one_s_own_is_used_alone() -> None:
    graph = TransitionGraph("a", [Transition(Raises(), "b")])

    assert TransitionGraph.from_dict(graph.to_dict(), REGISTRY) == graph
    assert "no condition is registered as 'raises'" in faults(graph.to_dict())[0]


def test_default_registry_takes_new_names_and_keeps_its_own() -> None:
    register_condition(Rich)
    register_target(ByPhase)
    assert default_registry().conditions["rich"] is Rich
    assert default_registry().targets["by_phase"] is ByPhase

    for register, name, method in (
        (register_condition, "all_of", "evaluate"),
        (register_target, "human", "resolve"),
    ):
        taken: Any = type("Taken", (), {"name": name, method: lambda *_: True})
        with pytest.raises(ConfigurationError, match=f"'{name}' is built in"):
            register(taken)


def test_registry_of_one_s_own_may_replace_what_is_built_in() -> None:
    class Never(Plain):
        name: ClassVar[str] = "always"

    registry = Registry()
    registry.register_condition(Never)

    graph = TransitionGraph.from_dict(document(rule()), registry)
    assert isinstance(graph.transitions[0].when, Never)
    assert default_registry().conditions["always"] is Always


@pytest.mark.parametrize(
    "wrong", [Plain(), int, None, type("NoName", (), {"evaluate": lambda *_: True})]
)
def test_what_has_no_name_or_no_method_is_not_registered(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="has no"):
        Registry().register_condition(wrong)
    with pytest.raises(ConfigurationError, match="has no method 'resolve'"):
        Registry().register_target(wrong)
