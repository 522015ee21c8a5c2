"""Frozen JSON: objects and lists that are still a `dict` and a `list`, and cannot be changed.

Envelopes and states hold such values, so that whoever is handed one can neither change the log nor
the state. They compare, print, pickle and serialise like the values they were made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

_SCALARS = frozenset({str, int, float, bool, type(None)})
_FIELD_TYPES = _SCALARS | {tuple}
"""The usual types of fields that need no freezing: to ask whether one is a mapping is slow."""


def freeze(value: Any) -> Any:
    """Return a value whose objects and lists are frozen, all the way down; tuples become lists.

    What is frozen already is returned as it is, so that freezing costs no more than what is new.
    """
    kind = type(value)
    if kind is FrozenDict or kind is FrozenList or kind in _SCALARS:
        return value
    if kind is dict or (kind is not list and isinstance(value, Mapping)):
        return freeze_object(value)
    return _freeze_list(value) if isinstance(value, list | tuple) else value


def freeze_object(value: Mapping[str, Any]) -> FrozenDict:
    """Return an object frozen, as `freeze` does."""
    if type(value) is FrozenDict:
        return value
    if not value:
        return _EMPTY_OBJECT
    # Copied as a whole, then only what is no scalar is replaced: this runs for each envelope read.
    frozen_object = FrozenDict(value)
    for key, item in value.items():
        kind = type(item)
        if kind in _SCALARS:
            continue
        frozen_item = freeze_object(item) if kind is dict else freeze(item)
        dict.__setitem__(frozen_object, key, frozen_item)
    return frozen_object


def _freeze_list(value: Sequence[Any]) -> FrozenList:
    if not value:
        return _EMPTY_LIST
    frozen_list = FrozenList(value)
    for place, item in enumerate(value):
        kind = type(item)
        if kind in _SCALARS:
            continue
        frozen_item = freeze_object(item) if kind is dict else freeze(item)
        list.__setitem__(frozen_list, place, frozen_item)
    return frozen_list


def thaw(value: Any) -> Any:
    """Return a copy of a value that may be changed: plain dicts and lists, all the way down."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    return value


def freeze_fields(values: dict[str, Any]) -> None:
    """Freeze the objects among the values of a dict; tuples and other values stay as they are."""
    for name, value in values.items():
        kind = type(value)
        if kind is dict or (
            kind not in _FIELD_TYPES and kind is not FrozenDict and isinstance(value, Mapping)
        ):
            values[name] = freeze_object(value)


def _refuse(self: object, *args: object, **fields: object) -> NoReturn:
    raise TypeError(
        "this value belongs to an envelope or a state, which cannot be changed: change a copy of "
        "it, which copy.deepcopy() makes"
    )


class FrozenDict(dict[str, Any]):
    """A JSON object that cannot be changed; `freeze` makes it, and freezes what it holds."""

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    def __copy__(self) -> FrozenDict:
        return self

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        copy: dict[str, Any] = thaw(self)
        return copy


class FrozenList(list[Any]):
    """A JSON array that cannot be changed; `freeze` makes it, and freezes what it holds."""

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = _refuse
    reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)

    def __copy__(self) -> FrozenList:
        return self

    def __deepcopy__(self, memo: object) -> list[Any]:
        copy: list[Any] = thaw(self)
        return copy


# Shared, as most envelopes have some: nobody can change them.
_EMPTY_OBJECT = FrozenDict()
_EMPTY_LIST = FrozenList()
