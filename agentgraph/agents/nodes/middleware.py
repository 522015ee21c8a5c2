"""LangChain's `AgentMiddleware`, run in LangChain's order inside our nodes.

Wrappers go around the model call and each tool call, hooks become nodes. A wrapper may catch and
retry every error from inside, except the stop of a guard, which passes all wrappers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    get_args,
    get_type_hints,
)

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    RemoveMessage,
    SystemMessage,
)
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import Runtime

from agentgraph.agents.nodes.state import NEXT_MOVE, AgentState, merge_messages
from agentgraph.blocking.bridge import Handler, Wrapper, asynchronous
from agentgraph.errors import GuardStopped
from agentgraph.interception import Answerer, ControlFlow, ask_model, current_interceptor
from agentgraph.models import attempting_once, resolve_model

if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest


HookNode: TypeAlias = Callable[[AgentState, Runtime[Any]], Awaitable[Any]]
Around: TypeAlias = Callable[[Callable[[Handler], Awaitable[Any]], Handler], Awaitable[Any]]
"""Runs wrappers, which get the handler that is inside of them."""


class Middleware:
    """The middleware of one agent, in its order."""

    def __init__(self, stack: Sequence[AgentMiddleware[Any, Any]]) -> None:
        self._stack = tuple(stack)
        self._model_wrappers = _wrappers(stack, "wrap_model_call")
        self._tool_wrappers = _wrappers(stack, "wrap_tool_call")

    @property
    def wraps_model(self) -> bool:
        """Tell whether any middleware wraps the model call."""
        return bool(self._model_wrappers)

    @property
    def wraps_tools(self) -> bool:
        """Tell whether any middleware wraps the calls of tools."""
        return bool(self._tool_wrappers)

    @property
    def states(self) -> list[type]:
        """Return the state types that the middleware needs."""
        return [m.state_schema for m in self._stack]

    def public_keys(self, side: Literal["input", "output"]) -> list[str]:
        """Return the channels of the middleware that LangChain shows in a graph's schema."""
        if not self._stack:
            return []
        from langchain.agents import AgentState as LangChainState

        hints = [get_type_hints(state, include_extras=True) for state in self.states]
        return [
            key
            for state in hints
            for key, hint in state.items()
            if key not in LangChainState.__annotations__ and not _is_omitted(hint, side)
        ]

    @property
    def tools(self) -> list[Any]:
        """Return the tools that the middleware brings."""
        return [tool for m in self._stack for tool in getattr(m, "tools", ())]

    def hooks(self, moment: str) -> dict[str, Callable[..., Any]]:
        """Return the hooks of a moment, such as `before_model`, by the names of their nodes.

        Those after the model or the agent run in the opposite order, as LangChain's do.
        """
        order = reversed(self._stack) if moment.startswith("after") else self._stack
        hooks: dict[str, Callable[..., Any]] = {}
        for middleware in order:
            for method in (f"a{moment}", moment):
                if _overrides(middleware, method):
                    hooks[f"{middleware.name}.{moment}"] = getattr(middleware, method)
                    break
        return hooks

    def request(
        self,
        model: Any,
        view: list[AnyMessage],
        system: str,
        specs: list[Any],
        state: Mapping[str, Any],
        runtime: Runtime[Any],
    ) -> ModelRequest[Any]:
        """Make the request that LangChain's wrappers get."""
        from langchain.agents.middleware import ModelRequest

        return ModelRequest(
            model=model,
            messages=view,
            system_message=SystemMessage(system) if system else None,
            tools=specs,
            state=dict(state),  # type: ignore[arg-type]  # LangChain's TypedDict
            runtime=runtime,
        )

    async def call_model(
        self,
        request: ModelRequest[Any],
        choice: Mapping[str, Any],
        tag: Mapping[str, object],
        around: Around,
    ) -> tuple[AIMessage, dict[str, Any]]:
        """Call the model inside all wrappers; return its message and their update to the state.

        `choice` is bound with the tools; `tag` is metadata that names the agent to the callbacks.
        `around` runs the wrappers under the guards of their own code.
        """
        stops = Stops()

        async def innermost(request: ModelRequest[Any]) -> Any:
            from langchain.agents.middleware import ModelResponse

            model: Any = _guarded_model(request.model)
            settings = {**choice, **request.model_settings}
            if request.tool_choice is not None:
                settings["tool_choice"] = request.tool_choice
            if request.tools:
                model = model.bind_tools(request.tools, **settings)
            elif settings:
                model = model.bind(**settings)
            system = [request.system_message] if request.system_message else []

            async def ask(answerer: Answerer | None, messages: Sequence[BaseMessage]) -> AIMessage:
                chosen_model: Any = model
                if answerer is not None:
                    chosen_model = attempting_once(resolve_model(answerer))
                    if request.tools:
                        chosen_model = chosen_model.bind_tools(request.tools, **settings)
                with_tag = chosen_model.with_config(metadata=dict(tag))
                answer: AIMessage = await with_tag.ainvoke(list(messages))
                return answer

            prompt = [*system, *request.messages]
            call = partial(ask_model, request.model, prompt, request.tools, settings=settings)
            return ModelResponse(result=[await stops.inside(call, ask)])

        async def wrapped(handler: Handler) -> Any:
            for wrapper in reversed(self._model_wrappers):
                handler = partial(wrapper, handler)
            return await handler(request)

        return _message_and_update(await stops.outside(around(wrapped, innermost)))

    async def call_tool(self, request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool inside all wrappers, which may call `execute` any number of times."""
        handler = execute
        for wrapper in reversed(self._tool_wrappers):
            handler = partial(wrapper, handler)
        return await handler(request)


def hook_node(
    hook: Callable[..., Awaitable[Any]],
    history: Callable[[Mapping[str, Any]], list[AnyMessage]],
    inherits: bool,
) -> HookNode:
    """Make a node that runs a hook on the whole conversation.

    Where the hook jumps, the route behind the node is told. `inherits` tells whether the level has
    messages that were handed over from above, which a hook may rewrite for this level only.
    """

    async def run(state: AgentState, runtime: Runtime[Any]) -> dict[str, Any]:
        update = dict(await hook({**state, "messages": history(state)}, runtime) or {})
        jump = update.pop("jump_to", None)
        if inherits and _rewrites(update.get("messages")):
            past = merge_messages(state.get("past") or [], [state.get("messages", [])])
            update |= {"rewritten": True, "past": past}
        return update if jump is None else {**update, NEXT_MOVE: jump}

    return run


def _is_omitted(hint: Any, side: str) -> bool:
    """Tell whether an annotation leaves its channel out of the schema; it may be in `Required`."""
    marks = getattr(hint, "__metadata__", ())
    if any(getattr(mark, side, False) is True for mark in marks):
        return True
    return any(_is_omitted(part, side) for part in get_args(hint))


def _guarded_model(model: BaseChatModel) -> BaseChatModel:
    """Return the model of a request; its client sends one request per call where guards retry."""
    interceptor, model = current_interceptor(), resolve_model(model)
    return (
        attempting_once(model) if interceptor is not None and interceptor.retries_models else model
    )


def _rewrites(changes: object) -> bool:
    messages = changes if isinstance(changes, list) else [changes]
    return any(isinstance(m, RemoveMessage) and m.id == REMOVE_ALL_MESSAGES for m in messages)


def _wrappers(stack: Sequence[AgentMiddleware[Any, Any]], method: str) -> list[Wrapper]:
    wrappers: list[Wrapper] = []
    for middleware in stack:
        if _overrides(middleware, f"a{method}"):
            wrappers.append(_handler_first(getattr(middleware, f"a{method}")))
        elif _overrides(middleware, method):
            wrappers.append(asynchronous(getattr(middleware, method)))
    return wrappers


def _handler_first(wrap: Callable[[Any, Any], Awaitable[Any]]) -> Wrapper:
    # So that `partial` can fill in the handler of each wrapper with the next one.
    async def wrapper(handler: Handler, request: Any) -> Any:
        return await wrap(request, handler)

    return wrapper


def _overrides(middleware: AgentMiddleware[Any, Any], method: str) -> bool:
    from langchain.agents.middleware import AgentMiddleware

    own = getattr(type(middleware), method, None)
    return own is not None and own is not getattr(AgentMiddleware, method, None)


def _message_and_update(result: Any) -> tuple[AIMessage, dict[str, Any]]:
    """Read the result of wrappers: a message, LangChain's response, or one with a `Command`."""
    update: dict[str, Any] = {}
    command = getattr(result, "command", None)
    if command is not None and isinstance(command.update, dict):
        update = dict(command.update)
    response = getattr(result, "model_response", result)
    if isinstance(response, AIMessage):
        return response, update
    answers = [m for m in response.result if isinstance(m, AIMessage)]
    return answers[-1], update


P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W")

Work: TypeAlias = Callable[P, Awaitable[W]]


class _StopSignal(ControlFlow):
    """Carries a stop through wrappers: those of LangChain do not retry control flow."""


class Stops:
    """The stop by a guard in one pass through the wrappers, kept so that none can suppress it."""

    def __init__(self) -> None:
        self._stop: Exception | None = None

    def stop_by(self, error: Exception) -> None:
        """Let an error end this pass, whatever the wrappers make of it."""
        self._stop = error

    async def inside(self, guard: Callable[[Work[P, W]], Awaitable[T]], work: Work[P, W]) -> T:
        """Run `work` by way of `guard`, unless a guard has stopped this pass already.

        Errors of `work` itself go to the wrappers, interrupts too.
        """
        own: list[Exception] = []

        async def observed_work(*args: P.args, **kwargs: P.kwargs) -> W:
            try:
                return await work(*args, **kwargs)
            except Exception as error:
                own.append(error)
                raise

        if self._stop is None:
            try:
                return await guard(observed_work)
            except (GuardStopped, ControlFlow) as stop:
                if any(stop is error for error in own):
                    raise
                self._stop = stop
        raise _StopSignal from self._stop

    async def outside(self, work: Awaitable[T]) -> T:
        """Return the result of the wrappers, or raise the stop if there was one."""
        try:
            result = await work
        except Exception:
            if self._stop is None:
                raise
        if self._stop is not None:
            raise self._stop
        return result
