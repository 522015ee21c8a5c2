from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import MessagesState, StateGraph

from agentgraph import Agent, Finish, Handoff
from agentgraph.errors import ConfigurationError, RoutingWarning
from agentgraph.routing import (
    Always,
    ContextEquals,
    FromSpeaker,
    HumanTarget,
    ModelCondition,
    ParallelTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    feedback,
    round_robin,
    sequence,
    star,
)
from agentgraph.sessions import Hub, Team
from agentgraph.testing import ScriptedModel, call
from tests.sessions.talk import after, agent, dialogue

A, B = FromSpeaker("a"), FromSpeaker("b")


def escalate() -> str:
    """Escalate."""
    return "escalated"


def finish() -> Finish:
    """Finish."""
    return Finish("over", "agreed")


def ask_spoke(spoke: str) -> Handoff:
    """Ask a spoke."""
    return Handoff(spoke)


def foreign(name: str) -> Any:
    graph: Any = StateGraph(MessagesState)
    graph.add_node("n", lambda state: {"messages": [("ai", "hello")]})
    graph.set_entry_point("n")
    return graph.compile(name=name)


MODEL_AGREES = ModelCondition(ScriptedModel(["no"]), "Is it done?")


def rules(*pairs: tuple[Any, Any], default: Any = None, **fields: Any) -> TransitionGraph:
    transitions = [Transition(*pair) for pair in pairs]
    return TransitionGraph("a", transitions, default or TerminateTarget("done"), **fields)


def codes(*args: Any, **fields: Any) -> list[str]:
    """Return the codes of the warnings that building a team gives."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        Team(*args, **fields)
    assert all(message.category is RoutingWarning for message in messages)
    return [str(message.message).rpartition("[")[2].rstrip("]") for message in messages]


@pytest.mark.parametrize(
    ("agents", "routing", "code"),
    [
        ([agent("a"), agent("b")], rules(), "unreached"),
        ([agent("a"), agent("b")], round_robin(["a", "b"]), "endless_cycle"),
        ([agent("a")], rules(default=HumanTarget()), "unanswered"),
        ([agent("a")], rules((A, HumanTarget())), "unanswered"),
        (
            [agent("a")],
            rules((A, HumanTarget()), (FromSpeaker("user") & ContextEquals("tier", "gold"), "a")),
            "conditional_answer",
        ),
        ([agent("a"), agent("b")], rules((A, "b"), (A & B, "a")), "never_holds"),
        ([agent("a"), agent("b")], rules((A, "b"), (A, "b")), "shadowed"),
        (
            [agent("a", tools=[escalate]), agent("b")],
            rules((A & ToolCalled("escalte"), "b"), (B, "a"), (A, "b")),
            "unknown_tool",
        ),
        (
            [agent("a", tools=[escalate]), agent("b")],
            rules((ContextEquals("tier", "gold"), "b")),
            "sticky_context",
        ),
        (
            [agent("a"), agent("b")],
            rules((ContextEquals("over", True), TerminateTarget()), (A, "b"), (B, "a")),
            "context_exit",
        ),
        (
            [agent("a"), agent("b")],
            rules((A & MODEL_AGREES, TerminateTarget()), (A, "b"), (B, "a")),
            "model_exit",
        ),
    ],
)
def test_a_team_warns_of_rules_that_hardly_mean_what_they_say(
    agents: list[Agent], routing: TransitionGraph, code: str
) -> None:
    assert code in codes(agents, routing)


@pytest.mark.parametrize(
    ("agents", "routing", "fields"),
    [
        ([agent("a"), agent("b")], sequence(["a", "b"]), {}),
        ([agent("a"), agent("b")], round_robin(["a", "b"], max_turns=6), {}),
        ([agent("a"), agent("b", tools=[finish])], round_robin(["a", "b"]), {}),
        ([agent("a"), agent("b")], feedback("a", "b", done="approved"), {}),
        (
            [agent("a"), agent("b", tools=[escalate])],
            feedback("a", "b", done="approved", max_turns=None),
            {},
        ),
        ([agent("a", tools=[ask_spoke]), agent("b"), agent("c")], star("a", ["b", "c"]), {}),
        ([agent("a")], dialogue("a"), {}),
        ([agent("a", tools=[ask_spoke]), agent("b")], dialogue("a"), {}),
        ([agent("a"), agent("b")], dialogue("a"), {"failure_target": "b"}),
        ([agent("a"), agent("b")], dialogue("a"), {"aliases": {"second": "b"}}),
        ([agent("a"), agent("b")], dialogue("a"), {"supervisor": agent("boss")}),
        ([agent("a")], dialogue("a"), {"humans": ["ann"]}),
        ([agent("a")], rules((A, HumanTarget()), (FromSpeaker("user"), TerminateTarget())), {}),
        ([agent("a"), agent("b")], rules((A & MODEL_AGREES, "b"), (A, TerminateTarget())), {}),
        ([agent("a"), foreign("b")], rules((A & ToolCalled("theirs"), "b"), (A, "b")), {}),
        (
            [agent("a"), agent("b")],
            rules((A, "user"), (FromSpeaker("user"), "b"), (B, "a")),
            {},
        ),
        (
            [agent("a"), agent("b"), agent("c", tools=[ask_spoke]), agent("d")],
            rules((A, ParallelTarget(["b", "c"], "a")), max_turns=9),
            {},
        ),
        (
            [agent("a", agents=[agent("below", tools=[escalate])]), agent("b")],
            rules((A & ToolCalled("escalate"), "b")),
            {},
        ),
        (
            [agent("a"), agent("b")],
            rules(
                (FromSpeaker("user") & ToolCalled("pressed"), "b"),
                (FromSpeaker("user"), "a"),
                default=HumanTarget(),
            ),
            {},
        ),
    ],
)
def test_a_sensible_team_is_built_without_a_warning(
    agents: list[Any], routing: TransitionGraph, fields: dict[str, Any]
) -> None:
    assert codes(agents, routing, **fields) == []


def test_a_warning_names_the_team_and_points_at_the_line_that_builds_it() -> None:
    with pytest.warns(
        RoutingWarning, match=r"^team 'pair': no rule ever gives 'b' the floor"
    ) as caught:
        Team([agent("a"), agent("b")], rules(), name="pair")  # this line
    (warning,) = caught
    assert warning.filename == __file__
    assert "# this line" in Path(__file__).read_text().splitlines()[warning.lineno - 1]


def test_warnings_can_be_filtered_by_their_category_and_code() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*\[unreached\]", RoutingWarning)
        Team([agent("a"), agent("b")], rules())
        with pytest.raises(RoutingWarning, match="endless_cycle"):
            Team([agent("a"), agent("b")], round_robin(["a", "b"]))


async def test_a_team_inside_a_team_gives_its_warnings_once() -> None:
    with pytest.warns(RoutingWarning, match="unreached"):
        inner = Team([agent("x"), agent("y")], TransitionGraph("x"), name="inner")
    team = Team([inner], sequence(["inner"]))
    async with await Hub.open(serve=[team]) as hub:
        state = await after(await hub.session(team), "user", "hello")
    assert state.pending_close_reason == "sequence_complete"


async def test_an_endless_cycle_is_refused_where_nothing_would_end_it() -> None:
    pair = [agent("a"), agent("b")]
    with pytest.raises(ConfigurationError, match="the floor never leaves a, b"):
        Team(pair, round_robin(["a", "b"]), expectations=())
    with pytest.warns(RoutingWarning, match="endless_cycle"):
        team = Team(pair, round_robin(["a", "b"]))
    async with await Hub.open(serve=[team]) as hub:
        with pytest.raises(ConfigurationError, match="the floor never leaves a, b"):
            await hub.session(team, expectations=[], ttl=None)
        await hub.session(team, expectations=[], ttl="1h")


async def test_a_finish_ends_a_round_robin_without_a_limit() -> None:
    second = agent("b", call("finish"), tools=[finish])
    team = Team([agent("a"), second], round_robin(["a", "b"]))
    async with await Hub.open(serve=[team]) as hub:
        state = await after(await hub.session(team), "user", "hello")
    assert state.pending_close_reason == "agreed"


def test_a_rule_for_everybody_reaches_everybody() -> None:
    everybody = TransitionGraph("a", [Transition(Always(), "b")], max_turns=2)
    assert codes([agent("a"), agent("b")], everybody) == []
