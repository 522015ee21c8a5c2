"""What the supervisor, the critic and the peers of a flow are told, stage by stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import to_json

from agentgraph.flow.topology import Topology
from agentgraph.flow.values import Plan, Summary, text_of_summary

_RULES = {
    "handoff": "Give exactly one brief, to the worker that begins; workers pass it on.",
    "sop": "Give one brief per worker, in exactly this order; each builds on those before.",
    "debate": "Give each worker that is to take part one brief; two or more take part.",
}


def plan_request(
    task: str,
    workers: Iterable[tuple[str, str]],
    topology: Topology,
    problems: Sequence[str],
    headroom: str,
) -> str:
    """Return the request for a plan: the task, the workers, the budget, and what went wrong."""
    lines = [f"- {name}: {about}" if about else f"- {name}" for name, about in workers]
    parts = [
        f"Plan the work on this task:\n\n{task}",
        "\n".join(["The workers:", *lines]),
        _RULES.get(topology.name, "Give briefs to the workers that are needed, one or more."),
    ]
    if headroom:
        parts.append(f"What may still be spent: {headroom}.")
    if problems:
        list_of_problems = "\n".join(f"- {problem}" for problem in problems)
        parts.append(
            f"The last attempt was not accepted. Plan anew, and mend this:\n{list_of_problems}"
        )
    return "\n\n".join(parts)


def critic_request(task: str, plan: Plan) -> str:
    """Return the request to judge a plan."""
    return (
        f"The task:\n\n{task}\n\nThis plan was made for it:\n\n{_json(plan)}\n\n"
        "Judge whether it can lead to a good result. Name each problem."
    )


def aggregate_request(task: str, summaries: Sequence[Summary]) -> str:
    """Return the request to make one result of the workers' summaries."""
    return f"The task:\n\n{task}\n\n{_results(summaries)}\n\nMake one result of them."


def validate_request(task: str, aggregate: object, summaries: Sequence[Summary]) -> str:
    """Return the request for a verdict on the aggregate."""
    return (
        f"The task:\n\n{task}\n\n{_results(summaries)}\n\nThe result made of them:\n\n"
        f"{_text(aggregate)}\n\nJudge whether this result does what the task asks for, and whether "
        "the workers' results support it. Name each problem."
    )


def finalize_request(task: str, aggregate: object) -> str:
    """Return the request for the outcome."""
    return (
        f"The task:\n\n{task}\n\nThe accepted result:\n\n{_text(aggregate)}\n\nGive the final form."
    )


def answers_of_others(summaries: Sequence[Summary]) -> str:
    """Return what the others in a debate have answered."""
    return f"{_results(summaries)}\n\nYou may keep your answer, or change it."


def _results(summaries: Sequence[Summary]) -> str:
    parts = [f"From {summary.worker}:\n{text_of_summary(summary)}" for summary in summaries]
    return "\n\n".join(["The workers' results:", *parts])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value, fallback=str, indent=2).decode()


def _json(plan: Plan) -> str:
    return to_json(plan, indent=2).decode()
