"""The schema of a gate: a pydantic model or a JSON Schema, for a text or for the calls of tools."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeGuard

from jsonschema_rs import ReferencingError, ValidationError, validator_for
from pydantic import BaseModel
from pydantic import ValidationError as ModelError

SchemaForm: TypeAlias = type[BaseModel] | Mapping[str, object]
"""A pydantic model, or a JSON Schema as a dict."""
Schema: TypeAlias = SchemaForm | Mapping[str, SchemaForm]
"""A form for the text as JSON, or a form for the arguments of each tool, by its name."""

_WORDS = """
    $anchor $comment $defs $dynamicAnchor $dynamicRef $id $ref $schema $vocabulary
    additionalItems additionalProperties allOf anyOf const contains contentEncoding
    contentMediaType contentSchema default definitions dependencies dependentRequired
    dependentSchemas deprecated description discriminator else enum examples exclusiveMaximum
    exclusiveMinimum format if items maxContains maxItems maxLength maxProperties maximum
    minContains minItems minLength minProperties minimum multipleOf not oneOf pattern
    patternProperties prefixItems properties propertyNames readOnly required strict then title
    type unevaluatedItems unevaluatedProperties uniqueItems writeOnly
"""
_KEYWORDS = frozenset(_WORDS.split())
"""The keywords of JSON Schema, and those that providers of models add to it."""
_HINT = "give a pydantic model, a JSON Schema, or {tool name: model or JSON Schema}"


class Misfit(NamedTuple):
    """Why a value does not fit a form: the name of the form, and all faults of the value."""

    title: str
    faults: tuple[str, ...]

    @property
    def summary(self) -> str:
        """How many faults there are, and against which form."""
        count = len(self.faults)
        return f"{count} fault{'' if count == 1 else 's'} against {self.title}"


class Checker(Protocol):
    """Checks values against one form."""

    def check_text(self, text: str) -> Misfit | None:
        """Check a text as JSON; None where it fits."""
        ...

    def check_args(self, args: Mapping[str, object]) -> Misfit | None:
        """Check the arguments of a call; None where they fit."""
        ...


class _ModelChecker:
    """Checks values against a pydantic model."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model

    def check_text(self, text: str) -> Misfit | None:
        try:
            self._model.model_validate_json(text)
        except ModelError as error:
            return _misfit_of(error)
        return None

    def check_args(self, args: Mapping[str, object]) -> Misfit | None:
        try:
            self._model.model_validate(dict(args))
        except ModelError as error:
            return _misfit_of(error)
        return None


class _DocumentChecker:
    """Checks values against a JSON Schema."""

    def __init__(self, schema: Mapping[str, object]) -> None:
        self._title = str(schema.get("title") or "the JSON Schema")
        # Masked: models and clients read the messages.
        self._validator: Any = _validator_of(schema, mask="the value")

    def check_text(self, text: str) -> Misfit | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return Misfit(self._title, ("text: Invalid JSON",))
        return self._check(value)

    def check_args(self, args: Mapping[str, object]) -> Misfit | None:
        return self._check(dict(args))

    def _check(self, value: object) -> Misfit | None:
        errors = self._validator.iter_errors(value)
        faults = tuple(_fault(error.instance_path, error.message) for error in errors)
        return Misfit(self._title, faults) if faults else None


def checker_of(form: SchemaForm) -> Checker:
    """Return what checks values against a form."""
    return _DocumentChecker(form) if isinstance(form, Mapping) else _ModelChecker(form)


def forms_by_tool(schema: object) -> Mapping[str, SchemaForm] | None:
    """Return the forms by the names of tools, None where a schema is one for the text."""
    if isinstance(schema, Mapping) and not is_form(schema):
        return schema
    return None


def is_form(value: object) -> TypeGuard[SchemaForm]:
    """Tell whether a value is a pydantic model or a JSON Schema."""
    return is_model(value) or (isinstance(value, Mapping) and next(_form_faults(value), "") == "")


def is_model(value: object) -> TypeGuard[type[BaseModel]]:
    """Tell whether a value is a pydantic model's class."""
    return isinstance(value, type) and issubclass(value, BaseModel)


def schema_faults(schema: object, name: str = "schema") -> Iterator[str]:
    """Yield what is wrong with the schema of a gate, given under this name.

    A mapping is a JSON Schema where all of its keys are keywords of JSON Schema, else it names
    tools. One that can be read as both is refused, as the gate would check the wrong thing.
    """
    if schema is None or is_model(schema):
        return
    if not isinstance(schema, Mapping):
        yield f"Gate({name}={schema!r}): {_HINT}"
    elif _is_document(schema) and not any(map(is_model, schema.values())):
        faults = [*_form_faults(schema)]
        if not _names_tools(schema):
            yield from (f"Gate({name}={{…}}): this is no JSON Schema: {fault}" for fault in faults)
        elif not faults:
            yield (
                f"Gate({name}={{{', '.join(map(repr, schema))}: …}}): this is a JSON Schema, and "
                'schemas of tools with these names too: add "type" for a JSON Schema, or give '
                "pydantic models by tool"
            )
    else:
        yield from _faults_by_tool(schema, name)


def _faults_by_tool(schema: Mapping[object, object], name: str) -> Iterator[str]:
    keywords = [key for key in schema if key in _KEYWORDS and not is_form(schema[key])]
    if keywords and not any(map(is_model, schema.values())):
        yield (
            f"Gate({name}={{{', '.join(map(repr, schema))}: …}}): as a JSON Schema, "
            f"{next(_form_faults(schema))}; as schemas by tool, {keywords[0]!r} has none: {_HINT}"
        )
        return
    for tool, form in schema.items():
        if isinstance(tool, str) and is_form(form):
            continue
        if isinstance(tool, str) and isinstance(form, Mapping):
            fault = next(_form_faults(form), "")
            yield f"Gate({name}={{{tool!r}: …}}): this is no JSON Schema: {fault}"
            continue
        yield f"Gate({name}={{{tool!r}: {form!r}}}): {_HINT}"


def _names_tools(schema: Mapping[object, object]) -> bool:
    return all(isinstance(tool, str) and is_form(form) for tool, form in schema.items())


def _is_document(schema: Mapping[Any, object]) -> bool:
    """Tell whether all keys of a mapping are words of JSON Schema."""
    keys = list(schema)
    return bool(keys) and all(
        isinstance(k, str) and (k in _KEYWORDS or k[:2] == "x-") for k in keys
    )


def _form_faults(schema: Mapping[Any, object]) -> Iterator[str]:
    if not _is_document(schema):
        odd = [key for key in schema if not isinstance(key, str) or key not in _KEYWORDS]
        yield f"{', '.join(map(repr, odd))} is no keyword of it" if odd else "it is empty"
        return
    try:
        _validator_of(schema)
    except ValidationError as error:
        yield _fault(error.instance_path, error.message)
    except (ReferencingError, ValueError, TypeError) as error:
        yield str(error).partition("\n")[0]


def _validator_of(schema: Mapping[str, object], mask: str | None = None) -> object:
    return validator_for(dict(schema), mask=mask, offline=True)  # a reference opens no connection


def _misfit_of(error: ModelError) -> Misfit:
    # Without the inputs: they are text that the model wrote.
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return Misfit(error.title, tuple(_fault(d["loc"], d["msg"]) for d in details))


def _fault(path: Any, text: str) -> str:
    return f"{'.'.join(map(str, path)) or 'text'}: {text}"
