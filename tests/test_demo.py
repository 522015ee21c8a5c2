"""The demo, as `make demo` runs it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys

from agentgraph_server.support_desk import support_desk

COMMAND = [sys.executable, "-m", "agentgraph_server.demo"]


def test_demo_holds_a_conversation_and_ends_with_status_0() -> None:
    environment = {**os.environ, "ONCE": "1"}

    done = subprocess.run(
        COMMAND, capture_output=True, text=True, timeout=50, check=True, env=environment
    )

    assert "transfer: support → billing" in done.stdout
    assert "support/billing: Offline model: refund says: The charge is refunded" in done.stdout
    assert "would pass this conversation to a human" in done.stdout
    assert "The desk is always open." in done.stdout
    assert "Traceback" not in done.stderr


def test_demo_stays_up_and_answers_its_curl_line_until_it_is_interrupted() -> None:
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        curl = next(line for line in demo.stdout if line.startswith("curl "))

        asked = subprocess.run(shlex.split(curl), capture_output=True, text=True, timeout=30)
        demo.send_signal(signal.SIGINT)
        said, errors = demo.communicate(timeout=30)

    assert "event: token" in asked.stdout
    assert "reset_password" in asked.stdout
    assert asked.stdout.rstrip().rpartition("event: ")[2].startswith("done")
    assert "Good-bye" in said
    assert demo.returncode == 0
    assert "Traceback" not in errors


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
