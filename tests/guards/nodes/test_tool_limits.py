"""Limits on calls of single tools: for an input or a thread, on all levels, over retries."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, Guards, Team, patched
from agentgraph.errors import ConfigurationError
from agentgraph.guards import MemorySink, ToolLimit
from agentgraph.routing import sequence
from agentgraph.sessions import EV_AUDIT
from agentgraph.testing import ScriptedModel, call
from tests.guards.guarded_agents import answers, audited, elsewhere, is_legal, solo, watched
from tests.sessions.talk import after, held, of_type


class Till:
    """A till with a tool to pay."""

    def __init__(self, *, fails: bool = False) -> None:
        self.paid: list[str] = []
        self.fails = fails

    @property
    def tool(self) -> Any:
        def pay(what: str) -> str:
            """Pay."""
            self.paid.append(what)
            if self.fails:
                raise ToolException("the bank is closed")
            return f"paid {what}"

        return pay


PAYS: list[Any] = [call("pay", what="tea"), call("pay", what="milk"), "Done."]
REFUSED = "Not executed: `pay` was called 1 times for one input; 1 are allowed"


async def test_calls_beyond_the_limit_are_refused_and_the_run_goes_on() -> None:
    till, sink = Till(), MemorySink()
    guards = watched(sink, tool_limit={"pay": 1})
    agent = solo(ScriptedModel(PAYS), till.tool, name="a", guards=guards)
    assert (await agent.ainvoke("go", thread_id="t")).text == "Done."
    assert till.paid == ["tea"]
    history = await agent.ahistory("t")
    assert answers(history)[0] == "paid tea"
    assert answers(history)[1].startswith(REFUSED)
    assert audited(sink) == [("a", "tool_limit", "deny")]
    assert is_legal(history)


async def test_parallel_calls_of_one_message_share_the_limit() -> None:
    till = Till()
    asks = [call("pay", what=str(n)) for n in range(5)]
    agent = solo(ScriptedModel([asks, "Done."]), till.tool, guards=watched(tool_limit={"pay": 2}))
    await agent.ainvoke("go", thread_id="t")
    assert len(till.paid) == 2
    assert sum("Not executed" in text for text in answers(await agent.ahistory("t"))) == 3


@pytest.mark.parametrize("kind", ["delegate", "as a tool", "sticky", "team", "run in a tool"])
async def test_the_limit_holds_on_all_levels_together(kind: str) -> None:
    till = Till()
    below = solo(ScriptedModel([*PAYS]), till.tool, name="sub")
    turns: list[Any] = [call("pay", what="jam"), call("transfer_to_sub"), "Done."]
    fields: dict[str, Any] = {"agents": [below], "handoff": "delegate"}
    tools = [till.tool]
    if kind == "sticky":
        fields["handoff"] = "sticky"
    elif kind == "as a tool":
        turns[1], fields = call("sub", request="go"), {"agents": [below.as_tool()]}
    elif kind == "team":
        team = Team([below], sequence(["sub"]), name="crew")
        turns[1], fields["agents"] = call("transfer_to_crew"), [team]
    elif kind == "run in a tool":

        async def ask() -> str:
            """Ask the other."""
            return (await below.ainvoke("go")).text

        turns[1], fields, tools = call("ask"), {}, [till.tool, ask]
    guards = watched(tool_limit={"pay": 2})
    agent = Agent("boss", model=ScriptedModel(turns), tools=tools, guards=guards, **fields)
    assert (await agent.ainvoke("go")).text == "Done."
    assert till.paid == ["jam", "tea"]


@pytest.mark.parametrize("per", ["input", "thread"])
async def test_the_next_input_of_a_thread_has_its_own_calls_or_none(per: Any) -> None:
    till, saver = Till(), InMemorySaver()
    guards = watched(tool_limit=ToolLimit({"pay": 1}, per=per))
    for _ in range(3):
        model = ScriptedModel([call("pay", what="tea"), "Done."])
        agent = solo(model, till.tool, guards=guards, checkpointer=saver)
        await agent.ainvoke("go", thread_id="t")
        gc.collect()
    assert len(till.paid) == (3 if per == "input" else 1)
    await agent.replace(model=ScriptedModel(PAYS)).ainvoke("go", thread_id="other")
    assert len(till.paid) == (4 if per == "input" else 2)


@pytest.mark.parametrize("per", ["input", "thread"])
async def test_a_session_counts_for_an_input_or_for_all_of_it(per: Any) -> None:
    till = Till()
    turns: list[Any] = [call("pay", what="tea"), "Paid."] * 3
    guards = watched(tool_limit=ToolLimit({"pay": 1}, per=per))
    team = Team(
        [solo(ScriptedModel(turns), till.tool, name="a")], sequence(["a"] * 3), guards=guards
    )
    async with held(team) as session:
        await after(session, "user", "go")
        told = [one.event_data for one in await of_type(session, EV_AUDIT)]
    assert len(till.paid) == 1
    assert [one["guard"] for one in told if one["kind"] == "decision"] == ["tool_limit"] * 2


@pytest.mark.parametrize("per", ["input", "thread"])
async def test_a_session_of_one_counts_over_its_inputs(per: Any) -> None:
    till = Till()
    turns: list[Any] = [call("pay", what="tea"), "Paid."] * 3
    guards = watched(tool_limit=ToolLimit({"pay": 1}, per=per))
    agent: Any = solo(ScriptedModel(turns), till.tool, name="a", guards=guards)
    async with held(agent) as session:
        for said in ("one", "two", "three"):
            await after(session, "user", said)
    assert len(till.paid) == (3 if per == "input" else 1)


async def test_a_call_that_failed_counts_when_middleware_repeats_it() -> None:
    till = Till(fails=True)
    middleware = ToolRetryMiddleware(max_retries=3, initial_delay=0, on_failure="continue")
    agent = solo(
        ScriptedModel([call("pay", what="tea"), "Done."]),
        till.tool,
        guards=watched(tool_limit={"pay": 1}),
        middleware=[middleware],
    )
    assert (await agent.ainvoke("go")).text == "Done."
    assert till.paid == ["tea"]


async def test_a_call_that_waited_for_a_human_is_the_same_call(tmp_path: Any) -> None:
    paid: list[str] = []

    def pay(what: str) -> str:
        """Pay, once a human has agreed."""
        interrupt("may I?")
        paid.append(what)
        return "paid"

    def clerk(url: str, *turns: Any) -> Agent:
        fields: Any = {"checkpointer": url, "durability": "sync"}
        return solo(ScriptedModel(turns), pay, guards=watched(tool_limit={"pay": 1}), **fields)

    url = f"sqlite:///{tmp_path / 'a.db'}"
    (question,) = (await clerk(url, PAYS[0]).ainvoke("go", thread_id="t")).interrupts
    later = clerk(elsewhere(url), PAYS[1], "Done.")
    assert (await later.aresume("t", {question.id: "yes"})).text == "Done."
    assert paid == ["tea"]


async def test_an_agent_that_is_called_like_a_tool_may_be_limited() -> None:
    worker = solo(ScriptedModel(lambda _: "done"), name="worker")
    asks: list[Any] = [
        [call("worker", request=str(n)) for n in range(3)],
        call("worker", request="x"),
        "Done.",
    ]
    sink = MemorySink()
    guards = watched(sink, tool_limit={"worker": 2})
    agent = Agent("boss", model=ScriptedModel(asks), agents=[worker.as_tool()], guards=guards)
    assert (await agent.ainvoke("go")).text == "Done."
    assert isinstance(worker.model, ScriptedModel) and len(worker.model.requests) == 2
    assert audited(sink) == [("boss", "tool_limit", "deny")] * 2


async def test_a_graph_of_others_is_under_the_limit_too() -> None:
    till = Till()
    graph = patched(create_agent(ScriptedModel(PAYS), [till.tool]), watched(tool_limit={"pay": 1}))
    result = await graph.ainvoke({"messages": [("user", "go")]})
    assert till.paid == ["tea"]
    assert any(text.startswith(REFUSED) for text in answers(result["messages"]))


async def test_inner_limits_tighten_and_never_loosen() -> None:
    till = Till()
    own = Guards(tool_limit=ToolLimit({"pay": 5}, per="thread"))
    below = solo(ScriptedModel(PAYS), till.tool, name="sub", guards=own)
    boss = Agent(
        "boss",
        model=ScriptedModel([call("transfer_to_sub")]),
        agents=[below],
        guards=watched(tool_limit={"pay": 1}),
    )
    await boss.ainvoke("go")
    assert till.paid == ["tea"]


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (
            {"send_mial": 1},
            "tool_limit={'send_mial': …}): nobody under it has such a tool: there is 'send_mail'",
        ),
        ({"pay": -1}, "give 0 or more calls"),
        (3, "how many calls"),
    ],
)
def test_what_is_wrong_with_a_limit_is_told_at_build(limit: Any, told: str) -> None:
    def send_mail() -> None:
        """Send a mail."""

    with pytest.raises(ConfigurationError) as error:
        solo(ScriptedModel([]), send_mail, guards=Guards(tool_limit=limit))
    assert told in str(error.value)


def test_a_limit_says_what_scope_it_may_have() -> None:
    with pytest.raises(ConfigurationError, match='"input" or "thread"'):
        ToolLimit({"pay": 1}, per="day")  # type: ignore[arg-type]  # the fault under test
