"""Flows of scripted agents and functions, whose models note what they are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgraph import Agent
from agentgraph.flow import Flow, FlowResult
from agentgraph.guards import AuditTrail, Backoff, Guards, MemorySink
from agentgraph.stream import StageEvent
from agentgraph.testing import ScriptedModel, call


def plan(*workers: str, **fields: Any) -> Any:
    """Return the call by which a planner gives one brief to each of these workers."""
    briefs = [{"worker": worker, "task": f"work of {worker}", **fields} for worker in workers]
    return call("Plan", briefs=briefs)


def verdict(accepted: bool = True, confidence: float = 0.9, *problems: str) -> Any:
    """Return the call by which a judge gives its verdict."""
    return call("Verdict", accepted=accepted, confidence=confidence, problems=[*problems])


def lead(*turns: Any) -> Agent[Any]:
    """Return a supervisor whose model says these turns."""
    return Agent("lead", "leads", model=ScriptedModel([*turns]), default_tools=False)


def worker(name: str, *turns: Any, **fields: Any) -> Agent[Any]:
    """Return a worker; without turns it always answers with its name."""
    said: Any = [*turns] if turns else (lambda messages: f"{name} is done")
    model = ScriptedModel(said)
    return Agent(name, f"does {name}", model=model, default_tools=False, **fields)


def guarded(tier: Any = "batch", **fields: Any) -> Guards:
    """Return a tier's guards, with what it must be given."""
    audit = AuditTrail(fields.pop("sink", None) or MemorySink())
    needed = {"budget": 1_000_000, "velocity": None} if tier == "regulated" else {}
    return Guards(tier, **{"audit": audit, "backoff": Backoff(0, 0), **needed, **fields})


def flow_of(*turns: Any, work: Sequence[Any] = (), **fields: Any) -> Flow[Any]:
    """Return a flow with a supervisor of these turns, by default with the workers a and b."""
    work = work or [worker("a"), worker("b")]
    return Flow("report", supervisor=lead(*turns), work=work, **{"guards": guarded(), **fields})


def requests(agent: Any) -> list[str]:
    """Return what an agent's model was asked, the last message of each request."""
    return [str(request.messages[-1].text) for request in agent.model.requests]


async def stages_of(flow: Flow[Any], task: str = "go") -> list[tuple[str, str, str]]:
    """Run a flow; return the stage, the worker and the status of each event."""
    events = [event async for event in flow.astream(task)]
    told = [event for event in events if isinstance(event, StageEvent)]
    return [(event.stage, event.worker, event.status) for event in told]


def reports(result: FlowResult[Any]) -> list[tuple[str, int, str]]:
    """Return the stage, the attempt and the worker of each report."""
    return [(report.stage, report.attempt, report.worker) for report in result.stages]


Decide = Callable[[Mapping[str, Any]], Any]
