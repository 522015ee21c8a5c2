"""Where a session stands: what its log comes to, as one value."""

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
ENDED = frozenset({"closed", "expired"})


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
    """Whether it serves a round of another session, which has its rounds run."""
    humans: tuple[str, ...] = ()
    """The participants whom no agent speaks for."""
    speakers: tuple[str, ...] = ()
    """Who has the floor in this round."""
    spoken: tuple[str, ...] = ()
    """Which of them have had it."""
    given_up: tuple[str, ...] = ()
    """Which of those have failed for good."""
    stopped: str = ""
    """The guard that has ended a turn of this round."""
    finish: Mapping[str, Any] | None = None
    """What one of several speakers has said that ends it, once the others have spoken."""
    decision: Mapping[str, Any] | None = None
    """What gave them the floor."""
    round_began: int = 0
    """The sequence at which it did: what a speaker is shown ends there."""
    failures: Mapping[str, int] = field(default_factory=dict)
    interrupts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What a human must decide, by id; with `decision` once they have."""
    hops: int = 0
    """The handoffs that models have made since something came from outside."""
    input: int = 0
    """The sequence of what came from outside last."""
    used: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What has been used for it, by agent."""
    account: Mapping[str, Any] = field(default_factory=dict)
    """What guards have counted for it, as of the last turn."""
    held: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Which share of which budget rounds may have used beyond that, by speaker."""
    effects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What has been done for it that changed the world, by its key."""
    undoing: Mapping[str, Any] = field(default_factory=dict)
    """In which round that began to be undone, and why; such a round does nothing else any more."""
    said: Mapping[str, int] = field(default_factory=dict)
    """How often everybody has spoken."""
    summary: Mapping[str, Any] | None = None
    """What a summariser has made of the past: `text`, up to the envelope `upto`."""
    acks: tuple[str, ...] = ()
    """The invited who have accepted."""
    violated: tuple[str, ...] = ()
    """The latest expectations that were found violated, each with what it was about."""
    opened_at: str = ""
    floor_at: str = ""
    """When the floor was given."""
    spoke_at: str = ""
    spoke: int = 0
    """When, and with which sequence, somebody spoke last."""
    asked_at: str = ""
    asked: int = 0
    asked_by: str | None = None
    """Whose words nobody else has answered yet, and since when."""
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
        return self.status in ENDED

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
        asked = self.interrupts
        waiting = [one.get("speaker") for one in asked.values() if "decision" not in one]
        return {
            key: one["decision"] for key, one in asked.items() if one.get("speaker") not in waiting
        }

    def _waiting(self) -> list[str]:
        """Show whom or what it waits for."""
        asked = [(key, one) for key, one in self.interrupts.items() if "decision" not in one]
        shown = [row("asked as", f"{code(key)}: {code(one.get('payload'))}") for key, one in asked]
        if self.due and not asked:
            shown.append(row("waits for", escaped(", ".join(self.due))))
        return shown

    def handed_out(self) -> SessionState:
        """Return the state for somebody who may write into it: what is live is not theirs."""
        held = (
            *("context_vars", "interrupts", "active", "said", "failures", "decision", "summary"),
            *("used", "account", "held", "effects", "undoing"),
        )
        return changed(self, **{name: deepcopy(getattr(self, name)) for name in held})

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        values = {one.name: getattr(self, one.name) for one in _FIELDS}
        return {**values, "conversation": self.conversation.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SessionState:
        """Read a state."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        values["conversation"] = ConversationState.from_dict(data["conversation"])
        return cls(**values)


_FIELDS = fields(SessionState)


class _Private(SessionState):
    """A state that nobody else has: `changed` need not make another one."""


def in_place(
    state: SessionState, step: Callable[[SessionState, T], SessionState], all: Iterable[T]
) -> SessionState:
    """Return the state after steps, none of which reads what it was given once that is changed."""
    private: SessionState = _copy(_Private, state, {})
    for one in all:
        private = step(private, one)
    return _copy(SessionState, private, {})


def _copy(
    kind: type[SessionState], state: SessionState, changes: Mapping[str, Any]
) -> SessionState:
    other = object.__new__(kind)
    values = state.__dict__.copy()  # twice as fast as to fill an empty one
    values.update(changes)
    object.__setattr__(other, "__dict__", values)
    return other


if TYPE_CHECKING:
    from dataclasses import replace as changed
else:

    def changed(state, **changes):
        """Return a state with other values: as `replace` does, which would set every field anew."""
        if type(state) is _Private:
            state.__dict__.update(changes)
            return state
        return _copy(SessionState, state, changes)
