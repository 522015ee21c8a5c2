"""What type checkers are told agrees with what runs; `tests/typing/` says what they make of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal, get_args, get_origin, get_type_hints

from langchain.agents.middleware import AgentMiddleware

from agentgraph import Agent, stream
from agentgraph.agents.spec.agent_spec import AgentChanges, AgentSpec


def hints_of(cls: type) -> dict[str, object]:
    # That name is imported for type checkers only: `langchain` is an extra.
    return get_type_hints(cls, localns={"AgentMiddleware": AgentMiddleware})


def test_the_signatures_of_an_agent_name_every_field_with_its_type() -> None:
    declared = hints_of(AgentSpec)
    own = {f.name: declared[f.name] for f in fields(Agent) if f.name != "response_format"}
    assert hints_of(AgentChanges) == own


def test_the_union_of_events_has_every_event_with_a_type_of_its_own() -> None:
    events = [getattr(stream, name) for name in stream.__all__ if name.endswith("Event")]
    classes: set[type[stream.Event]] = {event for event in events if isinstance(event, type)}
    classes -= {stream.Event}
    assert set(get_args(stream.AnyEvent)) == classes
    hints = {cls: get_type_hints(cls)["type"] for cls in classes}
    for cls, hint in hints.items():
        [literal] = get_args(hint)
        assert get_origin(literal) is Literal
        assert get_args(literal) == (cls.type,)
    assert len({cls.type for cls in classes}) == len(classes)


def test_a_class_with_a_type_argument_makes_ordinary_agents() -> None:
    agent = Agent[None]("desk")
    assert (type(agent), agent.name) == (Agent, "desk")
