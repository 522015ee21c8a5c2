"""Context variables: `scope` sets one for a block, the other functions keep those of code apart.

A leaf below all others: it imports nothing of the project.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from contextvars import Context, ContextVar, Token
from functools import partial
from types import coroutine as awaitable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class scope(Generic[T]):
    """Give a context variable another value inside of a `with` block.

        with scope(variable, value):
            work()  # and all that it calls, and the tasks that it starts

    It is a class and no generator because each call of a run enters several of them.
    """

    __slots__ = ("_token", "_value", "_variable")

    _token: Token[T]

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *error: object) -> None:
        self._variable.reset(self._token)


def own_context(generator: Generator[T, None, None], context: Context) -> Iterator[T]:
    """Yield what a generator yields, and run the generator in a context of its own.

    Without this a generator runs in the context of the code that reads it: a variable that one of
    them sets between two items has the new value in the other, too.

        with scope(variable, value):
            context = copy_context()
        yield from own_context(generator, context)

    Closing the iterator closes the generator, in the same context, so that its `finally` blocks
    see the variables that it has set itself.
    """
    try:
        while (item := context.run(_next, generator)) is not None:
            yield item[0]
    finally:
        context.run(generator.close)


@awaitable
def in_context(work: Coroutine[Any, Any, T], context: Context) -> Generator[Any, Any, T]:
    """Await a coroutine that runs in a context of its own, within the task that awaits it.

        result = await in_context(node(state), copy_context())

    Variables that it sets stay in that context, as they would in a task of its own; but no task
    is made, and the event loop is not entered once more.
    """
    resume = partial(work.send, None)
    while True:
        try:
            future = context.run(resume)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            yield future
        except GeneratorExit:
            context.run(work.close)
            raise
        except BaseException as error:  # a cancellation, which belongs to the coroutine
            resume = partial(work.throw, error)
        else:
            resume = partial(work.send, None)


def _next(generator: Generator[T, None, None]) -> tuple[T] | None:
    for item in generator:
        return (item,)
    return None
