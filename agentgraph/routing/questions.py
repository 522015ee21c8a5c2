"""Questions that rules put to a model: who speaks next, and whether something is the case.

Rules ask nobody. Whoever has the turn's envelope asks for them, before it is stored: `pending` says
which question is next, and the answer goes into `event_data["asked"]`, where conditions and targets
read it, also whenever a log is replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeGuard

from agentgraph.errors import ConfigurationError
from agentgraph.routing.arguments import parts_of
from agentgraph.routing.composites import AllOf, AnyOf, Composable, Not, judge
from agentgraph.routing.decision import TransitionDecision
from agentgraph.routing.protocols import RoutingEnvelope, RoutingState, TransitionCondition
from agentgraph.routing.rules import Rules
from agentgraph.routing.targets import ParallelTarget, Target, as_target, distinct_names
from agentgraph.routing.values import check_text, short

Answer: TypeAlias = bool | str
ASKED = "asked"
"""The key of the answers in the data of a turn's envelope."""
OBJECT = "object:"
"""What the name of a model begins with that was given as an object and is in no registry."""
WHO_IS_NEXT = "Who speaks next?"


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a model, and the names among which it may choose; None is yes or no."""

    model: str
    text: str
    agents: tuple[str, ...] | None = None
    model_object: Any = field(default=None, compare=False, repr=False)
    """The model itself, where the rule was given no name."""

    def entry(self, answer: Answer | None, failure: str = "") -> dict[str, Any]:
        """Return an answer as an envelope stores it; None, with the failure, where there is none.

        An answer that is none of those that the question allows is none.
        """
        if answer is not None and not self._allows(answer):
            answer, failure = None, f"the model has answered {short(answer)}"
        entry = {
            "model": self.model,
            "question": self.text,
            "agents": None if self.agents is None else list(self.agents),
            "answer": answer,
        }
        return {**entry, "failure": failure} if failure else entry

    def answer_in(self, envelope: RoutingEnvelope) -> Answer:
        """Return the answer that an envelope has.

        Raises `MissingAnswer` where it has no answer, `LookupError` where the model had none.
        """
        # The data may hold anything: they are read from a log.
        entries: object = envelope.event_data.get(ASKED)
        for entry in entries if isinstance(entries, list | tuple) else ():
            if isinstance(entry, Mapping) and self._is_answered_by(entry):
                answer = entry.get("answer")
                if self._allows(answer):
                    return answer
                raise LookupError(str(entry.get("failure") or "the model had no answer"))
        raise MissingAnswer(self)

    def _is_answered_by(self, entry: Mapping[str, Any]) -> bool:
        agents = entry.get("agents")
        names = tuple(agents) if isinstance(agents, list | tuple) else None
        return (entry.get("model"), entry.get("question"), names) == (
            self.model,
            self.text,
            self.agents,
        )

    def _allows(self, answer: object) -> TypeGuard[Answer]:
        if self.agents is None:
            return isinstance(answer, bool)
        return isinstance(answer, str) and answer in self.agents


class MissingAnswer(LookupError):
    """A question has no answer in the envelope yet."""

    def __init__(self, question: Question) -> None:
        super().__init__(f"{question.model!r} was not asked {question.text!r}")
        self.question = question


@dataclass(frozen=True, slots=True)
class ModelCondition(Composable):
    """Fires if a model answers the question about the conversation with yes.

        ModelCondition("openai:gpt-5-mini", "Is the customer angry?")

    `model` is the name of a model, of a registered one (`register_model`), or a chat model. It is
    asked once a turn, and only where the other parts of the condition leave it open. Where it
    fails, neither the condition nor its negation fires, and the next rule is tried.
    """

    model: str
    question: str
    _object: Any = field(default=None, init=False, repr=False, compare=False)

    name: ClassVar[str] = "model_condition"

    if TYPE_CHECKING:

        def __init__(self, model: object, question: str) -> None: ...

    def __post_init__(self) -> None:
        _take_model(self)
        check_text("question", self.question)

    def evaluate(self, state: RoutingState, envelope: RoutingEnvelope) -> bool:
        question = Question(self.model, self.question, None, self._object)
        return question.answer_in(envelope) is True


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The agent that a model chooses speaks; without `agents` it chooses among all other_names.

        Transition(FromSpeaker("triage"), ModelChoice("openai:gpt-5-mini", ["billing", "tech"]))

    `prompt` says what to choose by. `model` is as for `ModelCondition`. Where the model fails, or
    answers something else, the target fails, and the next rule is tried.
    """

    model: str
    agents: Sequence[str] = ()
    prompt: str | None = None
    _object: Any = field(default=None, init=False, repr=False, compare=False)

    name: ClassVar[str] = "model_choice"

    if TYPE_CHECKING:

        def __init__(
            self, model: object, agents: Sequence[str] = (), prompt: str | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        _take_model(self)
        object.__setattr__(self, "agents", distinct_names("agents", self.agents))
        if self.prompt is not None:
            check_text("prompt", self.prompt)

    def resolve(self, state: RoutingState, envelope: RoutingEnvelope) -> TransitionDecision:
        other_names = [name for name in state.participant_order if name != envelope.sender_id]
        agents = tuple(self.agents or other_names)
        question = Question(self.model, self.prompt or WHO_IS_NEXT, agents, self._object)
        return TransitionDecision.speak(str(question.answer_in(envelope)))


def pending(rules: Rules, state: RoutingState, envelope: RoutingEnvelope) -> Question | None:
    """Return the first question whose answer a decision on the envelope needs and does not have.

    None if the decision can be made. Ask, add the answer, and call it again: which question is next
    may depend on the answer.
    """
    if rules.is_opening(state, envelope):
        return None
    decision = rules.packet_decision(state, envelope, [])
    for index, rule in rules.rules_for(envelope.sender_id) if decision is None else ():
        fires = judge(rule.when, state, envelope, [])
        question = _asked_by(rule.when, state, envelope) if fires is None else None
        if question is None and fires is True:
            target = as_target(rule.then)
            question = _asked_by_target(target, state, envelope)
            decision = rules.target_decision(target, index, state, envelope, [])
        if question is not None:
            return question
        if decision is not None:
            break
    if decision is not None and not rules.is_beyond_turns(decision, state):
        return None
    return _asked_by_target(rules.default, state, envelope)


def asks_models(rules: Rules) -> bool:
    """Tell whether a decision may need the answer of a model."""
    return bool(models_of(rules))


def models_of(rules: Rules) -> dict[str, Any]:
    """Return the models that rules name, by name, each with the object if it was given as one."""
    wholes = [part for rule in rules.transitions for part in (rule.when, rule.then)]
    parts = [part for whole in (*wholes, rules.default) for part in parts_of(whole)]
    model_parts = [part for part in parts if isinstance(part, ModelCondition | ModelChoice)]
    return {part.model: part._object for part in model_parts}


def join_fault(target: Target | str) -> str | None:
    """Return what is wrong with the join of a parallel target, None if nothing is."""
    joins = [part.join for part in parts_of(target) if isinstance(part, ParallelTarget)]
    if not any(isinstance(part, ModelChoice) for join in joins for part in parts_of(join)):
        return None
    return (
        "parallel: join is chosen by a model, which is asked on the turn of one speaker: let an "
        "agent join, and choose after its turn"
    )


def _asked_by(
    when: TransitionCondition, state: RoutingState, envelope: RoutingEnvelope
) -> Question | None:
    """Return the first question that leaves a condition open, None if another fault does."""
    match when:
        case AllOf(conditions) | AnyOf(conditions):
            parts = conditions
        case Not(part):
            parts = (part,)
        case _:
            return _not_asked(lambda: when.evaluate(state, envelope))
    still_open = (part for part in parts if judge(part, state, envelope, []) is None)
    questions = (_asked_by(part, state, envelope) for part in still_open)
    return next((question for question in questions if question is not None), None)


def _asked_by_target(
    target: Target, state: RoutingState, envelope: RoutingEnvelope
) -> Question | None:
    return _not_asked(lambda: target.resolve(state, envelope))


def _not_asked(evaluate: Any) -> Question | None:
    try:
        evaluate()
    except MissingAnswer as error:
        return error.question
    except Exception:  # it counts as a fault, which the decision's trace names
        return None
    return None


def _take_model(part: Any) -> None:
    """Keep a model that was given as an object apart, with its class in the place of its name."""
    model = part.model
    if isinstance(model, str) and model:
        return
    if not callable(getattr(model, "ainvoke", None)):
        raise ConfigurationError(f"model={short(model)}: give a chat model, or the name of one")
    object.__setattr__(part, "_object", model)
    object.__setattr__(part, "model", f"{OBJECT}{type(model).__name__}")
