"""Play a graph with scripted turns: no model, no session, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from agentgraph.errors import ConfigurationError
from agentgraph.outcomes import Finish, Handoff
from agentgraph.routing.decision import TransitionDecision
from agentgraph.routing.rules import Rules
from agentgraph.routing.values import as_json


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTurn:
    """What a scripted participant does in one turn."""

    text: str = ""
    tool: str | None = None
    outcome: Handoff | Finish | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    delete: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, said: Said) -> SimulatedTurn:
        """Return a turn for a text, a `Handoff` or a `Finish`."""
        match said:
            case SimulatedTurn():
                return said
            case Handoff() | Finish():
                return cls(outcome=said)
            case str():
                return cls(text=said)
        raise ConfigurationError(
            f"{said!r} is no turn: give a text, a Handoff, a Finish or a SimulatedTurn"
        )

    def routing(self) -> dict[str, Any]:
        """Return what the turn's packet says of where to go."""
        match self.outcome:
            case Finish(text, reason):
                return {"kind": "finish", "reason": reason, "summary": text}
            case Handoff(target, reason, summary, next_phase):
                told = {"target": target, "reason": reason, "summary": summary}
                return {"kind": "handoff", "next_phase": next_phase, "tool": self.tool, **told}
        return {"kind": "handoff" if self.tool else "text", "tool": self.tool}


Said: TypeAlias = SimulatedTurn | str | Handoff | Finish
Script: TypeAlias = Mapping[str, Sequence[Said]] | Sequence[Said]
"""What is said: by each participant in turn, or one turn after the other whoever has it."""


@dataclass(frozen=True, slots=True)
class SimulatedState:
    """The state that the rules see."""

    participant_order: tuple[str, ...]
    creator_id: str
    expected_next_speaker: str | None = None
    last_speaker_id: str | None = None
    turn_count: int = 0
    context_vars: Mapping[str, Any] = field(default_factory=dict)
    phase: str = "intake"
    active_agent: str | None = None

    def after(self, envelope: SimulatedEnvelope, turn: SimulatedTurn) -> SimulatedState:
        """Return the state with a turn counted in."""
        kept = {key: value for key, value in self.context_vars.items() if key not in turn.delete}
        return replace(
            self,
            last_speaker_id=envelope.sender_id,
            turn_count=self.turn_count + 1,
            context_vars={**kept, **as_json(turn.set, "what a turn sets")},
        )

    def decided(self, decision: TransitionDecision) -> SimulatedState:
        """Return the state with a decision taken in."""
        handed = decision.rule == "handoff"
        receiver = decision.next_speaker if decision.action == "speak" else None
        return replace(
            self,
            expected_next_speaker=decision.next_speaker,
            phase=decision.phase or self.phase,
            active_agent=receiver if handed else self.active_agent,
        )


@dataclass(frozen=True, slots=True)
class SimulatedEnvelope:
    """The words that the rules see."""

    sender_id: str
    event_data: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    event_type: str = "ag.packet"


@dataclass(frozen=True, slots=True)
class Step:
    """Who spoke, and what was decided on it."""

    speaker: str
    text: str
    decision: TransitionDecision


@dataclass(frozen=True, slots=True)
class Simulation:
    """What happened, and how it ended."""

    steps: tuple[Step, ...]
    state: SimulatedState
    close_reason: str | None
    waiting_for: str | None

    @property
    def speakers(self) -> tuple[str, ...]:
        """Who spoke, in their order."""
        return tuple(step.speaker for step in self.steps)

    def __str__(self) -> str:
        lines = [
            f"{number}. {step.speaker}{step.text and f': {step.text}'}"
            for number, step in enumerate(self.steps, 1)
        ]
        if self.close_reason is not None:
            return "\n".join([*lines, f"closed: {self.close_reason}"])
        told = f"waits for {self.waiting_for}" if self.waiting_for else "goes on"
        return "\n".join([*lines, told])


def simulate(
    rules: Rules,
    script: Script,
    *,
    participants: Sequence[str],
    turns: int = 100,
    creator: str = "user",
    phase: str = "intake",
) -> Simulation:
    """Play until it closes, waits for somebody who has nothing to say, or the turns are over."""
    state = SimulatedState(tuple(participants), creator, phase=phase)
    stage = Stage(rules, _Lines(script), state, turns)
    return stage.play()


@dataclass(slots=True)
class Stage:
    """A simulation under way."""

    rules: Rules
    lines: _Lines
    state: SimulatedState
    turns: int
    steps: list[Step] = field(default_factory=list)

    def play(self) -> Simulation:
        decision = self._open()
        while decision.action != "close" and 0 < len(decision.speakers) <= self.turns:
            if decision.action == "wait" and not self.lines.has(decision.speakers[0]):
                return self._ended(None, decision.speakers[0])
            decision = self._all_speak(decision)
        closed = decision.close_reason if decision.action == "close" else None
        return self._ended(closed, None)

    def _open(self) -> TransitionDecision:
        creator = self.state.creator_id
        opening = SimulatedEnvelope(creator, {"routing": {"kind": "text"}})
        decision = self.rules.resolve(self.state, opening)
        if decision.rule == "initial" or self.turns <= 0:
            self.state = self.state.decided(decision)
            return decision
        return self._all_speak(TransitionDecision.speak(creator))

    def _all_speak(self, called: TransitionDecision) -> TransitionDecision:
        *first, last = called.speakers
        heard: list[SimulatedEnvelope] = []

        def listen(said: SimulatedEnvelope) -> TransitionDecision:
            heard.append(said)
            return called  # the floor is theirs until all have spoken

        for speaker in first:
            self._speak(speaker, listen)
        if not first:
            return self._speak(last, lambda said: self.rules.resolve(self.state, said))
        ended = [said for said in heard if said.event_data["routing"]["kind"] == "finish"]
        return self._speak(
            last, lambda said: self.rules.join(called, self.state, (*ended, said)[0])
        )

    def _speak(
        self, speaker: str, decide: Callable[[SimulatedEnvelope], TransitionDecision]
    ) -> TransitionDecision:
        turn = self.lines.next(speaker)
        envelope = SimulatedEnvelope(speaker, {"routing": turn.routing()}, turn.metadata)
        self.turns -= 1
        self.state = self.state.after(envelope, turn)
        decision = decide(envelope)
        self.state = self.state.decided(decision)
        self.steps.append(Step(speaker, turn.text, decision))
        return decision

    def _ended(self, closed: str | None, waiting_for: str | None) -> Simulation:
        return Simulation(tuple(self.steps), self.state, closed, waiting_for)


def _is_list(said: object) -> bool:
    return isinstance(said, Sequence) and not isinstance(said, str)


class _Lines:
    """What is left of a script; whoever has no lines left says nothing in particular."""

    def __init__(self, script: Script) -> None:
        if isinstance(script, str) or not isinstance(script, Mapping | Sequence):
            raise ConfigurationError("a script is a list of turns, or a list for each participant")
        self._all = deque() if isinstance(script, Mapping) else deque(script)
        by_speaker = script if isinstance(script, Mapping) else {}
        single = [name for name, said in by_speaker.items() if not _is_list(said)]
        if single:
            raise ConfigurationError([f"{name!r}: give a list of turns" for name in single])
        self._of = {name: deque(said) for name, said in by_speaker.items()}

    def has(self, speaker: str) -> bool:
        return bool(self._of.get(speaker) or self._all)

    def next(self, speaker: str) -> SimulatedTurn:
        lines = self._of.get(speaker) or self._all
        return SimulatedTurn.of(lines.popleft() if lines else "")
