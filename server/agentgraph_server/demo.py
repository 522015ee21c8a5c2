"""Hold one conversation with the support desk in the terminal: `make demo ONCE=1`."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.text import Text

from agentgraph import Agent
from agentgraph.stream import (
    AIMessageEvent,
    Event,
    FinalStateEvent,
    RoutingEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)
from agentgraph_server.support_desk import support

PROMPTS = (
    "I was charged twice",
    "and my invoice?",
    "@support reset my password",
    "@support let me talk to a human",
    "@support When are you open?",
)


async def converse(agent: Agent, console: Console) -> None:
    """Ask one thing after the other, on one thread, and tell what happens."""
    thread_id: str | None = None
    for prompt in PROMPTS:
        console.print(Text(f"\nyou  {prompt}", "bold"))
        async for event in agent.astream(prompt, thread_id=thread_id):
            thread_id = event.thread_id
            line = told(event)
            if line is not None:
                console.print(line)


def told(event: Event) -> Text | None:
    """Return an event as a line, None for those that say nothing new."""
    match event:
        case RoutingEvent():
            return Text(f"     {event.kind}: {event.source} → {event.target}", "dim")
        case ToolUsageEvent():
            return Text(f"     {event.agent} calls {event.tool}({dict(event.args)})", "dim")
        case ToolResponseEvent():
            return Text(f"     {event.tool}: {event.content}", "dim")
        case AIMessageEvent():
            return Text(f"{event.agent}  {event.text}")
        case FinalStateEvent() if event.close_reason:
            return Text(f"     ended by {event.close_reason}", "red")
        case _:
            return None


if __name__ == "__main__":
    asyncio.run(converse(support, Console(highlight=False)))
