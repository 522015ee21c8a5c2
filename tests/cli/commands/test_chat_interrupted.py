"""Ctrl-C during a turn, at the prompt and among piped lines."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conversations import chat, solo, talk
from tests.cli.pseudo_terminal import CTRL_C, CTRL_D


def test_ctrl_c_cancels_the_turn_and_the_next_one_works(folder: Path) -> None:
    with chat(folder) as screen:
        screen.expect("you> ")
        screen.say("hang")
        screen.expect("hanging")
        screen.send(CTRL_C)
        screen.expect("ended")
        screen.expect("\n  Cancelled.\n")
        screen.expect("you> ")
        screen.say("hello")
        screen.expect("clerk> answer 2 to hello")
        screen.expect("you> ")
        screen.send(CTRL_D)
        assert screen.status() == 0


def test_second_ctrl_c_leaves_a_turn_that_does_not_end(folder: Path) -> None:
    with chat(folder) as screen:
        screen.expect("you> ")
        screen.say("cling")
        screen.expect("clinging")
        screen.send(CTRL_C)
        screen.expect("still clinging")
        screen.send(CTRL_C)
        screen.expect("Leaving before the turn has ended.")
        screen.expect("Go on with:")
        assert screen.status() == 130


def test_ctrl_c_at_the_prompt_drops_the_line_and_says_how_to_leave(folder: Path) -> None:
    with chat(folder) as screen:
        screen.expect("you> ")
        screen.send("half a li")
        screen.expect("half a li")
        screen.interrupt("  Ctrl-D leaves.")
        screen.expect("you> ")
        screen.say("hello")
        screen.expect("answer 1 to hello")


def test_interrupt_ends_a_piped_conversation(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "agentgraph", "chat", "agents:clerk"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("hang\nhello\n")
        process.stdin.flush()
        assert any("hanging" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(30) == 130

    assert "ended" in rest
    assert "answer" not in rest


def test_interrupt_between_piped_turns_ends_the_conversation() -> None:
    with pytest.raises(KeyboardInterrupt):
        talk(solo("one"), "hi", KeyboardInterrupt, interactive=False)
