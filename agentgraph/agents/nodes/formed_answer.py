"""The answer in the form that an agent's `response_format` asks for, or a `ModelError`.

An answer that misses the form is asked for once more, with what does not fit: a text in the same
node, without being kept; a call by the answer to this call, as other tools' calls are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from agentgraph.agents.nodes.level import Level
from agentgraph.agents.spec.output import OutputFormat
from agentgraph.errors import ModelError
from agentgraph.history import calls_of
from agentgraph.interception import current_interceptor
from agentgraph.running import current_run
from agentgraph.stream import ErrorEvent, emit

Ask: TypeAlias = Callable[[list[AnyMessage]], Awaitable[tuple[AIMessage, dict[str, Any]]]]


async def ask_in_form(
    level: Level,
    output: OutputFormat,
    history: Sequence[AnyMessage],
    view: list[AnyMessage],
    ask: Ask,
) -> tuple[AIMessage, dict[str, Any]]:
    """Ask a model until its answer is in the form; raise `ModelError("output")` where it is not.

    A call of an ordinary tool is no answer, and a text of a guard or a human is not the model's:
    both pass.
    """
    response, update = await ask(view)
    problems = _problems(output, response)
    if problems is None:
        return response, update
    author = response.name or level.agent.name
    if not output.asks_again or _has_missed(author, output, history):
        raise await _miss(level, problems)
    if calls_of(response):
        return response, update  # `call_tools` answers the call with what does not fit
    if (run := current_run()) is not None:
        run.record_usage_of(level.path, response)
    response, later_update = await ask([*view, *_correction(output, response, problems)])
    problems = _problems(output, response)
    if problems is not None:
        raise await _miss(level, problems)
    return response, {**update, **later_update}


def _problems(output: OutputFormat, message: AIMessage) -> str | None:
    """Return what does not fit in a model's answer, None for an answer that fits, or none."""
    interceptor = current_interceptor()
    if interceptor is not None and interceptor.has_answered:
        return None
    try:
        output.answer_of(message)
    except ValueError as error:
        return str(error)
    return None


def _has_missed(author: str, output: OutputFormat, history: Sequence[AnyMessage]) -> bool:
    """Tell whether a call of this author has missed the form since the last human message."""
    failed_ids: set[str] = set()
    for message in reversed(history):
        if isinstance(message, HumanMessage):
            return False
        if isinstance(message, ToolMessage) and message.status == "error":
            failed_ids.add(message.tool_call_id)
        if isinstance(message, AIMessage) and message.name == author:
            calls = [call for call in calls_of(message) if call["name"] in output.names]
            if any(call["id"] in failed_ids for call in calls):
                return True
    return False


def _correction(output: OutputFormat, response: AIMessage, problems: str) -> list[AnyMessage]:
    tools = " or ".join(output.names)
    text = f"Your answer does not fit: {problems}. Call {tools}. Or: {output.request}"
    own_text = [response] if response.text else []  # some providers refuse an empty message
    return [*own_text, HumanMessage(text)]


async def _miss(level: Level, problems: str) -> ModelError:
    """Emit and return the error of an answer that misses its form."""
    text = f"the answer of agent {level.agent.name!r} misses its response_format: {problems}"
    failure = ModelError(text, code="output")
    await emit(ErrorEvent(agent=level.path, code=failure.code, message=text))
    return failure
