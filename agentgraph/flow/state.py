"""The state of a flow's graph: its channels, and how the writes of parallel workers are merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from langchain_core.messages import AnyMessage
from langgraph.channels import EphemeralValue
from langgraph.graph.message import add_messages
from langgraph.types import Overwrite
from typing_extensions import TypedDict

from agentgraph.agents.nodes.state import Turn, merge_turn
from agentgraph.flow.topology import Entry
from agentgraph.participant import sentence_of_stop

V = TypeVar("V")

OUTPUTS = ("messages",)
"""The channels that a graph around a flow sees."""


class ReportValues(TypedDict):
    """A `StageReport` as the state has it."""

    stage: str
    attempt: int
    worker: str
    started_at: float
    seconds: float
    usage: dict[str, Any]
    verdicts: list[dict[str, Any]]
    output: Any
    is_part: bool
    """Whether it belongs to the report before it, of the stage whose gate or next wave it is."""


class Ask(TypedDict):
    """What a human is asked about: the stage, and the value that it has made."""

    stage: str
    value: Any
    failure_class: str


class HumanValue(TypedDict):
    """What a human has given in place of what a stage makes."""

    stage: str
    value: Any


class End(TypedDict):
    """How the flow has ended."""

    status: Literal["finished", "aborted"]
    reason: str
    cause: str
    """Why it was aborted, in words, "" where it was not."""
    failure_class: str | None
    outcome: Any
    text: str
    success: bool | None


def new_turn(turn_id: str, name: str, visit: str = "") -> Turn:
    """Return the turn of an input, and which visit of it to the flow this is."""
    return {"id": turn_id, "agent": name, "closed": None, "since": visit}


def merge_keys(old: Mapping[str, V], new: Mapping[str, V]) -> dict[str, V]:
    """Merge what parallel workers write, each under keys of its own."""
    return {**old, **new}


class FlowState(TypedDict):
    """The channels of a flow, beside those of its guards; before the first plan only `messages`."""

    messages: Annotated[list[AnyMessage], add_messages]
    turn: Annotated[Turn, merge_turn]
    task: str
    attempt: int
    """Which plan is at work, from 1."""
    problems: list[str]
    """What was wrong with the attempt before."""
    needs_critic: bool
    """Whether the plan before was malformed: then a critic judges the next one."""
    failed_states: list[str]
    """Digests of the plans that have failed, each with its result and what was wrong with it."""
    plan: dict[str, Any] | None
    entries: Annotated[dict[str, Entry], merge_keys]
    """What became of each piece of work, by attempt and key."""
    reports: Annotated[dict[str, ReportValues], merge_keys]
    """The reports of the stages, by the order in which they began."""
    aggregate: Any
    verdict: dict[str, Any] | None
    ask: Ask | None
    human_value: HumanValue | None
    """Passes the gate behind its stage, as what the stage makes does."""
    end: End | None
    stopped_by: str | None
    """Why the flow was aborted: so is the run of an agent around it."""
    again: Annotated[bool, EphemeralValue(bool, guard=False)]
    """Whether a stage, or a human, has sent the flow back to its plan: it is no new input then."""
    sent: dict[str, Any]
    """The piece of work that a worker's task has got."""


def new_run(task: str, turn: Turn) -> dict[str, Any]:
    """Return the channels at the begin of a run: nothing of an earlier one is left."""
    return {
        "turn": turn,
        "task": task,
        "attempt": 1,
        "problems": [],
        "needs_critic": False,
        "failed_states": [],
        "plan": None,
        "entries": Overwrite({}),
        "reports": Overwrite({}),
        "aggregate": None,
        "verdict": None,
        "ask": None,
        "human_value": None,
        "end": None,
        "stopped_by": None,
    }


def aborted_end(guard: str, cause: str, failure_class: str) -> End:
    """Return the end of a flow that a guard, a failure or a human has ended."""
    return End(
        status="aborted",
        reason=guard,
        cause=cause,
        failure_class=failure_class or None,
        outcome=None,
        text=sentence_of_stop(guard, cause),
        success=None,
    )


def finished_end(reason: str, outcome: Any, text: str, success: bool | None = None) -> End:
    """Return the end of a flow that has answered."""
    return End(
        status="finished",
        reason=reason,
        cause="",
        failure_class=None,
        outcome=outcome,
        text=text,
        success=success,
    )
