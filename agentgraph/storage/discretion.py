"""What the Postgres driver logs of our own connections: that something happened, and not where."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

POOL_NAME = "agentgraph"

_ours: ContextVar[bool] = ContextVar("agentgraph_driver_is_ours", default=False)


@contextmanager
def discreet() -> Iterator[None]:
    """Keep hosts, users and databases out of what the driver logs in here and in tasks begun here.

    A pool's own tasks are begun where it is opened; other pools of the process log as they did.
    """
    _install()
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


@cache
def _install() -> None:
    for name in ("psycopg", "psycopg.pool", "psycopg.transaction"):
        logging.getLogger(name).addFilter(_without_details)


def _without_details(record: logging.LogRecord) -> bool:
    if not _ours.get():
        return True
    if record.levelno <= logging.DEBUG:
        return False  # a trace of attempts to connect: nothing is left without where to
    given = record.args if isinstance(record.args, tuple) else ()
    record.args = tuple(_told(argument) for argument in given)
    record.exc_info = record.exc_text = record.stack_info = None
    return True


def _told(argument: object) -> object:
    plain = isinstance(argument, int | float) or argument == POOL_NAME
    return argument if plain else type(argument).__name__
