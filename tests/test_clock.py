"""The machine's own clock, as far as a wait of some hundredths of a second can show it."""

from __future__ import annotations

import asyncio

import pytest

from agentgraph.clock import SystemClock
from agentgraph.timeouts import paused_limits

SHORT_S, LONG_S, ENDLESS_S = 0.02, 0.1, 60


async def test_a_wait_that_is_unhurried_counts_for_no_limit_around_it() -> None:
    clock = SystemClock()

    with clock.timeout(SHORT_S), clock.timeout(SHORT_S), paused_limits():
        await clock.sleep(LONG_S)


async def test_a_limit_that_was_stopped_runs_again_afterwards() -> None:
    clock = SystemClock()

    with pytest.raises(TimeoutError), clock.timeout(SHORT_S):
        with paused_limits():
            await clock.sleep(LONG_S)
        await clock.sleep(ENDLESS_S)


async def test_a_limit_stands_still_until_all_who_stopped_it_go_on() -> None:
    clock = SystemClock()

    async def wait(seconds: float) -> None:
        with paused_limits():
            await clock.sleep(seconds)

    with clock.timeout(SHORT_S):
        await asyncio.gather(wait(0), wait(LONG_S))


async def test_no_limit_can_be_stopped_too() -> None:
    with SystemClock().timeout(None), paused_limits():
        pass
