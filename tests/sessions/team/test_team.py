"""What a team refuses to be built of: all of it at once, each fault with its place."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from agentgraph.errors import ConfigurationError
from agentgraph.phases import ConversationPipeline, ConversationRouter, PipelineStage
from agentgraph.routing import (
    Always,
    FromSpeaker,
    RoundRobinTarget,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.sessions import Hub, Team
from tests.sessions.talk import agent


def faults(*args: Any, **fields: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        Team(*args, **fields)
    return caught.value.faults


def test_all_that_is_no_value_is_told_at_once() -> None:
    told = faults(
        [agent("a"), object()],
        "no rules",
        durability="never",
        guards=7,
        humans="ann",
        view="all",
        summarize=3,
    )
    text = "\n".join(told)
    for word in (
        "cannot take part",
        "routing=",
        "durability=",
        "guards=",
        "humans=",
        "view=",
        "summarize=",
    ):
        assert word in text
    assert len(told) == 7


def test_all_that_is_wrong_with_names_and_rules_is_told_at_once() -> None:
    rules = TransitionGraph("zed", (Transition(FromSpeaker("nobody"), "nowhere"),), max_turns=0)
    told = faults(
        [agent("a"), agent("A")],
        rules,
        humans=["not legal!", "admit"],
        aliases={"x": "unknown"},
        phase_map={"stranger": "p"},
        failure_target="no_one",
        supervisor="absent",
        durability="never",
        escalations={"pigeon": print, "voice": 7},
        expectations=[{"name": "never_heard", "seconds": -1, "on_violation": "explode"}],
    )
    text = "\n".join(told)
    for word in (
        "'a' (case does not count)",
        "'not legal!'",
        "'admit'",
        "'absent'",
        "zed",
        "nobody",
        "nowhere",
        "max_turns",
        "'unknown'",
        "'stranger'",
        "'no_one'",
        "durability=",
        "'pigeon'",
        "voice=7",
        "never_heard",
        "explode",
        "seconds=-1",
    ):
        assert word in text


def test_a_graph_without_a_name_is_told_how_to_get_one() -> None:
    builder = StateGraph(MessagesState).add_node("n", lambda _: {}).add_edge(START, "n")
    (fault,) = faults([agent("a"), builder.compile()], sequence(["a"]))
    assert 'compile(name="billing")' in fault


@pytest.mark.parametrize("agents", [[], "ab", ()])
def test_a_team_has_agents(agents: Any) -> None:
    assert "at least one agent" in faults(agents, sequence(["a"]))[0]


@pytest.mark.parametrize(
    "name", ["human", "admit", "ask_human", "__start__", "ag.hub", "", "x" * 53]
)
def test_nobody_can_be_called_so(name: str) -> None:
    assert faults([agent("a")], sequence(["a"]), humans=[name])


def test_a_human_cannot_be_called_like_an_agent() -> None:
    assert "rename one" in faults([agent("a")], sequence(["a"]), humans=["A"])[0]


def test_rules_that_never_end_are_refused() -> None:
    rules = TransitionGraph("a", (Transition(Always(), RoundRobinTarget(("a", "b"))),))
    assert "never leaves" in faults([agent("a"), agent("b")], rules, expectations=())[0]


def test_a_stage_whose_agent_is_not_there_is_named() -> None:
    pipeline = ConversationPipeline([PipelineStage("p", "a", "q"), PipelineStage("q", "b")])
    assert any("'b'" in fault for fault in faults([agent("a")], pipeline))


def test_a_team_is_called_after_its_agents() -> None:
    assert Team([agent("a"), agent("b")], sequence(["a", "b"])).name == "a-b"
    assert Team([agent("a")], sequence(["a"]), name="mine").name == "mine"


def test_a_team_can_be_drawn() -> None:
    team = Team([agent("a"), agent("b")], sequence(["a", "b"]))
    assert "a" in team.mermaid()
    assert team.svg().startswith("<svg")


def test_a_team_cannot_be_changed() -> None:
    team = Team([agent("a")], sequence(["a"]))
    with pytest.raises(AttributeError):
        team.name = "other"  # type: ignore[misc]


async def test_a_hub_refuses_two_teams_of_one_name() -> None:
    one, other = (Team([agent("a")], sequence(["a"])) for _ in range(2))
    with pytest.raises(ConfigurationError, match="two that are served are called"):
        await Hub.open(serve=[one, other])
    async with await Hub.open(serve=[one]) as hub:
        with pytest.raises(ConfigurationError, match="two that are served are called"):
            await hub.session(other)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"ttl": "soon"}, "ttl"),
        ({"ttl": -1}, "ttl"),
        ({"invite_timeout": True}, "invite_timeout"),
        ({"context": {"k": object()}}, "context"),
        ({"context": [1]}, "context"),
        ({"expectations": [{"name": "x", "seconds": 1}]}, "expectation"),
    ],
)
async def test_a_session_of_strange_limits_is_refused(fields: dict[str, Any], word: str) -> None:
    team = Team([agent("a")], sequence(["a"]))
    async with await Hub.open(serve=[team]) as hub:
        with pytest.raises(ConfigurationError, match=word):
            await hub.session(team, **fields)
        assert await hub.sessions() == []


@pytest.mark.parametrize("name", ["ag.hub", "", "a b", "human"])
async def test_nobody_who_takes_part_in_a_session_can_be_called_so(name: str) -> None:
    team = Team([agent("a")], sequence(["a"]))
    async with await Hub.open(serve=[team]) as hub:
        with pytest.raises(ConfigurationError):
            await hub.session(team, participants=[name])
        with pytest.raises(ConfigurationError):
            await hub.session(team, creator=name)


async def test_a_participant_cannot_be_called_like_an_agent() -> None:
    team = Team([agent("a")], sequence(["a"]))
    async with await Hub.open(serve=[team]) as hub:
        with pytest.raises(ConfigurationError):
            await hub.session(team, participants=["a"])


def test_all_beside_agents_and_routing_is_given_by_keyword() -> None:
    given: tuple[Any, ...] = ({},)
    with pytest.raises(TypeError, match="positional"):
        Team([agent("a")], sequence(["a"]), *given)


def test_a_supervisor_of_the_routing_whom_nobody_is_is_refused() -> None:
    agents = [agent("a")]
    router = ConversationRouter(default_agent_id="a", supervisor_id="boss")
    pipeline = ConversationPipeline([PipelineStage("intake", "a")], supervisor_id="boss")
    for routing in (router, pipeline):
        (fault,) = faults(agents, routing)
        assert fault.startswith("supervisor_id='boss' of the routing is none of the agents")
        assert "the team 'chief'" in faults(agents, routing, supervisor=agent("chief"))[0]
        assert Team(agents, routing, supervisor=agent("boss")).supervisor_name == "boss"
        assert Team([*agents, agent("boss")], routing).supervisor_name == "boss"
