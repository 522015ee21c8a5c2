"""Find the model for a name, and switch off the retries of its client.

The guards retry: two layers of three attempts each would make nine requests for one failing call.
"""

from __future__ import annotations

import os
from functools import cache
from logging import getLogger
from typing import Any

from langchain_core.language_models import BaseChatModel

from agentgraph.errors import ConfigurationError
from agentgraph.models.clients import usable_on_every_loop
from agentgraph.models.names import name_fault, split_name
from agentgraph.models.offline import OfflineModel


def resolve_model(model: BaseChatModel | str | None) -> BaseChatModel:
    """Return a chat model, or make the model of a name such as "openai:gpt-5-mini".

    Any number of event loops can use it at a time. None is the model of `AGENTGRAPH_MODEL`, else
    the offline model, with a warning once per process. A model made from a name sends one request
    per call. Raises `ConfigurationError` for an unknown name, or where the model's client cannot be
    built.
    """
    if isinstance(model, BaseChatModel):
        return usable_on_every_loop(model)
    if model is None:
        return usable_on_every_loop(_default_model())
    if not isinstance(model, str):
        raise ConfigurationError(f"A model is a chat model or a string, not {model!r}.")
    return usable_on_every_loop(_named_model(model))


def attempting_once(model: BaseChatModel) -> BaseChatModel:
    """Return the model with a client that sends one request per call.

    A model whose client cannot be changed is returned as it is, with a warning.
    """
    copy = _openai_attempting_once(model)
    if copy is not None:
        return copy
    retries = getattr(model, "max_retries", None)
    if isinstance(retries, int) and retries > 0:
        _warn_of_retries(type(model).__name__, retries)
    return model


def _default_model() -> BaseChatModel:
    """Return the model that `AGENTGRAPH_MODEL` names, else the offline one."""
    name = os.environ.get("AGENTGRAPH_MODEL")
    if name:
        return _named_model(name)
    _warn_of_offline_model()
    return OfflineModel()


@cache
def _warn_of_offline_model() -> None:
    """Warn, once per process, that no model is configured."""
    getLogger("agentgraph").warning(
        "No model was given, so the offline model answers: a rule-based stand-in. For a real one "
        "pass model=..., or set AGENTGRAPH_MODEL, for instance to 'openai:<model name>'."
    )


def _named_model(model: str) -> BaseChatModel:
    """Return the model of a name; raise `ConfigurationError` for an unknown one."""
    if model == "offline":
        return OfflineModel()
    if fault := name_fault(model):
        raise ConfigurationError(fault)
    provider, name = split_name(model)
    try:
        return _openai_model(name) if provider == "openai" else _langchain_model(provider, name)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"Model {model!r}: {error}") from error


def _openai_model(name: str) -> BaseChatModel:
    """Return a model of OpenAI, the only provider that is always installed."""
    from langchain_openai import ChatOpenAI
    from openai import OpenAIError

    try:
        return ChatOpenAI(model=name, max_retries=0)
    except OpenAIError as error:
        raise ValueError(str(error)) from error


def _langchain_model(provider: str, name: str) -> BaseChatModel:
    """Return a model of any provider that LangChain knows and that is installed."""
    from langchain.chat_models import init_chat_model

    # Not by the whole name: from "mistral:large" LangChain guesses a provider.
    chat_model = init_chat_model(name, model_provider=provider)
    # Not every provider's class has the field, and a class without it refuses the argument.
    if "max_retries" in type(chat_model).model_fields:
        return init_chat_model(name, model_provider=provider, max_retries=0)
    return chat_model


def _openai_attempting_once(model: Any) -> BaseChatModel | None:
    """Return a copy with the same OpenAI clients but without retries; None for other models."""
    clients = getattr(model, "root_client", None), getattr(model, "root_async_client", None)
    if not all(callable(getattr(client, "with_options", None)) for client in clients):
        return None
    if not any(getattr(client, "max_retries", 0) for client in clients):
        return model  # type: ignore[no-any-return]
    root, root_async = (client.with_options(max_retries=0) for client in clients)  # type: ignore[union-attr]
    return model.model_copy(  # type: ignore[no-any-return]
        update={
            "max_retries": 0,
            "root_client": root,
            "client": root.chat.completions,
            "root_async_client": root_async,
            "async_client": root_async.chat.completions,
        }
    )


@cache
def _warn_of_retries(kind: str, retries: int) -> None:
    """Warn, once per process and kind, of retries that must be switched off at construction."""
    getLogger("agentgraph").warning(
        "%s tries again by itself, up to %d times for each of the guards' attempts: "
        "give it max_retries=0, or Guards(retry=None)",
        kind,
        retries,
    )
