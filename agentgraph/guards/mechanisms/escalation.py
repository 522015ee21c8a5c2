"""Escalation to a human: when a human is asked, the request, and the answers that are allowed."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Final, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from agentgraph.clock import clock
from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Decision, Tier
from agentgraph.guards.mechanisms.failures import is_control_flow
from agentgraph.guards.mechanisms.gates.gate import Subject
from agentgraph.guards.mechanisms.settings import (
    is_positive,
    is_share,
    smaller,
    takes_one_argument,
)

Critic: TypeAlias = Callable[[Subject], float | Awaitable[float]]
"""Says how sure one can be of a result, from 0 to 1."""

Verb: TypeAlias = Literal["approve", "edit", "reject", "respond"]
VERBS: tuple[Verb, ...] = get_args(Verb)

CONFIDENCE: Final = "escalation"
"""The guard that a decision names where the ground is a critic's score, and not a failure."""
_THRESHOLDS: Mapping[Tier, float] = {"interactive": 0.5, "batch": 0.7, "regulated": 0.85}
_MAX_REPR = 80
_EDIT_FIELDS = ("edited", "edited_action")
_FIELDS: Mapping[Verb, Sequence[str]] = {
    "approve": (),
    "edit": (*_EDIT_FIELDS, "message"),
    "reject": ("message",),
    "respond": ("message",),
}
_SHAPES: Mapping[Verb, str] = {
    "approve": '"approve"',
    "edit": '{"type": "edit", "edited": {…} or a text}',
    "reject": '{"type": "reject", "message": …}',
    "respond": '{"type": "respond", "message": …}',
}


class Request(BaseModel):
    """What a human is asked, as it is stored while the run waits."""

    model_config = ConfigDict(frozen=True)

    id: str
    guard: str
    cause: str
    stage: str
    allowed: tuple[Verb, ...] = VERBS
    payload: JsonValue = None
    asked_at: float
    expires_at: float | None = None


class Answer(BaseModel):
    """A human's decision, and who the human was, if that is known.

    `edited` replaces the arguments of the call, or the text; `message` goes to the model.
    """

    model_config = ConfigDict(frozen=True)

    type: Verb
    edited: dict[str, JsonValue] | str | None = None
    message: str = ""
    reviewer: str | None = None

    @classmethod
    def read(cls, raw: object, allowed: Sequence[str] = VERBS) -> Self:
        """Read an answer in any of the forms that LangChain knows.

        `True`, `"approve"`, `{"type": "edit", …}` or `{"decisions": [{…}]}`. Raises `ValueError`,
        with the forms of the verbs that are `allowed`, for anything else.
        """
        raw_fields = _fields_of(raw)
        verb = next(
            (verb for verb in VERBS if verb in allowed and verb == raw_fields.get("type")), None
        )
        hint = f"give {' or '.join(_SHAPES[verb] for verb in VERBS if verb in allowed)}"
        if verb is None:
            raise ValueError(f"this is no answer that is allowed here: {hint}")
        if faults := list(_faults(verb, raw_fields)):
            raise ValueError(f"the answer {verb} {' and '.join(faults)}: {hint}")
        fields = {
            ("edited" if name in _EDIT_FIELDS else name): value
            for name, value in raw_fields.items()
        }
        try:
            return cls.model_validate(fields)
        except ValidationError:
            raise ValueError(f"the answer {verb} holds what is no JSON: {hint}") from None


@dataclass(frozen=True, slots=True)
class Escalation(BuiltInGuard):
    """Ask a human where a critic's score is below the threshold, and wait at most `ttl_s`.

    The critic is a function of a `Subject`, sync or async, that returns a score from 0 to 1.
    """

    setting = "escalation"
    summary = "Escalation(0.5): the score below which a human is asked, whose it is, how long"
    short_form = "the score from 0 to 1 below which a human is asked"
    is_removable = False
    comes_with_tier = True

    threshold: float = 0.5
    critic: Critic | None = None
    ttl_s: float | None = 86_400

    def __post_init__(self) -> None:
        faults = []
        if _as_score(self.threshold) is None:
            faults.append(f"Escalation(threshold={self.threshold!r}): give a number from 0 to 1")
        if self.critic is not None and not callable(self.critic):
            faults.append(f"Escalation(critic={self.critic!r}): give a function of a Subject")
        elif self.critic is not None and not takes_one_argument(self.critic):
            hint = "it is given a Subject: let it take that alone"
            faults.append(f"Escalation(critic={self.critic!r}): {hint}")
        if self.ttl_s is not None and not is_positive(self.ttl_s):
            faults.append(f"Escalation(ttl_s={self.ttl_s!r}): give seconds above 0, or None")
        if faults:
            raise ConfigurationError(faults)

    @classmethod
    def of_tier(cls, tier: Tier) -> Self:
        """Return the escalation of a tier: the higher the stakes, the higher its threshold."""
        return cls(_THRESHOLDS[tier])

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the escalation with this threshold."""
        return cls(value) if is_share(value) else None

    def tighter(self, outer: Self) -> Self:
        """Return an escalation that asks both critics, and waits no longer than either."""
        return replace(
            self,
            threshold=max(self.threshold, outer.threshold),
            critic=_stricter_critic(self.critic, outer.critic),
            ttl_s=smaller(self.ttl_s, outer.ttl_s),
        )

    def judge(self, score: object) -> Decision:
        """Decide on a score: one below the threshold, or a value that is no score, escalates."""
        number = _as_score(score)
        text = _repr_of(score) if number is None else number
        evidence = {"score": text, "threshold": self.threshold}
        if number is not None and number >= self.threshold:
            return Decision("allow", CONFIDENCE, evidence=evidence)
        if number is None:
            cause = f"the critic gave {text}, which is no number from 0 to 1"
        else:
            cause = f"the critic gave {text}; {self.threshold} is needed"
        return Decision("escalate", CONFIDENCE, cause, evidence=evidence)

    async def score(self, subject: Subject) -> Decision:
        """Ask the critic and decide on its score; without a critic everything passes.

        A critic that raises counts as not sure: the decision is to escalate.
        """
        if self.critic is None:
            return Decision("allow", CONFIDENCE)
        try:
            score = await _score(self.critic, subject)
        except Exception as error:
            if is_control_flow(error):
                raise
            cause = f"the critic raised {type(error).__name__}"
            return Decision("escalate", CONFIDENCE, cause, evidence={"threshold": self.threshold})
        return self.judge(score)

    def ask(
        self,
        decision: Decision,
        stage: str,
        *,
        allowed: Sequence[Verb] = VERBS,
        payload: JsonValue = None,
    ) -> Request:
        """Return a new request to a human.

        The caller makes it once and stores it: a node runs again from its start when the answer
        comes, and a second request would have another id and a later end.
        """
        now = clock().wall()
        return Request(
            id=clock().new_id(),
            guard=decision.guard,
            cause=decision.cause,
            stage=stage,
            allowed=tuple(allowed),
            payload=payload,
            asked_at=now,
            expires_at=None if self.ttl_s is None else now + self.ttl_s,
        )


def late(request: Request) -> Decision:
    """Deny a request that no human answered in time."""
    now, end = clock().wall(), request.expires_at
    if end is None or now <= end:
        return Decision("allow", "escalation_timeout")
    return Decision(
        "deny",
        "escalation_timeout",
        f"nobody decided on {request.stage or 'the request'} within "
        f"{end - request.asked_at:g} s: it counts as denied",
        evidence={"request": request.id, "asked_at": request.asked_at, "expires_at": end},
    )


def ends_at(question: object) -> float | None:
    """Return the instant at which a question is denied, None where it is asked without a limit.

    `question` is what a human is asked, of whatever form: not every one is an escalation.
    """
    if not isinstance(question, Mapping) or question.get("type") != "escalation":
        return None
    end = question.get("expires_at")
    return float(end) if isinstance(end, int | float) else None


def is_overdue(question: object) -> bool:
    """Tell whether the time limit of a question to a human has passed."""
    end = ends_at(question)
    return end is not None and clock().wall() > end


def is_rejected(question: object, decision: object) -> bool:
    """Tell whether a question is an escalation, and a decision on it rejects it."""
    if not isinstance(question, Mapping) or question.get("type") != "escalation":
        return False
    try:
        return Answer.read(decision).type == "reject"
    except ValueError:
        return False


def response_schema(allowed: Sequence[Verb] = VERBS) -> dict[str, object]:
    """Return the JSON schema of what `Answer.read` takes."""
    if invalid_verbs := [verb for verb in allowed if verb not in VERBS]:
        raise ValueError(f"{invalid_verbs} cannot be allowed: give {', '.join(VERBS)}")
    forms = [form for verb in VERBS if verb in allowed for form in _forms(verb)]
    decisions = {"type": "array", "items": {"$ref": "#/$defs/answer"}, "minItems": 1, "maxItems": 1}
    return {
        "title": "Answer",
        "anyOf": [{"$ref": "#/$defs/answer"}, _object({"decisions": decisions}, "decisions")],
        "$defs": {"answer": {"anyOf": forms} if forms else False},
    }


def _forms(verb: Verb) -> list[dict[str, object]]:
    note = {"type": ["string", "null"]}
    match verb:
        case "approve" | "reject":
            fields = {} if verb == "approve" else {"message": note}
            words: list[dict[str, object]] = [{"const": verb}, {"const": verb == "approve"}]
            return [*words, _object({"type": {"const": verb}, **fields}, "type")]
        case "respond":
            required_text = {"type": "string", "minLength": 1}
            return [_object({"type": {"const": verb}, "message": required_text}, "type", "message")]
        case "edit":
            text = {"type": ["object", "string"], "minLength": 1}
            kind = {"type": {"const": verb}, "message": note}
            return [_object({**kind, name: text}, "type", name) for name in _EDIT_FIELDS]


def _object(properties: Mapping[str, object], *required: str) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {**properties, "reviewer": {"type": ["string", "null"]}},
        "required": list(required),
        "additionalProperties": False,
    }


def _fields_of(raw: object) -> Mapping[str, object]:
    """Return the fields of an answer without nulls, none where its form is not known."""
    match raw:
        case Answer():
            return raw.model_dump(exclude_defaults=True)
        case bool():
            return {"type": "approve" if raw else "reject"}
        case str():
            return {"type": raw}
        case {"decisions": [decision], **rest} if rest.keys() <= {
            "reviewer"
        } and not _has_decisions(decision):
            # The reviewer that the list names, unless the decision names one itself.
            return {**_without_nulls(rest), **_fields_of(decision)}
        case Mapping():
            return _without_nulls(raw)
    return {}


def _without_nulls(fields: Mapping[object, object]) -> dict[str, object]:
    return {str(name): value for name, value in fields.items() if value is not None}


def _has_decisions(raw: object) -> bool:
    return isinstance(raw, Mapping) and "decisions" in raw


def _faults(verb: Verb, fields: Mapping[str, object]) -> Iterator[str]:
    if extra_names := sorted(fields.keys() - {"type", "reviewer", *_FIELDS[verb]}):
        yield f"has no {', '.join(extra_names)}"
    if verb == "edit":
        edits = [fields[name] for name in _EDIT_FIELDS if name in fields]
        if len(edits) != 1 or not isinstance(edits[0], str | Mapping) or edits[0] == "":
            yield "needs what is to stand instead, once: an object or a text"
    if verb == "respond" and not fields.get("message"):
        yield "needs a message"
    for name in ("message", "reviewer"):
        if not isinstance(fields.get(name, ""), str):
            yield f"needs a text as {name}"


def _stricter_critic(own: Critic | None, outer: Critic | None) -> Critic | None:
    """Return a critic that asks both and gives the lower score."""
    if own is None or outer is None or own is outer:
        return outer if own is None else own

    async def critic_of_both(subject: Subject) -> float:
        scores = [await _score(critic, subject) for critic in (own, outer)]
        # A score that is no number is returned as it is: the escalation refuses it.
        invalid_scores = [score for score in scores if not isinstance(score, int | float)]
        return invalid_scores[0] if invalid_scores else min(scores)

    return critic_of_both


async def _score(critic: Critic, subject: Subject) -> float:
    score = critic(subject)
    return await score if inspect.isawaitable(score) else score


def _as_score(value: object) -> float | None:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= 1 else None  # type: ignore[arg-type, operator]


def _repr_of(value: object) -> str:
    try:
        return repr(value)[:_MAX_REPR]
    except Exception:  # the object is a critic's, and its `__repr__` may do anything
        return type(value).__name__
