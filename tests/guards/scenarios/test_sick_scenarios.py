"""Work that gets nowhere: corrected first, then ended, soon enough, with a text that says why.

Each scenario says after how many requests to its model a person would end it; the guards may take
twice as many.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, cycle
from typing import Any
from uuid import UUID

import pytest

from agentgraph import Agent, Team, effect
from agentgraph.guards import Gate, Guards
from agentgraph.phases import ConversationRouter
from agentgraph.testing import ScriptedModel, Turn, bad_call, call
from agentgraph.testing.answers import Scripted
from tests.guards.scenarios.driver import ask, course_of, in_turn, requests, stuck, tool

LOOP, DEADLOCK = "loop_detector", "deadlock_monitor"
NOTHING = tool("search", "No results.")
WORDINGS = [
    "weather in Rome",
    "Rome weather",
    "What is the weather in Rome?",
    "WEATHER, Rome",
    "the weather in rome today",
]

FILLED = [
    "Find the sales figures",
    "could you please find the sales figures for me",
    "I want you to find these sales figures",
    "let me find what the sales figures are",
    "so then find us the sales figures, please",
    "we should find them here: the sales figures",
]


def searching(*wordings: str) -> Callable[[], Agent]:
    return lambda: stuck(ask("search", *wordings), NOTHING)


def period(length: int) -> Callable[[], Agent]:
    return lambda: stuck(ask("look", *"ABCDEFGH"[:length]), tool("look", lambda what: f"{what}?"))


def told(text: str) -> Callable[[], Agent]:
    """Return an agent that asks the same for ever, and gets this text with another number."""

    def build() -> Agent:
        numbers = count(1)
        return stuck(ask("search", "it"), tool("search", lambda what: text.format(next(numbers))))

    return build


def identified() -> Agent:
    ids = (UUID(int=n * 2**90 + 7, version=4) for n in count(1))
    answer = '{{"status": "pending", "request": "{}"}}'.format
    return stuck(ask("job", "7"), tool("job", lambda what: answer(next(ids))))


def failing(*whats: str) -> Callable[[], Agent]:
    """Return an agent whose calls fail, each time in other words."""

    def build() -> Agent:
        errors = (LookupError(f"there is no such thing, attempt {n}") for n in range(99))
        return stuck(ask("fetch", *whats), tool("fetch", in_turn(*errors)))

    return build


def polling() -> Agent:
    @effect(poll=True)
    def job() -> str:
        """Return how far the job is."""
        return "running"

    return stuck([call("job")], job)


def forbidden() -> Agent:
    def forbids(subject: Any) -> bool:
        return bool(subject.tool != "pay")

    return stuck(ask("pay", "all"), tool("pay"), guards=Guards(gates=Gate(policy=forbids)))


ALONE: dict[str, tuple[Callable[[], Agent], int]] = {
    "one call": (period(1), 4),
    "two calls in turn": (period(2), 6),
    "three calls in turn": (period(3), 9),
    "four calls in turn": (period(4), 9),
    "five calls in turn": (period(5), 10),
    "seven calls in turn": (period(7), 14),
    "another case": (searching("weather in Rome", "Weather In Rome", "WEATHER IN ROME"), 5),
    "other spaces": (searching("weather in Rome", " weather  in Rome", "weather in Rome "), 5),
    "another order of words": (searching("Rome weather now", "now Rome weather"), 5),
    "other punctuation": (searching("weather in Rome", "weather in Rome?", "weather, in Rome!"), 5),
    "some words more or less": (searching(*WORDINGS), 5),
    "other stop words each time": (searching(*FILLED), 5),
    "time stamps in the results": (told("No results, as of 2026-05-01T10:{:02}:00Z."), 5),
    "clocks in the results": (told("[10:{:02}:17] There is nothing yet."), 5),
    "timings in the results": (told("0 rows in {} ms"), 5),
    "ids in the results": (identified, 5),
    "counters in the results": (told("There are no results for it (call {})."), 5),
    "an error in other words": (failing("page"), 4),
    "a failing call that is spelled in other ways": (
        failing("Page one", "page  one", "PAGE one."),
        4,
    ),
    "a tool that is not there": (lambda: stuck(ask("find", "it"), NOTHING), 4),
    "a malformed call": (lambda: stuck([[bad_call("search")]], NOTHING), 4),
    "a call that a gate denies": (forbidden, 4),
    "a marked poll that never changes": (polling, 10),
    "an unmarked poll that never changes": (
        lambda: stuck(ask("monitor", "cpu"), tool("monitor", "load is low")),
        5,
    ),
    "waits and a poll that never changes": (
        lambda: stuck(
            [*ask("wait", "1 min"), *ask("monitor", "cpu")], tool("wait"), tool("monitor", "low")
        ),
        8,
    ),
    "the same calls side by side": (
        lambda: stuck([[*ask("search", "a"), *ask("search", "b")]], NOTHING),
        4,
    ),
    "a test without an edit": (lambda: stuck(ask("test", "all"), tool("test", "3 failed")), 4),
}


@pytest.mark.parametrize("scenario", ALONE)
async def test_an_agent_that_gets_nowhere_is_corrected_and_then_ended(scenario: str) -> None:
    build, person = ALONE[scenario]
    agent = build()
    course = await course_of(agent)
    assert (course.close_reason, course.actions[-1]) == (LOOP, "abort")
    assert course.corrections >= 1
    assert requests(agent) <= 2 * person
    assert f"The run was ended by the guard {LOOP}: " in course.text
    assert "although the model was told to stop" in course.text


async def test_what_was_said_beside_the_last_call_stands_before_the_reason() -> None:
    turn = Turn("I look once more.", [call("search", what="it")])
    agent = stuck([turn], NOTHING)
    course = await course_of(agent)
    assert course.text.startswith("I look once more.\n\nThe run was ended by the guard")


def replying(text: str = "I need more information.") -> Agent:
    return Agent("sub", "does sub", model=ScriptedModel(lambda _: text), default_tools=False)


def sending(*briefs: str, by: str) -> Agent:
    """Return a supervisor that sends these briefs to one worker for ever."""
    name, argument = ("sub", "request") if by == "tool" else ("transfer_to_sub", "reason")
    fields: dict[str, Any] = {"agents": [replying().as_tool()]}
    if by == "delegate":
        fields = {"agents": [replying()], "handoff": "delegate"}
    return stuck([call(name, **{argument: brief}) for brief in briefs], name="boss", **fields)


BRIEFS = ["Find the sales figures", "find the sales figures, please", "the sales figures: find!"]


@pytest.mark.parametrize("by", ["tool", "delegate"])
@pytest.mark.parametrize(("briefs", "person"), [(BRIEFS[:1], 3), (BRIEFS, 4), (FILLED, 4)])
async def test_a_supervisor_that_is_stuck_on_a_worker_is_corrected_and_then_ended(
    by: str, briefs: list[str], person: int
) -> None:
    agent = sending(*briefs, by=by)
    course = await course_of(agent)
    assert (course.close_reason, course.corrections >= 1) == (DEADLOCK, True)
    assert requests(agent) <= 2 * person
    assert "'sub' has given the same reply" in course.text


REASONS = [
    "I cannot read the order",
    "billing is not my field",
    "which customer is meant?",
    "a password is missing",
    "who pays for this?",
]
GIVE_BACK = [call("request_help", reason="not mine")]
REQUESTS: dict[str, Callable[[int], Scripted]] = {
    "for the same reason": lambda n: call("request_help", reason="not mine"),
    "for a reason with another number": lambda n: call("request_help", reason=f"not mine, {n}"),
    "for another reason": lambda n: call("request_help", reason=REASONS[n % len(REASONS)]),
    "with another text": lambda n: Turn(f"Alas, {REASONS[n % len(REASONS)]}.", GIVE_BACK),
}
TRANSFERS: dict[str, list[Scripted]] = {
    "without a word": [call("transfer_to_sub")],
    "with the same words": [call("transfer_to_sub", reason="It is yours", summary="An order.")],
    "in other words": [
        call("transfer_to_sub", reason=reason)
        for reason in ("Look at the order", "please look at the order", "The order: look at it!")
    ],
    "with a text": [Turn("I hand you over.", [call("transfer_to_sub")])],
}


@pytest.mark.parametrize("request_for", REQUESTS)
@pytest.mark.parametrize("transfer", TRANSFERS)
async def test_a_supervisor_and_a_sub_agent_that_give_it_to_and_fro_are_corrected_and_then_ended(
    request_for: str, transfer: str
) -> None:
    numbers = count(1)
    model = ScriptedModel(lambda _: REQUESTS[request_for](next(numbers)))
    sub = Agent("sub", model=model, default_tools=True)
    agent = stuck(TRANSFERS[transfer], name="boss", agents=[sub])
    course = await course_of(agent)
    assert (course.close_reason, course.corrections) == (DEADLOCK, 1)
    assert requests(agent) + requests(sub) <= 9
    assert "somebody else has to decide" in course.text or "was told nothing new" in course.text


@pytest.mark.parametrize("members", ["ab", "abc"])
async def test_peers_that_hand_over_for_ever_are_corrected_and_then_ended(members: str) -> None:
    def peer(name: str, target: str) -> Agent:
        wish = call("handoff_conversation", target=target, reason="not mine", summary="")
        return stuck([wish], name=name)

    targets = cycle(members[1:] + members[:1])
    agents = [peer(name, next(targets)) for name in members]
    team = Team(agents, ConversationRouter([], default_agent_id="a"), expectations=())
    result = await team.arun("help me")
    assert result.close_reason in (DEADLOCK, LOOP)
    assert sum(map(requests, agents)) <= 4 * len(members)
    assert f"The run was ended by the guard {result.close_reason}: " in result.text


async def test_a_loop_inside_a_delegate_ends_the_run_with_the_reason() -> None:
    sub = stuck(ask("search", "it"), NOTHING, name="sub")
    agent = stuck([call("transfer_to_sub")], name="boss", agents=[sub], handoff="delegate")
    course = await course_of(agent)
    assert (course.close_reason, course.corrections) == (LOOP, 1)
    assert requests(sub) <= 8
    assert "`search` was called 7 times with the same arguments and result" in course.text
