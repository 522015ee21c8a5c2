"""Calls in a foreign graph that no guarded node makes: they are counted, limited and judged.

A hook, a tool or a node of any kind may ask a model or run a tool, which tells its callbacks. A
watch is such a callback: it cannot repeat a call or answer in its place, but it can forbid it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from agentgraph.blocking import run_sync
from agentgraph.errors import GuardStopped
from agentgraph.guards.decision import Decision
from agentgraph.guards.guard import Hook
from agentgraph.guards.mechanisms.approval import APPROVAL
from agentgraph.guards.mechanisms.gates.gate import Subject
from agentgraph.guards.mechanisms.spending.estimates import estimate
from agentgraph.guards.nodes.extra_guards import objection
from agentgraph.guards.nodes.payment import Payment, fail, hold, settle
from agentgraph.guards.nodes.site import Site
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Policy
from agentgraph.guards.records.account import Account
from agentgraph.interception import OuterCall, current_interceptor, outer_call
from agentgraph.timeouts import is_left_behind


class Forbidden(GuardStopped):
    """A watch has forbidden a call; the decision is not recorded yet."""

    decision: Decision


class Watch(BaseCallbackHandler):
    """Counts the calls that are made while it is installed; raises `Forbidden` for one too many.

    `site` is opened with the first call. With `is_model` the node stands for a model: its guards
    have admitted the first call, and pay for the last one. With `is_tool` it is the
    code of an agent's tool: the tools that it calls without a model are its own affair. `priced_as`
    returns the name that prices have for the models at a place; without it, each has its own.
    """

    raise_error = True
    run_inline = True

    def __init__(
        self,
        site: Site | Callable[[], Site],
        on_first: Callable[[], object] | None = None,
        *,
        is_model: bool = False,
        is_tool: bool = False,
        priced_as: Callable[[Place], str] | None = None,
    ) -> None:
        self._open = site
        self._priced_as = priced_as
        self._on_first = on_first
        self._is_model = is_model
        self._is_tool = is_tool
        self._site: Site | None = None
        self.within: OuterCall | None = None
        """The tool call around the calls that it sees; in another one, another guard sees them."""
        self.calls = 0
        """How many models the node has asked."""
        self._unpaid: AIMessage | None = None
        self._payments: dict[object, tuple[str, Payment]] = {}
        self._too_fast: Decision | None = None
        """The denial of the next call, where the last one has spent too fast."""
        self._judged_calls: dict[str, tuple[str, Mapping[str, object]]] = {}
        self.message: AIMessage | None = None
        """The last message that a model has given."""
        self.has_run_tools = False

    def knows(self, call_id: str, tool: str, args: Mapping[str, object]) -> None:
        """Note a tool call that was judged already: it may run, unless it is changed."""
        self._judged_calls[call_id] = tool, args

    def on_chat_model_start(
        self, serialized: Any, messages: Sequence[Sequence[BaseMessage]], **fields: Any
    ) -> None:
        """Count a call of a chat model, or forbid it."""
        self._start([message for part in messages for message in part], **fields)

    def on_llm_start(self, serialized: Any, prompts: Sequence[str], **fields: Any) -> None:
        """Count a call of a model, or forbid it."""
        self._start([HumanMessage(prompt) for prompt in prompts], **fields)

    def _start(self, messages: Sequence[BaseMessage], **fields: Any) -> None:
        if not self._sees():
            return  # a guarded node within asks its model
        self.calls += 1
        if self._is_model and self.calls == 1:
            return
        site = self._open_site()
        decision = _denial_at(site) or self._too_fast
        decision = decision or _objection_to(site, "before_model", messages=messages)
        if decision is not None:
            raise _forbidden(decision)
        own_name = str((fields.get("metadata") or {}).get("ls_model_name") or "")
        name = own_name if self._priced_as is None else self._priced_as(site.place)
        estimates = site.account.estimates
        output = estimates.likely_output
        tokens = estimate(messages, (), output)
        spends = site.account.spends_under(site.policy)
        surplus = output - estimates.most_written
        payment = hold(site, spends, name, tokens, output, surplus)
        if isinstance(payment, Decision):
            raise _forbidden(payment)
        site.account.step()
        payment.record_seq = site.record("model", model=name or site.place.path)
        self._payments[fields.get("run_id")] = name, payment

    def on_llm_end(self, response: LLMResult, **fields: Any) -> None:
        """Pay for a call."""
        if not self._sees():
            return
        messages = [m for m in _messages_of(response) if isinstance(m, AIMessage)]
        message = messages[-1] if messages else AIMessage("")
        self.message = message if messages else self.message
        paid_message, self._unpaid = (self._unpaid, message) if self._is_model else (message, None)
        name, payment = self._payments.pop(fields.get("run_id"), ("", None))
        if self._is_tool:  # what it finds out by its models, the agent gets to know in the end
            self._open_site().account.learn(str(message.text), str(fields.get("run_id")))
        if paid_message is None or payment is None:
            return
        site = self._open_site()
        self._too_fast = settle(site, name, paid_message, payment)
        if site.policy.extra_guards:
            site.fold("model", usage=paid_message.usage_metadata)

    def on_llm_error(self, error: BaseException, **fields: Any) -> None:
        """Return what was reserved for a call that failed."""
        _, payment = self._payments.pop(fields.get("run_id"), ("", None))
        if payment is None:
            return
        site = self._open_site()
        fail(site, error, payment)
        if site.policy.extra_guards:
            site.fold("model", failed=True)

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
        if not self._sees() or (self._is_tool and tool_call_id is None):
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
            help_text = _IN_TOOL if self._is_tool else _IN_NODE
            decision = approval_denial(site.policy, name, help_text) or _beyond_limit(site, name)
        decision = decision or _tool_denial(site, name, args)
        decision = decision or _objection_to(site, "before_tool", name, args)
        if decision is not None:
            raise _forbidden(decision)
        site.record("tool", tool=name)
        if site.policy.extra_guards:
            site.fold("tool", tool=name, args=args, call_id=tool_call_id or "")

    def _sees(self) -> bool:
        """Tell whether a call is no other guard's: neither of a watch within, nor of an agent."""
        if _current.get() is not self or outer_call() is not self.within:
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
    if watch is not None:
        watch.within = outer_call()
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


_IN_NODE = (
    "as guards do not know the node that runs it: "
    "name it, patched(graph, Guards(…), tools='<node>')"
)
_IN_TOOL = "inside of another tool: guard the graph that calls it, patched(graph, Guards(…))"


def approval_denial(policy: Policy, tool: str, help_text: str = _IN_NODE) -> Decision | None:
    """Return the denial of a call that needs a human's approval where nobody can be asked."""
    approval = policy.interrupt_on
    if approval is None or not approval.verbs(tool):
        return None
    cause = f"{approval.ask(tool).cause}, and nobody can be asked here, {help_text}"
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
    site: Site,
    hook: Hook,
    tool: str = "",
    args: Mapping[str, object] | None = None,
    messages: Sequence[BaseMessage] = (),
) -> Decision | None:
    """Return the decision of a user's guard that forbids a call, None where it may be made."""
    if not site.policy.extra_guards:
        return None
    return run_sync(objection(site, hook, messages=messages, tool=tool, args=args))


def _messages_of(response: LLMResult) -> list[object]:
    return [getattr(one, "message", None) for many in response.generations for one in many]
