"""Teams whose rules ask a model: before the packet is committed, under the speaker's guards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import MessagesState, StateGraph
from langgraph.types import interrupt

from agentgraph import Guards, Handoff
from agentgraph.errors import ConfigurationError, Quarantined
from agentgraph.routing import (
    ContextEquals,
    FromSpeaker,
    HumanTarget,
    ModelChoice,
    ModelCondition,
    TerminateTarget,
    Transition,
    TransitionGraph,
    default_registry,
    register_model,
)
from agentgraph.sessions import EV_PACKET, EV_TEXT, Draft, Hub, Session, Team
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.state import SessionState
from agentgraph.stream import Event, TokenEvent
from agentgraph.testing import Fault, ScriptedModel, call
from tests.sessions.talk import PATIENCE_S, after, agent, heard, held, of_type, settled, talk

A, USER = FromSpeaker("a"), FromSpeaker("user")


def rules(*pairs: tuple[Any, Any], default: Any = None, **fields: Any) -> TransitionGraph:
    transitions = [Transition(*pair) for pair in pairs]
    return TransitionGraph("a", transitions, default or TerminateTarget("done"), **fields)


def team(graph: TransitionGraph, *first: Any, **fields: Any) -> Team:
    return Team([agent("a", *first), agent("b"), agent("c")], graph, **fields)


def choosing(model: Any, **fields: Any) -> Team:
    return team(rules((A, ModelChoice(model, ["b", "c"], "Who knows tides?"))), **fields)


async def speakers(session: Session) -> list[str]:
    return [name for name, _ in await talk(session)]


async def answers(session: Session) -> list[list[dict[str, Any]]]:
    told = await of_type(session, EV_TEXT, EV_PACKET)
    return [one.event_data["asked"] for one in told if "asked" in one.event_data]


@pytest.mark.parametrize("answer", ["c", "C.", "`c`", '{"speaker": "c"}', "It is c", '"c"'])
async def test_a_model_chooses_who_speaks_next(answer: str) -> None:
    model = ScriptedModel([answer])
    async with held(choosing(model)) as session:
        state = await after(session, "user", "what are tides?")
        assert await speakers(session) == ["user", "a", "c"]
        assert state.pending_close_reason == "done"
        assert await answers(session) == [
            [
                {
                    "model": "object:ScriptedModel",
                    "question": "Who knows tides?",
                    "agents": ["b", "c"],
                    "answer": "c",
                }
            ]
        ]
        shown = heard(model.requests[0].messages)
        assert "[user]: what are tides?\n[a]: a speaks\n" in shown
        assert "Who knows tides?\n- b: does b\n- c: does c" in shown


@pytest.mark.parametrize(
    ("answer", "speaker"), [("Yes.", "b"), ("no", "c"), ("true", "b"), ('{"answer": false}', "c")]
)
async def test_a_model_judges_a_condition(answer: str, speaker: str) -> None:
    graph = rules((A & ModelCondition(ScriptedModel([answer]), "Is it done?"), "b"), (A, "c"))
    async with held(team(graph)) as session:
        await after(session, "user", "hello")
        assert await speakers(session) == ["user", "a", speaker]


@pytest.mark.parametrize("answer", ["zed", "b or c", "", Fault(error=RuntimeError("broken"))])
async def test_where_the_model_has_no_answer_the_next_rule_is_tried(answer: Any) -> None:
    graph = rules((A, ModelChoice(ScriptedModel([answer]), ["b", "c"])), (A, "c"))
    async with held(team(graph)) as session:
        await after(session, "user", "hello")
        assert await speakers(session) == ["user", "a", "c"]
        ((entry,),) = await answers(session)
        assert entry["answer"] is None and entry["failure"]
        packet = (await of_type(session, EV_PACKET))[0]
        assert packet.event_data["decision"]["rule"] == 1
        assert entry["failure"] in str(await session.explain(packet.sequence))


async def test_only_needed_questions_are_asked_and_once_a_turn() -> None:
    model = ScriptedModel(["no", "no"])
    done = ModelCondition(model, "Is it done?")
    graph = rules((FromSpeaker("b") & done, "c"), (A & done, "b"), (A & ~done, "c"))
    async with held(team(graph)) as session:
        await after(session, "user", "hello")
        assert await speakers(session) == ["user", "a", "c"]
        assert len(model.requests) == 1


async def test_a_handoff_asks_nobody() -> None:
    def give() -> Handoff:
        """Give."""
        return Handoff("b")

    model = ScriptedModel(["c"])
    graph = rules((A, ModelChoice(model, ["b", "c"])))
    agents = [agent("a", call("give"), tools=[give]), agent("b"), agent("c")]
    async with held(Team(agents, graph)) as session:
        await after(session, "user", "hello")
        assert await speakers(session) == ["user", "a", "b"]
        assert model.requests == []


async def test_what_is_asked_is_paid_for_by_the_speakers_turn() -> None:
    model = ScriptedModel(["c"])
    async with held(choosing(model)) as session:
        await after(session, "user", "hello")
        packet = (await of_type(session, EV_PACKET))[0].event_data
        assert packet["usage"]["a/rules"]["total_tokens"] > 0
        assert packet["usage"]["a"]["total_tokens"] > 0
        assert [step[0] for step in packet["path"]] == ["a", "rules"]


async def test_a_budget_that_is_used_up_leaves_a_question_without_an_answer() -> None:
    model = ScriptedModel(["c"])
    guards = Guards.interactive(steps=1)
    async with held(choosing(model, guards=guards)) as session:
        await after(session, "user", "hello")
        ((entry,),) = await answers(session)
        assert (entry["answer"], entry["failure"]) == (None, "stopped by max_steps")
        assert model.requests == []


async def test_a_model_is_asked_again_where_its_provider_fails() -> None:
    model = ScriptedModel([Fault.server_error(), "c"])
    async with held(choosing(model)) as session:
        await after(session, "user", "hello")
        assert await speakers(session) == ["user", "a", "c"]


async def test_a_question_about_a_private_turn_is_asked_of_what_its_speaker_may_see() -> None:
    model = ScriptedModel(["c"])
    graph = rules(
        (FromSpeaker("b"), HumanTarget()),
        (USER, "b"),
        (A, ModelChoice(model, ["c"])),
        (FromSpeaker("c"), HumanTarget()),
    )
    async with held(Team([agent(name) for name in "abc"], graph)) as session:
        await after(session, "user", "hello")
        await after(session, "user", "for b alone", audience=["b"])
    assert len(model.requests) == 1


async def test_people_are_routed_by_a_model_before_their_words_are_admitted() -> None:
    model = ScriptedModel(["b", "c"])
    graph = rules((USER, ModelChoice(model, ["b", "c"])), default=HumanTarget())
    async with held(team(graph)) as session:
        await after(session, "user", "hello")
        await after(session, "user", "what are tides?")
        state = await after(session, "user", "and now?")
        assert await speakers(session) == ["user", "a", "user", "b", "user", "c"]
        assert [[entry["answer"] for entry in asked] for asked in await answers(session)] == [
            ["b"],
            ["c"],
        ]
        texts = await of_type(session, EV_TEXT)
        assert texts[1].event_data["usage"]["rules"]["total_tokens"] > 0
        assert "[user]: what are tides?" in heard(model.requests[0].messages)
        assert state.status == "waiting_human"


async def test_a_person_cannot_answer_for_the_model() -> None:
    graph = rules((USER, ModelChoice(ScriptedModel(["b"]), ["b"])), default=HumanTarget())
    two = Team([agent("a"), agent("b")], graph)
    async with held(two) as session:
        await after(session, "user", "hello")
        with pytest.raises(ConfigurationError, match="'asked' is stamped by the session"):
            await session.send("user", Draft(EV_TEXT, {"text": "x", "asked": []}))


async def test_a_group_chat_whose_speakers_a_model_picks() -> None:
    order = iter(["b", "c", "a", "nobody"])
    model = ScriptedModel(lambda _: next(order))
    graph = TransitionGraph("a", [Transition(A | ~A, ModelChoice(model))], max_turns=20)
    async with held(team(graph)) as session:
        state = await after(session, "user", "hello")
        assert await speakers(session) == ["user", "a", "b", "c", "a"]
        assert state.pending_close_reason == "terminated"


async def test_a_log_of_asked_models_folds_without_them() -> None:
    async with held(choosing(ScriptedModel(["c"]))) as session:
        state = await after(session, "user", "hello")
        refolded = fold_all(SessionState.initial(session.record), await session.history())
        assert refolded == state


async def test_the_answers_of_the_rules_are_not_streamed_as_words() -> None:
    model = ScriptedModel(["c"])
    items = [item async for item in choosing(model).astream("hello")]
    tokens = [(item.agent, item.text) for item in items if isinstance(item, TokenEvent)]
    assert {item.agent for item in items if isinstance(item, Event)} == {"a", "c"}
    assert "".join(text for name, text in tokens if name == "c") == "c speaks"


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_a_model_is_asked_in_sessions_that_are_stored(
    tmp_path: Path, durability: Any
) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    desk = choosing(ScriptedModel(["c"]), name="desk", durability=durability)
    async with held(desk, url=url) as session:
        await after(session, "user", "hello")
        assert await speakers(session) == ["user", "a", "c"]


def chat(model: Any) -> Team:
    graph = rules((USER, ModelChoice(model, ["b", "c"])), default=HumanTarget())
    return team(graph, name="desk")


async def test_another_process_restores_rules_with_a_registered_model(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    default_registry()._models.pop("picker", None)
    register_model("picker", ScriptedModel(["b"]))
    async with await Hub.open(url, serve=[chat("picker")]) as hub:
        session = await hub.session("desk")
        await after(session, "user", "hello")
        await after(session, "user", "more")
        assert (await speakers(session))[-1] == "b"
    register_model("picker", ScriptedModel(["c"]))
    other = Team([agent("a"), agent("b"), agent("c")], rules((A, "b"), (FromSpeaker("b"), "c")))
    async with await Hub.open(url, serve=[_named(other, "desk")]) as hub:
        session = await hub.get(session.id)
        await after(session, "user", "and more")
        assert (await speakers(session))[-1] == "c"


def _named(team: Team, name: str) -> Team:
    return Team(team.agents, team.routing, name=name)


async def test_rules_with_a_model_object_run_where_the_team_has_it_and_wait_elsewhere(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    async with await Hub.open(url, serve=[chat(ScriptedModel(["b"]))]) as hub:
        session = await hub.session("desk")
        await after(session, "user", "hello")
    async with await Hub.open(url, serve=[chat(ScriptedModel(["c"]))]) as hub:
        session = await hub.get(session.id)
        await after(session, "user", "more")
        assert (await speakers(session))[-1] == "c"
    other = Team([agent("a"), agent("b"), agent("c")], rules((A, "b"), (FromSpeaker("b"), "c")))
    async with await Hub.open(url, serve=[_named(other, "desk")]) as hub:
        session = await hub.get(session.id)
        with pytest.raises(Quarantined, match=r"ask a ScriptedModel .* register_model"):
            await session.send("user", "and more")
            await session.settled()


@pytest.mark.parametrize("model", ["opnai:gpt-5", "nobody-registered-this"])
def test_a_name_that_is_no_models_is_refused_when_the_team_is_built(model: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the rules ask '{model}'"):
        chat(model)


async def test_a_team_inside_a_team_asks_its_own_model() -> None:
    model = ScriptedModel(["c"])
    inner = choosing(model, name="inner")
    outer = Team([inner], TransitionGraph("inner"), name="outer")
    async with held(outer) as session:
        state = await after(session, "user", "hello")
        assert [text for _, text in await talk(session)] == ["hello", "c speaks"]
        assert state.pending_close_reason == "terminated"
    assert len(model.requests) == 1


async def test_a_teams_graph_without_a_hub_asks_too() -> None:
    model = ScriptedModel(["c"])
    result = await choosing(model).graph.ainvoke({"messages": [("user", "hello")]})
    assert result["messages"][-1].text == "c speaks"


async def test_a_foreign_graph_is_routed_by_a_model() -> None:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("n", lambda state: {"messages": [("ai", "foreign words")]})
    builder.set_entry_point("n")
    graph = rules((A, ModelChoice(ScriptedModel(["c"]), ["b", "c"])))
    mixed = Team([builder.compile(name="a"), agent("b"), agent("c")], graph)
    async with held(mixed) as session:
        await after(session, "user", "hello")
        assert await speakers(session) == ["user", "a", "c"]


@pytest.mark.parametrize("durability", ["round", "step"])
async def test_a_turn_that_asked_a_human_is_routed_by_a_model_after(
    tmp_path: Path, durability: Any
) -> None:
    def ask() -> str:
        """Ask."""
        return f"they said {interrupt('may I?')}"

    model = ScriptedModel(["c"])
    graph = rules((A, ModelChoice(model, ["b", "c"])))
    agents = [agent("a", call("ask"), "so", tools=[ask]), agent("b"), agent("c")]
    desk = Team(agents, graph, durability=durability)
    async with held(desk, url=f"sqlite:///{tmp_path}/s.db") as session:
        (key,) = (await after(session, "user", "hello")).interrupts
        await session.decide(key, "yes")
        await settled(session)
        assert await speakers(session) == ["user", "a", "c"]
        assert len(model.requests) == 1


async def test_a_change_of_the_context_while_the_model_thinks_is_decided_on() -> None:
    thinks, may_answer = asyncio.Event(), asyncio.Event()

    async def think(messages: Any) -> str:
        thinks.set()
        await may_answer.wait()
        return "b"

    graph = rules(
        (A & ContextEquals("urgent", True), ModelChoice(ScriptedModel(["c"]), ["c"], "Who now?")),
        (A, ModelChoice(ScriptedModel(think), ["b", "c"], "Who?")),
    )
    async with held(team(graph)) as session:
        await session.send("user", "hello")
        await thinks.wait()
        await session.set_context("urgent", True)
        may_answer.set()
        await settled(session)
        assert await speakers(session) == ["user", "a", "c"]
        ((first, second),) = await answers(session)
        assert [first["question"], second["question"]] == ["Who?", "Who now?"]


def thinking(who: str, has_begun: asyncio.Event) -> Team:
    """Return a team whose rules ask a model that never answers, about an agent or a person."""

    async def think(messages: Any) -> str:
        has_begun.set()
        await asyncio.Event().wait()
        return "never"

    choice = ModelChoice(ScriptedModel(think), ["b", "c"])
    pairs = [(A, choice), (USER, "a")] if who == "agent" else [(USER, choice)]
    return team(rules(*pairs, default=HumanTarget()), guards=None)


@pytest.mark.parametrize("who", ["agent", "person"])
async def test_a_session_can_be_stopped_while_a_model_is_asked(who: str) -> None:
    has_begun = asyncio.Event()
    desk = thinking(who, has_begun)
    async with asyncio.timeout(PATIENCE_S), held(desk) as session:
        if who == "person":
            await after(session, "user", "hello")
        await session.send("user", "more")
        await has_begun.wait()
        await session.cancel()
        state = await settled(session)
        assert state.status == "waiting_human"
        assert (await talk(session))[-1] == ("user", "more")
        has_begun.clear()
        await session.send("user", "again")
        await has_begun.wait()
        await session.close()
        assert session.state.pending_close_reason == "explicit_close"
