"""One form that an answer may have: its schema for the model, and the check of what the model says.

A form is a pydantic model, a dataclass or a `TypedDict`, which pydantic checks, or a JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import reduce
from itertools import islice
from operator import or_
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from jsonschema_rs import validator_for
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json
from typing_extensions import TypedDict, is_typeddict

FormKind: TypeAlias = type | Mapping[str, Any]

_MOST_PROBLEMS = 5
_LONGEST_PROBLEM = 200


class AnswerForm:
    """A form: `spec` is the tool by which a model fills it in, under `name`.

    Raises `ValueError` or `TypeError` for what is no form.
    """

    def __init__(self, kind: FormKind) -> None:
        self._adapter: TypeAdapter[Any] | None = None
        self._validator: Any = None
        if isinstance(kind, Mapping):
            self.spec = _spec_of_schema(kind)
            self._validator = validator_for(self.schema)
        elif not isinstance(kind, type):
            raise TypeError(f"{kind!r} is no class and no JSON Schema")
        else:
            self._adapter = TypeAdapter(_readable(kind))
            self.spec = _spec_of_class(kind, self._adapter)
        self.name: str = self.spec["function"]["name"]
        if self.schema.get("type", "object") != "object":
            raise ValueError(f"the form {self.name!r} has to be an object, with named fields")

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of an answer."""
        schema: dict[str, Any] = self.spec["function"].get("parameters") or {}
        return schema

    def load(self, value: object) -> object:
        """Return the object for a value in JSON; raises `ValueError` with the problems."""
        if self._adapter is None:
            errors = islice(self._validator.iter_errors(value), _MOST_PROBLEMS)
            if problems := [_problem(error.instance_path, error.message) for error in errors]:
                raise ValueError("; ".join(problems))
            return value
        try:
            # As JSON: a strict model takes a date as a text from JSON only.
            return self._adapter.validate_json(to_json(value))
        except ValidationError as error:
            problems = [
                _problem(detail["loc"], detail["msg"])
                for detail in error.errors(include_url=False, include_input=False)[:_MOST_PROBLEMS]
            ]
            raise ValueError("; ".join(problems)) from error

    def with_defaults(self, value: object) -> object:
        """Return a value with its defaults, in JSON; raises `ValueError` with the problems."""
        instance = self.load(value)
        if self._adapter is None:
            return value
        try:
            full = self._adapter.dump_python(instance, mode="json", by_alias=True, round_trip=True)
            self.load(full)
        except ValueError:  # a class with serializers of its own, which it does not read itself
            return value
        return full


def alternatives(form: Any) -> list[FormKind]:
    """Return the forms of a union, or of a JSON Schema with `oneOf`; of all others the form."""
    if get_origin(form) in (Union, UnionType):
        return [kind for part in get_args(form) for kind in alternatives(part)]
    if isinstance(form, Mapping) and "oneOf" in form:
        return [kind for part in form["oneOf"] for kind in alternatives(part)]
    return [form]


def _spec_of_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool for a JSON Schema, or for the schema of a tool."""
    function = schema.get("function", schema)
    if not {"name", "parameters"} <= function.keys():
        about = {key: schema[key] for key in ("description",) if key in schema}
        parameters = {key: part for key, part in schema.items() if key not in ("title", *about)}
        function = {"name": schema.get("title", "Answer"), **about, "parameters": parameters}
    return _with_legal_name({"type": "function", "function": dict(function)})


def _spec_of_class(kind: type, adapter: TypeAdapter[Any]) -> dict[str, Any]:
    if issubclass(kind, BaseModel):
        return _with_legal_name(convert_to_openai_tool(kind))
    name, doc = kind.__name__, (kind.__doc__ or "").strip()
    # A dataclass without a docstring has its signature as one.
    description = "" if doc.startswith(f"{name}(") else doc
    schema = adapter.json_schema()
    if "$ref" in schema:  # a form that contains itself
        schema = {**schema["$defs"][name], "$defs": schema["$defs"]}
    schema = {key: part for key, part in schema.items() if key not in ("title", "description")}
    function = {"name": name, "description": description, "parameters": schema}
    return _with_legal_name({"type": "function", "function": function})


def _with_legal_name(spec: dict[str, Any]) -> dict[str, Any]:
    name = re.sub(r"[^a-zA-Z0-9_-]+", "_", spec["function"]["name"])[:64]
    return {**spec, "function": {**spec["function"], "name": name}}


def _problem(path: Iterable[object], text: str) -> str:
    place = ".".join(map(str, path))
    text = text if len(text) <= _LONGEST_PROBLEM else f"{text[:_LONGEST_PROBLEM]}…"
    return f"{place}: {text}" if place else text


def _readable(kind: Any) -> Any:
    """Return a type in which pydantic can read each `TypedDict`.

    Before Python 3.12 it refuses those of `typing`, as they do not know all about their fields.
    """
    if is_typeddict(kind):
        return _readable_typed_dict(kind)
    arguments, origin = get_args(kind), get_origin(kind)
    readable = tuple(map(_readable, arguments))
    if origin in (None, Literal) or readable == arguments:
        return kind
    if origin in (Union, UnionType):
        return reduce(or_, readable)
    return Annotated[readable] if origin is Annotated else origin[readable]


def _readable_typed_dict(kind: Any) -> Any:
    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        # A wrapper in an annotation that is a text is not known to `__required_keys__`.
        wrapper: Any = Required if name in kind.__required_keys__ else NotRequired
        if get_origin(hint) in (Required, NotRequired):
            wrapper, (hint,) = get_origin(hint), get_args(hint)
        fields[name] = wrapper[_readable(hint)]
    make: Any = TypedDict  # with a name that varies, which type checkers do not know
    readable = make(kind.__name__, fields)
    with suppress(AttributeError):
        readable.__pydantic_config__ = kind.__pydantic_config__
    return readable
