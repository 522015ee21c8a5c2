from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from agentgraph import Agent, Patcher, patched
from agentgraph.errors import ConfigurationError
from agentgraph.graphs.compiled import AnyCompiledGraph, AnyGraph
from agentgraph.graphs.task import read_state
from agentgraph.patching import insert_node, wrap_node
from agentgraph.running import history
from agentgraph.testing import ScriptedModel, call

Inner = Callable[[Any], Awaitable[Any]]


class Tenant(TypedDict, total=False):
    tenant: str


class OwnMessages(MessagesState):
    tenant: str


class Trail(TypedDict, total=False):
    trail: Annotated[list[str], lambda old, new: list(dict.fromkeys([*old, *new]))]


def marks(name: str) -> Patcher:
    return insert_node(
        name,
        lambda state: {"trail": [name]},
        after="continue_conversation",
        before="call_model",
        state=Trail,
    )


def lookup(order: str) -> str:
    """Look an order up."""
    return f"{order} is lost"


async def test_inserted_node_runs_between_routing_and_the_model() -> None:
    seen: list[list[str]] = []

    def look(state: dict[str, Any]) -> dict[str, Any]:
        seen.append([m.text for m in state["messages"]])
        return {"messages": [HumanMessage("(said by the patch)")]}

    model = ScriptedModel(["hello"])
    patch = insert_node("look", look, after="continue_conversation", before="call_model")

    await Agent("Solo", model=model, patcher=patch).ainvoke("hi")

    assert seen == [["hi"]]
    assert [m.text for m in model.requests[0].messages[1:]] == ["hi", "(said by the patch)"]


async def test_inserted_node_runs_again_after_a_help_request() -> None:
    runs: list[str] = []
    patch = insert_node(
        "count", lambda _: runs.append("run"), after="continue_conversation", before="call_model"
    )
    sub = Agent("Sub", model=ScriptedModel([call("request_help")]))
    model = ScriptedModel([call("transfer_to_Sub"), "root helps"])

    await Agent("Root", model=model, agents=[sub], patcher=patch).ainvoke("hi")

    assert runs == ["run", "run"]


async def test_wrapped_node_sees_what_goes_in_and_comes_out() -> None:
    results: list[Any] = []

    async def watch(state: Any, inner: Inner) -> Any:
        result = await inner(state)
        results.append(result)
        return result

    agent = Agent("Solo", model=ScriptedModel(["hello"]), patcher=wrap_node("call_model", watch))

    reply = await agent.ainvoke("hi")

    assert reply.text == "hello"
    assert [type(result) for result in results] == [Command]


async def test_wrapper_may_answer_in_the_nodes_place() -> None:
    async def refuse(state: Any, inner: Inner) -> Command[str]:
        return Command(goto=END, update={"messages": [AIMessage("Not today.")]})

    model = ScriptedModel([])

    reply = await Agent("Solo", model=model, patcher=wrap_node("call_model", refuse)).ainvoke("hi")

    assert (reply.text, model.requests) == ("Not today.", [])


async def test_wrapper_lets_a_parallel_tool_call_through() -> None:
    runs: list[str] = []

    async def watch(state: Any, inner: Inner) -> Any:
        runs.append("run")
        return await inner(state)

    both = [call("lookup", order="A7"), call("lookup", order="B8")]
    model = ScriptedModel([both, "done"])
    agent = Agent("Solo", model=model, tools=[lookup], patcher=wrap_node("call_tools", watch))

    reply = await agent.ainvoke("hi")

    assert reply.text == "done"
    assert [m.text for m in model.requests[1].messages[-2:]] == ["A7 is lost", "B8 is lost"]
    assert len(runs) == 2


async def test_wrapper_lets_an_interrupt_through() -> None:
    def approve() -> str:
        """Ask a human."""
        return str(interrupt("may I?"))

    async def watch(state: Any, inner: Inner) -> Any:
        return await inner(state)

    model = ScriptedModel([call("approve"), "done"])
    agent = Agent("Solo", model=model, tools=[approve], patcher=wrap_node("call_tools", watch))

    waiting = await agent.ainvoke("hi", thread_id="t")
    reply = await agent.aresume("t", {waiting.interrupts[0].id: "yes"})

    assert [i.payload for i in waiting.interrupts] == ["may I?"]
    assert reply.text == "done"
    assert model.requests[1].messages[-1].text == "yes"


async def test_patchers_are_applied_in_their_order() -> None:
    first, second = (
        marks("first"),
        insert_node(
            "second",
            lambda _: {"trail": ["second"]},
            after="first",
            before="call_model",
            state=Trail,
        ),
    )
    agent = Agent(
        "Solo",
        model=ScriptedModel(["hello"]),
        patcher=[first, second],
        checkpointer=InMemorySaver(),
    )

    await agent.ainvoke("hi", thread_id="t")

    state = await agent.graph.aget_state({"configurable": {"thread_id": "t"}})
    assert state.values["trail"] == ["first", "second"]


async def test_last_of_several_wrappers_is_the_outermost() -> None:
    order: list[str] = []

    def around(name: str) -> Patcher:
        async def wrapper(state: Any, inner: Inner) -> Any:
            order.append(name)
            return await inner(state)

        return wrap_node("call_model", wrapper)

    agent = Agent("Solo", model=ScriptedModel(["hello"]), patcher=[around("in"), around("out")])

    await agent.ainvoke("hi")

    assert order == ["out", "in"]


async def test_plain_function_in_the_seeds_style_is_a_patcher() -> None:
    runs: list[str] = []

    def audit(state: MessagesState) -> dict[str, Any]:
        runs.append(state["messages"][-1].text)
        return {}

    def patch(graph: AnyGraph) -> AnyGraph:
        graph.edges.discard(("render_system_prompt", "router"))
        graph.add_node("audit", audit)
        graph.add_edge("render_system_prompt", "audit")
        graph.add_edge("audit", "router")
        return graph

    reply = await Agent("Solo", model=ScriptedModel(["hello"]), patcher=patch).ainvoke("hi")

    assert (reply.text, runs) == ("hello", ["hi"])


def test_node_whose_state_clashes_with_the_graphs_is_told_so() -> None:
    def audit(state: OwnMessages) -> dict[str, Any]:
        return {}

    agent = Agent(
        "Solo",
        model=ScriptedModel([]),
        patcher=insert_node("audit", audit, after="continue_conversation", before="call_model"),
    )

    with pytest.raises(ConfigurationError, match="Leave the node's state unannotated"):
        _ = agent.graph


async def test_patched_state_crosses_into_sub_agents_and_out_of_them() -> None:
    def enter(state: Any) -> dict[str, str]:
        return {"tenant": "acme"}

    seen: list[Any] = []

    def read(state: Any) -> dict[str, str]:
        seen.append(state.get("tenant"))
        return {"tenant": "changed below"}

    edge = {"after": "continue_conversation", "before": "call_model"}
    sub = Agent(
        "Sub",
        model=ScriptedModel(["sub answers"]),
        patcher=insert_node("read", read, **edge, state=Tenant),
    )
    agent = Agent(
        "Root",
        model=ScriptedModel([call("transfer_to_Sub")]),
        agents=[sub],
        patcher=insert_node("enter", enter, **edge, state=Tenant),
        checkpointer=InMemorySaver(),
    )

    await agent.ainvoke("hi", thread_id="t")

    state = await agent.graph.aget_state({"configurable": {"thread_id": "t"}})
    assert seen == ["acme"]
    assert state.values["tenant"] == "changed below"


async def test_patched_state_passes_through_a_level_that_does_not_know_it() -> None:
    leaf = Agent("Leaf", model=ScriptedModel(["leaf answers"]), patcher=marks("leaf"))
    mid = Agent("Mid", model=ScriptedModel([call("transfer_to_Leaf")]), agents=[leaf])
    agent = Agent(
        "Root",
        model=ScriptedModel([call("transfer_to_Mid")]),
        agents=[mid],
        patcher=marks("root"),
        checkpointer=InMemorySaver(),
    )

    await agent.ainvoke("hi", thread_id="t")

    state = await agent.graph.aget_state({"configurable": {"thread_id": "t"}})
    assert state.values["trail"] == ["root", "leaf"]


async def test_patched_state_of_parallel_delegates_is_merged() -> None:
    below = [
        Agent(name, model=ScriptedModel([f"{name} answers"]), patcher=marks(name.lower()))
        for name in ("One", "Two")
    ]
    model = ScriptedModel([[call("transfer_to_One"), call("transfer_to_Two")], "done"])
    agent = Agent(
        "Root",
        model=model,
        agents=below,
        handoff="delegate",
        patcher=marks("root"),
        checkpointer=InMemorySaver(),
    )

    await agent.ainvoke("hi", thread_id="t")

    state = await agent.graph.aget_state({"configurable": {"thread_id": "t"}})
    assert sorted(state.values["trail"]) == ["one", "root", "two"]


async def test_patched_state_is_kept_from_turn_to_turn() -> None:
    seen: list[Any] = []

    def read(state: Any) -> dict[str, str]:
        seen.append(state.get("tenant"))
        return {"tenant": "acme"}

    patch = insert_node(
        "read", read, after="continue_conversation", before="call_model", state=Tenant
    )
    agent = Agent("Solo", model=ScriptedModel(["one", "two"]), patcher=patch)

    await agent.ainvoke("hi", thread_id="t")
    await agent.ainvoke("hi", thread_id="t")

    assert seen == [None, "acme"]


async def test_patcher_holds_for_its_own_level_only() -> None:
    runs: list[str] = []
    patch = insert_node(
        "count", lambda _: runs.append("run"), after="continue_conversation", before="call_model"
    )
    sub = Agent("Sub", model=ScriptedModel(["sub answers"]))

    await Agent("Root", model=ScriptedModel([]), agents=[sub], patcher=patch).ainvoke("@Sub hi")

    assert runs == []


async def test_patch_of_a_sub_agent_reads_the_whole_history() -> None:
    seen: list[list[str]] = []

    def read(state: Any) -> dict[str, Any]:
        messages: list[AnyMessage] = history(state)
        seen.append([m.text for m in messages])
        return {}

    patch = insert_node("read", read, after="continue_conversation", before="call_model")
    sub = Agent("Sub", model=ScriptedModel(["one", "two"]), patcher=patch)
    agent = Agent("Root", model=ScriptedModel([]), agents=[sub])

    await agent.ainvoke("@Sub first", thread_id="t")
    await agent.ainvoke("second", thread_id="t")

    assert seen == [["@Sub first"], ["@Sub first", "one", "second"]]


def test_node_cannot_be_inserted_where_there_is_no_edge() -> None:
    patch = insert_node("look", lambda _: {}, after="router", before="call_model")
    agent = Agent("Solo", model=ScriptedModel([]), patcher=patch)

    with pytest.raises(ConfigurationError) as caught:
        _ = agent.graph

    assert "'look' cannot stand between 'router' and 'call_model'" in str(caught.value)
    assert "continue_conversation → call_model" in str(caught.value)


def test_node_that_is_not_there_cannot_be_wrapped() -> None:
    async def wrapper(state: Any, inner: Inner) -> Any:
        return await inner(state)

    agent = Agent("Solo", model=ScriptedModel([]), patcher=wrap_node("call_modle", wrapper))

    with pytest.raises(ConfigurationError) as caught:
        _ = agent.graph

    assert "no node 'call_modle' to wrap" in str(caught.value)
    assert "call_model," in str(caught.value)


def test_patcher_that_forgets_to_return_the_graph_is_told_so() -> None:
    agent = Agent("Solo", model=ScriptedModel([]), patcher=lambda graph: None)  # type: ignore[arg-type,return-value]  # what the test is about

    with pytest.raises(ConfigurationError, match="returned NoneType: return the graph"):
        _ = agent.graph


def test_state_that_is_no_typed_dict_is_refused() -> None:
    class Loose:
        tenant: str

    patch = Patcher(lambda graph: graph, state=Loose)
    agent = Agent("Solo", model=ScriptedModel([]), patcher=patch)

    with pytest.raises(ConfigurationError, match="'Loose' cannot be merged: declare it as a Typed"):
        _ = agent.graph


async def test_foreign_graph_is_patched_and_the_original_unchanged() -> None:
    model = ScriptedModel(["original", "patched"])
    original: AnyCompiledGraph = create_agent(
        model, [lookup], name="Foreign", checkpointer=InMemorySaver()
    )
    nodes = set(original.builder.nodes)

    async def loud(state: Any, inner: Inner) -> Any:
        result = await inner(state)
        return {**result, "tenant": "acme"} if isinstance(result, dict) else result

    copy = patched(original, wrap_node("model", loud, state=Tenant), marks_before_model())
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    first = await original.ainvoke({"messages": [("user", "hi")]}, config)
    second = await copy.ainvoke({"messages": [("user", "again")]}, config)

    assert first["messages"][-1].text == "original"
    assert "trail" not in first
    assert [m.text for m in second["messages"]] == ["hi", "original", "again", "patched"]
    assert second["trail"] == ["mark"]
    assert set(original.builder.nodes) == nodes
    assert copy.name == "Foreign"


def marks_before_model() -> Patcher:
    return insert_node(
        "mark", lambda _: {"trail": ["mark"]}, after=START, before="model", state=Trail
    )


async def test_patched_foreign_graph_can_be_a_sub_agent() -> None:
    copy = patched(create_agent(ScriptedModel(["foreign"]), name="Foreign"), marks_before_model())

    reply = await Agent("Root", model=ScriptedModel([]), agents=[copy]).ainvoke("@Foreign hi")

    assert (reply.text, reply.agent) == ("foreign", "Root/Foreign")


async def test_agents_own_graph_can_be_patched_as_well() -> None:
    agent = Agent("Solo", model=ScriptedModel(["hello"]))
    before = set(agent.graph.builder.nodes)

    copy = patched(agent.graph, marks("mark"))
    result = await copy.ainvoke(
        {"messages": [("user", "hi")]}, {"configurable": {"thread_id": "t"}}
    )

    assert result["trail"] == ["mark"]
    assert set(agent.graph.builder.nodes) == before


async def test_state_can_be_read_in_a_task_started_by_a_send() -> None:
    class Fan(TypedDict, total=False):
        tenant: str
        trail: Annotated[list[str], lambda old, new: [*old, *new]]

    async def work(state: Any, config: RunnableConfig) -> dict[str, list[str]]:
        return {"trail": [f"{state['n']} {read_state(config, ('tenant',))['tenant']}"]}

    builder: AnyGraph = StateGraph(Fan)
    builder.add_node("split", lambda _: Command(goto=[Send("work", {"n": n}) for n in (1, 2)]))
    builder.add_node("work", work)
    builder.add_edge(START, "split")

    result = await builder.compile().ainvoke({"tenant": "acme"})

    assert sorted(result["trail"]) == ["1 acme", "2 acme"]
