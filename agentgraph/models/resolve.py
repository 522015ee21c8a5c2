"""Which model is meant: one that was given, one by its name, or the offline model."""

from __future__ import annotations

import os
from functools import cache
from logging import getLogger

from langchain_core.language_models import BaseChatModel

from agentgraph.errors import ConfigurationError
from agentgraph.models.offline import OfflineModel


def resolve_model(model: BaseChatModel | str | None) -> BaseChatModel:
    """Return the model that is meant; None: that of `AGENTGRAPH_MODEL`, else the offline one.

    One that is named asks its provider once per call: to try again is the guards' business.
    """
    if isinstance(model, BaseChatModel):
        return model
    if model is None:
        return _default_model()
    if not isinstance(model, str):
        raise ConfigurationError(f"A model is a chat model or a string, not {model!r}.")
    return _named_model(model)


def _default_model() -> BaseChatModel:
    name = os.environ.get("AGENTGRAPH_MODEL")
    if name:
        return _named_model(name)
    _notice()
    return OfflineModel()


@cache
def _notice() -> None:
    """Say once per process that nobody chose a model."""
    getLogger("agentgraph").warning(
        "No model was given, so the offline model answers: a rule-based stand-in. For a real one "
        "pass model=..., or set AGENTGRAPH_MODEL, for instance to 'openai:<model name>'."
    )


def _named_model(model: str) -> BaseChatModel:
    if model == "offline":
        return OfflineModel()
    provider, _, name = model.partition(":")
    if not provider or not name:
        raise ConfigurationError(
            f"{model!r} names no model: write 'provider:name', as in 'openai:<name>', or 'offline'."
        )
    try:
        return _openai_model(name) if provider == "openai" else _langchain_model(model)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"Model {model!r}: {error}") from error


def _openai_model(name: str) -> BaseChatModel:
    from langchain_openai import ChatOpenAI
    from openai import OpenAIError

    try:
        return ChatOpenAI(model=name, max_retries=0)
    except OpenAIError as error:
        raise ValueError(str(error)) from error


def _langchain_model(model: str) -> BaseChatModel:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise ImportError("it needs LangChain: pip install langchain") from error
    made = init_chat_model(model)
    knows = "max_retries" in type(made).model_fields
    return init_chat_model(model, max_retries=0) if knows else made
