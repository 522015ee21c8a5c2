"""The guards that users bring: what their hooks decide at a site, and what follows from that."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import BaseMessage

from agentgraph.errors import kind_of
from agentgraph.guards.decision import Action, Decision
from agentgraph.guards.guard import Guard, GuardedCall, Hook
from agentgraph.guards.nodes.site import Overdue, Site
from agentgraph.guards.records.account import Account
from agentgraph.interception import ControlFlow
from agentgraph.running import conversation

_TRIES_AGAIN = frozenset({"correct", "replan"})
_KEEPS_RUNNING = frozenset({*_TRIES_AGAIN, "deny", "fallback"})


async def objection(
    site: Site,
    hook: Hook,
    *,
    messages: Sequence[BaseMessage] | None = None,
    tool: str = "",
    args: Mapping[str, object] | None = None,
    call_id: str = "",
    result: object = None,
    failed: bool = False,
) -> Decision | None:
    """Return the first decision of these guards that does not let a step pass, else None.

    A guard that fails, or has no time left, does not let it pass. The decision is not recorded yet.
    Without `messages` they are those of the tool call around this code.
    """
    await site.recall()
    messages = conversation() if messages is None else messages
    agent, args = site.path, args or {}
    call = GuardedCall(agent, site.thread_id, messages, tool, args, call_id, result, failed)
    for key, guard in site.policy.extra_guards:
        if not hasattr(guard, hook):
            continue
        decision = await _opinion(site, hook, key, guard, call)
        if decision is None or decision.allows:
            continue
        if not _take_pass(site.account, site.place.path, guard.name):
            return decision
    return None


async def _opinion(
    site: Site, hook: Hook, key: str, guard: Guard[Any], call: GuardedCall
) -> Decision | None:
    try:
        with site.time_limit():
            decision = getattr(guard, hook)(site.account.extra.of(key, guard), call)
            if inspect.isawaitable(decision):
                decision = await decision
    except ControlFlow:
        raise
    except Overdue as error:
        return Decision("abort", "deadline", str(error), evidence={"layer": error.layer})
    except Exception as error:
        return Decision("abort", guard.name, f"{hook}() has failed: {kind_of(error)}")
    if decision is None or isinstance(decision, Decision):
        return decision
    cause = f"{hook}() has returned {decision!r}: return a Decision or None"
    return Decision("abort", guard.name, cause)


def tries_again(decision: Decision) -> bool:
    """Tell whether a decision tells the model what to do instead."""
    return decision.action in _TRIES_AGAIN


def keeps_running(decision: Decision) -> bool:
    """Tell whether the run goes on although a tool, a handoff or a worker may not begin."""
    return decision.action in _KEEPS_RUNNING


async def end_of_run(site: Site, decision: Decision) -> Decision:
    """Record a decision that does not let a model be asked, and return what ends the run.

    Where nothing can stand in for the model, a human decides.
    """
    if decision.action == "deny" and decision.failure_class:
        return await site.decide_by_table(decision, possible=False)
    asks_human = decision.action in ("escalate", "fallback")
    action: Action = "escalate" if asks_human else "abort"
    return await site.decide(replace(decision, action=action))


async def act_on(site: Site, decision: Decision) -> None:
    """Record a decision on what a tool has answered: a correction, or what the next node does."""
    visit = site.place.visit_key
    if not keeps_running(decision):
        site.account.postpone(visit, await site.decide(decision))
    elif visit not in site.account.pending:
        await site.decide(decision)
        site.account.correct(visit, decision.cause)


# What a human has approved.


def let_pass(account: Account, path: str, guard: str) -> None:
    """Let the next step of an agent pass that a guard objects to: a human has decided so."""
    account.tries[_pass_of(path, guard)] = 1


def _take_pass(account: Account, path: str, guard: str) -> bool:
    """Use up what a human has approved, if there is such a decision."""
    return bool(account.tries) and account.tries.pop(_pass_of(path, guard), 0) > 0


def _pass_of(path: str, guard: str) -> str:
    return f"{path}#passes {guard}"
