"""What a log promises, held by all three."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agentgraph.errors import RoundConflict, SessionClosed, SessionError, StaleOwner
from agentgraph.sessions.envelopes.envelope import EV_SESSION_EXPIRED
from agentgraph.sessions.log import InboxConflict, Log, SessionQuery, SessionSummary, SharedBlobs
from agentgraph.sessions.log.protocol import EmptyInbox
from agentgraph.sessions.rounds.branch import state_at
from agentgraph.sessions.state import state as states
from agentgraph.sessions.state.fold import fold_all
from agentgraph.sessions.state.record import Parent, session_key
from agentgraph.sessions.state.state import SessionState
from tests.sessions.conftest import OpenLog
from tests.sessions.log.sessions_to_store import (
    AWKWARD,
    Heard,
    Writer,
    awkward_waiting,
    envelope,
    note,
    record,
    waiting,
)


async def test_session_comes_back_as_it_was_created(opened: OpenLog) -> None:
    writer = await Writer(await opened(), "child").begin(envelope(1, session_id="child"))

    stored = await (await opened()).load("child")

    assert stored is not None
    assert (stored.record, stored.head, stored.state) == (writer.record, 1, writer.state)
    assert (stored.attempts, stored.owner, stored.epoch) == (0, None, 0)


async def test_second_session_of_an_id_is_not_created_and_changes_nothing(log: Log) -> None:
    writer = await Writer(log).begin(envelope(1))

    assert await log.create(record(team="other"), [], SessionState()) is False

    stored = await log.load("s")
    assert stored is not None and stored.record == writer.record
    assert await log.read("s") == writer.envelopes


async def test_what_was_accepted_is_known_by_sender_and_key_also_after_the_end(log: Log) -> None:
    writer = await Writer(log).begin(envelope(1, key="said"))
    await log.enqueue("s", waiting("w", key=AWKWARD))
    await log.enqueue("s", waiting("v"))
    for is_ended in (False, True):
        assert await log.accepted_id("s", "user", AWKWARD) == "w"
        assert await log.accepted_id("s", "a", "said") == "s-1"
        assert await log.accepted_id("s", "a", AWKWARD) is None
        assert await log.accepted_id("s", "user", "") is None
        if not is_ended:
            await writer.add(taken=["w", "v"], closing=True)


async def test_fork_brings_thousands_at_once(log: Log) -> None:
    writer = Writer(log)
    envelopes = [envelope(n, key=f"k{n}") for n in range(1, 2_501)]

    await writer.begin(*envelopes)

    assert await log.read("s") == envelopes
    assert await log.enqueue("s", waiting("new", key="k2400", sender="a")) == "s-2400"


async def test_unknown_session_is_not_loaded(log: Log) -> None:
    assert await log.load("nobody") is None


async def test_unknown_session_is_refused_by_all_that_needs_one(log: Log) -> None:
    for asked in (
        log.read("nobody"),
        log.tail("nobody", 1),
        log.find("nobody", "x"),
        log.inbox("nobody"),
        log.accepted_id("nobody", "user", "k"),
        log.enqueue("nobody", waiting("w")),
        log.claim("nobody", "hub", 0),
        log.release("nobody", "hub"),
        log.attempt("nobody", 0),
        log.forget("nobody", 0),
        log.append("nobody", [], 0, SessionState()),
    ):
        with pytest.raises(SessionError, match="no session 'nobody'") as caught:
            await asked
        assert caught.value.code == "unknown_session"


async def test_milestone_is_the_state_at_its_sequence(
    opened: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "MILESTONE_EVERY", 4)
    writer = await Writer(await opened()).begin(envelope(1))
    for count in (2, 3, 1, 9, 1):
        head = writer.head
        await writer.add(*(envelope(n) for n in range(head + 1, head + count + 1)))

    log = await opened()

    for at in range(writer.head + 2):
        state = await log.milestone("s", at)  # a log may have none
        if state is not None:
            first = SessionState.initial(writer.record)
            assert state == fold_all(first, writer.envelopes[: state.sequence])
            assert state.sequence <= at
        if at <= writer.head:
            whole = await state_at(log, writer.record, at)
            assert whole == fold_all(SessionState.initial(writer.record), writer.envelopes[:at])


async def test_sessions_are_listed_the_oldest_first(log: Log) -> None:
    await Writer(log, "z").begin()
    await Writer(log, "child").begin(note(1, "child"))
    closed = await Writer(log, "closed").begin()
    await closed.add(closing=True)

    listed = await log.sessions()

    assert [one.session_id for one in listed] == ["z", "child", "closed"]
    assert listed[1] == SessionSummary("child", "team", "pending", "user", 1.5, 1, "origin")
    assert [one.session_id for one in await log.sessions(SessionQuery(status="closed"))] == [
        "closed"
    ]
    assert await log.sessions(SessionQuery(status="expired")) == []


async def test_sessions_are_listed_by_what_they_have(log: Log) -> None:
    for made in (
        record("one", metadata={"kind": "chat", "n": 1}),
        record("two", tenant="acme", creator="ann", metadata={"kind": "chat", "n": 1.0}),
        record("one", tenant="acme", metadata={"kind": AWKWARD}),
        record("three", tenant="acme", creator="ann", team="other", metadata={"n": True}),
    ):
        assert await log.create(made, [], SessionState.initial(made))

    for query, keys in [
        (SessionQuery(tenant="acme"), ["acme/two", "acme/one", "acme/three"]),
        (SessionQuery(tenant="acme", creator="ann"), ["acme/two", "acme/three"]),
        (SessionQuery(creator="user"), ["one", "acme/one"]),
        (SessionQuery(team="other"), ["acme/three"]),
        (SessionQuery(metadata={"kind": "chat"}), ["one", "acme/two"]),
        (SessionQuery(metadata={"n": 1, "kind": "chat"}), ["one", "acme/two"]),
        (SessionQuery(metadata={"n": 1}, tenant="acme"), ["acme/two"]),
        (SessionQuery(metadata={"n": True}, creator="ann"), ["acme/three"]),
        (SessionQuery(metadata={"kind": AWKWARD}), ["acme/one"]),
        (SessionQuery(metadata={"kind": "none"}), []),
        (SessionQuery(status="closed"), []),
        (SessionQuery(limit=2), ["one", "acme/two"]),
        (SessionQuery(limit=2, after="acme/two"), ["acme/one", "acme/three"]),
        (SessionQuery(limit=2, newest_first=True), ["acme/three", "acme/one"]),
        (SessionQuery(newest_first=True, after="acme/two"), ["one"]),
        (SessionQuery(tenant="acme", after="one", limit=1), ["acme/two"]),
        (SessionQuery(metadata={"kind": "chat"}, after="one"), ["acme/two"]),
    ]:
        assert [summary.key for summary in await log.sessions(query)] == keys, query


async def test_sessions_of_a_person_are_those_it_opened_or_takes_part_in(log: Log) -> None:
    for made in (
        record("one", creator="ann"),
        replace(record("two", creator="bob"), humans=("ann",)),
        replace(record("three", creator="bob"), humans=("eve",)),
        replace(record("four", creator="ann", metadata={"kind": "chat"}), humans=("ann", "bob")),
        replace(record("five", creator="bob", metadata={"kind": "chat"}), invited=("ann",)),
        record("six", tenant="acme", creator="ann"),
        replace(record("seven", creator="bob"), agents=("ann",)),
    ):
        assert await log.create(made, [], SessionState.initial(made))

    ann = SessionQuery(person="ann", tenant="default")
    for query, keys in [
        (ann, ["one", "two", "four", "five"]),
        (replace(ann, newest_first=True), ["five", "four", "two", "one"]),
        (replace(ann, newest_first=True, limit=2), ["five", "four"]),
        (replace(ann, newest_first=True, limit=2, after="four"), ["two", "one"]),
        (replace(ann, limit=1, after="one"), ["two"]),
        (replace(ann, metadata={"kind": "chat"}), ["four", "five"]),
        (replace(ann, creator="bob"), ["two", "five"]),
        (replace(ann, creator="ann"), ["one", "four"]),
        (replace(ann, status="closed"), []),
        (replace(ann, tenant=None), ["one", "two", "four", "five", "acme/six"]),
        (SessionQuery(person="eve"), ["three"]),
        (SessionQuery(person=AWKWARD), []),
    ]:
        assert [summary.key for summary in await log.sessions(query)] == keys, query


async def test_sessions_with_an_envelope_are_found_the_oldest_first(log: Log) -> None:
    await Writer(log, "s").begin(envelope(1))
    await Writer(log, "fork").begin(replace(envelope(1), session_id="fork"))
    await log.enqueue("fork", waiting("w"))
    await log.enqueue("s", waiting(AWKWARD))

    assert await log.sessions_with("s-1") == ["s", "fork"]
    assert await log.sessions_with("w") == ["fork"]
    assert await log.sessions_with(AWKWARD) == ["s"]
    assert await log.sessions_with("unknown") == []


async def test_listed_sessions_show_their_tenant_and_metadata(log: Log) -> None:
    made = record("one", tenant="acme", metadata={"kind": AWKWARD})
    await log.create(made, [], SessionState.initial(made))

    (summary,) = await log.sessions()

    assert (summary.session_id, summary.tenant) == ("one", "acme")
    assert summary.metadata == {"kind": AWKWARD}


async def test_list_after_an_unknown_session_is_refused(log: Log) -> None:
    with pytest.raises(SessionError) as caught:
        await log.sessions(SessionQuery(after="nobody"))
    assert caught.value.code == "unknown_session"


async def test_nothing_is_left_of_a_session_that_is_forgotten(opened: OpenLog) -> None:
    log = await opened()
    made = record("s", metadata={"kind": "chat"})
    await log.create(made, [envelope(1, key="k")], SessionState.initial(made), due_at=1.0)
    await log.enqueue("s", waiting("w", key="l"))
    await Writer(log, "t").begin(envelope(1, session_id="t"))
    epoch = await log.claim("s", "hub", 0)
    assert epoch is not None

    await log.forget("s", epoch)

    for other in (log, await opened()):
        assert await other.load("s") is None
        assert [one.session_id for one in await other.sessions()] == ["t"]
        assert await other.sessions(SessionQuery(metadata={"kind": "chat"})) == []
        assert await other.unfinished_sessions(9.0) == []
        assert await other.next_due() is None
        with pytest.raises(SessionError, match="no session 's'"):
            await other.enqueue("s", waiting("w"))
    assert len(await log.read("t")) == 1
    await Writer(log, "s").begin(envelope(1, envelope_id="new"))
    assert await log.inbox("s") == []
    assert await log.accepted_id("s", "a", "k") is None
    assert [one.envelope_id for one in await log.read("s")] == ["new"]


async def test_the_sessions_of_an_owner_are_known(log: Log) -> None:
    for session_id in ("s", "t", "u"):
        await Writer(log, session_id).begin()
        await log.claim(session_id, "other" if session_id == "t" else "hub", 0)
    await log.release("u", "hub")

    assert await log.owned_sessions("hub") == ["s"]
    assert await log.owned_sessions("nobody") == []


async def test_only_the_owner_forgets_a_session(log: Log) -> None:
    await Writer(log).begin(envelope(1))
    former = await log.claim("s", "former", 0)
    await log.claim("s", "present", 0)
    assert former is not None

    with pytest.raises(StaleOwner):
        await log.forget("s", former)

    assert len(await log.read("s")) == 1


async def test_a_former_owner_writes_nothing_to_a_later_session_of_the_id(log: Log) -> None:
    await Writer(log).begin()
    epochs = [await log.claim("s", "former", n) for n in range(3)]
    assert epochs[-1] is not None
    await log.forget("s", epochs[-1])
    later = await Writer(log).begin()
    for _ in range(3):
        for epoch in epochs:
            with pytest.raises(StaleOwner):
                await later.add(envelope(1), epoch=epoch)
        await log.claim("s", "later", 0, force=True)
        await log.release("s", "later")


@pytest.mark.parametrize("again", [False, True])
async def test_other_logs_are_told_of_what_is_forgotten(opened: OpenLog, again: bool) -> None:
    log, heard = await opened(), Heard()
    await Writer(log).begin(*(envelope(n) for n in range(1, 4)))
    (await opened()).subscribe(heard)
    await log.forget("s", 0)
    if again:
        await Writer(log).begin(*(envelope(n) for n in range(1, 4)))
    await heard.of("s")


async def test_an_inner_session_begins_only_under_the_epoch_of_its_parent(log: Log) -> None:
    await Writer(log, "origin").begin()
    inner = record("child")
    former = await log.claim("origin", "former", 0)
    present = await log.claim("origin", "present", 0)
    assert former is not None and present is not None

    for epoch in (former, present + 1):
        with pytest.raises(StaleOwner):
            await log.create(inner, [], SessionState.initial(inner), parent_epoch=epoch)
    assert await log.children("origin") == []
    assert await log.create(inner, [], SessionState.initial(inner), parent_epoch=present)
    assert await log.children("origin") == ["child"]
    await log.forget("origin", present)
    orphan = replace(inner, session_id="orphan")
    with pytest.raises(StaleOwner):
        await log.create(orphan, [], SessionState.initial(orphan), parent_epoch=present)


async def test_append_stores_envelopes_and_state(opened: OpenLog) -> None:
    writer = await Writer(await opened()).begin()
    await writer.add(envelope(1), note(2), due_at=5, attempts=3)

    other = await opened()
    stored = await other.load("s")

    assert stored is not None
    assert (stored.head, stored.state, stored.attempts) == (2, writer.state, 3)
    assert await other.read("s") == writer.envelopes
    assert await other.next_due() == 5


async def test_append_of_nothing_stores_the_state_alone(log: Log) -> None:
    writer = await Writer(log).begin(due_at=5)

    await writer.add(attempts=2)

    stored = await log.load("s")
    assert stored is not None and (stored.head, stored.attempts) == (0, 2)
    assert await log.next_due() is None


async def test_append_keeps_attempts_that_it_is_not_given(log: Log) -> None:
    writer = await Writer(log).begin()
    await writer.add(envelope(1), attempts=4)
    await writer.add(envelope(2))

    stored = await log.load("s")
    assert stored is not None and stored.attempts == 4


@pytest.mark.parametrize("head", [0, 2])
async def test_append_after_a_head_that_moved_is_refused(log: Log, head: int) -> None:
    writer = await Writer(log).begin(envelope(1))

    with pytest.raises(RoundConflict, match="'s' is at 1"):
        await log.append("s", [envelope(head + 1)], head, writer.state)

    assert await log.read("s") == writer.envelopes


async def test_append_of_a_former_owner_is_refused(log: Log) -> None:
    writer = await Writer(log).begin()
    former = await log.claim("s", "former", 0)
    present = await log.claim("s", "present", 0)

    with pytest.raises(StaleOwner, match="another owner"):
        await writer.add(envelope(1), epoch=former)
    assert await log.read("s") == []
    await writer.add(envelope(1), epoch=present)
    assert await log.read("s") == writer.envelopes


async def test_blobs_are_stored_with_the_append_that_refers_to_them(opened: OpenLog) -> None:
    writer = await Writer(await opened()).begin()
    await writer.add(envelope(1), blobs={"d1": "one"})
    await writer.add(envelope(2), blobs={"d1": "one", "d2": "two"}, closing=True)

    digests = ["d1", "d2", "d3"]
    assert await (await opened()).blobs("s", digests) == {"d1": "one", "d2": "two"}


async def test_blobs_are_stored_before_what_refers_to_them_is_sent(opened: OpenLog) -> None:
    await Writer(await opened()).begin()
    for blobs in ({"d1": "one"}, {"d1": "one", "d2": "two"}):
        await (await opened()).store_blobs("s", blobs)
        assert await (await opened()).blobs("s", ["d1", "d2"]) == blobs
    with pytest.raises(SessionError, match="nobody"):
        await (await opened()).store_blobs("nobody", {"d": "large"})


async def test_blobs_of_a_copy_are_stored_with_it_or_not_at_all(opened: OpenLog) -> None:
    writer = await Writer(await opened()).begin()
    await writer.add(envelope(1), blobs={"d1": "one", "d2": "two"})
    shared, state = SharedBlobs("s", ["d2", "d3"]), SessionState()

    assert await (await opened()).create(record("copy"), [], state, blobs=shared)
    assert await (await opened()).blobs("copy", ["d1", "d2", "d3"]) == {"d2": "two"}
    other = SharedBlobs("s", ["d1"])
    assert not await (await opened()).create(record("copy"), [], state, blobs=other)
    assert await (await opened()).blobs("copy", ["d1"]) == {}
    unknown = SharedBlobs("nobody", ["d1"])
    assert await (await opened()).create(record("other"), [], state, blobs=unknown)
    assert await (await opened()).blobs("other", ["d1"]) == {}


async def test_errors_name_a_session_by_its_id_and_no_tenant(log: Log) -> None:
    own = replace(record("mine"), tenant="acme")
    key, state = own.key, SessionState.initial(own)
    await log.create(own, [], state)
    epoch = await log.claim(key, "owner", 0)
    assert epoch is not None
    inner = replace(own, session_id="inner", parent=Parent("mine", 1, "a"))
    failures = [
        log.append(key, [], 0, state, epoch=epoch + 1),
        log.append(key, [], 7, state, epoch=epoch),
        log.attempt(key, epoch + 1),
        log.forget(key, epoch + 1),
        log.create(inner, [], state, parent_epoch=epoch + 1),
        log.read(session_key("acme", "nobody")),
    ]
    for failure in failures:
        with pytest.raises(SessionError) as error:
            await failure
        assert "acme" not in str(error.value)
    ended = replace(state, status="closed")
    await log.append(key, [], 0, ended, epoch=epoch)
    for late in (log.append(key, [], 0, ended), log.enqueue(key, waiting("w"))):
        with pytest.raises(SessionClosed, match=r"^session 'mine' is closed$"):
            await late


async def test_a_refused_append_leaves_no_blobs(log: Log) -> None:
    writer = await Writer(log).begin()
    former = await log.claim("s", "former", 0)
    await log.claim("s", "present", 0)
    await log.enqueue("s", waiting("w"))

    with pytest.raises(StaleOwner):
        await writer.add(envelope(1), epoch=former, blobs={"d": "large"})
    with pytest.raises(InboxConflict):
        await writer.add(closing=True, blobs={"d": "large"})
    with pytest.raises(RoundConflict):
        await log.append("s", [envelope(8)], 7, writer.state, blobs={"d": "large"})
    assert await log.blobs("s", ["d"]) == {}


@pytest.mark.parametrize("expires", [False, True])
async def test_nothing_is_appended_after_the_end(log: Log, expires: bool) -> None:
    writer = await Writer(log).begin()
    first = [writer.next(EV_SESSION_EXPIRED)] if expires else []
    await writer.add(*first, closing=not expires)

    with pytest.raises(SessionClosed, match="expired" if expires else "closed"):
        await log.append("s", [], 99, writer.state)


async def test_refusals_have_an_order(log: Log) -> None:
    writer = await Writer(log).begin()
    epoch = await log.claim("s", "hub", 0)
    assert epoch is not None
    await log.enqueue("s", waiting("w"))

    with pytest.raises(RoundConflict):
        await log.append("s", [envelope(8)], 7, SessionState(status="closed"))
    await writer.add(closing=True, taken=["w"])
    with pytest.raises(StaleOwner):
        await log.append("s", [], 99, writer.state, epoch=epoch + 1)
    with pytest.raises(SessionClosed):
        await log.append("s", [], 99, writer.state, epoch=epoch)


async def test_what_was_taken_leaves_the_inbox_with_the_append(log: Log) -> None:
    writer = await Writer(log).begin()
    for name in ("w1", "w2", "w3"):
        await log.enqueue("s", waiting(name))

    await writer.add(envelope(1), taken=["w1", "w3", "unknown"])

    assert [one.envelope_id for one in await log.inbox("s")] == ["w2"]


async def test_refused_append_leaves_the_inbox_as_it_is(log: Log) -> None:
    writer = await Writer(log).begin()
    await log.enqueue("s", waiting("w"))

    with pytest.raises(RoundConflict):
        await log.append("s", [envelope(6)], 5, writer.state, admitted_ids=["w"])

    assert [one.envelope_id for one in await log.inbox("s")] == ["w"]


async def test_session_does_not_end_over_what_waits(log: Log) -> None:
    writer = await Writer(log).begin()
    for name in ("w1", "w2"):
        await log.enqueue("s", waiting(name))

    with pytest.raises(InboxConflict):
        await writer.add(envelope(1), closing=True, taken=["w1"])
    stored = await log.load("s")
    assert stored is not None and (stored.head, stored.state) == (0, writer.state)
    assert len(await log.inbox("s")) == 2

    await writer.add(envelope(1), closing=True, taken=["w1", "w2"])
    assert await log.inbox("s") == []


async def test_racing_put_is_taken_or_refused_and_never_lost(opened: OpenLog) -> None:
    hub, door = await opened(), await opened()
    for n in range(20):
        name = f"s{n}"
        writer = await Writer(hub, name).begin()

        async def close(writer: Writer = writer, name: str = name) -> None:
            while True:
                taken = [one.envelope_id for one in await hub.inbox(name)]
                try:
                    return await writer.add(closing=True, taken=taken)
                except InboxConflict:
                    continue

        puts = [door.enqueue(name, waiting(f"w{i}")) for i in range(3)]
        *accepted, _ = await asyncio.gather(*puts, close(), return_exceptions=True)

        assert all(isinstance(one, str | SessionClosed) for one in accepted)
        assert await door.inbox(name) == []


async def test_one_of_two_at_the_same_head_wins(opened: OpenLog) -> None:
    first, second = await Writer(await opened()).begin(), Writer(await opened())

    results = await asyncio.gather(
        first.add(envelope(1, envelope_id="x")),
        second.add(envelope(1, envelope_id="y")),
        return_exceptions=True,
    )

    assert sorted(type(one).__name__ for one in results) == ["NoneType", "RoundConflict"]
    assert len(await first.log.read("s")) == 1


async def test_read_returns_a_part_in_order(log: Log) -> None:
    writer = await Writer(log).begin(*(envelope(n) for n in range(1, 8)))

    assert await log.read("s") == writer.envelopes
    assert await log.read("s", after=3) == writer.envelopes[3:]
    assert await log.read("s", after=3, limit=2) == writer.envelopes[3:5]
    assert await log.read("s", limit=0) == []
    assert await log.read("s", after=7) == await log.read("s", after=99) == []
    assert await log.read("s", after=-5, limit=1) == writer.envelopes[:1]


async def test_tail_returns_the_last_that_was_said(log: Log) -> None:
    said, noted = [1, 2, 4, 6], [3, 5, 7]
    made = sorted([*(envelope(n) for n in said), *map(note, noted)], key=lambda e: e.sequence)
    await Writer(log).begin(*made[:3])
    writer = Writer(log)
    writer._grow(made[:3])
    await writer.add(*made[3:])

    async def tail(count: int, before: int | None = None) -> list[int]:
        found = await log.tail("s", count, before)
        assert found == [made[one.sequence - 1] for one in found]
        return [one.sequence for one in found]

    assert await tail(2) == [4, 6]
    assert await tail(99) == said
    assert await tail(2, before=4) == [2, 4]
    assert await tail(2, before=5) == [2, 4]
    assert await tail(99, before=1) == [1]
    assert await tail(0) == await tail(3, before=0) == []


async def test_tail_of_a_session_where_nothing_was_said_is_empty(log: Log) -> None:
    await Writer(log).begin(note(1))

    assert await log.tail("s", 3) == []


async def test_find_returns_one_envelope_of_that_session(log: Log) -> None:
    writer = await Writer(log).begin(envelope(1), envelope(2))
    await Writer(log, "t").begin()

    assert await log.find("s", "s-2") == writer.envelopes[1]
    assert await log.find("s", "unknown") is None
    assert await log.find("t", "s-2") is None


async def test_what_was_put_waits_in_the_order_of_arrival_over_all_sessions(
    opened: OpenLog,
) -> None:
    log = await opened()
    await Writer(log, "s").begin()
    await Writer(log, "t").begin()
    for session_id, name in (("s", "z"), ("t", "m"), ("s", "a")):
        assert await log.enqueue(session_id, waiting(name)) == name

    in_s, in_t = [await (await opened()).inbox(one) for one in "st"]

    assert [one.envelope_id for one in in_s] == ["z", "a"]
    assert in_s[0].order < in_t[0].order < in_s[1].order
    assert in_s[0].draft == waiting("z").draft
    assert in_s[0].sender_id == "user"


async def test_key_is_accepted_once_of_a_sender_and_session(log: Log) -> None:
    await Writer(log, "s").begin()
    await Writer(log, "t").begin()

    assert await log.enqueue("s", waiting("first", key="k")) == "first"
    assert await log.enqueue("s", waiting("again", key="k")) == "first"
    assert await log.enqueue("s", waiting("hers", key="k", sender="her")) == "hers"
    assert await log.enqueue("t", waiting("there", key="k")) == "there"
    assert [one.envelope_id for one in await log.inbox("s")] == ["first", "hers"]


async def test_key_that_was_admitted_is_known_also_after_the_end(log: Log) -> None:
    writer = await Writer(log).begin()
    await log.enqueue("s", waiting("w", key="k"))
    await writer.add(
        envelope(1, key="k", sender="user", envelope_id="w"),
        envelope(2, key="own"),
        closing=True,
        taken=["w"],
    )

    assert await log.enqueue("s", waiting("again", key="k")) == "w"
    assert await log.enqueue("s", waiting("again", key="own", sender="a")) == "s-2"
    with pytest.raises(SessionClosed):
        await log.enqueue("s", waiting("new", key="new"))
    with pytest.raises(SessionClosed):
        await log.enqueue("s", waiting("new"))
    assert await log.inbox("s") == []


async def test_one_of_many_puts_with_a_key_is_accepted(opened: OpenLog) -> None:
    logs = [await opened(), await opened()]
    await Writer(logs[0]).begin()

    ids = await asyncio.gather(
        *(logs[n % 2].enqueue("s", waiting(f"w{n}", key="k")) for n in range(10))
    )

    assert len(set(ids)) == 1
    assert [one.envelope_id for one in await logs[0].inbox("s")] == [ids[0]]


async def test_names_may_be_anything(opened: OpenLog) -> None:
    log = await opened()
    session_id = f"{AWKWARD} session"
    await Writer(log, session_id).begin()
    writer = Writer(log, session_id)
    assert await log.enqueue(session_id, awkward_waiting()) == AWKWARD
    assert await log.claim(session_id, AWKWARD, 0) == 1
    await log.heartbeat(AWKWARD, 9)
    heard = Heard()
    end = log.subscribe(heard)

    other = await opened()
    again = awkward_waiting()
    assert (await other.inbox(session_id))[0].draft == again.draft
    assert (await other.inbox(session_id))[0].sender_id == AWKWARD
    assert await other.enqueue(session_id, again) == AWKWARD
    await writer.add(writer.next(envelope_id=AWKWARD, sender_id=AWKWARD), taken=[AWKWARD])
    assert await other.find(session_id, AWKWARD) == writer.envelopes[0]
    assert await other.unfinished_sessions(0) == []
    assert [one.session_id for one in await other.sessions()] == [session_id]
    stored = await other.load(session_id)
    assert stored is not None and (stored.owner, stored.record) == (AWKWARD, writer.record)
    assert await other.claim(session_id, "b", 5, is_gone=lambda o: o != AWKWARD) is None
    assert await other.claim(session_id, "b", 5, is_gone=lambda o: o == AWKWARD) == 2
    await heard.of(session_id)
    end()


async def test_key_may_be_of_any_length(log: Log) -> None:
    await Writer(log).begin()
    key = "".join(f"{n:x}" for n in range(5_000))

    assert await log.enqueue("s", waiting("w", key=key)) == "w"
    assert await log.enqueue("s", waiting("again", key=key)) == "w"
    assert await log.enqueue("s", waiting("other", key=key + "!")) == "other"


async def test_lease_keeps_others_out_until_it_ends(log: Log) -> None:
    await Writer(log).begin()
    await log.heartbeat("a", 10)

    assert await log.claim("s", "a", 0) == 1
    assert await log.claim("s", "b", 9.9) is None
    assert await log.claim("s", "b", 10) == 2
    stored = await log.load("s")
    assert stored is not None and (stored.owner, stored.epoch) == ("b", 2)


async def test_beat_prolongs_the_lease_on_all_that_a_hub_has(log: Log) -> None:
    for name in "st":
        await Writer(log, name).begin()
        assert await log.claim(name, "a", 0) == 1
    await log.heartbeat("a", 10)
    await log.heartbeat("a", 20)

    assert [await log.claim(name, "b", 15) for name in "st"] == [None, None]
    assert [await log.claim(name, "b", 20) for name in "st"] == [2, 2]


async def test_owner_keeps_its_epoch_while_its_lease_holds(log: Log) -> None:
    await Writer(log).begin()
    await log.heartbeat("a", 10)

    assert [await log.claim("s", "a", now) for now in (0, 5)] == [1, 1]
    assert await log.claim("s", "a", 10) == 2


async def test_owner_that_never_said_a_beat_holds_nothing(log: Log) -> None:
    await Writer(log).begin()

    assert await log.claim("s", "a", 0) == 1
    assert await log.claim("s", "b", 0) == 2


async def test_session_of_one_that_is_gone_is_taken_at_once(log: Log) -> None:
    await Writer(log).begin()
    await log.heartbeat("a", 10)
    await log.claim("s", "a", 0)

    assert await log.claim("s", "b", 0, is_gone=lambda owner: owner != "a") is None
    assert await log.claim("s", "b", 0, is_gone=lambda owner: owner == "a") == 2


async def test_session_can_be_taken_by_force(log: Log) -> None:
    await Writer(log).begin()
    await log.heartbeat("a", 10)
    await log.claim("s", "a", 0)

    assert await log.claim("s", "b", 0, force=True) == 2


async def test_one_of_two_that_claim_at_once_gets_it(opened: OpenLog) -> None:
    first, second = await opened(), await opened()
    await Writer(first).begin()
    await first.heartbeat("a", 10)
    await first.heartbeat("b", 10)

    epochs = await asyncio.gather(first.claim("s", "a", 0), second.claim("s", "b", 0))

    assert sorted(epochs, key=str) == [1, None]


async def test_release_gives_back_one_s_own_and_sets_its_attempts(log: Log) -> None:
    await Writer(log).begin()
    await log.heartbeat("a", 10)
    assert await log.claim("s", "a", 0) == 1
    await log.release("s", "b", attempts=9)
    assert await log.claim("s", "b", 0) is None

    await log.release("s", "a", attempts=2)

    stored = await log.load("s")
    assert stored is not None and (stored.owner, stored.epoch, stored.attempts) == (None, 1, 2)
    assert await log.claim("s", "b", 0) == 2
    await log.release("s", "b")
    stored = await log.load("s")
    assert stored is not None and (stored.owner, stored.attempts) == (None, 2)


async def test_attempts_are_counted_by_the_owner_alone(log: Log) -> None:
    await Writer(log).begin()
    epoch = await log.claim("s", "a", 0)
    assert epoch is not None

    assert [await log.attempt("s", epoch) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(StaleOwner):
        await log.attempt("s", epoch + 1)
    stored = await log.load("s")
    assert stored is not None and stored.attempts == 3


async def test_hub_that_retires_gives_back_all_that_it_has(log: Log) -> None:
    for name, hub in (("s", "a"), ("t", "a"), ("u", "b")):
        await Writer(log, name).begin()
        await log.heartbeat(hub, 10)
        assert await log.claim(name, hub, 0) == 1

    await log.release_all("a")

    assert [await log.claim(name, "c", 0) for name in "stu"] == [2, 2, None]
    assert await log.claim("t", "a", 0, force=True) == 3
    assert await log.claim("t", "c", 0) == 4


async def test_unfinished_are_those_that_need_somebody(log: Log) -> None:
    for name, runnable, due_at in (
        ("idle", False, None),
        ("runs", True, None),
        ("due", False, 10.0),
        ("later", False, 11.0),
        ("waits", False, None),
        ("all", True, 1.0),
    ):
        made = record(name)
        state = SessionState.initial(made)
        assert await log.create(made, [], state, due_at=due_at, runnable=runnable)
    await log.enqueue("waits", waiting("w"))
    await log.enqueue("all", waiting("w"))

    unfinished = await log.unfinished_sessions(10)
    assert unfinished == ["runs", "due", "waits", "all"]
    assert not [key for key in unfinished[2:] if isinstance(key, EmptyInbox)]
    assert await log.unfinished_sessions(0) == ["runs", "waits", "all"]


async def test_state_says_whether_a_session_runs(log: Log) -> None:
    made = record()
    runs = SessionState(session_id="s", status="active", speakers=("a",))
    assert runs.is_runnable
    await log.create(made, [], SessionState.initial(made))
    assert await log.unfinished_sessions(0) == []

    await log.append("s", [], 0, runs)
    assert await log.unfinished_sessions(0) == ["s"]
    await log.append("s", [], 0, SessionState.initial(made))
    assert await log.unfinished_sessions(0) == []


async def test_ended_session_needs_nobody_any_more(log: Log) -> None:
    made = record("born-dead")
    dead = SessionState(session_id="born-dead", status="closed")
    await log.create(made, [], dead, due_at=1, runnable=True)
    writer = await Writer(log).begin(due_at=2)
    await writer.add(closing=True, due_at=3)

    assert await log.unfinished_sessions(99) == []
    assert await log.next_due() is None


async def test_ended_session_that_was_not_given_back_needs_somebody(log: Log) -> None:
    for name in "st":
        writer = await Writer(log, name).begin()
        await log.claim(name, "hub", 0)
        await writer.add(closing=True)
    assert await log.unfinished_sessions(0) == ["s", "t"]

    await log.release("s", "hub")

    assert await log.unfinished_sessions(0) == ["t"]
    await log.release_all("hub")
    assert await log.unfinished_sessions(0) == []


async def test_next_due_is_the_first(log: Log) -> None:
    assert await log.next_due() is None
    for name, due_at in (("s", 7.5), ("t", 3.25), ("u", None)):
        await Writer(log, name).begin(due_at=due_at)

    assert await log.next_due() == 3.25
    assert await log.next_due(3.24) == 3.25
    assert await log.next_due(3.25) == 7.5
    assert await log.next_due(7.5) is None


async def test_changes_are_told_until_that_is_ended(opened: OpenLog) -> None:
    log = await opened()
    heard, gone = Heard(), Heard()
    end = log.subscribe(heard)
    end_gone = log.subscribe(gone)
    end_gone()
    end_gone()

    writer = await Writer(log).begin()
    await heard.of("s")
    for change in (
        lambda: writer.add(envelope(1)),
        lambda: log.enqueue("s", waiting("w")),
        lambda: log.release_all("hub"),
    ):
        heard.told.clear()
        await change()
        await heard.of("s")
    end()
    assert gone.told == []


@pytest.mark.parametrize("change", ["create", "append", "nothing", "put", "retire"])
async def test_changes_by_others_are_told(opened: OpenLog, change: str) -> None:
    log, other = await opened(), await opened()
    writer = await Writer(other).begin()
    heard = Heard()
    end = log.subscribe(heard)
    if log is not other:
        await heard.of("s")
    heard.told.clear()

    match change:
        case "create":
            await Writer(other, "t").begin()
        case "append":
            await writer.add(envelope(1))
        case "nothing":
            await writer.add()
        case "put":
            await other.enqueue("s", waiting("w"))
        case "retire":
            await other.release_all("hub")

    await heard.of("t" if change == "create" else "s")
    end()


async def test_open_and_close_can_be_repeated(opened: OpenLog, log_url: str) -> None:
    log = await opened()
    await asyncio.gather(log.open(), log.open())
    writer = await Writer(log).begin(envelope(1))
    await log.close()
    await log.close()

    await log.open()

    assert await log.read("s") == writer.envelopes


async def test_session_at_rest_is_claimed_from_a_hub_that_lives(log: Log) -> None:
    for name, is_runnable in (("resting", False), ("running", True)):
        state = SessionState.initial(record(name))
        assert await log.create(record(name), [], state, runnable=is_runnable)
        assert await log.claim(name, "a", 0) == 1
    await log.heartbeat("a", 10)

    assert [await log.claim(name, "b", 5) for name in ("resting", "running")] == [None, None]
    claims = [await log.claim(name, "b", 5, at_rest=True) for name in ("resting", "running")]
    assert claims == [2, None]
    assert await log.claim("running", "b", 10, at_rest=True) == 2  # as its lease has ended
