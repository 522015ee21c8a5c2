"""Calls in a foreign graph that no guarded node makes: they are counted, limited and judged.

A hook, a tool or a node of any kind may ask a model or run a tool, which tells its callbacks. A
watch is such a callback: it cannot repeat a call or answer in its place, but it can forbid it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from functools import reduce
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from agentgraph.blocking import run_sync
from agentgraph.errors import GuardStopped
from agentgraph.guards.decision import Decision
from agentgraph.guards.guard import Hook
from agentgraph.guards.mechanisms.approval import APPROVAL
from agentgraph.guards.mechanisms.gates.gate import Subject
from agentgraph.guards.nodes.extra_guards import objection
from agentgraph.guards.nodes.site import Site
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.account import Account
from agentgraph.interception import current_interceptor
from agentgraph.timeouts import is_left_behind


class Forbidden(GuardStopped):
    """A watch has forbidden a call; the decision is not recorded yet."""


class Watch(BaseCallbackHandler):
    """Counts the calls that are made while it is installed; raises `Forbidden` for one too many.

    `site` is opened with the first call. With `is_model` the node stands for a model: its guards
    have admitted the first call, and pay for the last one.
    """

    raise_error = True
    run_inline = True

    def __init__(
        self,
        site: Site | Callable[[], Site],
        on_first: Callable[[], object] | None = None,
        *,
        is_model: bool = False,
    ) -> None:
        self._open = site
        self._on_first = on_first
        self._is_model = is_model
        self._site: Site | None = None
        self.calls = 0
        """How many models the node has asked."""
        self._unpaid: LLMResult | None = None
        self._judged_calls: dict[str, tuple[str, Mapping[str, object]]] = {}
        self.message: AIMessage | None = None
        """The last message that a model has given."""
        self.has_run_tools = False

    def knows(self, call_id: str, tool: str, args: Mapping[str, object]) -> None:
        """Note a tool call that was judged already: it may run, unless it is changed."""
        self._judged_calls[call_id] = tool, args

    def on_chat_model_start(self, *args: Any, **fields: Any) -> None:
        """Count a call of a chat model, or forbid it."""
        self.on_llm_start()

    def on_llm_start(self, *args: Any, **fields: Any) -> None:
        """Count a call of a model, or forbid it."""
        if not self._sees():
            return  # a guarded node within asks its model
        self.calls += 1
        if self._is_model and self.calls == 1:
            return
        site = self._open_site()
        decision = _denial_at(site) or _objection_to(site, "before_model")
        if decision is not None:
            raise _forbidden(decision)
        site.account.step()
        site.record("model", model=site.place.path)

    def on_llm_end(self, response: LLMResult, **fields: Any) -> None:
        """Count the tokens of a call."""
        if not self._sees():
            return
        messages = [m for m in _messages_of(response) if isinstance(m, AIMessage)]
        self.message = messages[-1] if messages else self.message
        paid_response, self._unpaid = (
            (self._unpaid, response) if self._is_model else (response, None)
        )
        if paid_response is None:
            return
        site = self._open_site()
        for spend in site.account.spends_under(site.policy):
            _, reservation = spend.reserve(tokens=0, usd=Decimal(0))
            if reservation is not None:
                reservation.settle(tokens=_tokens_of(paid_response), usd=Decimal(0))
        if site.policy.extra_guards:
            site.fold("model", usage=_usage_of(paid_response))

    def on_tool_start(
        self,
        serialized: Mapping[str, Any],
        input_str: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        tool_call_id: str | None = None,
        **fields: Any,
    ) -> None:
        """Let a tool run that its gates allow, and forbid any other."""
        if not self._sees():
            return
        name = str(serialized.get("name") or "")
        args = dict(inputs) if isinstance(inputs, Mapping) else {"input": input_str}
        self.has_run_tools = True
        judged_call = self._judged_calls.get(tool_call_id or "")
        if judged_call == (name, args):
            return
        site = self._open_site()
        decision = None
        if judged_call is None or judged_call[0] != name:
            decision = unapproved(site.policy, name) or _beyond_limit(site, name)
        decision = decision or _tool_denial(site, name, args)
        decision = decision or _objection_to(site, "before_tool", name, args)
        if decision is not None:
            raise _forbidden(decision)
        site.record("tool", tool=name)
        if site.policy.extra_guards:
            site.fold("tool", tool=name, args=args, call_id=tool_call_id or "")

    def _sees(self) -> bool:
        """Tell whether a call is no other guard's: neither of a watch within, nor of an agent."""
        if _current.get() is not self:
            return False
        if is_left_behind():
            raise _forbidden(Decision("abort", "deadline", "the run has gone on without this call"))
        interceptor = current_interceptor()
        if interceptor is None or not isinstance(interceptor.account, Account):
            return True
        # An agent with guards of its own may still be none of this input's.
        return interceptor.account.root is not self._open_site().account.root

    def _open_site(self) -> Site:
        if self._site is None:
            self._site = self._open if isinstance(self._open, Site) else self._open()
            if self._on_first is not None:
                self._on_first()
        return self._site


_current: ContextVar[Watch | None] = ContextVar("agentgraph_foreign_watch", default=None)
register_configure_hook(_current, inheritable=True)


@contextmanager
def watched_by(watch: Watch | None) -> Iterator[None]:
    """Install a watch, or none, around a block."""
    token = _current.set(watch)
    try:
        yield
    finally:
        _current.reset(token)


def _forbidden(decision: Decision) -> Forbidden:
    return Forbidden(decision, f"{decision.guard}: {decision.cause}")


def _denial_at(site: Site) -> Decision | None:
    """Return the denial of the limit that one more call would exceed, None where it may be made."""
    account, policy, deadline = site.account, site.policy, site.deadline()
    if not (decision := account.may_step(policy)).allows:
        return decision
    if deadline is not None and not (decision := deadline.check()).allows:
        return decision
    denials = (spend.exhausted() for spend in account.spends_under(policy))
    return next((decision for decision in denials if decision is not None), None)


def unapproved(policy: Policy, tool: str) -> Decision | None:
    """Return the denial of a call that needs a human's approval where nobody can be asked."""
    approval = policy.interrupt_on
    if approval is None or not approval.verbs(tool):
        return None
    cause = (
        f"{approval.ask(tool).cause}, and nobody can be asked here, as guards do not know the "
        "node that runs it: name it, patched(graph, Guards(…), tools='<node>')"
    )
    return Decision("deny", APPROVAL, cause, evidence={"tool": tool})


def _beyond_limit(site: Site, tool: str) -> Decision | None:
    """Return the denial of a call beyond the limit of its tool, else None and count the call."""
    limit, tool_calls = site.policy.tool_limit, site.account.spending.tool_calls
    if limit is None or tool_calls.take_admitted(tool):
        return None
    decision = limit.ask(tool, "", tool_calls)
    return None if decision.allows else decision


def _tool_denial(site: Site, tool: str, args: Mapping[str, object]) -> Decision | None:
    """Return the denial of the first gate that a call of a tool fails, None where it may run."""
    place = site.place
    context = {"agent": place.path, "steps": site.account.spending.progress.steps}
    subject = Subject(place.name, tool, args, context=context)
    for gate in site.policy.gates:
        result = run_sync(gate.check_call(subject, place.path))  # a callback cannot await it
        if result.checks:
            site.record("gate", tool=tool, **result.to_dict())
        if not result.passed:
            evidence: Mapping[str, object] = {"validation": result.to_dict()}
            return Decision("abort", "gate", result.cause, result.failure_class, evidence)
    return None


def _objection_to(
    site: Site, hook: Hook, tool: str = "", args: Mapping[str, object] | None = None
) -> Decision | None:
    """Return the decision of a user's guard that forbids a call, None where it may be made."""
    if not site.policy.extra_guards:
        return None
    return run_sync(objection(site, hook, messages=(), tool=tool, args=args))


def _messages_of(response: LLMResult) -> list[object]:
    return [getattr(one, "message", None) for many in response.generations for one in many]


def _tokens_of(response: LLMResult) -> int:
    return sum(usage["total_tokens"] for usage in _usages_of(response))


def _usage_of(response: LLMResult) -> UsageMetadata | None:
    usages = _usages_of(response)
    return reduce(add_usage, usages) if usages else None


def _usages_of(response: LLMResult) -> list[UsageMetadata]:
    messages = [m for m in _messages_of(response) if isinstance(m, AIMessage)]
    return [m.usage_metadata for m in messages if m.usage_metadata is not None]
