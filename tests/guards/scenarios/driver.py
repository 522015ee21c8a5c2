"""A driver for scenarios: agents on scripts, their tools, and what came of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from agentgraph import Agent
from agentgraph.stream import FinalStateEvent, GuardEvent
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted

Steps = Iterable[Scripted]


def tool(name: str, answers: Callable[[str], str] | str = "ok") -> Callable[[str], str]:
    """Return a tool of one argument, with the answer that is given or computed."""

    def run(what: str = "") -> str:
        return answers if isinstance(answers, str) else answers(what)

    run.__name__, run.__doc__ = name, f"Do {name}."
    return run


def in_turn(*results: object) -> Callable[[str], str]:
    """Return answers that a tool gives one after the other, the last one again and again."""
    left = iter(results)

    def answer(what: str) -> str:
        result = next(left, results[-1])
        if isinstance(result, Exception):
            raise result
        return str(result)

    return answer


def ask(name: str, *whats: str) -> list[Any]:
    """Return calls of a tool, each in a message of its own."""
    return [call(name, what=what) for what in whats]


def working(steps: Steps, *tools: Any, name: str = "a", **fields: Any) -> Agent:
    """Return an agent that takes these steps and then is done."""
    model = ScriptedModel([*steps, "Done."])
    return Agent(name, f"does {name}", model=model, tools=tools, default_tools=False, **fields)


def stuck(steps: Steps, *tools: Any, name: str = "a", **fields: Any) -> Agent:
    """Return an agent that takes these steps again and again."""
    turns: Iterator[Scripted] = cycle(steps)
    model = ScriptedModel(lambda _: next(turns))
    return Agent(name, f"does {name}", model=model, tools=tools, default_tools=False, **fields)


@dataclass(frozen=True)
class Course:
    """What came of a run."""

    text: str
    close_reason: str | None
    actions: list[str]
    """What the guards have decided, in order."""

    @property
    def corrections(self) -> int:
        return self.actions.count("correct")


async def course_of(agent: Agent, said: str = "go", thread_id: str = "t") -> Course:
    """Run an input to its end."""
    events = [event async for event in agent.astream(said, thread_id=thread_id)]
    actions = [str(e.decision["action"]) for e in events if isinstance(e, GuardEvent)]
    end = events[-1]
    assert isinstance(end, FinalStateEvent)
    return Course(end.text, end.close_reason, actions)


def requests(agent: Agent) -> int:
    """Return how often an agent's model was asked."""
    assert isinstance(agent.model, ScriptedModel)
    return len(agent.model.requests)
