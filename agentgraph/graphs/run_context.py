"""The context of a run, as each graph in the run declares it by its `context_schema`.

LangGraph fits a context to the schema of the outermost graph, and hands it to nested ones as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langgraph.pregel import Pregel
from pydantic import BaseModel, ValidationError
from typing_extensions import is_typeddict

from agentgraph.errors import ConfigurationError
from agentgraph.graphs.private import CONF, CONFIG_KEY_RUNTIME


def inherited_context(graph: object, config: RunnableConfig | None = None) -> dict[str, Any]:
    """Return the setting `context` of a nested graph's run: that of the run around it, fitted.

    It is empty where the graph declares no schema, where there is no context, or where the context
    fits as it is. Raises `ConfigurationError` where it cannot be fitted.
    """
    if _schema_of(graph) is None:
        return {}
    runtime = ensure_config(config)[CONF].get(CONFIG_KEY_RUNTIME)
    return _setting(graph, getattr(runtime, "context", None))


def given_context(graph: object, context: object) -> dict[str, Any]:
    """Return the setting `context` of a run that is given one, fitted to what the graph declares.

    It is empty for None. Raises `ConfigurationError` where the context cannot be fitted.
    """
    return {} if context is None else _setting(graph, context) or {"context": context}


def context_faults(graph: object, context: object) -> list[str]:
    """Return which graphs a context would not fit, of a graph and all those inside it."""
    if not isinstance(graph, Pregel):
        return []
    try:
        own = given_context(graph, context).get("context")
    except ConfigurationError as error:
        return list(error.faults)
    inner = (context_faults(inner, own) for _, inner in graph.get_subgraphs())
    return list(dict.fromkeys(chain(*inner)))


def plain_context(context: object) -> dict[str, Any]:
    """Return a context by the names of its fields, as plain values where it has such.

    Raises `ConfigurationError` where it has no fields, or a model cannot be read back from JSON.
    """
    values = _plain(context)
    if isinstance(values, dict):
        return values
    raise ConfigurationError(
        f"run_context: a {type(context).__name__} cannot be stored: give a mapping, a dataclass or "
        "a pydantic model, of JSON values",
        code="context",
    )


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return _plain_model(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [*map(_plain, value)] if isinstance(value, list | tuple) else value


def _plain_model(model: BaseModel) -> dict[str, Any]:
    try:
        values = model.model_dump(mode="json", by_alias=True)
        if type(model).model_validate(values) == model:  # it is not where a secret is masked
            return values
    except ValueError as error:
        raise _unstorable(model) from error
    raise _unstorable(model)


def _unstorable(model: BaseModel) -> ConfigurationError:
    return ConfigurationError(
        f"run_context: what a {type(model).__name__} holds is not JSON, and cannot be read back "
        "from JSON: give it by fields that can",
        code="context",
    )


def _schema_of(graph: object) -> Any:
    return graph.context_schema if isinstance(graph, Pregel) else None


def _setting(graph: object, context: object) -> dict[str, Any]:
    """Return the setting of a context as a graph declares it; empty where it fits as it is."""
    schema = _schema_of(graph)
    if (
        schema is None
        or context is None
        or (not is_typeddict(schema) and isinstance(context, schema))
    ):
        return {}
    names = _names_of(schema)
    if names is None:  # a schema that LangGraph does not fit either
        return {}
    values = _values_of(context)
    name, schema_name = getattr(graph, "name", ""), getattr(schema, "__name__", "")
    context_type = type(context).__name__
    if values is None:
        raise _misfit(name, schema_name, f"a {context_type} has no fields to take over")
    own_values = {key: values[key] for key in values if key in names}
    if is_typeddict(schema):
        missing_keys = schema.__required_keys__ - own_values.keys()
        if missing_keys:
            raise _misfit(
                name, schema_name, f"{context_type} lacks {', '.join(sorted(missing_keys))}"
            )
        return {"context": own_values}
    try:
        return {"context": schema(**own_values)}
    except ValidationError as error:  # without the values, which may be secrets
        problems = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise _misfit(name, schema_name, "; ".join(problems)) from None
    except (TypeError, ValueError) as error:
        raise _misfit(name, schema_name, str(error)) from error


def _misfit(name: str, schema: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"the context of the run does not fit {schema}, the context_schema of {name!r}: {problem}",
        code="context",
    )


def _names_of(schema: Any) -> Iterable[str] | None:
    """Return the names of a schema's fields, None where it is no class with fields."""
    if is_typeddict(schema):
        return set(schema.__annotations__)
    if is_dataclass(schema):
        return {field.name for field in fields(schema) if field.init}
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        aliases = {field.alias for field in schema.model_fields.values() if field.alias}
        return {*schema.model_fields, *aliases}
    return None


def _values_of(context: object) -> Mapping[str, Any] | None:
    """Return what a context has, by name; None where it has no names."""
    if isinstance(context, Mapping):
        return context
    if isinstance(context, BaseModel):
        return dict(context)
    if is_dataclass(context):
        return {field.name: getattr(context, field.name) for field in fields(context)}
    return None
