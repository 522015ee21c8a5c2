"""LangChain's middleware inside our nodes, in LangChain's order."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    HumanInTheLoopMiddleware,
    ModelFallbackMiddleware,
    SummarizationMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from agentgraph import Agent, Guards
from agentgraph.guards import Backoff
from agentgraph.testing import Fault, ScriptedModel, call, check_history


class Diary(AgentMiddleware[Any, Any]):
    """Write down when each hook runs."""

    def __init__(self, label: str, pages: list[str]) -> None:
        super().__init__()
        self.label, self.pages = label, pages

    @property
    def name(self) -> str:
        return f"diary_{self.label}"

    def before_agent(self, state: Any, runtime: Any) -> None:
        self.pages.append(f"{self.label}.before_agent")

    async def abefore_model(self, state: Any, runtime: Any) -> None:
        self.pages.append(f"{self.label}.before_model")

    def after_model(self, state: Any, runtime: Any) -> None:
        self.pages.append(f"{self.label}.after_model")

    def after_agent(self, state: Any, runtime: Any) -> None:
        self.pages.append(f"{self.label}.after_agent")

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        self.pages.append(f"{self.label}>model")
        response = await handler(request)
        self.pages.append(f"{self.label}<model")
        return response

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.pages.append(f"{self.label}>tool")
        response = await handler(request)
        self.pages.append(f"{self.label}<tool")
        return response


def quick() -> str:
    """Return at once."""
    return "quick is done"


MODEL = ["a.before_model", "b.before_model", "a>model", "b>model", "b<model", "a<model"]
AFTER = ["b.after_model", "a.after_model"]


async def test_hooks_and_wrappers_run_in_langchains_order() -> None:
    pages: list[str] = []
    agent = Agent(
        "a",
        model=ScriptedModel([call("quick"), "done"]),
        tools=[quick],
        middleware=[Diary("a", pages), Diary("b", pages)],
    )

    reply = await agent.ainvoke("go")

    assert reply.text == "done"
    assert pages == [
        "a.before_agent",
        "b.before_agent",
        *MODEL,
        *AFTER,
        *["a>tool", "b>tool", "b<tool", "a<tool"],
        *MODEL,
        *AFTER,
        "b.after_agent",
        "a.after_agent",
    ]


async def test_tool_retry_repeats_a_failing_tool() -> None:
    attempts: list[int] = []

    @tool
    def flaky() -> str:
        """Fail twice."""
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("not yet")
        return "at last"

    retry = ToolRetryMiddleware(max_retries=3, initial_delay=0, jitter=False)
    agent = Agent(
        "a", model=ScriptedModel([call("flaky"), "done"]), tools=[flaky], middleware=[retry]
    )

    reply = await agent.ainvoke("go")

    assert len(attempts) == 3
    assert [m.text for m in reply.messages if isinstance(m, ToolMessage)] == ["at last"]


async def test_model_fallback_answers_when_the_first_model_fails() -> None:
    broken = ScriptedModel([Fault.server_error()] * 3)
    spare = ScriptedModel([call("quick"), "the spare answers"])
    agent = Agent(
        "a",
        model=ScriptedModel(lambda _: RuntimeError("down")),
        tools=[quick],
        middleware=[ModelFallbackMiddleware(broken, spare, spare)],
        guards=Guards.interactive(backoff=Backoff(base_s=0)),
    )

    first = await agent.ainvoke("go")

    assert "quick is done" in [m.text for m in first.messages]
    assert first.text == "the spare answers"


@pytest.mark.parametrize("in_sub_agent", [False, True])
async def test_summarization_replaces_old_messages_and_history_stays_legal(
    in_sub_agent: bool,
) -> None:
    def turn(messages: list[BaseMessage]) -> str:
        return "long ago we spoke" if "summar" in messages[-1].text.lower() else "fine"

    summarizer = SummarizationMiddleware(
        model=ScriptedModel(lambda _: "a summary", strict=False),
        trigger=("messages", 6),
        keep=("messages", 2),
    )
    model = ScriptedModel(turn)
    agent = Agent("a", model=model, middleware=[summarizer])
    if in_sub_agent:
        agent = Agent("root", model=ScriptedModel([call("transfer_to_a")]), agents=[agent])

    for n in range(6):
        await agent.ainvoke(f"message {n}", thread_id="t")

    history = await agent.ahistory("t")
    check_history([m for m in history if not isinstance(m, AIMessage)][-1:])
    assert model.requests[-1].messages[-1].text == "message 5"
    if not in_sub_agent:
        assert any("a summary" in m.text for m in history if isinstance(m, HumanMessage))
        assert not any(m.text == "message 0" for m in history)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("decision", ["approve", "edit", "reject", "respond"])
async def test_human_in_the_loop_decides_about_a_tool(decision: str, depth: int) -> None:
    paid: list[int] = []

    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    allowed = ["approve", "edit", "reject", "respond"]
    human = HumanInTheLoopMiddleware(interrupt_on={"pay": {"allowed_decisions": allowed}})  # type: ignore[dict-item]
    model = ScriptedModel([[call("pay", amount=5), call("quick")], "done"])
    agent = Agent("a", model=model, tools=[pay, quick], middleware=[human])
    if depth:
        agent = Agent("root", model=ScriptedModel([call("transfer_to_a")]), agents=[agent])
    answers: dict[str, dict[str, object]] = {
        "approve": {"type": "approve"},
        "edit": {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 1}}},
        "reject": {"type": "reject", "message": "too much"},
        "respond": {"type": "respond", "message": "it is paid already"},
    }
    asked = await agent.ainvoke("pay")
    assert paid == []

    [question] = asked.interrupts
    reply = await agent.aresume(asked.thread_id, {question.id: {"decisions": [answers[decision]]}})

    assert reply.text == "done"
    assert paid == {"approve": [5], "edit": [1]}.get(decision, [])
    texts = [m.text for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    expected = {"approve": "paid 5", "edit": "paid 1", "respond": "it is paid already"}
    assert expected.get(decision, "too much") in " ".join(texts)
    assert "quick is done" in texts
    assert len(model.requests) == 2


async def test_hook_that_jumps_to_the_end_ends_the_turn() -> None:
    class Stop(AgentMiddleware[Any, Any]):
        def before_model(self, state: AgentState[Any], runtime: Any) -> dict[str, Any]:
            return {"jump_to": "end", "messages": [AIMessage("stopped before the model")]}

    model = ScriptedModel(["never"])
    agent = Agent("a", model=model, middleware=[Stop()])

    reply = await agent.ainvoke("go")

    assert reply.text == "stopped before the model"
    assert not model.requests
