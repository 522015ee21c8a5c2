"""Simulates a graph with scripted turns: no model, no session, no clock.

`SimulatedTurn` is a turn of a script, `Simulation` is the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from agentgraph.errors import ConfigurationError
from agentgraph.outcomes import Finish, Handoff
from agentgraph.routing.decision import TransitionDecision
from agentgraph.routing.questions import ASKED, asks_models, pending
from agentgraph.routing.rules import Rules
from agentgraph.routing.values import as_json


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTurn:
    """A participant's turn in a script: its text, its tools, its context changes.

    `tool` is the routing tool that it calls; `set` and `delete` change context variables. A model
    of the rules that has no answer in `answers` counts as failing.

        SimulatedTurn(text="Good.", set={"approved": True})
    """

    text: str = ""
    tool: str | None = None
    outcome: Handoff | Finish | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    delete: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, bool | str] = field(default_factory=dict)
    """What models answer on this turn, by the question or the prompt of a rule."""

    @classmethod
    def of(cls, turn: ScriptedTurn) -> SimulatedTurn:
        """Return a turn for a text, a `Handoff` or a `Finish`."""
        match turn:
            case SimulatedTurn():
                return turn
            case Handoff() | Finish():
                return cls(outcome=turn)
            case str():
                return cls(text=turn)
        raise ConfigurationError(
            f"{turn!r} is no turn: give a text, a Handoff, a Finish or a SimulatedTurn"
        )

    def routing(self) -> dict[str, Any]:
        """Return the `routing` of the turn's packet."""
        match self.outcome:
            case Finish(text, reason):
                return {"kind": "finish", "reason": reason, "summary": text}
            case Handoff(target, reason, summary, next_phase):
                fields = {"target": target, "reason": reason, "summary": summary}
                return {"kind": "handoff", "next_phase": next_phase, "tool": self.tool, **fields}
        return {"kind": "handoff" if self.tool else "text", "tool": self.tool}


ScriptedTurn: TypeAlias = SimulatedTurn | str | Handoff | Finish
Script: TypeAlias = Mapping[str, Sequence[ScriptedTurn]] | Sequence[ScriptedTurn]
"""The turns of each participant, or one list of turns for the speakers in their order."""


@dataclass(frozen=True, slots=True)
class SimulatedState:
    """The state that the rules read: a `RoutingState` without a session."""

    participant_order: tuple[str, ...]
    creator_id: str
    expected_next_speaker: str | None = None
    last_speaker_id: str | None = None
    turn_count: int = 0
    context_vars: Mapping[str, Any] = field(default_factory=dict)
    phase: str = "intake"
    active_agent: str | None = None

    def after(self, envelope: SimulatedEnvelope, turn: SimulatedTurn) -> SimulatedState:
        """Return the state after a turn."""
        context = {key: value for key, value in self.context_vars.items() if key not in turn.delete}
        return replace(
            self,
            last_speaker_id=envelope.sender_id,
            turn_count=self.turn_count + 1,
            context_vars={**context, **as_json(turn.set, "what a turn sets")},
        )

    def with_decision(self, decision: TransitionDecision) -> SimulatedState:
        """Return the state after a decision; only a handoff changes the active agent."""
        receiver = decision.next_speaker if decision.action == "speak" else None
        return replace(
            self,
            expected_next_speaker=decision.next_speaker,
            phase=decision.phase or self.phase,
            active_agent=receiver if decision.rule == "handoff" else self.active_agent,
        )


@dataclass(frozen=True, slots=True)
class SimulatedEnvelope:
    """The envelope that the rules read: a `RoutingEnvelope` without a session."""

    sender_id: str
    event_data: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    event_type: str = "ag.packet"


@dataclass(frozen=True, slots=True)
class Step:
    """One turn: its speaker, and the decision on it."""

    speaker: str
    text: str
    decision: TransitionDecision


@dataclass(frozen=True, slots=True)
class Simulation:
    """The turns of a simulation, and its end.

    `close_reason` is None if the session has not closed; `waiting_for` then names the participant
    that it waits for, if any.
    """

    steps: tuple[Step, ...]
    state: SimulatedState
    close_reason: str | None
    waiting_for: str | None

    @property
    def speakers(self) -> tuple[str, ...]:
        """The speakers, in the order of their turns."""
        return tuple(step.speaker for step in self.steps)

    def __str__(self) -> str:
        lines = [
            f"{number}. {step.speaker}{step.text and f': {step.text}'}"
            for number, step in enumerate(self.steps, 1)
        ]
        if self.close_reason is not None:
            return "\n".join([*lines, f"closed: {self.close_reason}"])
        end = f"waits for {self.waiting_for}" if self.waiting_for else "goes on"
        return "\n".join([*lines, end])


def simulate(
    rules: Rules,
    script: Script,
    *,
    participants: Sequence[str],
    turns: int = 100,
    creator: str = "user",
    phase: str = "intake",
) -> Simulation:
    """Simulate until the session closes, waits for a speaker without turns, or `turns` is up."""
    state = SimulatedState(tuple(participants), creator, phase=phase)
    return _Playback(rules, _ScriptCursor(script), state, turns, asks_models(rules)).play()


@dataclass(slots=True)
class _Playback:
    """A simulation in progress."""

    rules: Rules
    script: _ScriptCursor
    state: SimulatedState
    turns_left: int
    asks: bool
    """Whether a rule may ask a model."""
    steps: list[Step] = field(default_factory=list)

    def play(self) -> Simulation:
        """Take turns until the session closes, waits for a speaker without turns, or the limit."""
        decision = self._open()
        while decision.action != "close" and 0 < len(decision.speakers) <= self.turns_left:
            if decision.action == "wait" and not self.script.has(decision.speakers[0]):
                return self._result(waiting_for=decision.speakers[0])
            decision = self._all_speak(decision)
        return self._result(decision.close_reason if decision.action == "close" else None)

    def _open(self) -> TransitionDecision:
        """Send the first input; it counts as a turn if the creator has the floor."""
        creator = self.state.creator_id
        envelope = SimulatedEnvelope(creator, {"routing": {"kind": "text"}})
        decision = self.rules.resolve(self.state, envelope)
        if decision.rule == "initial" or self.turns_left <= 0:
            self.state = self.state.with_decision(decision)
            return decision
        return self._all_speak(TransitionDecision.speak(creator))

    def _all_speak(self, parallel: TransitionDecision) -> TransitionDecision:
        """Take the turns of one speaker, or of several that speak in parallel."""
        *first, last = parallel.speakers
        if not first:
            return self._speak(last, lambda envelope: self.rules.resolve(self.state, envelope))
        finishes: list[SimulatedEnvelope] = []

        def keep_floor(envelope: SimulatedEnvelope) -> TransitionDecision:
            if envelope.event_data["routing"]["kind"] == "finish":
                finishes.append(envelope)
            return parallel  # these speakers keep the floor until all have spoken

        for speaker in first:
            self._speak(speaker, keep_floor)
        # The `Finish` of any speaker decides; otherwise the envelope of the last speaker does.
        return self._speak(
            last,
            lambda envelope: self.rules.join(parallel, self.state, (*finishes, envelope)[0]),
        )

    def _speak(
        self, speaker: str, decide: Callable[[SimulatedEnvelope], TransitionDecision]
    ) -> TransitionDecision:
        """Make one turn, and let `decide` read its envelope."""
        turn = self.script.next(speaker)
        answers: list[dict[str, Any]] = []
        data = {"routing": turn.routing(), ASKED: answers}
        envelope = SimulatedEnvelope(speaker, data, turn.metadata)
        self.turns_left -= 1
        self.state = self.state.after(envelope, turn)
        while self.asks and (question := pending(self.rules, self.state, envelope)):
            answer = turn.answers.get(question.text)
            answers.append(question.entry(answer, "" if answer is not None else _NO_ANSWER))
        decision = decide(envelope)
        self.state = self.state.with_decision(decision)
        self.steps.append(Step(speaker, turn.text, decision))
        return decision

    def _result(
        self, close_reason: str | None = None, waiting_for: str | None = None
    ) -> Simulation:
        return Simulation(tuple(self.steps), self.state, close_reason, waiting_for)


_NO_ANSWER = "the script has no answer"


class _ScriptCursor:
    """The turns of a script that are left; a speaker whose turns are used up has empty ones."""

    def __init__(self, script: Script) -> None:
        if isinstance(script, str) or not isinstance(script, Mapping | Sequence):
            raise ConfigurationError("a script is a list of turns, or a list for each participant")
        self._any_speaker = deque() if isinstance(script, Mapping) else deque(script)
        by_speaker = script if isinstance(script, Mapping) else {}
        faults = [
            f"{name!r}: give a list of turns"
            for name, turns in by_speaker.items()
            if not isinstance(turns, Sequence) or isinstance(turns, str)
        ]
        if faults:
            raise ConfigurationError(faults)
        self._by_speaker = {name: deque(turns) for name, turns in by_speaker.items()}

    def has(self, speaker: str) -> bool:
        return bool(self._by_speaker.get(speaker) or self._any_speaker)

    def next(self, speaker: str) -> SimulatedTurn:
        turns = self._by_speaker.get(speaker) or self._any_speaker
        return SimulatedTurn.of(turns.popleft() if turns else "")
