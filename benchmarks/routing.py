"""Decide who speaks next, beside AG2's fold of the same rules."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from timeit import repeat
from types import SimpleNamespace
from typing import Any

from agentgraph.routing import FromSpeaker, Transition, TransitionGraph
from benchmarks.measure import Row

__all__ = ["routing_rows"]

LOOPS, REPETITIONS = 2_000, 15
_PACKET = {"routing": {"kind": "text"}, "context_updates": {"set": {}, "delete": []}, "body": "hi"}
GOALS_US = {10: 2.0, 200: 5.0}
DOCUMENT_RULES, DOCUMENT_GOAL_MS = 200, 2.0


def routing_rows() -> list[Row]:
    """Measure a decision with few and with many rules, and a graph read from its document."""
    rows = []
    for rules, goal in GOALS_US.items():
        ours, theirs = _microseconds(_ours(rules)), _microseconds(_theirs(rules))
        what = f"who speaks next, {rules} rules that begin with a speaker / AG2's fold"
        rows.append(Row(what, ours, theirs, None, "µs", _verdict(ours, goal, "µs")))
    document = _graph(DOCUMENT_RULES).to_dict()
    ours = _microseconds(lambda: TransitionGraph.from_dict(document), loops=20) / 1_000
    theirs = _microseconds(_their_reading(DOCUMENT_RULES), loops=20) / 1_000
    what = f"a graph of {DOCUMENT_RULES} rules read from its dict / AG2's"
    rows.append(Row(what, ours, theirs, None, "ms", _verdict(ours, DOCUMENT_GOAL_MS, "ms")))
    return rows


def _graph(rules: int) -> TransitionGraph:
    """Return a chain: each rule leads from one speaker to the next."""
    chain = [Transition(FromSpeaker(f"p{n}"), f"p{n + 1}") for n in range(rules)]
    return TransitionGraph("p0", chain)


def _ours(rules: int) -> Callable[[], object]:
    graph, speaker = _graph(rules), f"p{rules // 2}"
    state = SimpleNamespace(
        participant_order=_names(rules),
        expected_next_speaker=speaker,
        last_speaker_id=speaker,
        turn_count=1,
        creator_id="p0",
        context_vars={},
        phase="intake",
        active_agent=None,
    )
    said = SimpleNamespace(
        sender_id=speaker, event_type="ag.packet", event_data=_PACKET, metadata={}
    )
    assert graph.resolve(state, said).next_speaker == f"p{rules // 2 + 1}"
    return lambda: graph.resolve(state, said)


def _theirs(rules: int) -> Callable[[], object]:
    """Return AG2's fold: it reads the graph from its dict, counts the turn, and tries the rules."""
    from ag2.network.adapters.workflow import WorkflowAdapter, WorkflowState
    from ag2.network.envelope import EV_PACKET, Envelope

    speaker = f"p{rules // 2}"
    state = WorkflowState(
        participant_order=_names(rules),
        expected_next_speaker=speaker,
        graph_data=_their_document(rules),
    )
    said = Envelope("c", speaker, None, EV_PACKET, _PACKET)
    fold = WorkflowAdapter().fold
    assert fold(said, state).expected_next_speaker == f"p{rules // 2 + 1}"
    return lambda: fold(said, state)


def _their_document(rules: int) -> dict[str, Any]:
    from ag2.network.transitions import AgentTarget, TransitionGraph
    from ag2.network.transitions import FromSpeaker as Spoke
    from ag2.network.transitions import Transition as Rule

    chain = [Rule(Spoke(f"p{n}"), AgentTarget(f"p{n + 1}")) for n in range(rules)]
    document: dict[str, Any] = TransitionGraph("p0", chain).to_dict()
    return document


def _their_reading(rules: int) -> Callable[[], object]:
    from ag2.network.transitions import TransitionGraph

    document = _their_document(rules)
    return lambda: TransitionGraph.loads(document)


def _names(rules: int) -> list[str]:
    return [f"p{n}" for n in range(rules + 1)]


def _microseconds(work: Callable[[], object], *, loops: int = LOOPS) -> float:
    """Return what one call takes, the fastest of the repetitions."""
    return min(repeat(work, number=loops, repeat=REPETITIONS, timer=process_time)) / loops * 1e6


def _verdict(found: float, goal: float, unit: str) -> str:
    return f"≤ {goal:.0f} {unit}: {'pass' if found <= goal else '**miss**'}"
