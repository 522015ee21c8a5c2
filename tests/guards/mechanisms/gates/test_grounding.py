"""Grounding without a model: what a text cites, quotes and counts the documents have."""

from __future__ import annotations

import pytest

from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.gates.gate import Document, Gate, Subject
from agentgraph.guards.mechanisms.gates.grounding import cited_ids, numbers_found, quotes_found

DOCUMENTS = (
    Document("a", "The cat sat on the mat in 1,234 rooms; 50 % were “empty of mice”."),
    Document("b-2", "It rained   3.5 mm\nthat day."),
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("The cat sat [a].", None),
        ("Both [a, b-2] and [b-2].", None),
        ("See [a](https://x) and [a].", None),
        ("See [the page](https://x).", "at least 1"),
        ("Nothing.", "cites 0 documents"),
        ("Invented [a] [c], [d].", "not retrieved: c, d"),
    ],
)
def test_what_is_cited_was_retrieved(text: str, fault: str | None) -> None:
    said = cited_ids()(Subject(text=text, documents=DOCUMENTS))
    assert said is None if fault is None else fault in str(said)


def test_citations_may_have_another_form_and_number() -> None:
    subject = Subject(text="So (doc:a).", documents=DOCUMENTS)
    assert cited_ids(r"\(doc:(\w+)\)")(subject) is None
    assert "at least 2" in str(cited_ids(r"\(doc:(\w+)\)", least=2)(subject))
    assert cited_ids(least=0)(subject) is None
    for pattern in ("(", "no group"):
        with pytest.raises(ConfigurationError, match="cited_ids"):
            cited_ids(pattern)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('It says "the CAT  sat on".', True),
        ("It says “sat on … in 1,234 rooms”.", True),
        ("It says «It rained 3.5 mm that day».", True),
        ('So-called "black cats" only.', True),
        ("Without any.", True),
        ('It says "the dog sat on".', False),
        ("It says “the cat rained that day”.", False),
        ('It says "the cat sat … that day".', False),
    ],
)
def test_what_is_quoted_is_there(text: str, found: bool) -> None:
    said = quotes_found()(Subject(text=text, documents=DOCUMENTS))
    assert (said is None) == found


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("There were 1234 rooms, 50% empty, and 3,5 mm.", None),
        ("1. It rained 3.50 mm [7].\n2. And 01,234 rooms.", "01,234"),
        ("1. It rained 3.50 mm [7].\n2) And 1.234,0 rooms.", None),
        ("There were 51 rooms and 3.51 mm.", "51, 3.51"),
        ("No numbers.", None),
    ],
)
def test_numbers_are_there_however_they_are_written(text: str, missing: str | None) -> None:
    said = numbers_found()(Subject(text=text, documents=DOCUMENTS))
    if missing in (None, "01,234"):
        assert said is None
    else:
        assert str(said).endswith(f": {missing}")


def test_numbers_can_be_left_out() -> None:
    assert numbers_found(ignore=["2026"])(Subject(text="In 2026.")) is None


async def test_grounding_is_a_check_like_others() -> None:
    gate = Gate(grounding=[cited_ids(), quotes_found(), numbers_found()])
    result = await gate.check(Subject(text="99 [z]", documents=DOCUMENTS), "post")
    assert {check.name: check.status for check in result.checks} == {
        "grounding:cited_ids": "fail",
        "grounding:quotes_found": "pass",
        "grounding:numbers_found": "fail",
    }
    assert {c.code for c in result.checks} == {"ungrounded", ""}
