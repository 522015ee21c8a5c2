"""`agentgraph chat`: how a conversation goes, in a terminal and piped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from agentgraph import Guards
from agentgraph.guards import Backoff
from agentgraph.testing import Fault
from tests.cli.conversations import chat, piped, solo, talk
from tests.cli.pseudo_terminal import CTRL_D


def test_conversation_goes_on_after_a_failure() -> None:
    at_once = Guards.interactive(backoff=Backoff(base_s=0))
    turns = [*[Fault.server_error(503)] * 3, "I am back."]

    told = talk(solo(*turns, guards=at_once), "hi", "again")

    assert told.count("the model of agent 'solo' failed: InternalServerError 503") == 1
    assert "solo> I am back." in told


def test_cause_of_a_failure_is_shown() -> None:
    assert "caused by ValueError: the key is wrong" in talk(
        solo(ValueError("the key is wrong")), "hi"
    )


def test_empty_lines_are_no_messages() -> None:
    assert talk(solo("one"), "", "  ", "hi").count("solo>") == 1


def test_conversation_ends_with_ctrl_d_and_says_how_to_go_on(folder: Path) -> None:
    with chat(folder, "--thread", "my thread") as screen:
        screen.expect("clerk  kept in sqlite:///agentgraph.db")
        screen.expect("you> ")
        screen.say("hello")
        screen.expect("clerk> answer 1 to hello")
        screen.expect("you> ")
        screen.send(CTRL_D)
        screen.expect("agentgraph chat agents:clerk --thread 'my thread'\n")
        assert screen.status() == 0


def test_lines_can_be_edited(folder: Path) -> None:
    with chat(folder) as screen:
        screen.expect("you> ")
        screen.say("ello\x01h")
        screen.expect("answer 1 to hello")
        screen.expect("you> ")
        screen.say("\x1b[A")
        screen.expect("answer 2 to hello")


def test_piped_lines_are_turns(folder: Path) -> None:
    done = piped(folder, "hello\n\npay\nyes\nbye", "--thread", "t")

    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.endswith(
        """
you> hello
clerk> answer 1 to hello

you> pay
  clerk calls pay(amount=7)
  A decision is needed:
  {
    "pay": 7
  }
  Type text, or JSON; Ctrl-C leaves it open.
decision> yes
  pay: decided 'yes'
clerk> it said decided 'yes'

you> bye
clerk> answer 3 to bye

  Go on with:
  agentgraph chat agents:clerk --thread t
"""
    )


def test_piped_conversation_that_failed_ends_with_status_1(folder: Path) -> None:
    done = piped(folder, "fail\nhello\n")

    assert done.returncode == 1
    assert "caused by ValueError: the line is dead" in done.stdout
    assert "clerk> answer 2 to hello" in done.stdout


def test_piped_bytes_that_are_no_text_are_replaced(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentgraph", "chat", "agents:clerk"],
        cwd=folder,
        input=b"caf\xe9\n",
        capture_output=True,
        timeout=50,
    )

    assert done.returncode == 0
    assert "answer 1 to caf\ufffd" in done.stdout.decode()
