"""Frozen JSON is JSON in everything but that it cannot be changed."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from agentgraph.routing.frozen_json import FrozenDict, FrozenList, freeze, thaw

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text("abü", max_size=3)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xy"), inner, max_size=3),
    max_leaves=8,
)

WRITES: list[Callable[[Any], object]] = [
    lambda value: value["object"].__setitem__("a", 2),
    lambda value: value["object"].__delitem__("a"),
    lambda value: value["object"].__ior__({"b": 1}),
    lambda value: value["object"].clear(),
    lambda value: value["object"].pop("a"),
    lambda value: value["object"].popitem(),
    lambda value: value["object"].setdefault("b", 1),
    lambda value: value["object"].update(b=1),
    lambda value: value["list"].__setitem__(0, 1),
    lambda value: value["list"].__delitem__(0),
    lambda value: value["list"].__iadd__([1]),
    lambda value: value["list"].__imul__(2),
    lambda value: value["list"].append(1),
    lambda value: value["list"].clear(),
    lambda value: value["list"].extend([1]),
    lambda value: value["list"].insert(0, 1),
    lambda value: value["list"].pop(),
    lambda value: value["list"].remove(3),
    lambda value: value["list"].reverse(),
    lambda value: value["list"].sort(),
    lambda value: value["list"][1].update(b=1),
]


def is_frozen(value: object) -> bool:
    """Tell whether no object or list in a value can be changed."""
    if isinstance(value, dict):
        return type(value) is FrozenDict and all(map(is_frozen, value.values()))
    if isinstance(value, list):
        return type(value) is FrozenList and all(map(is_frozen, value))
    return True


@given(VALUES)
def test_a_frozen_value_equals_its_original_in_every_form(value: Any) -> None:
    frozen = freeze(value)
    assert is_frozen(frozen)
    assert frozen == value
    assert repr(frozen) == repr(value)
    assert json.dumps(frozen) == json.dumps(value)
    assert to_json(frozen) == to_json(value)
    assert ormsgpack.packb(frozen) == ormsgpack.packb(value)
    assert pickle.loads(pickle.dumps(frozen)) == value
    assert is_frozen(pickle.loads(pickle.dumps(frozen)))
    assert copy.copy(frozen) is frozen


@given(VALUES)
def test_a_thawed_value_shares_nothing_that_can_be_changed(value: Any) -> None:
    for thawed in (thaw(freeze(value)), copy.deepcopy(freeze(value))):
        assert thawed == value
        assert not is_frozen(thawed) or is_frozen(value)


@given(VALUES)
def test_what_is_frozen_already_is_not_copied_again(value: Any) -> None:
    frozen = freeze({"value": value})
    assert freeze(frozen) is frozen
    assert freeze({"other": frozen})["other"] is frozen


@pytest.mark.parametrize("write", WRITES)
def test_every_way_to_write_is_refused(write: Callable[[Any], object]) -> None:
    value = {"object": {"a": 1}, "list": [3, {"a": 1}]}
    frozen = freeze(value)
    with pytest.raises(TypeError, match="cannot be changed"):
        write(frozen)
    assert frozen == {"object": {"a": 1}, "list": [3, {"a": 1}]}


def test_the_original_stays_as_it_was_and_can_be_changed() -> None:
    value: dict[str, Any] = {"list": (1, [2])}
    frozen = freeze(value)
    value["list"][1].append(3)
    assert frozen == {"list": [1, [2]]}
