"""Code in a context of its own, within one task."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context

import pytest

from agentgraph.clock import clock
from agentgraph.contexts import in_context, scope

place: ContextVar[str] = ContextVar("place", default="outside")


async def test_what_a_coroutine_sets_stays_in_its_context() -> None:
    async def work() -> str:
        place.set("inside")
        await clock().sleep(0)
        return place.get()

    assert await in_context(work(), copy_context()) == "inside"
    assert place.get() == "outside"


async def test_it_sees_what_its_context_has() -> None:
    async def look() -> tuple[str, str]:
        return place.get(), await asyncio.create_task(look_once())

    async def look_once() -> str:
        return place.get()

    with scope(place, "shop"):
        context = copy_context()
    assert await in_context(look(), context) == ("shop", "shop")


async def test_it_runs_in_the_task_that_awaits_it() -> None:
    async def who() -> object:
        await clock().sleep(0)
        return asyncio.current_task()

    assert await in_context(who(), copy_context()) is asyncio.current_task()


async def test_errors_pass_and_time_limits_hold() -> None:
    async def fail() -> None:
        await clock().sleep(0)
        raise KeyError("lost")

    async def hang() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(KeyError, match="lost"):
        await in_context(fail(), copy_context())
    with pytest.raises(TimeoutError):
        await in_context(hang(), copy_context())


async def test_a_cancellation_reaches_it_and_its_clean_up_sees_its_variables() -> None:
    cleaned: list[str] = []

    async def work() -> None:
        place.set("inside")
        try:
            await asyncio.Event().wait()
        finally:
            await clock().sleep(0)
            cleaned.append(place.get())

    async def run() -> None:
        await in_context(work(), copy_context())

    task = asyncio.create_task(run())
    await clock().sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == ["inside"]


async def test_a_cancellation_that_it_swallows_is_over() -> None:
    async def work() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await clock().sleep(0)
        return "went on"

    async def run() -> str:
        return await in_context(work(), copy_context())

    task = asyncio.create_task(run())
    await clock().sleep(0)
    task.cancel()
    assert await task == "went on"


async def test_one_that_is_dropped_is_closed() -> None:
    closed: list[str] = []

    async def work() -> None:
        place.set("inside")
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(place.get())

    async def run() -> None:
        await in_context(work(), copy_context())

    dropped = run()
    dropped.send(None)
    dropped.close()
    assert closed == ["inside"]
