"""`agent.graph` and patched graphs, run by LangGraph's synchronous methods."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from agentgraph import Agent, Guards, effect, patched
from agentgraph.blocking import background_loop, run_sync
from agentgraph.graphs.compiled import AnyCompiledGraph
from agentgraph.testing import ScriptedModel, call

FILE = "agents.db"


def ask(question: str) -> str:
    """Ask a human."""
    return f"the human says {interrupt(question)}"


async def look_up(name: str) -> str:
    """Look up, asynchronously."""
    return f"{name} is 7"


def desk(checkpointer: Any = None, *, handoff: Any = "sticky", guards: Any = "default") -> Agent:
    clerk_answers: list[Any] = [[call("ask", question="ok?"), call("look_up", name="x")], "Paid."]
    clerk_model = ScriptedModel(clerk_answers)
    clerk = Agent("clerk", "Pays", model=clerk_model, tools=[ask, look_up])
    answers: list[Any] = [
        call("transfer_to_clerk"),
        *(["All done."] if handoff == "delegate" else []),
    ]
    options: dict[str, Any] = {} if guards == "default" else {"guards": guards}
    return Agent(
        "desk",
        model=ScriptedModel(answers),
        agents=[clerk],
        handoff=handoff,
        checkpointer=checkpointer,
        **options,
    )


@contextmanager
def saver_of(kind: str, folder: Path) -> Iterator[Any]:
    """Open a saver of a kind: one that is synchronous only, or one that is bound to a loop."""
    if kind == "memory":
        yield InMemorySaver()
    elif kind == "sqlite":
        yield SqliteSaver(sqlite3.connect(folder / FILE, check_same_thread=False))
    elif kind == "url":
        yield f"sqlite:///{folder / FILE}"
    else:
        with background_loop() as loop:
            opening = AsyncSqliteSaver.from_conn_string(str(folder / FILE))
            saver = run_sync(opening.__aenter__(), loop)
            try:
                yield saver
            finally:
                run_sync(opening.__aexit__(None, None, None), loop)


@pytest.fixture(params=["memory", "sqlite", "url", "sqlite of a loop"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with saver_of(request.param, tmp_path) as opened:
        yield opened


CONFIG: Any = {"configurable": {"thread_id": "t"}}
TOLD = ["the human says yes", "x is 7"]


def texts(result: Any, kind: str = "tool") -> list[str]:
    return [m.text for m in result["messages"] if m.type == kind and "transfer" not in m.text]


@pytest.mark.parametrize("guards", ["default", None])
def test_a_graph_is_invoked_interrupted_and_resumed(saver: Any, guards: Any) -> None:
    graph = desk(saver, guards=guards).graph
    asked = graph.invoke({"messages": "pay"}, CONFIG)
    assert [question.value for question in asked["__interrupt__"]] == ["ok?"]
    assert graph.get_state(CONFIG).next == ("clerk",)

    done = graph.invoke(Command(resume="yes"), CONFIG)

    assert texts(done) == TOLD
    assert (done["messages"][-1].text, done["current_active_agent"]) == ("Paid.", "clerk")


def test_a_graph_is_streamed_with_its_sub_graphs(saver: Any) -> None:
    graph = desk(saver).graph
    parts = [*graph.stream({"messages": "pay"}, CONFIG, stream_mode="updates", subgraphs=True)]
    parts += graph.stream(Command(resume="yes"), CONFIG, stream_mode="updates", subgraphs=True)

    nodes = [(bool(namespace), node) for namespace, update in parts for node in update]
    assert (True, "call_model") in nodes
    assert nodes[-1] == (False, "clerk")


def test_delegates_run_in_parallel_on_one_loop(saver: Any) -> None:
    loops = []

    async def note() -> str:
        """Note the loop."""
        loops.append(asyncio.get_running_loop())
        return "noted"

    helpers = [
        Agent(name, "Helps", model=ScriptedModel([call("note"), f"{name} done"]), tools=[note])
        for name in ("one", "two")
    ]
    model = ScriptedModel([[call("transfer_to_one"), call("transfer_to_two")], "Both did."])
    boss = Agent("boss", model=model, agents=helpers, handoff="delegate", checkpointer=saver)

    result = boss.graph.invoke({"messages": "go"}, CONFIG)

    assert result["messages"][-1].text == "Both did."
    assert len(loops) == 2
    assert len(set(loops)) == 1


def test_an_agent_is_a_node_of_a_graph_that_is_run_synchronously(saver: Any) -> None:
    if isinstance(saver, str):
        return  # a URL is no saver to LangGraph
    builder = StateGraph(MessagesState).add_node("desk", desk().graph).add_edge(START, "desk")
    graph: AnyCompiledGraph = builder.compile(checkpointer=saver)
    asked = graph.invoke({"messages": "pay"}, CONFIG)
    assert [question.value for question in asked["__interrupt__"]] == ["ok?"]

    done = graph.invoke(Command(resume="yes"), CONFIG)

    assert texts(done) == TOLD
    assert done["messages"][-1].text == "Paid."


def test_an_action_that_asks_a_human_runs_once(saver: Any) -> None:
    paid = []

    @effect()
    def pay() -> str:
        """Pay."""
        answer = interrupt("pay?")
        paid.append(answer)
        return "paid"

    agent = Agent("a", model=ScriptedModel([call("pay"), "Done."]), tools=[pay], checkpointer=saver)
    agent.graph.invoke({"messages": "go"}, CONFIG)
    done = agent.graph.invoke(Command(resume="yes"), CONFIG)

    assert (paid, done["messages"][-1].text) == (["yes"], "Done.")


class Synchronous(AgentMiddleware[Any, Any]):
    """Middleware without asynchronous methods, which LangChain refuses in asynchronous runs."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request)

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(request)


def test_a_patched_graph_runs_its_nodes_synchronously_where_the_graph_does(saver: Any) -> None:
    if isinstance(saver, str):
        return
    model = ScriptedModel([call("ask", question="ok?"), "Paid."])
    compiled = create_agent(model, tools=[ask], middleware=[Synchronous()], checkpointer=saver)
    graph = patched(compiled, Guards.interactive())

    [*_, last] = graph.stream({"messages": "pay"}, CONFIG, stream_mode="updates")
    assert [question.value for question in last["__interrupt__"]] == ["ok?"]
    done = graph.invoke(Command(resume="yes"), CONFIG)

    assert texts(done) == ["the human says yes"]
    assert done["messages"][-1].text == "Paid."


def test_a_foreign_graph_below_an_agent_runs_synchronously_too(saver: Any) -> None:
    model = ScriptedModel([call("ask", question="ok?"), "Paid."])
    payer = create_agent(model, tools=[ask], middleware=[Synchronous()], name="payer")
    model = ScriptedModel([call("transfer_to_payer")])
    graph = Agent("desk", model=model, agents=[payer], checkpointer=saver).graph

    graph.invoke({"messages": "pay"}, CONFIG)
    done = graph.invoke(Command(resume="yes"), CONFIG)

    assert done["messages"][-1].text == "Paid."
