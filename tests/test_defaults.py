"""The page of what is on by default says what the code does."""

from __future__ import annotations

from agentgraph import Guards
from agentgraph.guards.overrides import call_text, guard_classes
from tests.defaults import PAGE, page


def test_the_page_is_what_the_code_makes_of_it() -> None:
    assert PAGE.read_text("utf-8") == page(), "write it again: make tables"


def test_the_page_has_each_guard_with_its_default() -> None:
    text, guards = page(), Guards.interactive()
    for name in guard_classes().keys() - {"decisions"}:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        assert call_text(getattr(guards, name)) in row
