"""Code of the user that a node runs beside its model and its tools, such as a prompt function.

It is guarded as the code of a tool is: its time is limited, the models that it asks are counted and
paid, and a run of an agent in it is a part of the input. What breaks it off ends the run, as nobody
could say what the agent is to do without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from agentgraph.errors import GuardStopped
from agentgraph.graphs.silence import Silence
from agentgraph.guards.decision import Decision
from agentgraph.guards.nodes.foreign.watch import Forbidden
from agentgraph.guards.nodes.site import Overdue, Site, stop_error
from agentgraph.guards.records.account import ANYWHERE
from agentgraph.interception import (
    Code,
    Interceptor,
    code_guarded_by,
    inside_tool,
    intercepted_by,
)

T = TypeVar("T")


class SiteInterceptor(Interceptor, Protocol):
    """The interceptor of a node, at the site of its agent."""

    @property
    def site(self) -> Site:
        """The agent at work, with all that its guards need to know."""
        ...


async def run_code(interceptor: SiteInterceptor, code: Code[T]) -> T:
    """Run code in the time of a model call; middleware around a call has that of the call."""
    site = interceptor.site
    is_silent = interceptor.judges_answers and not code.is_wrapper
    try:
        with (
            intercepted_by(interceptor),
            inside_tool(code.name),
            code_guarded_by(None),
            interceptor.watch(),
            Silence(holds=lambda: False) if is_silent else nullcontext(),
        ):
            if code.is_wrapper:  # the call inside has a time limit of its own
                return await code.work()
            return await site.cut_off(code.work, site.policy.deadlines.step_s)
    except Overdue as error:
        if code.is_wrapper:
            raise
        cause = f"`{code.name}` of {site.place.name!r} was {error}"
        decision = Decision("abort", "deadline", cause, evidence={"layer": error.layer})
        raise stop_error(await site.decide(decision)) from error
    except Forbidden as stop:
        cause = f"`{code.name}` was broken off: {stop.decision.cause}"
        decision = replace(stop.decision, action="abort", cause=cause)
        raise stop_error(await site.decide(decision)) from stop


class NodeCode:
    """The code of a node whose guards are needed for nothing else."""

    def __init__(
        self, open_site: Callable[[Mapping[str, Any] | None], Awaitable[SiteInterceptor]]
    ) -> None:
        self._open = open_site
        self.interceptor: SiteInterceptor | None = None
        """The interceptor, once code has run."""
        self.stop: GuardStopped | None = None
        """What has broken code off."""

    async def run_code(self, code: Code[T], turn: Mapping[str, Any] | None = None) -> T:
        """Run code; where it is broken off, the next node of a model ends the run."""
        if self.interceptor is None:
            self.interceptor = await self._open(turn)
        try:
            return await run_code(self.interceptor, code)
        except GuardStopped as stop:
            self.stop = stop
            if isinstance(stop.decision, Decision):
                self.interceptor.site.account.postpone(ANYWHERE, stop.decision)
            raise
