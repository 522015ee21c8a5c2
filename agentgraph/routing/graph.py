"""`TransitionGraph`: rules, as data, that decide who speaks next; the facade of routing."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentgraph.drawing import Edge, Node
from agentgraph.errors import ConfigurationError
from agentgraph.routing.analysis import diagram as picture
from agentgraph.routing.analysis.check import Finding, check
from agentgraph.routing.arguments import parts_of
from agentgraph.routing.conditions import ToolCalled
from agentgraph.routing.decision import Rule, TransitionDecision
from agentgraph.routing.document import document
from agentgraph.routing.document.codec import parse
from agentgraph.routing.document.registry import Registry, default_registry
from agentgraph.routing.explain import Explanation, explain
from agentgraph.routing.protocols import RoutingEnvelope, RoutingState
from agentgraph.routing.questions import Question, join_fault, models_of, pending
from agentgraph.routing.rules import Rules, Transition, compile_rules
from agentgraph.routing.simulate import Script, Simulation, simulate
from agentgraph.routing.targets import Target, TerminateTarget, as_target
from agentgraph.routing.values import is_whole, short


@dataclass(frozen=True)
class TransitionGraph:
    """The first speaker, the rules that decide who speaks next, and a target if none fires.

    After `max_turns` the session closes, with the reason of `default_target` if that terminates.
    The initial speaker `"human"` is the creator of the session. The first input enters
    `initial_phase`.

        graph = TransitionGraph("writer", [
            Transition(FromSpeaker("writer"), "editor"),
            Transition(FromSpeaker("editor"), "writer"),
        ], max_turns=10)
        assert graph.check(["writer", "editor"]) == ()
        assert TransitionGraph.loads(graph.dumps()) == graph

    Raises `ConfigurationError`, with all faults, for values that no graph can have.
    """

    initial_speaker: str
    transitions: Sequence[Transition] = ()
    default_target: Target | str = TerminateTarget()  # noqa: RUF009 - it is frozen
    max_turns: int | None = None
    initial_phase: str | None = None

    def __post_init__(self) -> None:
        faults = [*self._value_faults()]
        if not faults:
            object.__setattr__(self, "transitions", tuple(self.transitions))
            object.__setattr__(self, "default_target", as_target(self.default_target))
            faults += document.size_faults(self.transitions, as_target(self.default_target))
            targets = [*(rule.then for rule in self.transitions), self.default_target]
            faults += [fault for fault in map(join_fault, targets) if fault is not None]
        if faults:
            raise ConfigurationError(faults, code="graph")

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        """Decide who speaks after a turn, which the state includes already; pure, never raises."""
        return self._rules.resolve(state, envelope)

    def question(self, state: RoutingState, envelope: RoutingEnvelope) -> Question | None:
        """Return the question to a model whose answer `resolve` needs first; None if it needs none.

        The envelope with the answer among its `asked` may need another.

            while (question := graph.question(state, envelope)) is not None:
                envelope.event_data["asked"].append(question.entry(ask(question)))
        """
        return pending(self._rules, state, envelope) if self.models else None

    def join(
        self, decision: TransitionDecision, state: RoutingState, envelope: RoutingEnvelope
    ) -> TransitionDecision:
        """Decide who speaks next when all speakers of a parallel decision have spoken."""
        return self._rules.join(decision, state, envelope)

    def explain(self, state: RoutingState, envelope: RoutingEnvelope) -> Explanation:
        """Say which rule fires, and why each one before it does not."""
        return explain(self._rules, state, envelope)

    def check(
        self,
        participants: Sequence[str],
        *,
        people: Collection[str] | None = None,
        tools: Collection[str] | None = None,
        deciders: Collection[str] = (),
        starts: Collection[str] = (),
        is_limited: bool = False,
    ) -> tuple[Finding, ...]:
        """Return the findings: errors, with which no team can be built, and warnings.

        More is found where more is known: `people` are the participants of whom one may be the
        creator, `tools` are all that the participants have. `deciders` are participants whose tools
        may hand over, finish or set context values, which the rules do not show; `starts` are
        those to whom something else than the rules may give the floor. `is_limited` says that a
        time limit ends the session: then an endless cycle is a warning.
        """
        return check(
            self._rules,
            participants,
            people=people,
            tools=tools,
            deciders=deciders,
            starts=starts,
            is_limited=is_limited,
        )

    def simulate(
        self,
        script: Script,
        *,
        participants: Sequence[str],
        turns: int = 100,
        creator: str = "user",
        phase: str = "intake",
    ) -> Simulation:
        """Play the graph with scripted turns, without a model or a session.

        `script` is a list of turns for each participant, or one list in the order of speaking; a
        turn is a text, a `Handoff`, a `Finish` or a `SimulatedTurn`. At most `turns` are made.
        """
        return simulate(
            self._rules,
            script,
            participants=participants,
            turns=turns,
            creator=creator,
            phase=phase,
        )

    def mermaid(self, decided: Sequence[TransitionDecision | Rule] = ()) -> str:
        """Draw the rules, as Mermaid text; those in `decided` are highlighted."""
        return picture.mermaid(self._rules, picture.rules_of(decided))

    def svg(self, decided: Sequence[TransitionDecision | Rule] = ()) -> str:
        """Draw the rules, as an SVG image; those in `decided` are highlighted."""
        return picture.svg(self._rules, picture.rules_of(decided))

    def parts(self) -> tuple[list[Node], list[Edge]]:
        """Return the rules as nodes and edges to draw; a participant's id begins with `:`."""
        return picture.parts_of(self._rules)

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as a JSON document; `ConfigurationError` if it cannot be stored."""
        return document.write(self._parts)

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], registry: Registry | None = None
    ) -> TransitionGraph:
        """Read a document; raise `ConfigurationError` with all its faults, each with its path.

        `registry` has the classes that the document may name; by default built-in and registered
        ones.
        """
        return cls(*document.read(data, registry or default_registry()))

    def dumps(self) -> str:
        """Return the graph as JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def loads(cls, text: str | bytes, registry: Registry | None = None) -> TransitionGraph:
        """Read the JSON that `dumps` has written; raises as `from_dict` does."""
        return cls(*document.read(parse(text), registry or default_registry()))

    @cached_property
    def routing_tools(self) -> frozenset[str]:
        """The routing tools: all tools that a `ToolCalled` in the rules names."""
        parts = (part for rule in self.transitions for part in parts_of(rule.when))
        return frozenset(part.tool_name for part in parts if isinstance(part, ToolCalled))

    @cached_property
    def models(self) -> Mapping[str, Any]:
        """The models that rules ask, by name; each with the object, if it was given as one."""
        return models_of(self._rules)

    @cached_property
    def _rules(self) -> Rules:
        return compile_rules(*self._parts)

    @property
    def _parts(self) -> document.Parts:
        return (
            self.initial_speaker,
            tuple(self.transitions),
            as_target(self.default_target),
            self.max_turns,
            self.initial_phase,
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {
            "text/plain": repr(self),
            "text/vnd.mermaid": self.mermaid(),
            "image/svg+xml": self.svg(),
        }

    def _value_faults(self) -> list[str]:
        """Return all faults in the values of the fields."""
        faults = []
        if not isinstance(self.initial_speaker, str) or not self.initial_speaker:
            faults.append(f"initial_speaker={short(self.initial_speaker)}: give a name")
        if isinstance(self.transitions, str | Mapping) or not isinstance(
            self.transitions, Sequence
        ):
            faults.append(f"transitions={short(self.transitions)}: give a list")
        else:
            strange = [rule for rule in self.transitions if not isinstance(rule, Transition)]
            faults += [f"transitions: {short(rule)} is no Transition" for rule in strange]
        turns = self.max_turns
        if turns is not None and not is_whole(turns):
            faults.append(f"max_turns={short(turns)}: give a whole number of 64 bits, or None")
        if not isinstance(self.initial_phase, str | None):
            faults.append(f"initial_phase={short(self.initial_phase)}: give a name, or None")
        try:
            as_target(self.default_target)
        except ConfigurationError as error:
            faults += [f"default_target: {fault}" for fault in error.faults]
        return faults
