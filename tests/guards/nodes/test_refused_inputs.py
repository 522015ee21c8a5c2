"""`Gate(input=…)`: what a user says is judged before the first model call, wherever it is said."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_supervisor import create_supervisor

from agentgraph import Agent, Guards, Hub, Team, patched, sequence
from agentgraph.errors import ConfigurationError
from agentgraph.guards import DEFAULT, AuditTrail, Gate, MemorySink, Subject
from agentgraph.stream import TokenEvent
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import audited, recorded, solo, stopped_by, streamed

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent")
asked: list[str] = []


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    asked.clear()


def no_secrets(subject: Subject) -> str | None:
    asked.append(subject.text)
    return "secrets stay out" if "secret" in subject.text else None


def guards(**fields: Any) -> Guards:
    return Guards(gates=Gate(input=no_secrets), **fields)


def texts_seen(model: ScriptedModel) -> str:
    return " ".join(str(m.text) for request in model.requests for m in request.messages)


async def test_a_refused_input_ends_the_run_with_the_reason_and_reaches_no_model() -> None:
    sink, model = MemorySink(), ScriptedModel(["Hello."])
    agent = solo(model, guards=guards(audit=AuditTrail(sink)))
    events = await streamed(agent, "my secret")

    assert not model.requests
    assert not [event for event in events if isinstance(event, TokenEvent)]
    end: Any = events[-1]
    assert end.close_reason == "gate:input" and "secrets stay out" in end.text
    assert audited(sink) == [("a", "gate", "abort")]
    assert [record.kind for record in recorded(sink, "gate", "model")] == ["gate"]


async def test_a_later_turn_does_not_show_the_refused_words_to_the_model() -> None:
    model = ScriptedModel(["Hello."])
    agent = solo(model, guards=guards())
    await agent.ainvoke("my secret", thread_id="t")

    assert (await agent.ainvoke("hi", thread_id="t")).text == "Hello."
    assert "my secret" not in texts_seen(model)
    assert "A message was refused" in (await agent.ahistory("t"))[0].text


async def test_an_input_is_judged_once_however_often_models_are_asked() -> None:
    model = ScriptedModel([call("look", what="x"), call("look", what="y"), "Done."])
    assert (await solo(model, guards=guards()).ainvoke("look")).text == "Done."
    assert asked == ["look"]


async def test_a_schema_judges_what_is_said_as_json() -> None:
    schema = {"type": "object", "required": ["order"], "properties": {"order": {"type": "integer"}}}
    agent = solo(ScriptedModel(["Shipped."]), guards=Guards(gates=Gate(input=schema)))

    assert (await agent.ainvoke('{"order": 7}')).text == "Shipped."
    refusal = await agent.ainvoke("where is it?")
    assert refusal.close_reason == "gate:input" and "Invalid JSON" in refusal.text


async def test_a_gate_on_the_input_alone_judges_no_answer() -> None:
    model = ScriptedModel(["The secret is out."])
    events = await streamed(solo(model, guards=guards()), "go")
    assert [event for event in events if isinstance(event, TokenEvent)], "answers are streamed"
    assert asked == ["go"]


async def test_an_async_judge_that_raises_refuses() -> None:
    async def broken(subject: Subject) -> bool:
        raise OSError("no connection")

    model = ScriptedModel(["Hello."])
    reply = await solo(model, guards=Guards(gates=Gate(input=broken))).ainvoke("go")
    assert reply.close_reason == "gate:input" and not model.requests


async def test_a_mention_leads_no_refused_words_to_an_agent_below() -> None:
    below = Agent("below", "helps", model=ScriptedModel(["I am below."]))
    top = Agent("top", model=ScriptedModel(["I am top."]), agents=[below], guards=guards())

    assert (await top.ainvoke("@below my secret")).close_reason == "gate:input"
    assert (await top.ainvoke("@below hi")).text == "I am below."


async def test_an_agent_below_may_judge_what_reaches_it() -> None:
    model = ScriptedModel(["I am below."])
    below = Agent("below", "helps", model=model, guards=guards())
    says = ScriptedModel(lambda messages: call("transfer_to_below"))
    top = Agent("top", model=says, agents=[below])

    refusal = await top.ainvoke("my secret", thread_id="t")
    assert refusal.close_reason == "gate:input" and not model.requests
    assert (await top.ainvoke("hi", thread_id="t")).text == "I am below."
    assert "my secret" not in texts_seen(model)


@pytest.mark.parametrize("of_team", [True, False])
async def test_a_team_judges_what_is_said_to_it(of_team: bool) -> None:
    ann = ScriptedModel(["I am ann."])
    bob = ScriptedModel(["I am bob."])
    own, outer = (DEFAULT, guards()) if of_team else (guards(), DEFAULT)
    speakers = [Agent("ann", model=ann, guards=own), Agent("bob", model=bob)]
    team = Team(speakers, sequence(["ann", "bob"]), guards=outer)

    result = await team.arun("my secret")
    assert result.close_reason == "gate:input" and "secrets stay out" in result.text
    assert not ann.requests and not bob.requests
    assert (await team.arun("hi")).text == "I am bob."
    assert asked == ["my secret", "hi"], "once each, and not as the speaker's view has it"


async def test_a_session_goes_on_without_the_refused_words() -> None:
    model = ScriptedModel(["Hello."])
    hub = await Hub.open(serve=[solo(model, guards=guards())])
    session = await hub.session("a")
    refusal = await session.ask("my secret")
    assert refusal.close_reason == "gate:input" and "secrets stay out" in refusal.text

    assert (await session.ask("hi")).text == "Hello."
    assert "my secret" not in texts_seen(model)
    await hub.aclose()


def plain(model: ScriptedModel) -> Any:
    return create_agent(model, [])


def nested(model: ScriptedModel) -> Any:
    clerk = create_agent(ScriptedModel(["Done."]), [], name="clerk")
    return create_supervisor([clerk], model=model).compile()


def hidden(model: ScriptedModel) -> Any:
    async def think(state: MessagesState) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState).add_node("think", think).add_edge(START, "think")
    return builder.add_node("call_model", plain(ScriptedModel(["More."]))).compile()


@pytest.mark.parametrize("make", [plain, nested, hidden])
async def test_a_foreign_graph_judges_what_is_said_to_it(make: Any) -> None:
    model = ScriptedModel(["Hello."])
    graph = patched(make(model), guards())
    refusal = await graph.ainvoke({"messages": [HumanMessage("my secret")]})

    assert stopped_by(refusal) == "gate:input" and not model.requests
    assert "secrets stay out" in refusal["messages"][-1].text
    answer = await graph.ainvoke({"messages": [HumanMessage("hi")]})
    assert answer["messages"][-1].text == "Hello."


async def test_a_thread_of_a_foreign_graph_goes_on_without_the_refused_words() -> None:
    model = ScriptedModel(["Hello."])
    graph = patched(create_agent(model, [], checkpointer=InMemorySaver()), guards())
    config: Any = {"configurable": {"thread_id": "t"}}
    await graph.ainvoke({"messages": [HumanMessage("my secret")]}, config)
    await graph.ainvoke({"messages": [HumanMessage("hi")]}, config)
    assert "my secret" not in texts_seen(model)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"pay": {"type": "object"}}, "give a JSON Schema for what is said"),
        ({"type": "objekt"}, "Gate(input={…}): this is no JSON Schema"),
        ("polite", "Gate(input='polite'): give a function of a Subject"),
        (lambda: True, "let it take that alone"),
        (int, "Gate(input=<class 'int'>)"),
    ],
)
def test_what_cannot_judge_an_input_is_refused(value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Gate(input=value)
    [fault] = caught.value.faults
    assert words in fault


EARLIER: Any = [("user", "my secret"), ("assistant", "No."), ("user", "hello")]


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_message_of_an_input_is_judged_whatever_stands_between(turn: int) -> None:
    model = ScriptedModel(lambda _: "Hello.")
    agent = solo(model, guards=guards())
    if turn == 2:
        await agent.ainvoke("hello", thread_id="t")
    reply = await agent.ainvoke({"messages": EARLIER}, thread_id="t")
    assert reply.close_reason == "gate:input"
    assert (await agent.ainvoke("go on", thread_id="t")).text == "Hello."
    assert "my secret" not in texts_seen(model)


@pytest.mark.parametrize("kind", ["agent", "foreign"])
async def test_a_conversation_that_no_thread_has_is_judged_whole(kind: str) -> None:
    model = ScriptedModel(lambda _: "Hello.")
    graph: Any = solo(model, guards=guards(), checkpointer=InMemorySaver()).graph
    if kind == "foreign":
        graph = patched(create_agent(model, []), guards())
    config: Any = {"configurable": {"thread_id": "t"}}
    result = await graph.ainvoke({"messages": EARLIER}, config)
    assert stopped_by(result) == "gate:input"
    assert not model.requests


async def test_messages_of_earlier_inputs_are_not_judged_again() -> None:
    agent = solo(ScriptedModel(lambda _: "Hello."), guards=guards())
    for said in ("one", "two", "three"):
        await agent.ainvoke(said, thread_id="t")
    assert asked == ["one", "two", "three"]
