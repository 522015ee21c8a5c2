from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

import pytest

from agentgraph.clock import clock, new_id, use_clock
from agentgraph.testing import (
    FakeClock,
)
from agentgraph.timeouts import paused_limits


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    time, woken = FakeClock(), list[str]()

    async def sleep(name: str, seconds: float) -> None:
        await time.sleep(seconds)
        woken.append(name)

    tasks = [
        asyncio.create_task(sleep(name, seconds))
        for name, seconds in [("late", 3), ("early", 1), ("also early", 1), ("never", 9)]
    ]
    await time.asleep(4)
    time.advance(0.5)
    assert time.sleepers == 4
    time.advance(2.5)
    await asyncio.gather(*tasks[:3])
    assert woken == ["early", "also early", "late"]
    assert time.sleepers == 1
    tasks[-1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert time.sleepers == 0


async def test_tenths_of_a_second_add_up() -> None:
    time = FakeClock()
    sleeper = asyncio.create_task(time.sleep(1))
    await time.asleep()
    for _ in range(10):
        time.advance(0.1)
    await sleeper
    assert time.monotonic() == 1


async def test_a_sleep_of_nothing_lets_others_run() -> None:
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    await FakeClock().sleep(0)
    await FakeClock().sleep(-1)
    assert ran.is_set()


async def test_a_woken_sleeper_that_is_cancelled_is_forgotten() -> None:
    time = FakeClock()
    sleeper = asyncio.create_task(time.sleep(1))
    await time.asleep()
    time.advance(1)
    sleeper.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleeper
    await clock().sleep(0)


async def test_who_is_cut_off_cleans_up_undisturbed() -> None:
    time, done = FakeClock(), list[str]()

    async def work() -> int:
        try:
            with time.timeout(5):
                try:
                    await asyncio.Event().wait()
                finally:
                    with paused_limits():  # as whoever tells an event to a reader does
                        await time.sleep(0)
                    for _ in range(5):
                        await time.sleep(0)
                    done.append("tidied")
        except TimeoutError:
            done.append("late")
        return (asyncio.current_task() or pytest.fail()).cancelling()

    working = asyncio.create_task(work())
    await time.sleep(0)
    time.advance(9)
    assert (await working, done) == (0, ["tidied", "late"])


@pytest.mark.parametrize("is_before", [True, False])
async def test_a_limit_that_was_left_cuts_nobody_off_whoever_stops_it_then(is_before: bool) -> None:
    """A task that was begun within the limit waits for a reader when that is over."""
    time, left = FakeClock(), asyncio.Event()

    async def aside() -> None:
        if not is_before:
            await left.wait()
        with paused_limits():
            await left.wait()

    with time.timeout(5):
        child = asyncio.create_task(aside())
        await time.sleep(0)
    left.set()
    await child
    time.advance(9)
    for _ in range(5):
        await time.sleep(0)
    assert (asyncio.current_task() or pytest.fail()).cancelling() == 0


async def test_it_can_be_advanced_from_another_thread() -> None:
    time = FakeClock()
    sleeper = asyncio.create_task(time.sleep(60))
    await time.asleep()
    await asyncio.to_thread(time.advance, 60)
    await sleeper


def test_a_sleeper_whose_loop_is_gone_is_skipped() -> None:
    time = FakeClock()

    async def leave_one_asleep() -> None:
        waiting: Awaitable[None] = time.sleep(1)
        asyncio.get_running_loop().call_soon(asyncio.ensure_future, waiting)
        await time.asleep()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave_one_asleep())
    pending = asyncio.all_tasks(loop)
    loop.close()
    time.advance(1)
    assert time.sleepers == 0
    for task in pending:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_the_wall_can_be_set_back_without_the_monotonic() -> None:
    time = FakeClock(datetime(2026, 11, 18, tzinfo=UTC))
    time.advance(60)
    assert datetime.fromtimestamp(time.wall(), UTC) == datetime(2026, 11, 18, 0, 1, tzinfo=UTC)
    time.set_wall(datetime(2020, 1, 1, tzinfo=UTC))
    assert (time.wall(), time.monotonic()) == (1_577_836_800, 60)
    time.advance(1)
    assert (time.wall(), time.monotonic()) == (1_577_836_801, 61)


def test_time_cannot_be_advanced_backwards() -> None:
    with pytest.raises(ValueError, match="set_wall"):
        FakeClock().advance(-1)


def test_random_and_ids_follow_the_seed() -> None:
    def draw(seed: int) -> list[object]:
        time = FakeClock(seed=seed)
        return [time.random(), time.random(), time.new_id(), time.new_id()]

    assert draw(1) == draw(1)
    assert not set(draw(1)) & set(draw(2))
    assert uuid.UUID(FakeClock(seed=-1).new_id())


async def test_installed_holds_for_the_block_and_what_it_starts() -> None:
    before = clock()
    with FakeClock().installed() as time:
        assert clock() is time
        assert await asyncio.create_task(asyncio.to_thread(clock)) is time
        assert new_id() == FakeClock().new_id()
    assert clock() is before
    with use_clock(time):
        assert clock() is time


@pytest.fixture
def stopped() -> Any:
    with FakeClock().installed() as time:
        yield time


async def test_a_sync_fixture_installs_it_for_an_async_test(stopped: FakeClock) -> None:
    assert clock() is stopped
