"""What a conversation looks like: who speaks, where lines break, what a terminal must not obey."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentgraph import Agent, Guards, Intent
from agentgraph.cli.terminal.screen import Screen
from agentgraph.cli.terminal.text import clean, clip
from agentgraph.guards import StepLimit
from agentgraph.stream import (
    AIMessageEvent,
    Event,
    FinalStateEvent,
    TokenEvent,
    ToolResponseEvent,
)
from agentgraph.testing import ScriptedModel, call
from tests.cli.conversations import chat, lookup, shown, solo, talk


def tokens(agent: str, message_id: str, *texts: str) -> list[Event]:
    return [TokenEvent(agent=agent, text=text, message_id=message_id) for text in texts]


def on_screen(events: Sequence[Event], **options: Any) -> str:
    console = Console(file=StringIO(), **options)
    screen = Screen(console)
    for event in events:
        screen.show(event)
    screen.end_line()
    return shown(console)


def test_turn_is_shown_from_the_call_to_the_answer() -> None:
    told = talk(solo(call("lookup", order="A7"), "It is lost.", tools=[lookup]), "where?")

    assert told == (
        '\nyou> where?\n  solo calls lookup(order="A7")\n  lookup: A7 is lost\n'
        "solo> It is lost.\n\n"
    )


def test_handoff_is_shown_with_who_speaks() -> None:
    sub = Agent("sub", model=ScriptedModel(["sub answers"]))

    told = talk(solo(call("transfer_to_sub", reason="money"), agents=[sub]), "hi")

    assert "  solo → sub (transfer: money)\nsolo/sub> sub answers\n" in told


def test_guards_decision_is_shown() -> None:
    guards = Guards.interactive(steps=StepLimit(1))

    told = talk(solo(call("lookup", order="A7"), tools=[lookup], guards=guards), "hi")

    assert "guard max_steps: abort: 1 model calls" in told
    assert "The turn was ended: max_steps" in told


def test_answer_without_a_model_is_shown_once() -> None:
    told = talk(solo(intents=[Intent("open?", "raw", "Always.")]), "open?")

    assert told.count("Always.") == 1


def test_failed_tool_is_shown() -> None:
    def broken() -> str:
        """Fail."""
        raise ValueError("no such order")

    assert "broken failed: " in talk(solo(call("broken"), "Sorry.", tools=[broken]), "hi")


def test_tokens_are_written_as_they_come() -> None:
    class Recorder(StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.writes: list[str] = []

        def write(self, text: str) -> int:
            self.writes.append(text)
            return super().write(text)

    file = Recorder()
    screen = Screen(Console(file=file))
    for text in ("Hello", " to", " you"):
        screen.show(TokenEvent(agent="a", text=text, message_id="m"))

    assert file.writes[-3:] == ["Hello", " to", " you"]


def test_texts_written_in_parallel_do_not_mix() -> None:
    a, b = tokens("a", "1", "one", " two"), tokens("b", "2", "three", " four")
    told = on_screen(
        [
            *(a[0], b[0], a[1], b[1]),
            AIMessageEvent(agent="a", text="one two", message_id="1"),
            *tokens("b", "2", " five"),
            AIMessageEvent(agent="b", text="three four five", message_id="2"),
        ]
    )

    assert told == "a> one two\nb> three four five\n"


def test_text_goes_on_after_what_happens_beside_it() -> None:
    first, second = tokens("a", "1", "one", " two")
    beside = ToolResponseEvent(agent="b", tool="lookup", content="found")
    whole = AIMessageEvent(agent="a", text="one two", message_id="other id")

    told = on_screen([first, beside, second, whole, FinalStateEvent(agent="a", text="one two")])

    assert told == "a> one\n  lookup: found\na> two\n"


def test_model_that_is_asked_again_is_shown_from_its_beginning() -> None:
    again = tokens("a", "2", "one two")
    whole = AIMessageEvent(agent="a", text="one two", message_id="2")

    assert on_screen([*tokens("a", "1", "one"), *again, whole]) == "a> one\na> one two\n"


def test_text_that_was_changed_after_it_was_written_is_shown_again() -> None:
    changed = AIMessageEvent(agent="a", text="my number is ***", message_id="1")

    told = on_screen([*tokens("a", "1", "my number is 42"), changed])

    assert told == "a> my number is 42\na> my number is ***\n"


def test_narrow_terminal_breaks_lines_between_words() -> None:
    text = "one two three four\n\n  - 東京 is big"
    pieces = tokens("a", "1", *[text[i : i + 3] for i in range(0, len(text), 3)])
    aside = ToolResponseEvent(agent="a", tool="t", content="six seven eight")

    told = on_screen([*pieces, aside], width=12, force_terminal=True, color_system=None)

    assert told.splitlines() == [
        *("a> one two", "three four", "", "  - 東京 is", "big"),
        *("  t: six", "  seven", "  eight"),
    ]


def test_colours_are_left_out_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def written() -> str:
        return on_screen(tokens("a", "1", "one"), force_terminal=True, color_system="standard")

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;36m" in written()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "36m" not in written()


def test_history_is_shown_without_what_a_terminal_obeys() -> None:
    agent = solo(call("lookup", order="\x1b[2J"), "see \x1b[31m", tools=[lookup])
    talk(agent, "hi \x1b[5m")

    told = talk(agent)

    assert "you> hi [5m\n" in told
    assert "[2J is lost\nsolo> see [31m\n" in told
    assert "\x1b" not in told


def test_text_keeps_nothing_that_a_terminal_obeys() -> None:
    assert clean("a\x1b[2J\x07\r\x9b1m\x7f\u202e\ud800b\n\tc") == "a[2J1mb\n\tc"


def test_long_text_is_shown_by_its_beginning_and_length() -> None:
    assert clip("a\n" * 20) == "a\n" * 7 + "a… (39 characters)"
    assert clip("x" * 700) == f"{'x' * 600}… (700 characters)"
    assert clip("short") == "short"


def test_markup_in_a_text_is_only_text() -> None:
    assert "solo> [bold]x[/] :smile:\n" in talk(solo("[bold]x[/] :smile:"), "hi")


def test_escape_sequences_do_not_reach_the_terminal(folder: Path) -> None:
    with chat(folder) as screen:
        screen.expect("you> ")
        screen.say("wild")
        screen.expect("clerk> it said ]0;owned[2J31m tame")
        screen.expect("you> ")
        assert "\x1b]0;" not in screen.raw
        assert "\x1b[2J" not in screen.raw
        assert "\x07" not in screen.raw
        assert "\x9b" not in screen.raw


def test_terminal_without_colours_gets_none(folder: Path) -> None:
    with chat(folder, width=30, env={"NO_COLOR": "1"}) as screen:
        screen.expect("you> ")
        screen.say("hello")
        screen.expect("clerk> answer 1 to hello")
        screen.expect("you> ")
        assert "\x1b[36m" not in screen.raw
