"""Context variables: `scope` sets one for a block, `own_context` keeps a generator's apart.

A leaf below all others: it imports nothing of the project.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextvars import Context, ContextVar, Token
from typing import Generic, TypeVar

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


def _next(generator: Generator[T, None, None]) -> tuple[T] | None:
    for item in generator:
        return (item,)
    return None
