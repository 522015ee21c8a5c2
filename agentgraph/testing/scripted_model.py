"""`ScriptedModel`: a chat model that follows a script, streams it, and records its requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Mapping, Sequence
from inspect import isawaitable, iscoroutine
from typing import Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from agentgraph.clock import clock
from agentgraph.testing.answers import Answer, Scripted, answer_of
from agentgraph.testing.history_check import check_history
from agentgraph.testing.script import Bindable, Request, Script, Turns, request_of, spec_of

T = TypeVar("T")


class ScriptedModel(BaseChatModel):
    """A chat model that follows a script, streams as a provider does and records its requests.

    `turns` is a sequence, or a function (sync or async) of the messages. Concurrent runs need a
    function, because the order in which they take turns is not defined. `strict` refuses the
    histories that providers refuse; `binds_tools=False` makes a model that cannot call tools.

        model = ScriptedModel([call("refund", reason="twice"), Fault.rate_limit(), "Done."])
        assert model.requests[0].tools == ("refund",)
    """

    strict: bool = True
    binds_tools: bool = True
    model_name: str = "scripted"
    _script: Script = PrivateAttr()
    _bound_options: dict[str, object] = PrivateAttr(default_factory=dict)

    def __init__(
        self, turns: Turns, *, strict: bool = True, binds_tools: bool = True, **fields: Any
    ) -> None:
        fields |= {"strict": strict, "binds_tools": binds_tools}
        super().__init__(**fields)
        self._script = Script(turns)

    @property
    def requests(self) -> list[Request]:
        """Return all requests so far, to this model and all its `bind_tools` copies."""
        return self._script.requests

    @property
    def _llm_type(self) -> str:
        return "agentgraph-scripted"

    def bind_tools(
        self,
        tools: Sequence[Bindable],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> ScriptedModel:
        """Return a copy with these tools, on the same script and record."""
        if not self.binds_tools:
            raise NotImplementedError("This model was made with binds_tools=False.")
        copy = self.model_copy()
        copy._bound_options = {
            "tools": [*map(spec_of, tools)],
            "tool_choice": tool_choice,
            **kwargs,
        }
        return copy

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return self._answer(messages, kwargs).result()

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return (await self._aanswer(messages, kwargs)).result()

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        yield from self._answer(messages, kwargs).stream()

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in (await self._aanswer(messages, kwargs)).stream():
            yield chunk
            await clock().sleep(0)

    def _answer(self, messages: list[BaseMessage], kwargs: Mapping[str, object]) -> Answer:
        """Take the next turn, and wait for its delay."""
        turn = self._ask(messages, kwargs)
        ready = _block_on(turn) if iscoroutine(turn) else turn
        answer = answer_of(ready, messages=messages, model_name=self.model_name)
        if answer.delay_s:
            _block_on(clock().sleep(answer.delay_s))
        return answer

    async def _aanswer(self, messages: list[BaseMessage], kwargs: Mapping[str, object]) -> Answer:
        """Take the next turn, and wait for its delay."""
        turn = self._ask(messages, kwargs)
        ready = await turn if isawaitable(turn) else turn
        answer = answer_of(ready, messages=messages, model_name=self.model_name)
        if answer.delay_s:
            await clock().sleep(answer.delay_s)
        return answer

    def _ask(
        self, messages: list[BaseMessage], kwargs: Mapping[str, object]
    ) -> Scripted | Awaitable[Scripted]:
        """Record the request, check its history, and take the next turn."""
        self._script.requests.append(request_of(messages, {**self._bound_options, **kwargs}))
        if self.strict:
            check_history(messages)
        return self._script.next(messages)


def _block_on(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait from sync code, which must not be inside a running loop."""
    try:
        return asyncio.run(coroutine)
    finally:
        coroutine.close()  # `run` does not start it inside a running loop
