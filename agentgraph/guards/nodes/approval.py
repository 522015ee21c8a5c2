"""The approval of a tool call: the question to a human before it, and what follows from the answer.

The question is asked in the task of the call, so that those of parallel calls are open at once, at
any depth. A task that is resumed runs from its start: the question that it has asked stands in its
checkpoint, and tells that the call had passed its gates and since when a human was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from langchain_core.messages import ToolMessage
from pydantic_core import to_json, to_jsonable_python

from agentgraph.clock import clock
from agentgraph.graphs.task import current_question
from agentgraph.guards.mechanisms.escalation import Answer, Request
from agentgraph.guards.nodes.human import wait_for_answer
from agentgraph.guards.nodes.site import Site
from agentgraph.guards.nodes.tool_call import (
    GuardedToolCall,
    RegisterFirst,
    observe_skipped,
    refusal,
)
from agentgraph.interception import SkippedCall, ToolUse

_KIND = "tool_approval"
"""The type of the question; `agentgraph chat` knows the short forms of its answers."""
_PAYLOAD = ("type", "agent", "tool", "args")


async def run_approved(site: Site, use: ToolUse) -> object:
    """Run a guarded tool call once a human has approved it, where one must."""
    saga, stored_answer = site.account.saga, site.account.approvals.get(use.key)
    has_begun = saga is not None and saga.has_begun(use.key)  # in a round that runs again
    if stored_answer is not None:  # the action was registered since: this is another task
        answer = Answer.model_validate(stored_answer)
    elif use.tool is None or not needs_approval(site, use) or has_begun:
        return await GuardedToolCall(site, use).run()
    else:
        outcome = await approve_call(site, use)
        if isinstance(outcome, ToolMessage):
            return outcome
        answer = outcome
    approved_use = use.with_args(args_of(answer)) if answer.type == "edit" else use
    try:
        result = await GuardedToolCall(site, approved_use).run()
    except RegisterFirst:
        site.account.approvals[use.key] = answer.model_dump(mode="json")
        raise
    if approved_use is not use and isinstance(result, ToolMessage):
        add_notice(result, approved_use)
    return result


def needs_approval(site: Site, use: ToolUse) -> bool:
    """Tell whether a human must approve a call."""
    approval = site.policy.interrupt_on
    return approval is not None and bool(approval.verbs(use.name))


async def approve_call(site: Site, use: ToolUse) -> Answer | ToolMessage:
    """Ask a human; return an answer by which the tool runs, or the message that stands instead."""
    request = await _asked_before(use)
    if request is None:
        denial = await refusal(site, use)
        if denial is not None:
            return denial
        request = await _ask(site, use)
    answer = await _answer(site, use, request)
    message = _message_instead(use, answer)
    if message is None:
        return answer
    has_failed = message.status == "error"
    args, text = use.args, str(message.text)
    await observe_skipped(site, SkippedCall(use.name, args, use.message_id, text, has_failed))
    return message


async def _asked_before(use: ToolUse) -> Request | None:
    """Return the question that this task has asked about a call, None without one."""
    question = await current_question()
    if not isinstance(question, Mapping) or question.get("type") != _KIND:
        return None
    payload = {name: question.get(name) for name in _PAYLOAD}
    if (payload["tool"], payload["args"]) != (use.name, _plain_args(use)):
        return None  # a node may ask about several calls, one after the other
    return Request.model_validate({**question, "payload": payload})


async def _ask(site: Site, use: ToolUse) -> Request:
    """Record that a call waits for a human, and return the question."""
    approval = site.policy.interrupt_on
    assert approval is not None
    decision = await site.decide(approval.ask(use.name))
    values = (_KIND, site.place.path, use.name, _plain_args(use))
    payload = dict(zip(_PAYLOAD, values, strict=True))
    verbs = approval.verbs(use.name)
    return site.policy.escalation.ask(decision, site.place.path, allowed=verbs, payload=payload)


def _plain_args(use: ToolUse) -> Any:
    return to_jsonable_python(dict(use.args), serialize_unknown=True)


async def _answer(site: Site, use: ToolUse, request: Request) -> Answer:
    """Wait for a human's answer, and record it."""
    answer, overdue = wait_for_answer(request, edits=_edit_fault)
    if not overdue.allows:
        await site.decide(overdue)
    edit_data = {"edited": to_json(args_of(answer)).decode()} if answer.type == "edit" else {}
    site.record(
        "human",
        request=request.id,
        tool=use.name,
        decision=answer.type,
        reviewer=answer.reviewer,
        latency_s=round(clock().wall() - request.asked_at, 3),
        message=answer.message,
        **edit_data,
    )
    site.account.suspend(request.asked_at)
    await site.note("suspension", tool=use.name, failed=answer.type == "reject")
    if answer.type == "approve":
        await site.note("grant", tool=use.name)
    return answer


def _message_instead(use: ToolUse, answer: Answer) -> ToolMessage | None:
    """Return what stands in the place of the tool's result, None where the tool runs."""
    match answer.type:
        case "approve" | "edit":
            return None
        case "respond":
            return ToolMessage(answer.message, tool_call_id="", name=use.name)
        case "reject":
            reason = f": {answer.message}" if answer.message else ""
            text = f"Not executed: a human has rejected the call{reason}."
            return ToolMessage(text, tool_call_id="", name=use.name, status="error")
        case _:
            assert_never(answer.type)


def args_of(answer: Answer) -> dict[str, Any]:
    """Return the arguments of an edit; LangChain's form has the tool's name beside them."""
    values = answer.edited if isinstance(answer.edited, dict) else {}
    args = values.get("args")
    return args if values.keys() == {"name", "args"} and isinstance(args, dict) else values


def _edit_fault(request: Request, answer: Answer) -> str:
    """Return what is wrong with an edit of a call, "" where nothing is."""
    if not isinstance(answer.edited, dict):
        return "the answer edit needs the arguments of the call, as an object"
    payload: Any = request.payload
    name = answer.edited.get("name")
    is_call = answer.edited.keys() == {"name", "args"} and isinstance(answer.edited["args"], dict)
    if is_call and name != payload["tool"]:
        return f"the answer edit has another tool: the arguments of {payload['tool']!r} can change"
    return ""


def add_notice(answer: ToolMessage, use: ToolUse) -> None:
    """Add to the answer of an edited call that a human has changed it, so that it is not repeated.

    The model's message still has the call as the model wrote it.
    """
    args = to_json(dict(use.args), serialize_unknown=True).decode()
    notice = f"A human has changed the call to {use.name}({args}). Do not repeat it."
    if isinstance(answer.content, str):
        answer.content = f"{notice}\n\n{answer.content}"
    else:
        answer.content = [{"type": "text", "text": notice}, *answer.content]
