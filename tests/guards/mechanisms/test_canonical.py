from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from agentgraph.guards.mechanisms.canonical import canonical, digest, exact_digest, parse_json

EMPTY = st.sampled_from([None, "", {}, [], " \n", [None], {"a": ""}])
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
LIGHT = settings(max_examples=80, deadline=None)


class Trip(BaseModel):
    city: str
    nights: int | None = None


@dataclass
class Point:
    x: int
    y: float


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("not today")


def reversed_keys(value: object) -> object:
    if isinstance(value, dict):
        return {key: reversed_keys(held) for key, held in reversed(value.items())}
    return [reversed_keys(held) for held in value] if isinstance(value, list) else value


@LIGHT
@given(VALUES)
def test_the_order_of_keys_does_not_count(value: object) -> None:
    assert canonical(value) == canonical(reversed_keys(value))
    assert exact_digest(value) == exact_digest(reversed_keys(value))


@LIGHT
@given(st.dictionaries(st.sampled_from("abc"), VALUES), EMPTY)
def test_empty_parts_do_not_count(value: dict[str, object], empty: object) -> None:
    padded = {**value, "nothing": empty}
    assert digest(padded) == digest(value)
    assert exact_digest(padded) != exact_digest(value)


@LIGHT
@given(st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=4))
def test_white_space_and_composition_do_not_count(words: list[str]) -> None:
    spread = "\t" + " \n ".join(words) + "  "
    assert canonical(spread) == canonical(unicodedata.normalize("NFD", " ".join(words)))
    assert exact_digest(spread) != exact_digest(" ".join(words))


@LIGHT
@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=3), st.integers(1, 9))
def test_a_changed_value_changes_the_digest(value: dict[str, object], number: int) -> None:
    name = next(iter(value))
    assert digest({**value, name: number}) != digest({**value, name: number + 1})
    assert digest({**value, name: "a"}) != digest({**value, name: "A"})


@LIGHT
@given(st.dictionaries(TEXT, VALUES, max_size=3))
def test_text_of_json_means_what_it_holds(value: dict[str, object]) -> None:
    text = json.dumps(value)
    assert canonical(text) == canonical(value)
    assert exact_digest(text) != exact_digest(value)


def test_models_that_alternate_between_nothings_repeat_themselves() -> None:
    assert digest({"": ""}) == digest({"": {}}) == digest({}) == digest(None)
    nothings: list[object] = [{"": ""}, {"": {}}, {}, None, "", []]
    assert len({exact_digest(value) for value in nothings}) == 6


@pytest.mark.parametrize("hashed", [canonical, exact_digest])
def test_a_whole_float_is_its_integer_and_true_is_no_number(
    hashed: Callable[[object], str],
) -> None:
    assert hashed(1) == hashed(1.0) != hashed(True)
    assert hashed(0) == hashed(-0.0) != hashed(False)
    assert hashed(1) != hashed("1")
    assert hashed(2**60) == hashed(float(2**60))
    assert len({hashed(value) for value in (1.5, float("nan"), float("inf"), -1, 10**5000)}) == 5


def test_case_counts() -> None:
    assert digest({"path": "/Etc"}) != digest({"path": "/etc"})


def test_what_json_does_not_know_is_written_without_raising() -> None:
    circle: list[object] = [1]
    circle.append({"again": circle})
    deep: object = 1
    for _ in range(20_000):
        deep = {"in": deep}
    other: object = 2
    for _ in range(20_000):
        other = {"in": other}
    for value in (circle, Rude(), object(), b"\xff", "\ud800", {1: 2, (3,): 4}, "{" * 15_000):
        assert digest(value) == digest(value)
    assert digest(deep) != digest(other)
    assert digest([circle]) == digest([circle])
    assert canonical({3, 1, 2}) == canonical({2, 3, 1})
    assert canonical((1, 2)) == canonical([1, 2]) != canonical([2, 1])


def test_shared_values_are_no_cycle() -> None:
    shared = {"a": 1}
    assert canonical([shared, shared]) == canonical([{"a": 1}, {"a": 1}])


def test_an_object_is_the_same_in_another_process() -> None:
    assert exact_digest(object()) == exact_digest(object())


def test_models_and_dataclasses_are_their_fields() -> None:
    assert canonical(Trip(city="Rome")) == canonical({"city": "Rome"})
    assert canonical(Point(1, 2.0)) == canonical({"x": 1, "y": 2})
    assert canonical(Point(1, 3.0)) != canonical(Point(1, 2.0))


def test_only_objects_and_arrays_are_parsed() -> None:
    assert parse_json(' {"a": 1}') == {"a": 1}
    assert parse_json("12") == "12"
    assert parse_json("{not json") == "{not json"
    assert parse_json("[" + "1," * 20_000 + "1]") == "[" + "1," * 20_000 + "1]"
    assert parse_json(3) == 3


@LIGHT
@given(VALUES)
def test_a_value_is_written_alike_however_deep_it_stands(value: object) -> None:
    deep = value
    for _ in range(12):
        deep = [deep]
    shown = canonical(value)
    assert canonical(deep) == ("null" if shown == "null" else "[" * 12 + shown + "]" * 12)
