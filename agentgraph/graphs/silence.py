"""A node or a model call that no stream shows, until it is known whether its text may be shown.

The handlers of streams, such as LangGraph's `messages` and LangChain's events, are left out of its
callbacks. What it writes to the `custom` stream is held back; nested graphs write to no stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.constants import TAG_NOSTREAM
from langgraph.types import StreamWriter

from agentgraph.graphs.private import CONF, CONFIG_KEY_RUNTIME, CONFIG_KEY_STREAM


class Silence:
    """Hide a block from all streams; `release` writes what it has written to the custom stream.

    `config` is what a node in it has to be run with. Where `holds` is given and returns False, the
    custom stream is written at once.
    """

    __slots__ = ("_chunks", "_holds", "_token", "_write", "config")

    def __init__(self, holds: Callable[[], bool] = lambda: True) -> None:
        self._holds = holds
        self._chunks: list[Any] = []
        self._write: StreamWriter = self._chunks.append
        self.config = self.quiet(var_child_runnable_config.get() or {})

    def __enter__(self) -> Self:
        self._token = var_child_runnable_config.set(self.config)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        var_child_runnable_config.reset(self._token)

    def release(self) -> None:
        """Write what was held back: it may be shown."""
        chunks, self._chunks = self._chunks, []
        for chunk in chunks:
            self._write(chunk)

    def quiet(self, config: RunnableConfig) -> RunnableConfig:
        """Return a config without streams."""
        values: Mapping[str, Any] = config.get(CONF, {})
        quiet = {name: value for name, value in values.items() if name != CONFIG_KEY_STREAM}
        runtime = values.get(CONFIG_KEY_RUNTIME)
        if runtime is not None:
            self._write = runtime.stream_writer
            quiet[CONFIG_KEY_RUNTIME] = replace(runtime, stream_writer=self._hold)
        callbacks: Any = _without_streams(config.get("callbacks"))
        return {**config, "callbacks": callbacks, CONF: quiet}

    def _hold(self, chunk: Any) -> None:
        if self._holds():
            self._chunks.append(chunk)
        else:
            self._write(chunk)


def without_tokens() -> RunnableConfig:
    """Return the config around this code for a node whose models no stream of tokens shows."""
    config = var_child_runnable_config.get() or {}
    callbacks = config.get("callbacks")
    if not isinstance(callbacks, BaseCallbackManager):
        return config
    callbacks = callbacks.copy()
    callbacks.add_tags([TAG_NOSTREAM])
    return {**config, "callbacks": callbacks}


def _without_streams(callbacks: Any) -> Any:
    if isinstance(callbacks, list):
        return [handler for handler in callbacks if not _is_stream(handler)]
    if not isinstance(callbacks, BaseCallbackManager):
        return callbacks
    quiet = callbacks.copy()
    quiet.handlers = [handler for handler in quiet.handlers if not _is_stream(handler)]
    inheritable = quiet.inheritable_handlers
    quiet.inheritable_handlers = [handler for handler in inheritable if not _is_stream(handler)]
    return quiet


def _is_stream(handler: object) -> bool:
    """Tell whether a handler is that of a stream: LangChain lets a model stream for such ones."""
    return hasattr(handler, "tap_output_aiter")
