"""Healthy work that looks like a loop: default guards may say a word, and end none of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from langchain_core.messages.ai import UsageMetadata

from agentgraph import Agent, Team, effect
from agentgraph.guards import Guards
from agentgraph.routing import round_robin
from agentgraph.testing import ScriptedModel, Turn, call
from agentgraph.testing.answers import Scripted
from tests.guards.scenarios.driver import (
    ask,
    course_of,
    in_turn,
    stuck,
    tool,
    working,
)

CITIES = ["Rome", "Oslo", "Bonn", "Lima", "Riga", "Bern", "Kyiv", "Nice", "Bari", "Graz"]
DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday"]
SMALL = ["before", "after", "in", "until", "not in", "all in", "without", "up to", "only in"]
KINDS = ["paid", "open"]
FAILED = "3 failed, 17 passed"


def interleaved(*columns: list[Scripted]) -> list[Scripted]:
    """Return the steps of several columns, row by row."""
    return [step for row in zip(*columns, strict=True) for step in row]


def numbered(text: str, times: int) -> list[str]:
    return [text.format(n) for n in range(times)]


def marked_poll() -> Agent:
    states = iter([*["running"] * 9, "ready"])

    @effect(poll=True)
    def job() -> str:
        """Return how far the job is."""
        return next(states)

    return working([call("job")] * 10, job)


def marked_poll_with_waits() -> Agent:
    states = iter([*["running"] * 9, "ready"])

    @effect(poll=True)
    def job() -> str:
        """Return how far the job is."""
        return next(states)

    return working(interleaved(ask("wait", *["30 s"] * 10), [call("job")] * 10), job, tool("wait"))


def counted(text: str) -> Callable[[str], str]:
    numbers = count(1)
    return lambda what: text.format(next(numbers))


ALONE: dict[str, Callable[[], Agent]] = {
    "60 distinct searches": lambda: working(
        ask("search", *numbered("topic {}", 60)), tool("search", lambda what: f"about {what}")
    ),
    "60 distinct searches that find nothing": lambda: working(
        ask("search", *numbered("topic {}", 60)), tool("search", "No results.")
    ),
    "a search for each of ten cities that finds nothing": lambda: working(
        ask("search", *(f"cheap hotels in {city} near the station" for city in CITIES)),
        tool("search", "No results."),
    ),
    "searches whose small words tell them apart": lambda: working(
        ask("search", *(f"orders {word} March, {kind}" for word in SMALL for kind in KINDS)),
        tool("search", "No results."),
    ),
    "a general search and special ones that find nothing": lambda: working(
        ask("search", "hotel prices", *(f"hotel prices {city}" for city in CITIES)),
        tool("search", "No results."),
    ),
    "flights on twenty days": lambda: working(
        ask("flights", *(f"Rome to Oslo on 2026-05-{day:02}" for day in range(1, 21))),
        tool("flights", "There are none."),
    ),
    "rooms and days that are all free": lambda: working(
        ask("room", *(f"is room {room} free on {day}" for room in "ABCDE" for day in DAYS)),
        tool("room", "yes"),
    ),
    "pages by number": lambda: working(
        ask("page", *numbered("{}", 30)), tool("page", "20 rows, and there is more")
    ),
    "pages by cursor": lambda: working(
        ask("page", *numbered("cursor-{}", 20)), tool("page", lambda what: f"after {what}")
    ),
    "the next page, each time": lambda: working(
        ask("next_page", *[""] * 20), tool("next_page", counted("page {0} of 20: rows {0}0 and on"))
    ),
    "a monitor asked six times with the same answer": lambda: working(
        ask("monitor", *["cpu"] * 7), tool("monitor", in_turn(*["load 0.2"] * 6, "load 0.9"))
    ),
    "a monitor asked with waits between": lambda: working(
        interleaved(ask("wait", *["1 min"] * 4), ask("monitor", *["cpu"] * 4)),
        tool("monitor", "load is low"),
        tool("wait"),
    ),
    "a marked poll": marked_poll,
    "a marked poll with waits between": marked_poll_with_waits,
    "a job that gets on by percents": lambda: working(
        ask("job", *["7"] * 20), tool("job", counted("the long job is {} % done"))
    ),
    "a queue that gets shorter": lambda: working(
        ask("queue", *["7"] * 12),
        tool("queue", in_turn(*(f"{n} jobs are before this one" for n in range(12, 0, -1)))),
    ),
    "tests after each of six edits": lambda: working(
        interleaved(ask("edit", *numbered("line {}", 6)), ask("test", *["all"] * 6)),
        tool("edit"),
        tool("test", FAILED),
    ),
    "tests that raise after each of six edits": lambda: working(
        interleaved(ask("edit", *numbered("line {}", 6)), ask("test", *["all"] * 6)),
        tool("edit"),
        tool("test", in_turn(AssertionError(FAILED))),
    ),
    "five missing files": lambda: working(
        ask("read", *numbered("notes_{}.txt", 5)), tool("read", in_turn(FileNotFoundError("no")))
    ),
    "thirty failures with other arguments": lambda: working(
        ask("read", *numbered("notes {}", 30)), tool("read", in_turn(FileNotFoundError("no")))
    ),
    "a listing between missing files": lambda: working(
        interleaved(ask("list", *["."] * 8), ask("read", *numbered("file {}", 8))),
        tool("list", "a b c"),
        tool("read", in_turn(FileNotFoundError("no"))),
    ),
    "a query that fails another way each time": lambda: working(
        ask("sql", *(f"select {name} from t" for name in "abcdefghij")),
        tool("sql", in_turn(*(ValueError(f"no column {name}") for name in "abcdefghij"))),
    ),
    "three retries after transient errors": lambda: working(
        ask("fetch", *["page"] * 4), tool("fetch", in_turn(*[ConnectionError("reset")] * 3, "text"))
    ),
    "each of ten calls retried once": lambda: working(
        [step for city in CITIES for step in ask("fetch", city, city)],
        tool("fetch", in_turn(*[ConnectionError("reset"), "text"] * 10)),
    ),
    "a calculation that comes up again": lambda: working(
        interleaved(ask("search", *numbered("rate {}", 10)), ask("calc", *["100 * 1.19"] * 10)),
        tool("search", lambda what: f"{what} is 19 %"),
        tool("calc", "119"),
    ),
    "the time between other work": lambda: working(
        interleaved(ask("work", *numbered("part {}", 10)), ask("clock", *[""] * 10)),
        tool("work"),
        tool("clock", counted("10:{:02}:00")),
    ),
    "the time six times in a row": lambda: working(
        ask("clock", *[""] * 6), tool("clock", counted("It is 10:{:02}:00 in all of Rome."))
    ),
    "a file read again after each write": lambda: working(
        interleaved(ask("write", *numbered("text {}", 8)), ask("read", *["file"] * 8)),
        tool("write"),
        tool("read", counted("text {}")),
    ),
    "a file that stays the same after writes to others": lambda: working(
        interleaved(ask("write", *numbered("file {}", 8)), ask("read", *["index"] * 8)),
        tool("write"),
        tool("read", "the index"),
    ),
    "checks between other work": lambda: working(
        interleaved(ask("work", *numbered("part {}", 12)), ask("check", *["health"] * 12)),
        tool("work"),
        tool("check", "all is well"),
    ),
    "a heartbeat after every three parts": lambda: working(
        [
            step
            for n in range(10)
            for step in [*ask("work", *(f"{n}.{m}" for m in range(3))), *ask("beat", "")]
        ],
        tool("work"),
        tool("beat"),
    ),
    "a login before every second call": lambda: working(
        [step for n in range(12) for step in [*ask("login", "me"), *ask("get", f"{n}", f"{n}b")]],
        tool("login", counted("token-{}")),
        tool("get"),
    ),
    "equal calls in one message": lambda: working(
        [[call("look", what="it")] * 5], tool("look", "nothing")
    ),
    "equal calls side by side between other work": lambda: working(
        [
            [call("look", what="it"), call("look", what="it"), *ask("look", f"{n}")]
            for n in range(9)
        ],
        tool("look", "nothing"),
    ),
    "a status beside new work in each message": lambda: working(
        [[*ask("status", ""), *ask("work", f"part {n}")] for n in range(30)],
        tool("status", "fine"),
        tool("work"),
    ),
    "a plain classifier of 100 mails": lambda: working(
        ask("classify", *numbered("mail {} about an offer", 100)), tool("classify", "not spam")
    ),
    "many small writes": lambda: working(ask("write", *numbered("row {}", 40)), tool("write")),
    "a list and then each of its things": lambda: working(
        ask("list", "all") + ask("read", *numbered("thing {}", 20)),
        tool("list", "20 things"),
        tool("read", lambda what: f"text of {what}"),
    ),
    "a queue that is worked off": lambda: working(
        interleaved(ask("take", *[""] * 15), ask("finish", *numbered("job {}", 15))),
        tool("take", counted("job {}")),
        tool("finish"),
    ),
    "two tools in turn with new results": lambda: working(
        interleaved(ask("ping", *[""] * 15), ask("pong", *[""] * 15)),
        tool("ping", counted("ping {}")),
        tool("pong", counted("pong {}")),
    ),
    "each thing looked at twice": lambda: working(
        [step for n in range(15) for step in ask("look", f"thing {n}", f"thing {n}")],
        tool("look", lambda what: f"{what} is there"),
    ),
    "a search by halves": lambda: working(
        ask("is_less", *(str(2**n) for n in range(20))), tool("is_less", "yes")
    ),
    "code that differs in a sign": lambda: working(
        ask("run", *(f"print(x {sign} {n})" for n in range(4) for sign in "+-*/")),
        tool("run", "0"),
    ),
    "research in 40 calls that reads 240,000 tokens": lambda: working(
        [
            Turn(
                calls=[call("search", what=f"source {n}")],
                usage=UsageMetadata(input_tokens=5_900, output_tokens=100, total_tokens=6_000),
            )
            for n in range(40)
        ],
        tool("search", lambda what: f"text of {what}"),
    ),
}


@pytest.mark.parametrize("scenario", ALONE)
async def test_healthy_work_of_an_agent_is_not_ended(scenario: str) -> None:
    course = await course_of(ALONE[scenario]())
    assert (course.text, course.close_reason) == ("Done.", None)
    assert {*course.actions} <= {"correct"}


def told(text: str = "Done.", *tools: Any) -> Agent:
    """Return a worker that answers each brief with this text, with the number of its answer."""
    numbers = count(1)
    model = ScriptedModel(lambda _: text.format(next(numbers)))
    return Agent("sub", "does sub", model=model, tools=tools, default_tools=False)


def boss(sub: Agent, briefs: list[str], *, by: str = "tool", waves: int = 1) -> Agent:
    """Return a supervisor that sends briefs, so many of them in each message."""
    name, argument = ("sub", "request") if by == "tool" else ("transfer_to_sub", "reason")
    asks: list[Any] = [call(name, **{argument: brief}) for brief in briefs]
    messages = [asks[n : n + waves] for n in range(0, len(asks), waves)]
    fields: dict[str, Any] = {"agents": [sub.as_tool()]}
    if by == "delegate":
        fields = {"agents": [sub], "handoff": "delegate"}
    return working(messages, name="boss", **fields)


SPECIALISTS = [f"s{n}" for n in range(7)]


def specialists() -> Agent:
    """Return a supervisor whose seven specialists each give back."""
    subs = [
        stuck([call("request_help", reason=f"{name} is not in charge")], name=name).replace(
            default_tools=True
        )
        for name in SPECIALISTS
    ]
    return working([call(f"transfer_to_{name}") for name in SPECIALISTS], name="boss", agents=subs)


NEWS: dict[str, Callable[[int], list[Scripted]]] = {
    "in a reason": lambda n: [call("transfer_to_sub", reason=f"Fact {n}: {CITIES[n % 10]}.")],
    "in a summary": lambda n: [call("transfer_to_sub", reason="as asked", summary=f"Fact {n}.")],
    "in a text": lambda n: [Turn(f"Fact {n}.", [call("transfer_to_sub")])],
    "from a tool": lambda n: [call("look", what=f"{n}"), call("transfer_to_sub")],
}


def helping(news: str, reason: str) -> Agent:
    """Return a supervisor that answers thirty requests for help with something new each."""
    numbers = count(1)
    model = ScriptedModel(lambda _: call("request_help", reason=reason.format(next(numbers))))
    sub = Agent("sub", model=model)
    steps = [step for n in range(30) for step in NEWS[news](n)]
    return working(steps, tool("look", "fact {}".format), name="boss", agents=[sub])


@pytest.mark.parametrize("news", NEWS)
@pytest.mark.parametrize("reason", ["What is next?", "What is the answer to question {}?"])
async def test_requests_for_help_that_are_answered_with_something_new_go_on(
    news: str, reason: str
) -> None:
    course = await course_of(helping(news, reason))
    assert (course.text, course.close_reason, course.actions) == ("Done.", None, [])


MAILS = numbered("Is this spam? Mail {}: an offer", 100)

TOGETHER: dict[str, Callable[[], Agent]] = {
    "a classifier of 100 mails": lambda: boss(told("not spam"), MAILS),
    "a delegate that classifies 20 mails": lambda: boss(
        told("not spam"), MAILS[:20], by="delegate"
    ),
    "a classifier of mails from ten people": lambda: boss(
        told("not spam"), [f"Is the mail from {city} about offers spam?" for city in CITIES]
    ),
    "50 items in waves of eight": lambda: boss(
        told("part {}"), numbered("summarise item {}", 50), waves=8
    ),
    "50 items in waves of eight, all done": lambda: boss(
        told(), numbered("save item {}", 50), waves=8
    ),
    "thirty drafts and thirty remarks": lambda: boss(told("remark {}"), numbered("draft {}", 30)),
    "a brief that asks to go on, with new parts": lambda: boss(told("part {}"), ["go on"] * 12),
    "other questions with one answer": lambda: boss(
        told("yes"), [f"Is {city} in Europe?" for city in CITIES], by="delegate"
    ),
    "seven specialists that give back": specialists,
}


@pytest.mark.parametrize("scenario", TOGETHER)
async def test_healthy_work_of_several_agents_is_not_ended(scenario: str) -> None:
    course = await course_of(TOGETHER[scenario]())
    assert (course.text, course.close_reason) == ("Done.", None)
    assert {*course.actions} <= {"correct"}


async def test_two_agents_of_a_team_exchange_something_new_thirty_times() -> None:
    facts = count(1)
    agents = [
        Agent(name, model=ScriptedModel(lambda _: f"Fact {next(facts)}."), default_tools=False)
        for name in ("ann", "bob")
    ]
    rules = round_robin(["ann", "bob"], max_turns=30)
    result = await Team(agents, rules).arun("Collect facts.")
    assert (result.close_reason, result.text) == ("round_robin_complete", "Fact 30.")


@pytest.mark.parametrize("asked", ["the same each time", "something else"])
async def test_a_long_chat_on_one_thread_is_not_ended(asked: str) -> None:
    turns: list[Scripted] = []
    for n in range(25):
        what = "the weather" if asked == "the same each time" else f"matter {n}"
        turns += [*ask("look", what), f"Answer {n}."]
    model = ScriptedModel(turns)
    agent = Agent("a", model=model, tools=[tool("look", "It is fine.")], default_tools=False)
    agent = agent.replace(guards=Guards.interactive())
    for n in range(25):
        course = await course_of(agent, f"question {n}")
        assert (course.text, course.close_reason, course.actions) == (f"Answer {n}.", None, [])
