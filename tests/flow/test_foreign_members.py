"""Members of a flow that are no agents of ours: foreign graphs, teams, flows."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from agentgraph import Agent, Team, sequence
from agentgraph.errors import ConfigurationError
from agentgraph.flow import Brief, Flow, Summary
from agentgraph.guards import Guards
from agentgraph.testing import ScriptedModel, call
from tests.flow.planned_work import flow_of, guarded, lead, plan, requests, verdict, worker

GUARDS = [guarded(), guarded("regulated"), None]


class Page(BaseModel):
    title: str


def look(what: str) -> str:
    """Look."""
    return f"{what} seen"


def foreign(name: str, said: Any, **fields: Any) -> Any:
    """Return an agent of LangChain's."""
    return create_agent(ScriptedModel(said), name=name, **{"tools": [], **fields})


def graph_of(name: str, node: Any) -> Any:
    """Return a graph of one node."""
    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile(name=name)


@pytest.mark.parametrize("guards", GUARDS)
async def test_foreign_graphs_teams_and_flows_work(guards: Guards | None) -> None:
    async def speak(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(f"heard {state['messages'][-1].text}")]}

    says: Any = lambda messages: "seen" if messages[-1].type == "tool" else call("look", what="x")  # noqa: E731
    team = Team([worker("t1"), worker("t2")], sequence(["t1", "t2"]), name="team")
    inner: Flow[Any] = Flow(
        "inner", supervisor=lead(plan("x"), "by the flow", verdict()), work=[worker("x")]
    )
    work = [foreign("agent", says, tools=[look]), graph_of("plain", speak), team, inner]
    flow: Flow[Any] = Flow("f", work=work, guards=guards)
    result = await flow.ainvoke("go")
    assert result.text.split("\n\n") == ["seen", "heard go", "t2 is done", "by the flow"]
    assert {path.removeprefix("f/fan_out/") for path in result.usage.by_agent} == {
        "agent", "team/t1", "team/t2", "inner/plan/lead", "inner/fan_out/x", "inner/fan_in/lead",
        "inner/validate/lead",
    }  # fmt: skip


@pytest.mark.parametrize("guards", [guarded(), None])
async def test_foreign_graph_that_fails_or_goes_round_is_a_failed_worker(
    guards: Guards | None,
) -> None:
    async def broken(state: Any) -> dict[str, Any]:
        raise ValueError("broken")

    flow: Flow[Any] = Flow("f", work=[graph_of("g", broken)], guards=guards)
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "schema_failure")
    assert "ValueError: broken" in result.text


async def test_supervisor_may_be_a_foreign_agent() -> None:
    def says(messages: Any) -> str:
        request = str(messages[-1].text)
        if "Plan the work" in request:
            return 'Here: {"briefs": [{"worker": "a", "task": "t"}]}'
        return '{"accepted": true}' if "Judge whether" in request else "the result"

    flow: Flow[Any] = Flow("f", supervisor=foreign("boss", says), work=[worker("a")],
                           guards=guarded())  # fmt: skip
    assert (await flow.ainvoke("go")).text == "the result"


async def test_parts_may_be_teams_and_flows() -> None:
    team = Team([worker("t1"), worker("t2")], sequence(["t1", "t2"]), name="team")
    planned = '{"briefs": [{"worker": "a", "task": "t"}]}'
    planner: Flow[Any] = Flow("planner", work=[worker("p", planned)])
    finisher: Flow[Any] = Flow("finisher", work=[worker("q", '{"title": "Tides"}')], outcome=Page)
    flow: Flow[Page] = Flow("f", work=[worker("a")], plan=planner, aggregate=team,
                            finalize=finisher, outcome=Page, guards=guarded())  # fmt: skip
    result = await flow.ainvoke("go")
    assert (result.status, result.outcome) == ("finished", Page(title="Tides"))
    outputs = [report.output for report in result.stages if report.stage == "fan_in"]
    assert outputs == ["t2 is done"]


@pytest.mark.parametrize("make", ["agent", "foreign", "flow"])
async def test_answer_in_a_form_is_a_summary_whose_artifacts_are_its_fields(make: str) -> None:
    says: Any = lambda messages: call("Page", title="Tides")  # noqa: E731
    workers: dict[str, Any] = {
        "agent": Agent("w", model=ScriptedModel(says), response_format=Page, default_tools=False),
        "foreign": foreign("w", says, response_format=Page),
        "flow": Flow("w", work=[worker("q", '{"title": "Tides"}')], outcome=Page),
    }
    flow: Flow[Any] = Flow("f", work=[workers[make]], guards=guarded())
    result = await flow.ainvoke("go")
    [output] = [report.output for report in result.stages if report.worker]
    assert output["artifacts"] == {"title": "Tides"}


async def test_foreign_worker_answers_in_the_form_of_the_users_summary() -> None:
    class Hits(Summary):
        hits: int

    says = 'Well: {"worker": "me", "text": "two", "hits": 2}'
    flow: Flow[Any] = Flow("f", work=[foreign("w", [says])], summary=Hits, guards=guarded())
    result = await flow.ainvoke("go")
    [output] = [report.output for report in result.stages if report.worker]
    assert (output["worker"], output["hits"]) == ("w", 2)


async def test_part_that_answers_nothing_has_failed() -> None:
    flow = flow_of(plan("a"), "", "", guards=guarded("interactive", replans=0))
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "schema_failure")
    assert "lead has answered nothing" in result.text


@pytest.mark.parametrize("part", ["aggregate", "finalize"])
@pytest.mark.parametrize("answer", [None, " "])
async def test_function_that_answers_nothing_has_failed(part: str, answer: Any) -> None:
    def forgetful(value: Any) -> Any:
        return answer

    parts: Any = {part: forgetful}
    flow: Flow[Any] = Flow("f", work=[worker("a")], guards=guarded("interactive"), **parts)
    result = await flow.ainvoke("go")
    assert (result.status, result.failure_class) == ("aborted", "schema_failure")
    assert "forgetful has answered nothing" in result.text


async def test_peers_without_a_planner_begin_with_the_first() -> None:
    a, b = worker("a", call("transfer_to_b")), worker("b")
    flow: Flow[Any] = Flow("f", work=[a, b], topology="handoff", guards=guarded())
    assert (await flow.ainvoke("go")).text == "b is done"
    assert "go" in requests(b)[0]


def test_briefs_that_nobody_fills_are_refused() -> None:
    class Search(Brief):
        query: str

    with pytest.raises(ConfigurationError, match="nobody fills query: give a supervisor"):
        Flow("f", work=[worker("a")], brief=Search)
