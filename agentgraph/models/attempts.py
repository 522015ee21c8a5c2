"""Models whose clients try again by themselves: under guards that do so, they are not to."""

from __future__ import annotations

from functools import cache
from logging import getLogger
from typing import Any

from langchain_core.language_models import BaseChatModel


def attempting_once(model: BaseChatModel) -> BaseChatModel:
    """Return a model that asks its provider once per call; say so where it cannot be made to.

    Two layers of three attempts each are nine requests where one has failed.
    """
    once = _openai_once(model)
    if once is not None:
        return once
    retries = getattr(model, "max_retries", None)
    if isinstance(retries, int) and retries > 0:
        _notice(type(model).__name__, retries)
    return model


def _openai_once(model: Any) -> BaseChatModel | None:
    """Return a model on OpenAI's clients with clients that share all but the retries."""
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
def _notice(kind: str, retries: int) -> None:
    """Say once per process what only whoever made the model can change."""
    getLogger("agentgraph").warning(
        "%s tries again by itself, up to %d times for each of the guards' attempts: "
        "give it max_retries=0, or Guards(retry=None)",
        kind,
        retries,
    )
