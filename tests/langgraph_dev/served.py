"""The graphs that the server of the tests loads; they run in its environment, not in the tests'."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

from agentgraph import Agent, Team, sequence
from agentgraph.testing import ScriptedModel, call


def look_up(order: str) -> str:
    """Look an order up."""
    get_stream_writer()({"looked_up": order})
    return f"{order} is lost"


def refund(order: str) -> str:
    """Pay an order back, if a human agrees."""
    return f"refund of {order}: {interrupt({'refund': order})}"


def _script(name: str) -> ScriptedModel:
    """Return a model that acts on the first word of what was said last."""

    def turn(messages: list[BaseMessage]) -> Any:
        said = [message for message in messages if message.type == "human"]
        results = messages[messages.index(said[-1]) :]
        results = [message for message in results if message.name in ("look_up", "refund")]
        if results:
            return f"{name}: {results[-1].text}"
        word, _, rest = str(said[-1].text).removeprefix("[user]: ").partition(" ")
        match word.lower():
            case "look":
                return call("look_up", order=rest)
            case "refund":
                return call("refund", order=rest)
            case "twice":
                return [call("refund", order="one"), call("refund", order="two")]
            case "billing" if name == "desk":
                return call("transfer_to_billing")
            case "fail":
                return RuntimeError("out of order")
        return f"{name} heard {' | '.join(str(message.text) for message in said)}"

    return ScriptedModel(turn)


_billing = Agent("billing", "Answers billing questions", model=_script("billing"), tools=[look_up])
desk = Agent("desk", model=_script("desk"), tools=[look_up, refund], agents=[_billing]).graph

_echo = ScriptedModel(lambda messages: f"two heard {messages[-1].text}")
_one = Agent("one", model=_script("one"), tools=[refund])
team = Team([_one, Agent("two", model=_echo)], sequence(["one", "two"])).graph


def _clerk() -> Any:
    """Return a graph that agentgraph did not build: a model and its tools."""
    model = _script("clerk").bind_tools([look_up, refund])

    async def ask(state: Any) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def goes_on(state: Any) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([look_up, refund]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", goes_on, ["tools", END])
    graph.add_edge("tools", "model")
    return graph.compile(name="clerk")


clerk = _clerk()
