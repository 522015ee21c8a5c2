"""Limits of one loop share a timer, and each is met in its own time and by nobody else.

That is shown on the machine's clock, by waits of some hundredths of a second.
"""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph.clock import SystemClock
from agentgraph.timeouts import TimeLimit

SOON_S, LATER_S, ENDLESS_S = 0.01, 0.05, 60


async def cut_off_after(seconds: float) -> float:
    """Return after how long a wait without end is cut off."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError), TimeLimit(seconds):
        await SystemClock().sleep(ENDLESS_S)
    return asyncio.get_running_loop().time() - began


async def test_a_limit_is_met_in_its_time_whatever_others_there_are() -> None:
    with TimeLimit(ENDLESS_S):
        later, soon = await asyncio.gather(cut_off_after(LATER_S), cut_off_after(SOON_S))
    assert SOON_S <= soon < LATER_S <= later


@settings(max_examples=20)
@given(st.lists(st.sampled_from([0.0, 0.005, 0.01, 0.015]), min_size=1, max_size=12))
def test_of_many_each_is_met_once_and_none_too_early(seconds: list[float]) -> None:
    async def all_of_them() -> list[float]:
        return await asyncio.gather(*map(cut_off_after, seconds))

    for limit, met in zip(seconds, asyncio.run(all_of_them()), strict=True):
        assert met >= limit


async def test_the_outer_one_of_two_cuts_off_both() -> None:
    inner = "not entered"
    with pytest.raises(TimeoutError), TimeLimit(SOON_S):
        try:
            with TimeLimit(ENDLESS_S):
                await SystemClock().sleep(ENDLESS_S)
        except asyncio.CancelledError:
            inner = "cancelled"
            raise
    assert inner == "cancelled"
    assert (asyncio.current_task() or pytest.fail()).cancelling() == 0


async def test_who_is_cancelled_by_somebody_else_is_not_late() -> None:
    async def limited() -> None:
        with TimeLimit(ENDLESS_S):
            await SystemClock().sleep(ENDLESS_S)

    task = asyncio.ensure_future(limited())
    await SystemClock().sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_at_the_same_time_stays_one() -> None:
    async def limited() -> None:
        with TimeLimit(SOON_S):
            try:
                await SystemClock().sleep(ENDLESS_S)
            except asyncio.CancelledError:
                task.cancel()  # by somebody else, before the limit is left
                raise

    task = asyncio.ensure_future(limited())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_over_is_not_cut_off_later() -> None:
    with TimeLimit(SOON_S):
        pass
    await SystemClock().sleep(LATER_S)
    assert (asyncio.current_task() or pytest.fail()).cancelling() == 0


async def test_another_s_error_is_let_through() -> None:
    with pytest.raises(KeyError), TimeLimit(ENDLESS_S):
        raise KeyError


def test_a_loop_that_is_closed_is_not_kept_by_its_limits() -> None:
    async def begun() -> weakref.ref[asyncio.AbstractEventLoop]:
        with TimeLimit(ENDLESS_S):
            return weakref.ref(asyncio.get_running_loop())

    left = asyncio.run(begun())
    gc.collect()
    assert left() is None
