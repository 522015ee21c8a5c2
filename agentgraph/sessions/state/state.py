"""The state of a session: what its log folds to, as one immutable value.

The names of the fields are also the keys of the snapshots that logs store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from agentgraph.display import code, escaped, row
from agentgraph.phases import ConversationState
from agentgraph.routing.frozen_json import FrozenDict, freeze_fields, thaw
from agentgraph.sessions.state.record import DEFAULT_TENANT, SessionRecord, session_key
from agentgraph.sessions.state.thread import NEW_THREAD

# `with_fields` is an import to type checkers, which pass on only what is listed.
__all__ = [
    "EMPTY_OBJECT",
    "FINAL_STATUSES",
    "Range",
    "SessionState",
    "Status",
    "changes_of",
    "fold_in_place",
    "is_milestone_due",
    "state_fields",
    "with_changes",
    "with_fields",
]

T = TypeVar("T")

Status: TypeAlias = Literal[
    "pending", "active", "waiting_human", "waiting_decision", "closing", "closed", "expired"
]
Range: TypeAlias = tuple[int, int | None]
"""The first and the last sequence of a range; None is the present end of the log."""
FINAL_STATUSES = frozenset({"closed", "expired"})
MILESTONE_EVERY = 500
"""After how many envelopes a log stores a state that stays, a milestone.

To read and fold so many costs about as much as a turn without its models, and the milestones take
about one in a hundred of the bytes that the envelopes take.
"""


@dataclass(frozen=True)
class SessionState:
    """The state after the envelope with the number `sequence`; each envelope makes a new state.

    It is immutable, and so are its mappings, all the way down: writing to them raises `TypeError`.
    """

    session_id: str = ""
    status: Status = "pending"
    participant_order: tuple[str, ...] = ()
    creator_id: str = ""
    expected_next_speaker: str | None = None
    last_speaker_id: str | None = None
    last_envelope_id: str | None = None
    turn_count: int = 0
    round: int = 0
    pending_close_reason: str = ""
    context_vars: Mapping[str, Any] = field(default_factory=FrozenDict)
    conversation: ConversationState = field(default_factory=ConversationState)
    active: Mapping[str, str | None] = field(default_factory=FrozenDict)
    """By participant, the sub-agent that has the conversation."""
    sequence: int = 0

    serves: bool = False
    """Whether the session serves a round of an outer session, whose hub then drives it."""
    humans: tuple[str, ...] = ()
    """The participants that are people, and not agents."""
    speakers: tuple[str, ...] = ()
    """The participants that have the floor in this round."""
    spoken: tuple[str, ...] = ()
    """The speakers of this round whose turn has ended."""
    given_up: tuple[str, ...] = ()
    """The speakers of this round that have failed for good."""
    stopped: str = ""
    """The guard that has ended a turn of this round, "" if none has."""
    turns: Mapping[str, Mapping[str, Any]] = field(default_factory=FrozenDict)
    """Of a round with several speakers, what is known of each turn that has ended, by speaker."""
    decision: Mapping[str, Any] | None = None
    """The decision that gave the speakers the floor."""
    cancelled_decision: Mapping[str, Any] | None = None
    """The decision before that one, if its round was cancelled."""
    rewound_round: int | None = None
    """The round in which these speakers got the floor, if a rewind has given it another number."""
    audience: tuple[str, ...] | None = None
    """Who may see what is said in this round, beside its speakers; None means everybody."""
    round_began: int = 0
    """The sequence of that decision: a speaker's view ends there."""
    failures: Mapping[str, int] = field(default_factory=FrozenDict)
    """How often the round has failed, by speaker."""
    interrupts: Mapping[str, Mapping[str, Any]] = field(default_factory=FrozenDict)
    """The interrupts of the round, by id; an answered one has its `decision`."""
    hops: int = 0
    """The number of handoffs by models since the last input from outside."""
    input: int = 0
    """The sequence of the last input from outside."""
    principal: Mapping[str, Any] | None = None
    """Who has sent that input, or has decided something since; None if no server knows that."""
    used: Mapping[str, Mapping[str, Any]] = field(default_factory=FrozenDict)
    """The usage for that input, by agent."""
    account: Mapping[str, Any] = field(default_factory=FrozenDict)
    """The guards' account of that input, as of the last turn."""
    held: Mapping[str, Mapping[str, float]] = field(default_factory=FrozenDict)
    """By speaker, the shares of budgets that open turns may have used beyond that account."""
    effects: Mapping[str, Mapping[str, Any]] = field(default_factory=FrozenDict)
    """The actions for that input that changed the outside world, by idempotency key."""
    undoing: Mapping[str, Any] = field(default_factory=FrozenDict)
    """The round in which effects are being undone, and the reason; that round does nothing else."""
    said: Mapping[str, int] = field(default_factory=FrozenDict)
    """The number of texts and packets, by sender."""
    visibility: Mapping[str, Mapping[str, Any]] = field(default_factory=FrozenDict)
    """By agent: the `spans` of sequences in which it may see all that was said, and `hidden`, how
    many texts and packets it may not see, by sender. Empty while all was said to all."""
    summary: Mapping[str, Any] | None = None
    """The last summary of the log: `text`, covering envelopes up to the sequence `upto`."""
    live: tuple[Range, ...] = ()
    """The last ranges of sequences that rewinds have left live, the present one without an end;
    empty if all of the log is live. The module `rewind` tells more."""
    rewound: int = 0
    """The sequence of the last rewind, 0 if there was none."""
    acks: tuple[str, ...] = ()
    """The invited participants that have accepted."""
    violated: tuple[str, ...] = ()
    """The last violation of each expectation, as a key that names the occasion."""
    opened_at: str = ""
    floor_at: str = ""
    """When the present speakers got the floor."""
    spoke_at: str = ""
    spoke: int = 0
    """When, and with which sequence, a participant sent the last text or packet."""
    asked_at: str = ""
    asked: int = 0
    asked_by: str | None = None
    """Time, sequence and sender of the oldest message after which only this sender has spoken."""
    updated_at: str = ""
    tenant: str = DEFAULT_TENANT
    thread: Mapping[str, Any] | None = None
    """Where the conversation of a session of one stands in the log, see `thread_after`."""

    def __post_init__(self) -> None:
        freeze_fields(self.__dict__)

    @classmethod
    def initial(cls, record: SessionRecord) -> SessionState:
        """Return the state of a session with an empty log."""
        return cls(
            session_id=record.session_id,
            tenant=record.tenant,
            serves=record.serves,
            participant_order=(*record.agents, *record.humans),
            humans=record.people,
            creator_id=record.creator,
            context_vars=record.context,
            conversation=ConversationState(phase=record.phase),
            thread=NEW_THREAD if record.is_single else None,
        )

    @property
    def key(self) -> str:
        """The key of the session in the log."""
        return session_key(self.tenant, self.session_id)

    @property
    def phase(self) -> str:
        """The phase of the conversation."""
        return self.conversation.phase

    @property
    def active_agent(self) -> str | None:
        """The agent that has the conversation, None if no agent has it."""
        return self.conversation.active_agent_id

    @property
    def is_single(self) -> bool:
        """Whether it is a session of one: each input begins a run, and no run ends the session."""
        return self.thread is not None

    @property
    def agents(self) -> tuple[str, ...]:
        """The present participants that are no people."""
        return tuple([name for name in self.participant_order if name not in self.humans])

    @property
    def due(self) -> tuple[str, ...]:
        """The speakers of this round whose turn has not ended."""
        if not self.spoken:
            return self.speakers
        return tuple([name for name in self.speakers if name not in self.spoken])

    @property
    def is_ended(self) -> bool:
        """Whether the session has ended: it accepts no entries."""
        return self.status in FINAL_STATUSES

    @property
    def is_runnable(self) -> bool:
        """Whether an agent is due, or a decision has to be carried out."""
        if self.serves:
            return False
        if self.status == "closing":
            return True
        if self.status == "waiting_decision":
            return bool(self.decisions)
        return self.status == "active" and any(name not in self.humans for name in self.due)

    @property
    def is_under_way(self) -> bool:
        """Whether a round of an agent is under way, or waits for a decision."""
        return self.status == "waiting_decision" or (self.status == "active" and self.is_runnable)

    @property
    def decisions(self) -> Mapping[str, Any]:
        """The decisions to carry out, by interrupt id, of speakers without open interrupts."""
        suspended_speakers = [
            interrupt.get("speaker")
            for interrupt in self.interrupts.values()
            if "decision" not in interrupt
        ]
        return {
            key: interrupt["decision"]
            for key, interrupt in self.interrupts.items()
            if interrupt.get("speaker") not in suspended_speakers
        }

    def open_questions_html(self) -> list[str]:
        """Return table rows that show whom the session waits for, and its open interrupts."""
        questions = {
            key: interrupt
            for key, interrupt in self.interrupts.items()
            if "decision" not in interrupt
        }
        rows = [
            row("asked as", f"{code(key)}: {code(interrupt.get('payload'))}")
            for key, interrupt in questions.items()
        ]
        if self.due and not questions:
            rows.append(row("waits for", escaped(", ".join(self.due))))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the state as a JSON object, which may be changed."""
        values: dict[str, Any] = thaw(self.stored_fields())
        return values

    def stored_fields(self) -> dict[str, Any]:
        """Return the state as a JSON object that shares the state's data, to be written."""
        return {**self.__dict__, "conversation": self.conversation.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SessionState:
        """Read a state; `TypeError` if a key is not a field.

        Raises `KeyError` for a state of an earlier version, which lacks what later ones count: the
        log is folded instead.
        """
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        finish = values.pop("finish", None)  # of earlier versions, which had no `turns`
        if isinstance(finish, Mapping):
            values["turns"] = {finish["sender_id"]: finish}
        values["conversation"] = ConversationState.from_dict(data["conversation"])
        values["audience"] = None if data["audience"] is None else tuple(data["audience"])
        values["visibility"] = data["visibility"]
        values["live"] = tuple([(start, end) for start, end in data.get("live", ())])
        if values.keys() - _DEFAULTS.keys():
            raise TypeError("it has fields that a state has not")
        freeze_fields(values)
        # Not by the constructor, which sets the fields one by one: this is half of an opening.
        return _copy(cls, _BLANK, values)


def is_milestone_due(head: int, count: int) -> bool:
    """Tell whether a log stores the state after `count` more envelopes as a milestone."""
    return (head + count) // MILESTONE_EVERY > head // MILESTONE_EVERY


_FIELDS = fields(SessionState)
_BLANK = SessionState()
_DEFAULTS = _BLANK.__dict__


def state_fields() -> list[str]:
    """Return the names of the fields of a state."""
    return [item.name for item in _FIELDS]


class _Private(SessionState):
    """A state that only the fold refers to: `with_fields` changes it in place, unfrozen."""


def fold_in_place(
    state: SessionState, step: Callable[[SessionState, T], SessionState], items: Iterable[T]
) -> SessionState:
    """Return the state after a step for each item, made on one private copy.

    A step must make its changes by `with_fields`, and must not read the state
    that it was given after it has changed it.
    """
    private: SessionState = _copy(_Private, state, {})
    for item in items:
        private = step(private, item)
    last = private.__dict__.copy()
    freeze_fields(last)
    return _copy(SessionState, private, last)


def _copy(
    kind: type[SessionState], state: SessionState, changes: Mapping[str, Any]
) -> SessionState:
    copy = object.__new__(kind)
    values = state.__dict__.copy()  # twice as fast as filling an empty dict
    values.update(changes)
    object.__setattr__(copy, "__dict__", values)
    return copy


EMPTY_OBJECT: Mapping[str, Any] = FrozenDict()


def changes_of(state: SessionState) -> dict[str, Any]:
    """Return where to write new values of fields, for `with_changes`.

    Of a private state these are its own: whoever writes there must have read the state before.
    """
    return state.__dict__ if type(state) is _Private else {}


def with_changes(state: SessionState, changes: dict[str, Any]) -> SessionState:
    """Return a state with these values in some fields: faster than `with_fields`, for many fields.

    Type checkers do not check the names of the fields.
    """
    if type(state) is _Private:
        if changes is not state.__dict__:
            state.__dict__.update(changes)
        return state
    if dict in map(type, changes.values()):
        freeze_fields(changes)
    return _copy(SessionState, state, changes)


# Type checkers take it for the standard library's `replace`, and check field names by that. At run
# time that one must not be used for states: it sets every field again, and knows no private state.
if TYPE_CHECKING:
    from dataclasses import replace as with_fields
else:

    def with_fields(state, **changes):
        """Return a state with other values in some fields."""
        return with_changes(state, changes)
