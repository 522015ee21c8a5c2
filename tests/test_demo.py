"""The demo, as `make demo` runs it."""

from __future__ import annotations

import subprocess
import sys

from agentgraph_server.support_desk import support_desk


def test_demo_holds_a_conversation_and_ends_with_status_0() -> None:
    command = [sys.executable, "-m", "agentgraph_server.demo"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)

    assert "transfer: support → billing" in done.stdout
    assert "refunded" in done.stdout
    assert "would pass this conversation to a human" in done.stdout
    assert "offline model answers" in done.stderr


async def test_desk_routes_by_the_words_of_the_prompt() -> None:
    desk = support_desk("offline")

    charged = await desk.ainvoke("I was charged twice")
    reset = await desk.ainvoke("reset my password")
    human = await desk.ainvoke("let me talk to a human")
    opening = await desk.ainvoke("@support, when are you open?")

    assert charged.agent == "support/billing"
    assert "refunded" in charged.text
    assert reset.agent == "support/technical"
    assert "link" in reset.text
    assert human.agent == "support"
    assert "human" in human.text
    assert opening.text == "The desk is always open."
