"""What passes from stage to stage: the plan and its briefs, the summaries, the verdict.

They are pydantic models, to be subclassed: the schema is what a model is made to answer, and what
the gates between the stages check.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model


class Brief(BaseModel):
    """The work of one worker.

    class Search(Brief):
        query: str

    Flow("report", supervisor=lead, work=[searcher], brief=Search)
    """

    model_config = ConfigDict(frozen=True)

    worker: str = Field(description="The name of the worker.")
    task: str = Field(description="What the worker is to do, in words.")
    inputs: dict[str, Any] = Field(default={}, description="Values that the task needs.")
    requires: tuple[str, ...] = Field(
        default=(), description="The workers, or their artifacts, that must be there before."
    )
    expects: str = Field(default="", description="What the summary must contain.")


class Plan(BaseModel):
    """The briefs of an attempt, in their order."""

    model_config = ConfigDict(frozen=True)

    briefs: tuple[Brief, ...] = Field(description="The work, one brief for each piece.")
    notes: str = Field(default="", description="Why it is planned so.")


class Summary(BaseModel):
    """What a worker has brought."""

    model_config = ConfigDict(frozen=True)

    worker: str = Field(description="The name of the worker.")
    text: str = Field(description="The result, in words.")
    artifacts: dict[str, Any] = Field(default={}, description="Results that others build on.")
    confidence: float | None = Field(
        default=None, ge=0, le=1, description="How sure the worker is, from 0 to 1."
    )
    citations: tuple[str, ...] = Field(default=(), description="What the result rests on.")


class Verdict(BaseModel):
    """Whether the aggregate is accepted, how sure that is, and what is wrong with it."""

    model_config = ConfigDict(frozen=True)

    accepted: bool = Field(description="Whether the result may be used as it is.")
    confidence: float = Field(default=1.0, ge=0, le=1, description="How sure that is, 0 to 1.")
    problems: tuple[str, ...] = Field(
        default=(), description="What has to change before it can be accepted."
    )


@lru_cache(maxsize=64)
def plan_of(brief: type[Brief]) -> type[Plan]:
    """Return the schema of a plan whose briefs are of a class: `Plan` itself for `Brief`."""
    if brief is Brief:
        return Plan
    field: Any = (tuple[brief, ...], Field(description="The work, one brief for each piece."))  # type: ignore[valid-type]
    return create_model("Plan", __base__=Plan, briefs=field)


def text_of_brief(brief: Brief, summaries: Sequence[Summary] = ()) -> str:
    """Return a brief in words, with the summaries that it requires."""
    extra = {
        name: value
        for name, value in brief.model_dump(mode="json").items()
        if name not in Brief.model_fields
    }
    parts = [brief.task]
    if inputs := {**brief.inputs, **extra}:
        parts.append("\n".join(["Inputs:", *(f"- {name}: {v}" for name, v in inputs.items())]))
    if brief.expects:
        parts.append(f"Expected: {brief.expects}")
    parts += [f"From {summary.worker}:\n{text_of_summary(summary)}" for summary in summaries]
    return "\n\n".join(parts)


def text_of_summary(summary: Summary) -> str:
    """Return a summary in words, with its artifacts and citations."""
    parts = [summary.text]
    parts += [f"{name}: {value}" for name, value in summary.artifacts.items()]
    if summary.citations:
        parts.append(f"Sources: {', '.join(summary.citations)}")
    return "\n".join(part for part in parts if part)
