"""Expectations: what has to happen in a session in time, and what a violation causes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypeAlias

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.escalation import ends_at
from agentgraph.routing.values import short
from agentgraph.sessions.envelopes import envelope as ev
from agentgraph.sessions.state.page import Page
from agentgraph.sessions.state.record import SessionRecord
from agentgraph.sessions.state.state import SessionState
from agentgraph.sessions.state.visibility import round_audience

log = logging.getLogger("agentgraph")

Name: TypeAlias = Literal["turn_within", "reply_within", "max_silence", "acks_within"]
Handler: TypeAlias = Literal["audit", "warn", "notify", "auto_close"]
_NAMES = ("turn_within", "reply_within", "max_silence", "acks_within")
_HANDLERS = ("audit", "warn", "notify", "auto_close")


@dataclass(frozen=True, slots=True)
class Expectation:
    """Something that has to happen within some seconds.

        Team(…, expectations=[Expectation("reply_within", 30.0, "notify")])

    - `turn_within`: the participant that has the floor speaks. Humans have no limit, unless named
      in `applies_to`.
    - `reply_within`: another participant answers a message.
    - `max_silence`: any participant speaks.
    - `acks_within`: the invited participants answer.

    `audit` records a violation, `warn` also logs it, `notify` addresses the record to all
    participants, `auto_close` ends the session.
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
            handlers = ", ".join(_HANDLERS)
            faults.append(f"there is no handler {self.on_violation!r}: use {handlers}")
        is_number = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if not is_number or not 0 < self.seconds < 1e12:
            faults.append(f"{self.name}: seconds={self.seconds!r}: give a number above 0")
        names = self.applies_to
        if isinstance(names, str) or not isinstance(names, Iterable | None):
            faults.append(f"{self.name}: applies_to={names!r}: give a list of names")
        if faults:
            raise ConfigurationError(faults, code="expectation")
        if names is not None:
            object.__setattr__(self, "applies_to", tuple(names))

    def to_dict(self) -> dict[str, Any]:
        """Return the expectation as a JSON object."""
        return asdict(self)


_FIELDS = tuple(field.name for field in fields(Expectation))

DEFAULT_EXPECTATIONS = (
    Expectation("turn_within", 120.0, "warn"),
    Expectation("turn_within", 600.0, "auto_close"),
)


def read_expectations(
    items: Sequence[Expectation | Mapping[str, Any]], participants: Collection[str] | None
) -> tuple[Expectation, ...]:
    """Read expectations; each may be an `Expectation` or a mapping of its fields.

    `ConfigurationError` names all faults at once; an unknown participant in `applies_to` is one,
    unless `participants` is None.
    """
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        raise ConfigurationError(f"expectations={short(items)}: give a list", code="expectation")
    expectations: list[Expectation] = []
    faults: list[str] = []
    for item in items:
        try:
            expectations.append(_read(item))
        except ConfigurationError as error:
            faults += error.faults
    if participants is not None:
        names = [name for item in expectations for name in item.applies_to or ()]
        faults += [
            f"applies_to: {name!r} takes no part: there are {', '.join(participants)}"
            for name in names
            if name not in participants
        ]
    if faults:
        raise ConfigurationError(faults, code="expectation")
    return tuple(expectations)


def _read(item: object) -> Expectation:
    if isinstance(item, Expectation):
        return item
    if not isinstance(item, Mapping):
        text = f"{short(item)} is no expectation: give an Expectation, or a mapping of its fields"
        raise ConfigurationError(text, code="expectation")
    faults = [f"has no {key!r}" for key in ("name", "seconds") if key not in item]
    extra_keys = [key for key in item if key not in _FIELDS]
    faults += [f"knows no {key!r}" for key in extra_keys]
    if faults:
        text = f"the expectation {short(item)} {' and '.join(faults)}: its fields are "
        raise ConfigurationError(text + ", ".join(_FIELDS), code="expectation")
    return Expectation(**item)


def ends_in_time(expectations: Iterable[Expectation]) -> bool:
    """Tell whether one of these expectations closes the session when it is violated."""
    return any(expectation.on_violation == "auto_close" for expectation in expectations)


def next_due(record: SessionRecord, state: SessionState) -> float | None:
    """Return when the next timer of a session is due, None if no timer is set."""
    return min((timer.at for timer in _timers(record, state)), default=None)


def overdue(record: SessionRecord, state: SessionState) -> list[Callable[[Page], None]]:
    """Return the changes of the timers that are overdue, the earliest first."""
    now = clock().wall()
    late = [timer for timer in _timers(record, state) if timer.at <= now]
    return [timer.fire for timer in sorted(late, key=lambda timer: timer.at)]


@dataclass(frozen=True, slots=True)
class _Timer:
    """A change of the session at an instant, unless an earlier event cancels it."""

    at: float
    fire: Callable[[Page], None]


def _timers(record: SessionRecord, state: SessionState) -> Iterator[_Timer]:
    if state.is_ended:
        return
    ends_at = expires_at(record)
    if ends_at is not None:
        yield _Timer(ends_at, expire)
    if state.status == "pending" and record.invite_timeout_s is not None:
        at = record.created_at + record.invite_timeout_s
        yield _Timer(at, lambda page: page.close("invite_timeout"))
    if not record.serves:  # a question inside a round is a question of the outer session too
        yield from _denials(state)
    for index, raw in enumerate(record.expectations):
        expectation = Expectation(**raw)
        occasion = _occasion(expectation, record, state)
        if occasion is None or _is_before_fork(occasion.since, record):
            continue
        key = f"{index}:{expectation.name}:{occasion.anchor}"
        if key not in state.violated:
            fire = _violation(expectation, key, occasion.violators)
            yield _Timer(occasion.since + expectation.seconds, fire)


def _denials(state: SessionState) -> Iterator[_Timer]:
    """Yield the timers of the open escalations: what nobody decides in time is denied."""
    for key, question in state.interrupts.items():
        end = ends_at(question.get("payload")) if "decision" not in question else None
        if end is not None:
            # A decision at the very end is in time.
            yield _Timer(math.nextafter(end, math.inf), partial(_deny, key=key))


def _deny(page: Page, key: str) -> None:
    question = page.state.interrupts.get(key)
    if question is None or "decision" in question:
        return
    denial = {"type": "reject", "message": "nobody has decided in time"}
    audience = round_audience(page.state, question.get("speaker"))
    page.note(ev.EV_DECISION, {"interrupt_id": key, "decision": denial}, audience=audience)


@dataclass(frozen=True, slots=True)
class _Occasion:
    """The event for which an expectation waits at present."""

    since: float
    anchor: int
    """A number that identifies the occasion in its session: a round, or a sequence."""
    violators: Sequence[str]
    """The participants that are late once the time is over."""


def _occasion(
    expectation: Expectation, record: SessionRecord, state: SessionState
) -> _Occasion | None:
    """Return the occasion for which an expectation waits at present, None if there is none."""
    names = expectation.applies_to
    match expectation.name:
        case "turn_within":
            late = _expected_speakers(expectation, state)
            is_paused = state.status in ("pending", "waiting_decision")
            if not late or is_paused:
                return None
            return _Occasion(_instant(state.floor_at), state.round, late)
        case "reply_within":
            if not state.asked or (names is not None and state.asked_by not in names):
                return None
            answerers = [name for name in state.participant_order if name != state.asked_by]
            return _Occasion(_instant(state.asked_at), state.asked, answerers)
        case "max_silence":
            if state.status == "pending":
                return None
            anchor = max(state.spoke, state.rewound)
            return _Occasion(_instant(state.spoke_at or state.opened_at), anchor, [])
        case "acks_within":
            if state.status != "pending":
                return None
            silent = [name for name in record.invited if name not in state.acks]
            return _Occasion(record.created_at, 0, silent)


def _expected_speakers(expectation: Expectation, state: SessionState) -> list[str]:
    """Return the speakers who are due and subject to the expectation: humans only if named."""
    names = expectation.applies_to
    if names is None:
        return [name for name in state.due if name not in state.humans]
    return [name for name in state.due if name in names]


def _is_before_fork(since: float, record: SessionRecord) -> bool:
    """Tell whether an instant is in the past that a fork has copied: no expectation covers it."""
    is_fork = record.parent is not None and record.parent.at is not None
    return is_fork and since < record.created_at


def _violation(
    expectation: Expectation, key: str, violators: Sequence[str]
) -> Callable[[Page], None]:
    def fire(page: Page) -> None:
        data = {
            "name": expectation.name,
            "key": key,
            "seconds": expectation.seconds,
            "on_violation": expectation.on_violation,
            "violators": list(violators),
        }
        audience = None if expectation.on_violation in ("notify", "auto_close") else ()
        page.note(ev.EV_EXPECTATION_VIOLATED, data, audience=audience)
        if expectation.on_violation == "warn":
            log.warning("session %s: %s is violated", page.state.session_id, expectation.name)
        if expectation.on_violation == "auto_close":
            page.close(f"expectation_violated:{expectation.name}")

    return fire


def expires_at(record: SessionRecord) -> float | None:
    """Return the instant at which a session's time to live ends, None if it has no limit."""
    return None if record.ttl_s is None else record.created_at + record.ttl_s


def expire(page: Page) -> None:
    """End a session whose time to live is over."""
    page.expires = page.close_reason is None
    page.close("ttl_expired")


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
