from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.types import interrupt

from agentgraph import (
    Agent,
    Envelope,
    FromSpeaker,
    Hub,
    HumanTarget,
    Reply,
    Team,
    TeamResult,
    Transition,
    TransitionGraph,
    sequence,
)
from agentgraph.display import code, escaped, event_line, panel, prose, row
from agentgraph.outcomes import Interrupt
from agentgraph.sessions import EV_PACKET, EV_TEXT
from agentgraph.stream import (
    AIMessageEvent,
    ErrorEvent,
    Event,
    FinalStateEvent,
    GuardEvent,
    InterruptEvent,
    RoutingEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)
from agentgraph.testing import ScriptedModel, call
from agentgraph.usage import Usage

HOSTILE = "<img src=x onerror='alert(1)'>\"&\x00"


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html))


def pay(amount: int) -> str:
    """Pay an amount, if a human agrees."""
    return "paid" if interrupt({"pay": amount}) == "yes" else "not paid"


def clerk() -> Agent:
    script = ScriptedModel([call("pay", amount=5), "It is done."])
    return Agent("clerk", model=script, tools=[pay])


EVENTS = [
    (TokenEvent(text="a word"), "a word"),
    (ToolUsageEvent(tool="refund", args={"reason": "twice", "days": 3}), 'refund(reason="twice", '),
    (ToolResponseEvent(tool="refund", content="done"), "refund done"),
    (ToolResponseEvent(tool="refund", content="no", status="error"), "refund failed no"),
    (AIMessageEvent(text="a text"), "a text"),
    (RoutingEvent(kind="transfer", source="a", target="a/b", reason="it asks"), "a → a/b: it asks"),
    (GuardEvent(decision={"action": "deny"}), '{"action": "deny"}'),
    (InterruptEvent(id="i1", payload={"pay": 5}), '{"pay": 5} asked as i1'),
    (ErrorEvent(code="model_error", message="no answer"), "model_error no answer"),
    (FinalStateEvent(text="the answer"), "the answer"),
    (FinalStateEvent(text="enough", close_reason="max_steps"), "enough max_steps"),
]


@pytest.mark.parametrize(("event", "told"), EVENTS, ids=lambda each: getattr(each, "type", None))
def test_an_event_is_one_line_with_its_kind_its_agent_and_what_it_tells(
    event: Event, told: str
) -> None:
    html = replace(event, agent="support/billing")._repr_html_()

    assert text_of(html).startswith(f"{event.type} support/billing ")
    assert told in text_of(html)
    assert Tags(html).seen <= {"div", "code", "span"}
    assert html.count("<div") == 1


@pytest.mark.parametrize("event", [event for event, _ in EVENTS], ids=lambda event: event.type)
def test_what_is_in_an_event_is_escaped(event: Event) -> None:
    values: dict[str, Any] = {
        name: HOSTILE
        for name in ("agent", "text", "tool", "content", "reason", "message", "close_reason")
        if hasattr(event, name)
    }
    for name in ("args", "decision", "payload"):
        if hasattr(event, name):
            values[name] = {HOSTILE: HOSTILE}
    html = replace(event, **values)._repr_html_()

    assert Tags(html).attributes == {"style"}
    assert "<img" not in html and "\x00" not in html


@given(st.text(), st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_html_of_any_text_is_well_formed(text: str, value: object) -> None:
    html = panel(text, prose(text), row(text, code(value)), event_line(text, {"text": text}))

    assert Tags(html).seen <= {"div", "b", "span", "code"}
    assert Tags(html).attributes == {"style"}
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]", escaped(text))


def test_a_value_that_is_no_json_is_shown_as_python_shows_it() -> None:
    assert text_of(code({1, 2})) == "{1, 2}"


def test_a_value_without_end_is_cut() -> None:
    assert len(text_of(code(["x"] * 10_000))) < 500
    circle: list[object] = []
    circle.append(circle)
    assert text_of(code(circle)) == "[[...]]"


async def test_a_reply_shows_who_answered_what_and_how() -> None:
    agent = clerk()
    asked = await agent.ainvoke("pay", thread_id="1")
    [question] = asked.interrupts

    text = text_of(asked._repr_html_())
    assert text.startswith("clerk")
    assert f'{question.id}: {{"pay": 5}}' in text
    assert "called pay(amount=5)" in text

    text = text_of((await agent.aresume("1", {question.id: "yes"}))._repr_html_())
    assert text.startswith("clerkIt is done.")
    assert "called pay → paid" in text
    assert re.search(r"used \d+ tokens in, \d+ out", text)


def test_a_reply_shows_what_is_asked_why_it_was_closed_and_its_object() -> None:
    reply = Reply(
        HOSTILE,
        "support/billing",
        "1",
        output={"total": 3},
        interrupts=(Interrupt("i1", {"pay": HOSTILE}),),
        close_reason="max_steps",
    )
    html = reply._repr_html_()

    assert "i1" in text_of(html) and "max_steps" in text_of(html)
    assert "{'total': 3}" in text_of(html)
    assert "<img" not in html
    assert Tags(html).attributes == {"style"}


def test_usage_is_told_in_all_and_by_agent() -> None:
    html = Usage(3, 2, 5, by_agent={"a/b": Usage(3, 2, 5)})._repr_html_()

    assert text_of(html) == "3 tokens in, 2 outa/b 3 tokens in, 2 out"


def test_an_agent_is_shown_as_a_picture_as_mermaid_and_in_a_line() -> None:
    agent = Agent("support", model="offline", agents=[clerk()])
    bundle = agent._repr_mimebundle_(include=None, exclude=None)

    assert bundle == {
        "text/plain": "Agent('support', agents=[clerk])",
        "image/svg+xml": agent.svg(),
        "text/vnd.mermaid": agent.mermaid(),
    }


def test_an_agent_that_cannot_be_built_says_why_and_raises_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    bundle = Agent("a", model="openai:<img>")._repr_mimebundle_()

    assert bundle.keys() == {"text/plain", "text/html"}
    assert "Agent('a') cannot be drawn: ConfigurationError" in bundle["text/plain"]
    assert "Model 'openai:<img>'" in text_of(bundle["text/html"])
    assert Tags(bundle["text/html"]).seen == {"div", "b"}


def test_an_agent_that_is_too_large_to_look_at_is_shown_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentgraph.agents.picture._MOST_NODES", 3)

    [(kind, text)] = Agent("a", model="offline")._repr_mimebundle_().items()

    assert kind == "text/plain"
    assert text.startswith("Agent('a'): 8 nodes, too many")


def spoken(text: str, event_type: str = EV_TEXT, **data: Any) -> Envelope:
    return Envelope("e", "s", "user", None, event_type, {"text": text, **data}, sequence=3)


def test_an_envelope_is_one_line_with_its_number_its_sender_and_what_it_says() -> None:
    said = spoken("hello")._repr_html_()
    noted = spoken("", "my.event", x=1)._repr_html_()
    moved = spoken("", EV_PACKET, body="", routing={"target": "b"})._repr_html_()

    assert text_of(said) == "3 ag.msg.text user hello"
    assert text_of(noted) == '3 my.event user {"text": "", "x": 1}'
    assert text_of(moved) == '3 ag.packet user {"target": "b"}'
    assert Tags(said).seen <= {"div", "code", "span"}
    assert said.count("<div") == 1


def test_what_is_in_an_envelope_is_escaped() -> None:
    for hostile in (spoken(HOSTILE), spoken("", HOSTILE, **{HOSTILE: HOSTILE})):
        html = replace(hostile, sender_id=HOSTILE)._repr_html_()

        assert Tags(html).attributes == {"style"}
        assert "<img" not in html and "\x00" not in html


async def test_the_result_of_a_team_shows_its_words_who_spoke_and_why_it_ended() -> None:
    team = Team(
        [Agent("a", model=ScriptedModel(["Go on."])), Agent("b", model=ScriptedModel([HOSTILE]))],
        sequence(["a", "b"]),
    )
    html = (await team.arun("go"))._repr_html_()

    assert text_of(html).startswith("b<img src=x onerror=")
    assert "spoke user → a → bclosed sequence_completeused " in text_of(html)
    assert Tags(html).attributes == {"style"}
    assert "<img" not in html


async def test_what_a_session_waits_for_is_shown_in_it_and_in_a_result() -> None:
    team = Team([clerk()], sequence(["clerk"]))
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team, id="s", context={HOSTILE: 1}, ttl=None)
        before = session._repr_html_()
        await session.send("user", "pay")
        [question] = (await session.settled()).interrupts
        asked = session._repr_html_()
        result = TeamResult.of(await session.history(), session.record, session.state)._repr_html_()
        await session.decide(question, "yes")
        await session.settled()
        ended = session._repr_html_()

    assert text_of(before).startswith("clerk sstatus activewith clerkcontext ")
    assert f'status waiting_decisionasked as {question}: {{"pay": 5}}with clerk' in text_of(asked)
    assert text_of(result) == (
        f'nobodyspoke userasked as {question}: {{"pay": 5}}used 22 tokens in, 3 out'
    )
    assert text_of(ended).endswith("closed sequence_complete")
    for html in (before, asked, result, ended):
        assert Tags(html).attributes == {"style"}
        assert "<img" not in html


async def test_a_session_that_waits_for_a_human_names_them() -> None:
    rules = TransitionGraph("a", [Transition(FromSpeaker("a"), HumanTarget())], "a")
    result = await Team([Agent("a", model=ScriptedModel(["Yes?"]))], rules).arun("go")

    assert "waits for user" in text_of(result._repr_html_())
