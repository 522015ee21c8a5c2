"""What is expected of a session in time, and what happens where it is not met."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.sessions.state import envelope as ev
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState

log = logging.getLogger("agentgraph")

Name: TypeAlias = Literal["turn_within", "reply_within", "max_silence", "acks_within"]
Handler: TypeAlias = Literal["audit", "warn", "notify", "auto_close"]
_NAMES = ("turn_within", "reply_within", "max_silence", "acks_within")
_HANDLERS = ("audit", "warn", "notify", "auto_close")


@dataclass(frozen=True, slots=True)
class Expectation:
    """Something that has to happen within some seconds.

    - `turn_within`: whoever has the floor speaks. A human may take their time, unless named in
      `applies_to`.
    - `reply_within`: somebody else answers what was said.
    - `max_silence`: somebody speaks at all.
    - `acks_within`: the invited answer.

    `audit` records it, `warn` logs it too, `notify` addresses it to everybody, `auto_close` ends
    the session.
    """

    name: Name
    seconds: float
    on_violation: Handler = "warn"
    applies_to: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        faults: list[str] = []
        if self.name not in _NAMES:
            faults.append(f"there is no expectation {self.name!r}: use {', '.join(_NAMES)}")
        if self.on_violation not in _HANDLERS:
            known = ", ".join(_HANDLERS)
            faults.append(f"there is no handler {self.on_violation!r}: use {known}")
        is_number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if not is_number or not 0 < self.seconds < 1e12:
            faults.append(f"{self.name}: seconds={self.seconds!r}: give a number above 0")
        named = self.applies_to
        if isinstance(named, str) or not isinstance(named, Iterable | None):
            faults.append(f"{self.name}: applies_to={named!r}: give a list of names")
        if faults:
            raise ConfigurationError(faults, code="expectation")
        if named is not None:
            object.__setattr__(self, "applies_to", tuple(named))

    def to_dict(self) -> dict[str, Any]:
        """Return the expectation as JSON has it."""
        return asdict(self)


DEFAULT_EXPECTATIONS = (
    Expectation("turn_within", 120.0, "warn"),
    Expectation("turn_within", 600.0, "auto_close"),
)


def read_expectations(
    given: Sequence[Expectation | Mapping[str, Any]], here: Collection[str] | None
) -> tuple[Expectation, ...]:
    """Read expectations of those who are here; all that is wrong with them is told at once."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(f"expectations={given!r}: give a list", code="expectation")
    found: list[Expectation] = []
    faults: list[str] = []
    for one in given:
        try:
            found.append(one if isinstance(one, Expectation) else Expectation(**one))
        except ConfigurationError as error:
            faults += error.faults
        except TypeError as error:
            faults.append(f"the expectation {one!r} cannot be read: {error}")
    if here is not None:
        named = [name for one in found for name in one.applies_to or () if name not in here]
        faults += [
            f"applies_to: {name!r} takes no part: there are {', '.join(here)}" for name in named
        ]
    if faults:
        raise ConfigurationError(faults, code="expectation")
    return tuple(found)


def next_due(record: SessionRecord, state: SessionState) -> float | None:
    """Return when the clock has something to do with a session, None if never."""
    return min((timer.at for timer in _timers(record, state)), default=None)


def overdue(record: SessionRecord, state: SessionState) -> list[Callable[[Page], None]]:
    """Return what the clock has to say by now, in the order in which it came due."""
    now = clock().wall()
    late = [timer for timer in _timers(record, state) if timer.at <= now]
    return [timer.fire for timer in sorted(late, key=lambda timer: timer.at)]


@dataclass(frozen=True, slots=True)
class _Timer:
    at: float
    fire: Callable[[Page], None]


def _timers(record: SessionRecord, state: SessionState) -> Iterator[_Timer]:
    if state.is_ended:
        return
    if record.ttl_s is not None:
        yield _Timer(record.created_at + record.ttl_s, _expire)
    if state.status == "pending" and record.invite_timeout_s is not None:
        at = record.created_at + record.invite_timeout_s
        yield _Timer(at, lambda page: page.close("invite_timeout"))
    for index, raw in enumerate(record.expectations):
        expectation = Expectation(**raw)
        began = _began(expectation, record, state)
        if began is None or _is_past(began[0], record):
            continue
        since, anchor, violator = began
        key = f"{index}:{expectation.name}:{anchor}"
        if key not in state.violated:
            fire = _violation(expectation, key, violator)
            yield _Timer(since + expectation.seconds, fire)


def _began(
    expectation: Expectation, record: SessionRecord, state: SessionState
) -> tuple[float, int, list[str]] | None:
    """Return since when it is waited for, a name for that, and whom; None if for nobody."""
    named = expectation.applies_to
    match expectation.name:
        case "turn_within":
            waited = [
                name for name in state.due if name not in state.humans or name in (named or ())
            ]
            waited = [name for name in waited if named is None or name in named]
            paused = state.status in ("pending", "waiting_decision")
            return (_at(state.floor_at), state.round, waited) if waited and not paused else None
        case "reply_within":
            if not state.asked or (named is not None and state.asked_by not in named):
                return None
            others = [name for name in state.participant_order if name != state.asked_by]
            return _at(state.asked_at), state.asked, others
        case "max_silence":
            if state.status == "pending":
                return None
            return _at(state.spoke_at or state.opened_at), state.spoke, []
        case "acks_within":
            if state.status != "pending":
                return None
            missing = [name for name in record.invited if name not in state.acks]
            return record.created_at, 0, missing


def _is_past(since: float, record: SessionRecord) -> bool:
    """Tell whether something is of the past that a fork shares, and not expected of it."""
    is_fork = record.parent is not None and record.parent.at is not None
    return is_fork and since < record.created_at


def _violation(
    expectation: Expectation, key: str, violators: Sequence[str]
) -> Callable[[Page], None]:
    def fire(page: Page) -> None:
        told = {
            "name": expectation.name,
            "key": key,
            "seconds": expectation.seconds,
            "on_violation": expectation.on_violation,
            "violators": list(violators),
        }
        audience = None if expectation.on_violation in ("notify", "auto_close") else ()
        page.note(ev.EV_EXPECTATION_VIOLATED, told, audience=audience)
        if expectation.on_violation == "warn":
            log.warning("session %s: %s is violated", page.state.session_id, expectation.name)
        if expectation.on_violation == "auto_close":
            page.close(f"expectation_violated:{expectation.name}")

    return fire


def _expire(page: Page) -> None:
    page.expires = page.closing is None
    page.close("ttl_expired")


def _at(instant: str) -> float:
    return datetime.fromisoformat(instant).timestamp()
