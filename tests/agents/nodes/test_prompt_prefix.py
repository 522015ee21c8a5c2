"""How much of a prompt a provider has in its cache: the part that the prompt before began with.

The figure is the share of the characters of all prompts but the first, in the form in which the
OpenAI API gets them. A model that sees everything has a share of almost one.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from langchain_core.messages import convert_to_openai_messages

from agentgraph import Agent
from agentgraph.clock import utc_now
from agentgraph.testing import FakeClock, ScriptedModel, call
from agentgraph.testing.script import Request


def look_up(order: str) -> str:
    """Look up an order."""
    return f"Order {order} was sent on the third and is expected within the week."


def sent(request: Request) -> str:
    """Return a prompt as a provider reads it: the tools first, then the messages."""
    messages = [
        {k: v for k, v in message.items() if k != "id"}
        for message in convert_to_openai_messages(list(request.messages))
    ]
    return json.dumps([*map(dict, request.specs), *messages])


def shared_length(one: str, other: str) -> int:
    """Return how many characters two texts have in common from their begin."""
    differing = (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(one), len(other)))


def cached_share(requests: list[Request]) -> float:
    prompts = [sent(request) for request in requests]
    cached = sum(shared_length(one, other) for one, other in pairwise(prompts))
    return cached / sum(map(len, prompts[1:]))


async def talk(agent: Agent, turns: int, hours: float = 0.0) -> None:
    with FakeClock().installed() as clock:
        begun = utc_now()
        for turn in range(turns):
            question = f"Question {turn}: and where is the parcel of order {turn} by now?"
            await agent.ainvoke(question, thread_id="t")
            clock.advance(hours * 3600 / turns)
        assert utc_now().date() == begun.date()


@pytest.mark.parametrize(
    ("history", "share"), [(None, 0.95), (40, 0.93), (20, 0.87), (10, 0.75)], ids=str
)
async def test_most_of_a_prompt_is_that_of_the_turn_before(
    history: int | None, share: float
) -> None:
    model = ScriptedModel([f"It is at the post office of district {n}." for n in range(50)])
    agent = Agent("desk", model=model, history=history, default_tools=False)

    await talk(agent, 50, hours=1)

    assert cached_share(model.requests) > share


@pytest.mark.parametrize(("history", "share"), [(None, 0.97), (40, 0.9), (20, 0.85)], ids=str)
async def test_most_of_a_prompt_is_that_of_the_call_before_with_tools(
    history: int | None, share: float
) -> None:
    script = [step for n in range(50) for step in (call("look_up", order=str(n)), f"It is {n}.")]
    model = ScriptedModel(script)
    agent = Agent("desk", model=model, tools=[look_up], history=history)

    await talk(agent, 50, hours=1)

    assert len(model.requests) == 100
    assert cached_share(model.requests) > share


async def test_a_sub_agent_s_prompts_begin_as_before_too() -> None:
    model = ScriptedModel([f"It is at the post office of district {n}." for n in range(50)])
    billing = Agent("billing", "Answers billing questions", model=model, history=20)
    root = Agent("desk", model=ScriptedModel([]), agents=[billing])
    await root.ainvoke("@billing hello", thread_id="t")

    await talk(root, 49, hours=1)

    assert len(model.requests) == 50
    assert cached_share(model.requests) > 0.85


async def test_the_calls_of_one_turn_extend_one_prompt() -> None:
    rounds = [call("look_up", order=str(n)) for n in range(12)]
    model = ScriptedModel(["one", "two", "three", *rounds, "done"])
    agent = Agent("desk", model=model, tools=[look_up], history=4)

    await talk(agent, 4)

    prompts = [sent(request)[:-1] for request in model.requests[3:]]
    assert all(later.startswith(earlier) for earlier, later in pairwise(prompts))
