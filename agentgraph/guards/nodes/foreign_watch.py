"""Model calls in a foreign graph that no guarded node makes: they are counted, and limited.

A hook, a tool or a node of any kind may ask a model, which tells its callbacks. A watch is such a
callback: it cannot retry a call or judge its answer, but it can forbid the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from agentgraph.guards.decision import Decision
from agentgraph.guards.nodes.site import Site, stop_error


class Watch(BaseCallbackHandler):
    """Counts the model calls that are made while it is installed; raises where a limit is reached.

    `site` is opened with the first call.
    """

    raise_error = True
    run_inline = True

    def __init__(
        self, site: Site | Callable[[], Site], on_first: Callable[[], object] | None = None
    ) -> None:
        self._open = site
        self._on_first = on_first
        self._site: Site | None = None

    def on_chat_model_start(self, *args: Any, **fields: Any) -> None:
        """Count a call of a chat model, or forbid it."""
        self.on_llm_start()

    def on_llm_start(self, *args: Any, **fields: Any) -> None:
        """Count a call of a model, or forbid it."""
        if _current.get() is not self:
            return  # a guarded node within asks its model
        if self._site is None:
            self._site = self._open if isinstance(self._open, Site) else self._open()
            if self._on_first is not None:
                self._on_first()
        decision = _denial_at(self._site)
        if decision is not None:
            raise stop_error(decision)
        self._site.account.step()
        self._site.record("model", model=self._site.place.path)

    def on_llm_end(self, response: LLMResult, **fields: Any) -> None:
        """Count the tokens of a call."""
        if self._site is None or _current.get() is not self:
            return
        for spend in self._site.account.spends_under(self._site.policy):
            _, reservation = spend.reserve(tokens=0, usd=Decimal(0))
            if reservation is not None:
                reservation.settle(tokens=_tokens_of(response), usd=Decimal(0))


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


def _denial_at(site: Site) -> Decision | None:
    """Return the denial of the limit that one more call would exceed, None where it may be made."""
    account, policy, deadline = site.account, site.policy, site.deadline()
    if not (decision := account.may_step(policy)).allows:
        return decision
    if deadline is not None and not (decision := deadline.check()).allows:
        return decision
    exhausted = (spend.exhausted() for spend in account.spends_under(policy))
    return next((decision for decision in exhausted if decision is not None), None)


def _tokens_of(response: LLMResult) -> int:
    messages = (getattr(one, "message", None) for many in response.generations for one in many)
    usages = (m.usage_metadata for m in messages if isinstance(m, AIMessage))
    return sum(usage["total_tokens"] for usage in usages if usage is not None)
