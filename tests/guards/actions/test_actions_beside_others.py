"""An action in one message with other calls: done once, and the model hears of all at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import ToolException
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agentgraph import Agent, effect
from agentgraph.testing import ScriptedModel, call, check_history

Kind = Literal["pay", "look", "ask", "fail", "nobody", "fellow", "malformed"]
Where = Literal["root", "sticky", "tool", "delegate"]
KINDS: tuple[Kind, ...] = ("pay", "look", "ask", "fail", "nobody", "fellow", "malformed")


class Desk:
    """An agent whose model makes some calls in one message, and what came of them."""

    def __init__(self, kinds: list[Kind], where: Where, durability: Any = "async") -> None:
        self.paid: Counter[str] = Counter()
        self.asked = 0
        self.kinds = kinds
        self.durability = durability
        self.agent = self._placed(self._clerk(), where)

    def _clerk(self) -> Agent:
        @effect
        def pay(item: str) -> str:
            """Pay."""
            self.paid[item] += 1
            return f"paid {item}"

        @effect
        def fail(item: str) -> str:
            """Pay, and fail."""
            self.paid[item] += 1
            raise ToolException("the till is closed")

        def look(item: str) -> str:
            """Look."""
            return f"seen {item}"

        def ask(item: str) -> str:
            """Ask a human."""
            return f"{interrupt(item)} {item}"

        fellow = Agent("fellow", "a colleague", model=ScriptedModel(lambda _: "fine"))
        return Agent(
            "clerk",
            "a clerk",
            model=ScriptedModel(self._say),
            tools=[pay, fail, look, ask],
            agents=[fellow.as_tool()],
            default_tools=False,
        )

    def _say(self, messages: list[BaseMessage]) -> AIMessage | str:
        self.asked += 1
        if self.asked > 1:
            return f"all {len(self.kinds)} done"
        calls = [
            call(kind, **{"request" if kind == "fellow" else "item": f"{number}"})
            for number, kind in enumerate(self.kinds)
            if kind != "malformed"
        ]
        bad = [
            {"type": "invalid_tool_call", "name": "look", "args": "{", "id": f"m{number}"}
            for number, kind in enumerate(self.kinds)
            if kind == "malformed"
        ]
        return AIMessage("", tool_calls=calls, invalid_tool_calls=bad)

    def _placed(self, clerk: Agent, where: Where) -> Agent:
        kept: Any = {"checkpointer": InMemorySaver(), "durability": self.durability}
        if where == "root":
            return clerk.replace(**kept)
        if where == "tool":
            model = ScriptedModel([call("clerk", request="go"), "passed on"])
            return Agent("boss", model=model, agents=[clerk.as_tool()], **kept)
        model = ScriptedModel([call("transfer_to_clerk"), "passed on"])
        handoff: Any = "delegate" if where == "delegate" else "sticky"
        return Agent("boss", model=model, agents=[clerk], handoff=handoff, **kept)

    async def run(self) -> str:
        reply = await self.agent.ainvoke("go", thread_id="t")
        for _ in self.kinds:
            if not reply.interrupts:
                break
            told = {one.id: "yes" for one in reply.interrupts}
            reply = await self.agent.aresume("t", told)
        assert reply.close_reason is None
        return reply.text

    def check(self) -> None:
        acted = [str(number) for number, kind in enumerate(self.kinds) if kind in ("pay", "fail")]
        assert self.paid == Counter(acted)
        assert self.asked == 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=5),
    st.sampled_from(["root", "sticky", "tool", "delegate"]),
    st.sampled_from(["async", "sync", "exit"]),
)
def test_each_action_of_a_message_is_done_once_whatever_stands_beside_it(
    kinds: list[Kind], where: Where, durability: str
) -> None:
    async def run() -> list[BaseMessage]:
        await desk.run()
        return [*await desk.agent.ahistory("t")]

    desk = Desk(kinds, where, durability)
    check_history([*asyncio.run(run()), HumanMessage("next")])
    desk.check()


@pytest.mark.parametrize("kinds", [["pay", "look"], ["look", "pay"], ["ask", "pay", "pay"]])
async def test_an_answer_that_follows_an_action_is_given_once(kinds: list[Kind]) -> None:
    desk = Desk(kinds, "root")
    assert await desk.run() == f"all {len(kinds)} done"
    messages = await desk.agent.ahistory("t")
    assert [one.type for one in messages] == ["human", "ai", *["tool"] * len(kinds), "ai"]
    assert isinstance(messages[0], HumanMessage)
    desk.check()
