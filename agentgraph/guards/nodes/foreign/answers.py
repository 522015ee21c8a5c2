"""What the nodes of a foreign graph say: judged before any stream, caller or next node sees it.

A node that stands for a model may be asked again. Any other node has done its work when its text is
judged: the text passes, or a safe answer takes its place, or the run ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ToolCall,
    ToolMessage,
)

from agentgraph.errors import GuardStopped, ModelError
from agentgraph.graphs.silence import Silence
from agentgraph.guards.decision import Decision, FailureClass
from agentgraph.guards.nodes.foreign.calls import (
    ModelNode,
    all_messages,
    has_text,
    swap_message,
    swap_text,
)
from agentgraph.guards.nodes.foreign.watch import Watch, approval_denial, watched_by
from agentgraph.guards.nodes.interceptor import NodeInterceptor
from agentgraph.guards.nodes.judgement import judge_once, passes_beside_calls
from agentgraph.guards.nodes.site import Site, stop_error
from agentgraph.guards.nodes.tool_call import denial_of
from agentgraph.history import calls_of
from agentgraph.interception import ControlFlow, ModelCall, ToolUse
from agentgraph.patching import updates_of
from agentgraph.sendable import without_text
from agentgraph.stream import AIMessageEvent, emit, media_of

Call: TypeAlias = Callable[..., Awaitable[Any]]


class WatchedNode:
    """The runs of one node under a watch; no stream shows what may still be refused."""

    def __init__(self, call: Call, watch: Callable[[], Watch], *, judges: bool) -> None:
        self._call = call
        self._make = watch
        self._judges = judges
        self._silence: Silence | None = None
        self.watch = watch()

    def message(self) -> AIMessage | None:
        """Return the last message of a model that the node has asked."""
        return self.watch.message

    async def run(self, state: Any) -> Any:
        """Run the node."""
        watch = self.watch = self._make()
        with watched_by(watch):
            try:
                if not self._judges:
                    return await self._call(state)
                with Silence(lambda: watch.calls > 0) as silence:
                    self._silence = silence
                    return await self._call(state, config=silence.config)
            except (ControlFlow, GuardStopped):
                raise
            except Exception as error:
                if not watch.has_run_tools:
                    raise
                # Without its cause, which might be one to try again after: tools have run.
                raise ModelError.of("a node that has run tools", error) from None

    async def show(self, messages: Iterable[BaseMessage], agent: str, *, is_whole: bool) -> None:
        """Show messages that have passed; the custom stream too, if nothing was refused."""
        if self._silence is None:
            return
        if is_whole:
            self._silence.release()
        for message in messages:
            text, blocks = str(message.text), media_of(message)
            # Without an id it would be told again with the one that the graph's state gives to it.
            if agent and self.watch.calls and message.id and (text or blocks):
                await emit(
                    AIMessageEvent(agent=agent, text=text, message_id=message.id, blocks=blocks)
                )


async def with_passing_texts(
    site: Site,
    result: Any,
    messages: Collection[BaseMessage],
    *,
    text: str = "",
    judged: AIMessage | None = None,
) -> Any:
    """Return a node's result in which each text passes; raise where the run must end.

    `messages` are those that the node has seen, and `judged` is one that was judged. `text` may be
    an answer too, where it stands in the result.
    """
    for message in new_answers(result, messages):
        if message.text and message is not judged:
            shown_message = await _passing_message(site, message, [*messages])
            result = (
                result if shown_message is message else swap_message(result, message, shown_message)
            )
    if text and has_text(updates_of(result), text):
        safe = await judge_once(site, text, [*messages])
        result = result if safe is None else swap_text(result, text, str(safe.text))
    return result


def new_answers(result: Any, messages: Collection[BaseMessage]) -> list[AIMessage]:
    """Return the messages of models in a node's result that it has not seen before."""
    known_ids = {message.id for message in messages} - {None}
    answers = [m for m in all_messages(updates_of(result)) if isinstance(m, AIMessage)]
    return [message for message in answers if message.id not in known_ids]


async def _passing_message(
    site: Site, message: AIMessage, messages: list[BaseMessage]
) -> AIMessage:
    text = str(message.text)
    if calls_of(message):
        passes = await passes_beside_calls(site, text, messages)
        return message if passes else without_text(message)
    safe = await judge_once(site, text, messages)
    return message if safe is None else safe.model_copy(update={"id": message.id})


# The calls of a model whose tools run in no node that is known.


async def with_allowed_calls(
    interceptor: NodeInterceptor, node: ModelNode, call: ModelCall, message: AIMessage
) -> AIMessage:
    """Return a message whose calls may all run; the model is told once which of them may not."""
    denials = await _denials(interceptor.site, node, message)
    if denials:
        causes = {call_id: denial.cause for call_id, denial in denials.items()}
        answers = [
            _unrun_answer(c, causes.get(str(c["id"]), "another call of this message may not run"))
            for c in message.tool_calls
        ]
        message = await interceptor.ask_model(
            call._replace(messages=[*call.messages, message, *answers])
        )
        denials = await _denials(interceptor.site, node, message)
    for denial in denials.values():
        failure: FailureClass | Literal[""] = "unsafe_output" if denial.guard == "gate" else ""
        end = Decision("abort", denial.guard, denial.cause, failure)
        raise stop_error(await interceptor.site.decide_by_table(end, possible=False))
    return message


async def _denials(site: Site, node: ModelNode, message: AIMessage) -> Mapping[str, Decision]:
    """Return why calls may not run, by their ids; where one may not, none is counted."""
    denials: dict[str, Decision] = {}
    uses: list[ToolUse] = []
    answered_ids = node.answered_ids()
    for call in message.tool_calls:
        call_id = str(call["id"])
        if call_id in answered_ids:
            continue
        key = f"{message.id}/{call_id}"
        use = ToolUse(None, call["name"], call["args"], key, str(message.id), _never_run)
        denial = approval_denial(site.policy, use.name)
        if denial is not None:
            await site.decide(denial)
        else:
            denial = await denial_of(site, use, node.messages)
        if denial is None:
            uses.append(use)
        else:
            denials[call_id] = denial
    limited_tools = () if site.policy.tool_limit is None else site.policy.tool_limit.tools
    tool_calls = site.account.spending.tool_calls
    for use in uses:
        if use.name in limited_tools:
            settle = tool_calls.take_back if denials else tool_calls.admit
            settle(use.name, use.key)
    return denials


def _unrun_answer(call: ToolCall, cause: str) -> ToolMessage:
    text = f"Not executed: {cause}."
    return ToolMessage(text, tool_call_id=call["id"] or "", name=call["name"], status="error")


async def _never_run(args: Mapping[str, object] | None = None) -> object:
    raise AssertionError("the graph runs its tools itself")
