"""`agentgraph log`: a session as one reads it, as JSON, and while it goes on; and the list."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from agentgraph import Envelope, Session
from agentgraph.cli.terminal.transcript import Transcript
from agentgraph.sessions import (
    EV_PACKET,
    EV_TEXT,
    SessionSummary,
    open_log,
    text_envelope,
)
from agentgraph.sessions.envelopes import envelope as ev
from tests.cli.conversations import run, shown
from tests.cli.pseudo_terminal import CTRL_C, terminal
from tests.cli.stored_sessions import ask, clerk, desk, hold, tear
from tests.postgres import Database
from tests.sessions.log.sessions_to_store import Writer, envelope, record


def on_paper(*envelopes: Envelope, **options: Any) -> str:
    console = Console(file=StringIO(), **options)
    transcript = Transcript(console)
    for one in envelopes:
        transcript.show(one)
    return shown(console)


def noted(event_type: str, sender: str = "ag.hub", **data: Any) -> Envelope:
    return Envelope("e", "s", sender, None, event_type, data, sequence=7)


def test_session_is_told_from_its_opening_to_its_end(url: str) -> None:
    hold(url, desk(), ask)

    result = run("log", url, "s")

    assert result.exit_code == 0
    assert result.stdout == (
        "  1 opened by user with triage, handler, reviewer; triage begins\n"
        "  2 user> I was charged twice\n"
        "      → triage (initial, phase intake)\n"
        "  3 triage> A billing case.\n"
        '      triage calls rate(tier="gold") → gold it is\n'
        '      sets tier = "gold"\n'
        "      → handler (rule 0, phase handling)\n"
        "  4 phase intake → handling\n"
        "  5 handler> Refunded.\n"
        "      → reviewer (rule 1, phase review)\n"
        "  6 phase handling → review\n"
        "  7 reviewer says nothing\n"
        "      → handler (handoff, phase handling)\n"
        "  8 reviewer hands over to handler: untold\n"
        "      summary: Write to them.\n"
        "  9 phase review → handling\n"
        " 10 round 4 of handler failed at attempt 1: model: the model of agent 'handler' failed: "
        "InternalServerError 500; it is tried again\n"
        " 11 handler> Refunded, and told them.\n"
        "      at attempt 2\n"
        "      → reviewer (rule 1, phase review)\n"
        " 12 phase handling → review\n"
        " 13 reviewer> Good.\n"
        "      → closes: pipeline_complete (rule 2)\n"
        " 14 closed: pipeline_complete\n"
    )


def test_question_and_its_decision_are_told(url: str) -> None:
    async def decide(session: Session) -> None:
        [question] = (await ask(session)).interrupts
        await session.decide(question, "yes")
        await session.settled()
        names.append(question)

    names: list[str] = []
    hold(url, clerk(), decide)

    told = run("log", url, "s").stdout

    assert f'  3 clerk asks for a decision on {names[0]}: {{"pay": 5}}\n' in told
    assert f'  4 user decides on {names[0]}: "yes"\n  5 clerk> It is paid.\n' in told


LINES = [
    (noted(ev.EV_CONTEXT_SET, "user", set={"a": 1}, delete=["b"]), "user sets a = 1, deletes b"),
    (noted(ev.EV_SESSION_INVITE, invitee="al", creator="user"), "al is invited by user"),
    (noted(ev.EV_SESSION_INVITE_ACK, "al"), "al accepts"),
    (noted(ev.EV_SESSION_INVITE_REJECT, "al"), "al declines"),
    (noted(ev.EV_SESSION_LEFT, participant="al"), "al leaves"),
    (
        noted(ev.EV_SESSION_RELEASED, agent="a", decision={"action": "speak", "speakers": ["a"]}),
        "released to a\n      → a (None)",
    ),
    (noted(ev.EV_SESSION_EXPIRED), "its time is over"),
    (
        noted(
            ev.EV_EXPECTATION_VIOLATED,
            name="turn_within",
            seconds=120.0,
            on_violation="warn",
            violators=["a"],
        ),
        "turn_within of 120.0 s is not kept by a (warn)",
    ),
    (
        noted(ev.EV_HANDOFF, **{"from": "a"}, target="human", channel_escalation="voice"),
        "a hands over to human by voice",
    ),
    (
        noted(
            ev.EV_HANDOFF_REJECTED,
            **{"from": "a"},
            target="x",
            told='{"code": "unknown_target", "reason": "nobody"}',
        ),
        "a may not hand over to x: unknown_target: nobody",
    ),
    (
        noted(
            ev.EV_ROUND_FAILED,
            speaker="a",
            round=2,
            attempt=2,
            code="silent",
            message="a said nothing",
            final=True,
        ),
        "round 2 of a failed at attempt 2: silent: a said nothing; it is given up",
    ),
    (
        noted(ev.EV_CANCELLED, speakers=["a", "b"], round=2, by="user", reason="enough"),
        "round 2 of a, b was cancelled by user: enough",
    ),
    (noted(ev.EV_AUDIT, what="it"), 'audit {"what": "it"}'),
    (
        noted(ev.EV_AUDIT, kind="decision", agent="a", guard="g", action="deny", cause="no"),
        "guard g at a: deny: no",
    ),
    (
        noted(ev.EV_AUDIT, kind="effect", agent="a", entry={"tool": "a:pay", "state": "done"}),
        "action a:pay: done",
    ),
    (noted(ev.EV_SUMMARY, upto=4, text="They met."), "summary up to 4: They met."),
    (noted(ev.EV_TASK_STARTED, agent="a"), "a task of a begins"),
    (noted(ev.EV_TASK_PROGRESS, agent="a", message="half", fraction=0.5), "a task of a: 50% half"),
    (noted(ev.EV_TASK_COMPLETED, agent="a"), "a task of a is completed"),
    (noted(ev.EV_TASK_FAILED, agent="a"), "a task of a failed"),
    (noted(ev.EV_TASK_EXPIRED, agent="a"), "a task of a took too long"),
    (noted("my.event", "user", x=[1]), 'user: my.event {"x": [1]}'),
]


@pytest.mark.parametrize(("given", "line"), LINES, ids=lambda each: getattr(each, "event_type", ""))
def test_each_kind_of_envelope_has_its_words(given: Envelope, line: str) -> None:
    assert on_paper(given) == f"  7 {line}\n"


def test_every_event_type_has_words_of_its_own() -> None:
    types = {value for name, value in vars(ev).items() if name.startswith("EV_")}

    generic = {one for one in types if f": {one} " in on_paper(noted(one))}

    assert generic == set()


def test_whoever_is_not_meant_for_all_says_to_whom() -> None:
    aside = Envelope("e", "s", "a", ("b", "c"), EV_TEXT, {"text": "psst"}, sequence=12)

    assert on_paper(aside) == " 12 a to b, c> psst\n"


def test_text_cannot_pass_for_another_envelope_nor_command_a_terminal() -> None:
    text = "all is well\n  8 closed: approved\x1b[2J\u202e"
    forged = Envelope("e", "s", "a\nb", None, EV_TEXT, {"text": text}, sequence=7)

    assert on_paper(forged) == "  7 a b> all is well\n      8 closed: approved[2J\n"


def test_packet_of_any_shape_is_told() -> None:
    wild = {
        "body": "x",
        "routing": 3,
        "steps": [1, {"calls": [{}, 2], "text": None}],
        "context_updates": {"set": [], "delete": 1},
        "decision": {},
        "attempt": "2",
    }

    told = on_paper(noted(EV_PACKET, "a", **wild))

    assert told == "  7 a> x\n      it calls None() →\n      → nobody (None)\n"


def test_narrow_terminal_breaks_lines_between_words_and_indents_them() -> None:
    one = noted(EV_TEXT, "user", text="one two three 東京 is big")
    decided = noted(EV_TEXT, "user", text="x", decision={"action": "wait", "speakers": ["user"]})

    told = on_paper(one, decided, width=16, force_terminal=True, color_system=None)

    assert told.splitlines() == [
        "  7 user> one",
        "    two three",
        "    東京 is big",
        "  7 user> x",
        "      → waits",
        "      for user",
        "      (None)",
    ]


def test_json_is_the_envelopes_line_by_line(url: str) -> None:
    async def spoken(session: Session) -> None:
        await session.send("user", text_envelope("ü \ud800", metadata={"m": 1}))
        await session.settled()
        said.extend(await session.history())

    said: list[Envelope] = []
    hold(url, desk(), spoken)

    lines = run("log", url, "s", "--json").stdout.splitlines()

    assert [Envelope.from_dict(json.loads(line)) for line in lines] == said


def test_sessions_are_listed_the_oldest_first(url: str) -> None:
    async def nothing(session: Session) -> None:
        return None

    hold(url, desk(), ask, "first")
    hold(url, clerk(), nothing, "the-second")

    lines = run("log", url).stdout.splitlines()
    told = [json.loads(line) for line in run("log", url, "--json").stdout.splitlines()]

    assert [line.split("  ")[0] for line in lines] == ["first", "the-second"]
    assert lines[0].startswith("first       closed  triage-handler-reviewer  14 envelopes  20")
    assert lines[1].startswith("the-second  active  clerk                    1 envelopes   20")
    assert lines[0].endswith(" UTC  by user")
    assert [SessionSummary(**one).session_id for one in told] == ["first", "the-second"]


def test_list_fits_a_narrow_terminal() -> None:
    console = Console(file=StringIO(), width=20, force_terminal=True, color_system=None)

    Transcript(console).list([SessionSummary("s", "team", "active", "user", 0.0, 3, parent="o")])

    assert shown(console).splitlines() == [
        "s  active  team  3",
        "  envelopes",
        "  1970-01-01 00:00",
        "  UTC  by user  from",
        "  o",
    ]


def test_columns_of_a_list_stand_below_each_other() -> None:
    console = Console(file=StringIO(), width=200)
    names = ("東京", "team")

    Transcript(console).list(
        [SessionSummary("s", name, "active", "user", 0.0, 3) for name in names]
    )

    first, second = (Text(line) for line in shown(console).splitlines())
    assert [part.cell_len for part in (first, second)] == [first.cell_len] * 2


def test_store_without_sessions_says_so(url: str, folder: Path) -> None:
    with closing(sqlite3.connect(folder / "desk.db")) as file:
        file.execute("CREATE TABLE mine (a)")

    result = run("log", url)

    assert (result.exit_code, result.stdout) == (0, "There are no sessions.\n")
    assert run("log", url, "s").exit_code == 2
    with closing(sqlite3.connect(folder / "desk.db")) as file:
        assert file.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def test_session_that_goes_on_is_followed_to_its_end(url: str, folder: Path) -> None:
    async def followed(session: Session) -> None:
        command = [sys.executable, "-m", "agentgraph", "log", url, "s", "--follow"]
        reading = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        assert reading.stdout is not None
        try:
            first.append((await reading.stdout.readline()).decode())
            await session.send("user", "I was charged twice")  # not before it has begun
            rest.append((await reading.stdout.read()).decode())
            status.append(await reading.wait())
        finally:
            if reading.returncode is None:
                reading.kill()
                await reading.wait()

    first: list[str] = []
    rest: list[str] = []
    status: list[int] = []
    hold(url, desk(), followed)

    assert first == ["  1 opened by user with triage, handler, reviewer; triage begins\n"]
    assert rest[0].endswith(" 14 closed: pipeline_complete\n")
    assert first[0] + rest[0] == run("log", url, "s").stdout
    assert status == [0]


def test_ctrl_c_ends_following(url: str, folder: Path) -> None:
    async def asked(session: Session) -> None:
        await ask(session)

    hold(url, clerk(), asked)

    with terminal(["-m", "agentgraph", "log", url, "s", "-f"], cwd=folder) as shell:
        shell.expect("clerk asks for a decision")
        shell.send(CTRL_C)

        assert shell.status() == 130
        assert "Traceback" not in shell.text


def test_session_is_looked_at_without_being_taken(url: str) -> None:
    async def looked_at(session: Session) -> None:
        await ask(session)
        log = open_log(url)
        await log.open()
        before = await log.load("s")
        result = await asyncio.to_thread(run, "log", url, "s")
        after = await log.load("s")
        await log.close()
        assert result.exit_code == 0 and before is not None and before.owner is not None
        assert after == before

    hold(url, clerk(), looked_at)


def test_session_whose_rules_nobody_knows_is_told(url: str) -> None:
    async def written() -> None:
        log = open_log(url)
        await log.open()
        await Writer(log).begin(envelope(1), envelope(2))  # its rules have no initial speaker
        await log.close()

    asyncio.run(written())

    assert record().graph == {"version": 1, "transitions": []}
    assert run("log", url, "s").stdout == "  1 a to a, b> word 1\n  2 a> word 2\n"


def test_torn_session_is_told_as_far_as_it_goes(url: str, folder: Path) -> None:
    hold(url, desk(), ask)
    tear(folder / "desk.db", 5)

    result = run("log", url, "s")

    assert result.exit_code == 2
    assert result.stdout.endswith("  4 phase intake → handling\n")
    assert result.stderr.startswith("agentgraph: session 's' cannot be read at sequence 5 (")
    assert result.stderr.count("\n") == 1


FAULTS: list[tuple[Sequence[str], str]] = [
    (["bla"], "give the store as sqlite:///file.db or postgresql://…; what is in memory"),
    (["memory"], "give the store as sqlite:///file.db or postgresql://…; what is in memory"),
    (["mysql://me:secret@host/db"], "give the store as sqlite:///file.db or postgresql://…"),
    (["sqlite:///nowhere.db"], "there is no file 'nowhere.db'"),
    (["sqlite:///agents.py"], "cannot open the SQLite file 'agents.py': file is not a database"),
    (["postgresql://me:secret@127.0.0.1:9/db?connect_timeout=1"], "cannot connect to Postgres"),
    (["sqlite:///desk.db", "nobody"], "there is no session 'nobody'"),
    (["sqlite:///desk.db", "--follow"], "--follow: name the session to be followed"),
]


@pytest.mark.parametrize(("arguments", "told"), FAULTS, ids=lambda each: str(each)[:40])
def test_what_cannot_be_told_is_one_sentence(
    arguments: list[str], told: str, url: str, folder: Path
) -> None:
    hold(url, clerk(), ask)

    result = run("log", *arguments)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"agentgraph: {told}")
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr
    assert not (folder / "nowhere.db").exists()


def test_sessions_in_postgres_are_told(postgres: Database) -> None:
    hold(postgres.url, desk(), ask)

    assert run("log", postgres.url).stdout.startswith("s  closed  triage-handler-reviewer  14")
    assert run("log", postgres.url, "s").stdout.endswith(" 14 closed: pipeline_complete\n")
    assert run("replay", postgres.url, "s").exit_code == 0
