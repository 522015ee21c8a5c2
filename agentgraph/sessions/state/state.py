"""The state of a session: what its log comes to, as one value.

The names of the fields are also the keys of the snapshots that logs store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from agentgraph.display import code, escaped, row
from agentgraph.phases import ConversationState
from agentgraph.sessions.state.record import SessionRecord

T = TypeVar("T")

Status: TypeAlias = Literal[
    "pending", "active", "waiting_human", "waiting_decision", "closing", "closed", "expired"
]
FINAL_STATUSES = frozenset({"closed", "expired"})


@dataclass(frozen=True)
class SessionState:
    """A session as it is after the envelope `sequence`; each envelope makes a new one."""

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
    context_vars: Mapping[str, Any] = field(default_factory=dict)
    conversation: ConversationState = field(default_factory=ConversationState)
    active: Mapping[str, str | None] = field(default_factory=dict)
    """Which of its sub-agents has the conversation, by participant."""
    sequence: int = 0

    serves: bool = False
    """Whether the session serves a round of another one, whose hub then drives it."""
    humans: tuple[str, ...] = ()
    """The participants whom no agent speaks for."""
    speakers: tuple[str, ...] = ()
    """Who has the floor in this round."""
    spoken: tuple[str, ...] = ()
    """Which of the speakers have had it."""
    given_up: tuple[str, ...] = ()
    """Which of the speakers have failed for good."""
    stopped: str = ""
    """The guard that has ended a turn of this round."""
    finish: Mapping[str, Any] | None = None
    """The packet data of one of several speakers who has called `finish`: the others go first."""
    decision: Mapping[str, Any] | None = None
    """The decision that gave the speakers the floor."""
    round_began: int = 0
    """The sequence of that decision: what a speaker is shown ends there."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """How often the round has failed, by speaker."""
    interrupts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What a human must decide, by id; with `decision` once they have."""
    hops: int = 0
    """The handoffs that models have made since something came from outside."""
    input: int = 0
    """The sequence of what came from outside last."""
    used: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The usage for that input, by agent."""
    account: Mapping[str, Any] = field(default_factory=dict)
    """What guards have counted for that input, as of the last turn."""
    held: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The shares of budgets that turns may have used beyond that, by speaker."""
    effects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What was done for that input that changed the world, by idempotency key."""
    undoing: Mapping[str, Any] = field(default_factory=dict)
    """The round in which effects are being undone, and why; such a round does nothing else."""
    said: Mapping[str, int] = field(default_factory=dict)
    """How often everybody has spoken."""
    summary: Mapping[str, Any] | None = None
    """What a summariser has made of the past: `text`, up to the envelope `upto`."""
    acks: tuple[str, ...] = ()
    """The invited who have accepted."""
    violated: tuple[str, ...] = ()
    """The latest violation of each expectation, as a key that names the occasion."""
    opened_at: str = ""
    floor_at: str = ""
    """When the floor was given."""
    spoke_at: str = ""
    spoke: int = 0
    """When, and with which sequence, somebody spoke last."""
    asked_at: str = ""
    asked: int = 0
    asked_by: str | None = None
    """Whose words nobody else has answered yet, since when and since which sequence."""
    updated_at: str = ""

    @classmethod
    def initial(cls, record: SessionRecord) -> SessionState:
        """Return the state of a session with an empty log."""
        return cls(
            session_id=record.session_id,
            serves=record.serves,
            participant_order=(*record.agents, *record.humans),
            humans=record.people,
            creator_id=record.creator,
            context_vars=dict(record.context),
            conversation=ConversationState(phase=record.phase),
        )

    @property
    def phase(self) -> str:
        """The phase of the conversation."""
        return self.conversation.phase

    @property
    def active_agent(self) -> str | None:
        """The agent who has the conversation."""
        return self.conversation.active_agent_id

    @property
    def due(self) -> tuple[str, ...]:
        """Who still has to speak in this round."""
        if not self.spoken:
            return self.speakers
        return tuple([name for name in self.speakers if name not in self.spoken])

    @property
    def is_ended(self) -> bool:
        """Whether nothing is accepted any more."""
        return self.status in FINAL_STATUSES

    @property
    def is_runnable(self) -> bool:
        """Whether an agent is to speak now, or a decision to be carried out."""
        if self.serves:
            return False
        if self.status == "closing":
            return True
        if self.status == "waiting_decision":
            return bool(self.decisions)
        return self.status == "active" and any(name not in self.humans for name in self.due)

    @property
    def decisions(self) -> Mapping[str, Any]:
        """What can be carried out, by id: the decisions of speakers who wait for no other one."""
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
        """Return rows that show whom or what the session waits for."""
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

    def detached_copy(self) -> SessionState:
        """Return a copy that shares nothing mutable: whoever gets it may write into it."""
        mutable = (
            *("context_vars", "interrupts", "active", "said", "failures", "decision", "summary"),
            *("used", "account", "held", "effects", "undoing"),
        )
        return replace(self, **{name: deepcopy(getattr(self, name)) for name in mutable})

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        values = {item.name: getattr(self, item.name) for item in _FIELDS}
        return {**values, "conversation": self.conversation.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SessionState:
        """Read a state; `TypeError` where a key is none of its fields."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        values["conversation"] = ConversationState.from_dict(data["conversation"])
        return cls(**values)


_FIELDS = fields(SessionState)


class _Private(SessionState):
    """A state that nobody else refers to: `replace` changes it, and makes no other one."""


def fold_in_place(
    state: SessionState, step: Callable[[SessionState, T], SessionState], items: Iterable[T]
) -> SessionState:
    """Return the state after a step for each item, made on one private copy.

    A step must make its changes by `replace` of this module, and must not read the state that it
    was given after it has changed it.
    """
    private: SessionState = _copy(_Private, state, {})
    for item in items:
        private = step(private, item)
    return _copy(SessionState, private, {})


def _copy(
    kind: type[SessionState], state: SessionState, changes: Mapping[str, Any]
) -> SessionState:
    copy = object.__new__(kind)
    values = state.__dict__.copy()  # twice as fast as to fill an empty one
    values.update(changes)
    object.__setattr__(copy, "__dict__", values)
    return copy


# Type checkers know that of the standard library, and check the names of the fields by it. It is
# not to be used for states: it sets each of the fields anew, and knows no private state.
if TYPE_CHECKING:
    from dataclasses import replace as replace
else:

    def replace(state, **changes):
        """Return a state with other values in some fields."""
        if type(state) is _Private:
            state.__dict__.update(changes)
            return state
        return _copy(SessionState, state, changes)
