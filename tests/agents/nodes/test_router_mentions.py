from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from agentgraph import Agent, Reply
from agentgraph.stream import RoutingEvent
from agentgraph.testing import ScriptedModel, call


def says(*texts: str) -> ScriptedModel:
    return ScriptedModel(list(texts))


def root(*agents: Agent, model: ScriptedModel | None = None) -> Agent:
    return Agent("Root", model=model or says("root answers"), agents=agents)


async def routed(agent: Agent, text: str, thread_id: str = "t") -> list[RoutingEvent]:
    stream = agent.astream(text, thread_id=thread_id)
    return [event async for event in stream if isinstance(event, RoutingEvent)]


@pytest.mark.parametrize(
    "text", ["@Sub hi", "@sub, hi", "@SUB: hi", "@Sub\nhi", "@Sub", "  @Sub hi", "@Sub. hi"]
)
async def test_mention_at_the_start_goes_to_that_agent(text: str) -> None:
    sub = Agent("Sub", model=says("sub answers"))

    reply = await root(sub).ainvoke(text)

    assert (reply.text, reply.agent) == ("sub answers", "Root/Sub")


@pytest.mark.parametrize("text", ["hi @Sub", "mail a@Sub", "@ Sub hi", "@Subs hi", "@Sub-eu hi"])
async def test_what_is_no_mention_of_the_agent_stays_with_the_root(text: str) -> None:
    sub = Agent("Sub", model=says())

    reply = await root(sub).ainvoke(text)

    assert (reply.text, reply.agent) == ("root answers", "Root")


async def test_mention_is_read_from_content_blocks() -> None:
    sub = Agent("Sub", model=says("sub answers"))
    message = HumanMessage([{"type": "text", "text": "@Sub hi"}])

    reply = await root(sub).ainvoke(message)

    assert reply.agent == "Root/Sub"


async def test_mention_is_told_as_an_event() -> None:
    events = await routed(root(Agent("Sub", model=says("sub answers"))), "@sub hi")

    assert [(e.kind, e.source, e.target) for e in events] == [("mention", "Root", "Sub")]


async def test_mention_is_sticky() -> None:
    agent = root(Agent("Sub", model=says("one", "two")))

    await agent.ainvoke("@Sub hi", thread_id="t")
    reply = await agent.ainvoke("and now?", thread_id="t")

    assert (reply.text, reply.agent) == ("two", "Root/Sub")


@pytest.mark.parametrize("name", ["@Root", "@root,", "@supervisor", "@Supervisor:"])
async def test_mention_of_the_supervisor_gives_it_the_conversation_back(name: str) -> None:
    agent = root(Agent("Sub", model=says("sub answers")), model=says("back", "still here"))

    await agent.ainvoke("@Sub hi", thread_id="t")
    back = await agent.ainvoke(f"{name} hi", thread_id="t")
    after = await agent.ainvoke("go on", thread_id="t")

    assert [(r.text, r.agent) for r in (back, after)] == [("back", "Root"), ("still here", "Root")]


async def test_agent_called_supervisor_is_meant_by_its_name() -> None:
    agent = root(Agent("Supervisor", model=says("I am the one below")))

    reply = await agent.ainvoke("@supervisor hi")

    assert reply.agent == "Root/Supervisor"


async def test_mention_reaches_a_grandchild_at_its_path() -> None:
    leaf = Agent("Leaf", model=says("leaf answers", "leaf again"))
    agent = root(Agent("Mid", model=says(), agents=[leaf]))

    first = await agent.ainvoke("@leaf hi", thread_id="t")
    second = await agent.ainvoke("more", thread_id="t")

    assert [(r.text, r.agent) for r in (first, second)] == [
        ("leaf answers", "Root/Mid/Leaf"),
        ("leaf again", "Root/Mid/Leaf"),
    ]


@pytest.mark.parametrize(
    "name", ["@Root/Mid/Leaf", "@root/mid/leaf,", "@mid/leaf:", "@LEAF", "@Leaf/", "@leaf- "]
)
async def test_mention_may_be_a_path_as_a_reply_prints_it(name: str) -> None:
    leaf = Agent("Leaf", model=says("leaf answers"))
    agent = root(Agent("Mid", model=says(), agents=[leaf]))

    reply = await agent.ainvoke(f"{name} hi", thread_id="t")

    assert (reply.text, reply.agent) == ("leaf answers", "Root/Mid/Leaf")
    assert (await agent.ahistory("t"))[0].text == f"{name} hi"


@pytest.mark.parametrize("name", ["Root/Leaf", "Other/Leaf", "Leaf/Mid", "Root/Mid/Leaf/More"])
async def test_path_that_does_not_exist_goes_to_the_model_as_written(name: str) -> None:
    leaf = Agent("Leaf", model=says())
    agent = root(Agent("Mid", model=says(), agents=[leaf]), Agent("Other", model=says()))

    events = await routed(agent, f"@{name} hi")

    assert [(e.kind, e.target) for e in events] == [("fallback", "Root")]


async def test_path_of_the_root_alone_gives_it_the_conversation_back() -> None:
    agent = root(Agent("Sub", model=says("sub answers")), model=says("back"))

    await agent.ainvoke("@Root/Sub hi", thread_id="t")
    reply = await agent.ainvoke("@Root hi", thread_id="t")

    assert (reply.text, reply.agent) == ("back", "Root")


async def test_mention_is_read_from_the_text_beside_an_image() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = HumanMessage([image, {"type": "text", "text": "@Sub, what is this?"}])

    reply = await root(Agent("Sub", model=says("sub answers"))).ainvoke(message)

    assert reply.agent == "Root/Sub"


async def test_mention_moves_from_one_branch_to_another() -> None:
    agent = root(Agent("One", model=says("one")), Agent("Two", model=says("two")))

    await agent.ainvoke("@One hi", thread_id="t")
    reply = await agent.ainvoke("@Two hi", thread_id="t")

    assert (reply.text, reply.agent) == ("two", "Root/Two")


async def test_unknown_name_goes_to_the_model_as_written_with_an_event() -> None:
    model = says("who?")
    agent = root(Agent("Sub", model=says()), model=model)

    events = await routed(agent, "@nobody hello")

    assert [(e.kind, e.target) for e in events] == [("fallback", "Root")]
    assert "there is no agent 'nobody'" in events[0].reason
    assert "choose one of Root, Sub" in events[0].reason
    assert model.requests[0].messages[-1].text == "@nobody hello"


async def test_unknown_name_leaves_the_conversation_with_the_active_agent() -> None:
    sub = says("one", "two")
    agent = root(Agent("Sub", model=sub))

    await agent.ainvoke("@Sub hi", thread_id="t")
    reply = await agent.ainvoke("@nobody hello", thread_id="t")

    assert reply.agent == "Root/Sub"
    assert sub.requests[1].messages[-1].text == "@nobody hello"


async def test_mention_answered_by_a_help_request_does_not_route_again() -> None:
    sub = ScriptedModel([call("request_help", reason="not mine")])
    agent = root(Agent("Sub", model=sub), model=says("root helps"))

    reply = await agent.ainvoke("@Sub hi")

    assert (reply.text, reply.agent) == ("root helps", "Root")
    assert len(sub.requests) == 1


async def test_mention_of_an_earlier_turn_does_not_route_again() -> None:
    sub = ScriptedModel([call("request_help")])
    agent = root(Agent("Sub", model=sub), model=says("root helps", "root goes on"))

    await agent.ainvoke("@Sub hi", thread_id="t")
    reply = await agent.ainvoke("thanks", thread_id="t")

    assert (reply.text, reply.agent) == ("root goes on", "Root")


async def test_mention_that_has_been_answered_before_the_input_ends_does_not_route() -> None:
    agent = root(Agent("Sub", model=says()))

    reply = await agent.ainvoke([HumanMessage("@Sub hi"), AIMessage("Sub is out.")])

    assert (reply.text, reply.agent) == ("root answers", "Root")


@pytest.mark.parametrize("name", ["billing", "billing-eu"])
@pytest.mark.parametrize("order", [("billing", "billing-eu"), ("billing-eu", "billing")])
async def test_longest_name_wins(name: str, order: tuple[str, str]) -> None:
    agent = root(*(Agent(one, model=says(f"{one} answers")) for one in order))

    reply = await agent.ainvoke(f"@{name} hi")

    assert (reply.text, reply.agent) == (f"{name} answers", f"Root/{name}")


async def test_stored_text_and_the_models_view_keep_the_mention() -> None:
    model = says("sub answers")
    agent = root(Agent("Sub", model=model))

    await agent.ainvoke("@Sub, hi", thread_id="t")

    assert [m.text for m in await agent.ahistory("t")] == ["@Sub, hi", "sub answers"]
    assert model.requests[0].messages[-1].text == "@Sub, hi"


async def test_message_object_of_the_caller_is_not_changed() -> None:
    message = HumanMessage("@Sub hi")

    await root(Agent("Sub", model=says("sub answers"))).ainvoke(message)

    assert (message.content, message.id) == ("@Sub hi", None)


async def test_mention_inside_a_sub_agents_turn_is_read_at_the_root_only() -> None:
    mid = ScriptedModel([call("transfer_to_Leaf"), "mid"])
    leaf = Agent("Leaf", model=says("leaf answers"))
    agent = root(Agent("Mid", model=mid, agents=[leaf]))

    reply: Reply = await agent.ainvoke("@Mid ask @Root")

    assert reply.agent == "Root/Mid/Leaf"


async def test_mention_without_sub_agents_is_text_like_any_other() -> None:
    model = says("hello")

    reply = await Agent("Solo", model=model).ainvoke("@Solo hi")

    assert (reply.text, reply.agent) == ("hello", "Solo")
    assert model.requests[0].messages[-1].text == "@Solo hi"
