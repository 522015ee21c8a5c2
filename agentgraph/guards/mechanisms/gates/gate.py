"""Gates before and after a stage: schema, policy, invariants, grounding, cheapest and safest first.

A check that raises does not pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Literal, Protocol, TypeAlias, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import FailureClass
from agentgraph.guards.mechanisms.failures import is_control_flow
from agentgraph.guards.mechanisms.settings import takes_one_argument

_LONGEST = 500

Phase: TypeAlias = Literal["pre", "post"]
Status: TypeAlias = Literal["pass", "fail", "skipped", "error"]


class DocumentLike(Protocol):
    """Anything with an id that can be cited, and a text."""

    @property
    def id(self) -> str: ...

    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Document:
    """A retrieved text under its id."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What a gate looks at: a tool call, or a text and what it was made from."""

    stage: str = ""
    tool: str | None = None
    args: Mapping[str, object] | None = None
    text: str = ""
    context: Mapping[str, object] = field(default_factory=dict)
    documents: Sequence[DocumentLike] = ()


Verdict: TypeAlias = bool | str | None
Policy: TypeAlias = Callable[[Subject], Verdict | Awaitable[Verdict]]
"""True or None passes; False or a reason denies."""
Invariant: TypeAlias = Policy
Grounding: TypeAlias = Policy
Schema: TypeAlias = type[BaseModel] | Mapping[str, type[BaseModel]]


def _told(text: str) -> str:
    # A lone surrogate cannot be written as JSON.
    legible = text.encode("utf-8", "replace").decode("utf-8")
    return legible if len(legible) <= _LONGEST else legible[: _LONGEST - 1] + "…"


_Told = Annotated[str, AfterValidator(_told)]


class CheckResult(BaseModel):
    """What came of one check."""

    model_config = ConfigDict(frozen=True)

    name: _Told
    status: Status
    code: str = ""
    message: _Told = ""
    evidence: _Told = ""

    @property
    def stands_in_the_way(self) -> bool:
        """Tell whether the gate stays shut because of it."""
        return self.status in ("fail", "error")


class ValidationResult(BaseModel):
    """What came of a gate."""

    model_config = ConfigDict(frozen=True)

    stage: _Told
    phase: Phase
    passed: bool
    checks: tuple[CheckResult, ...] = ()
    failure_class: FailureClass | Literal[""] = ""
    confidence: float | None = None

    def told(self) -> dict[str, object]:
        """Return it as JSON-able values, which are its own: they are not to be changed."""
        return self._dumped

    @cached_property
    def _dumped(self) -> dict[str, object]:
        return self.model_dump(mode="json")

    @property
    def cause(self) -> str:
        """Say in a sentence what stands in the way, "" when nothing does."""
        return "; ".join(f"{c.name}: {c.message}" for c in self.checks if c.stands_in_the_way)


@dataclass(frozen=True, slots=True)
class Gate:
    """The checks of a stage; a schema is one for the text as JSON, or one for each tool's args."""

    schema: Schema | None = None
    policy: Policy | Sequence[Policy] | None = None
    invariants: Sequence[Invariant] = ()
    grounding: Grounding | Sequence[Grounding] | None = None
    _checks: tuple[_NamedCheck, ...] = field(init=False, repr=False, compare=False)
    _of_calls: tuple[_NamedCheck, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if faults := [*_schema_faults(self.schema), *self._callable_faults()]:
            raise ConfigurationError(faults)
        checks = tuple(self._made())
        object.__setattr__(self, "_checks", checks)
        of_calls = tuple(one for one in checks if one[0] in ("schema", "policy"))
        object.__setattr__(self, "_of_calls", of_calls)

    def _callable_faults(self) -> Iterator[str]:
        for name in ("policy", "invariants", "grounding"):
            for one in _each(getattr(self, name)):
                if not callable(one):
                    yield f"Gate({name}={one!r}): give a function of a Subject"
                elif not takes_one_argument(one):
                    yield f"Gate({name}={one!r}): it is given a Subject: let it take that alone"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its checks, in their order."""
        return tuple(name for _, name, _ in self._checks)

    async def check(self, subject: Subject, phase: Phase, stage: str = "") -> ValidationResult:
        """Run the checks; a schema failure or a denial leaves out the rest."""
        return await _checked(self._checks, subject, phase, stage)

    async def check_call(self, subject: Subject, stage: str = "") -> ValidationResult:
        """Run, before a tool, those checks that can tell something of its call.

        Invariants and grounding are for what an answer holds: they are not asked.
        """
        return await _checked(self._of_calls, subject, "pre", stage)

    def _made(self) -> Iterator[_NamedCheck]:
        if self.schema is not None:
            yield "schema", "schema", self._fits
        kinds: tuple[tuple[_Kind, object], ...] = (
            ("policy", self.policy),
            ("invariant", self.invariants),
            ("grounding", self.grounding),
        )
        for kind, given in kinds:
            for one in _each(given):
                yield kind, f"{kind}:{_name_of(one)}", _judged_by(one, kind)

    async def _fits(self, name: str, subject: Subject) -> CheckResult:
        try:
            if isinstance(self.schema, Mapping):
                model = self.schema.get(subject.tool or "")
                if model is None:
                    return CheckResult(name=name, status="skipped", code="no_schema")
                model.model_validate(dict(subject.args or {}))
            elif subject.tool is not None:
                return CheckResult(name=name, status="skipped", code="no_schema")
            elif self.schema is not None:
                self.schema.model_validate_json(subject.text)
        except ValidationError as error:
            return _misfit(name, error)
        return _passed(name)


_Kind: TypeAlias = Literal["schema", "policy", "invariant", "grounding"]
_Check: TypeAlias = Callable[[str, Subject], Awaitable[CheckResult]]
_NamedCheck: TypeAlias = tuple[_Kind, str, _Check]
_FAILURES: Mapping[_Kind, FailureClass] = {
    "schema": "schema_failure",
    "policy": "unsafe_output",
    "invariant": "schema_failure",
    "grounding": "schema_failure",
}
_CODES: Mapping[_Kind, str] = {
    "schema": "schema_invalid",
    "policy": "policy_denied",
    "invariant": "invariant_broken",
    "grounding": "ungrounded",
}


async def _checked(
    checks: Sequence[_NamedCheck], subject: Subject, phase: Phase, stage: str
) -> ValidationResult:
    results: list[CheckResult] = []
    failure: FailureClass | Literal[""] = ""
    shut, passed = False, True
    for kind, name, run in checks:
        if shut:
            results.append(CheckResult(name=name, status="skipped", code="skipped"))
            continue
        result = await _ran(name, kind, run, subject)
        results.append(result)
        if result.status == "pass":
            continue
        passed = False
        if result.stands_in_the_way:
            failure = failure or _FAILURES[kind]
            shut = kind in ("schema", "policy")
    where = stage or subject.stage
    if passed:
        return _all_passed(where, phase, tuple([name for _, name, _ in checks]))
    return ValidationResult(
        stage=where, phase=phase, passed=not failure, checks=tuple(results), failure_class=failure
    )


@lru_cache(maxsize=256)
def _all_passed(stage: str, phase: Phase, names: tuple[str, ...]) -> ValidationResult:
    checks = tuple(map(_passed, names))
    return ValidationResult(stage=stage, phase=phase, passed=True, checks=checks)


async def _ran(name: str, kind: _Kind, run: _Check, subject: Subject) -> CheckResult:
    try:
        return await run(name, subject)
    except Exception as error:
        if is_control_flow(error):
            raise
        # The text of an error may hold what a stranger must not read.
        message = f"the {kind} check raised {type(error).__name__}"
        return CheckResult(name=name, status="error", code="check_raised", message=message)


@lru_cache(maxsize=256)
def _passed(name: str) -> CheckResult:
    return CheckResult(name=name, status="pass")


def _judged_by(judge: Policy, kind: _Kind) -> _Check:
    async def check(name: str, subject: Subject) -> CheckResult:
        verdict: object = judge(subject)
        if verdict is not True and inspect.isawaitable(verdict):
            verdict = await verdict
        if verdict is True or verdict is None:
            return _passed(name)
        if verdict is False or isinstance(verdict, str):
            why = verdict or "no reason given"
            return CheckResult(name=name, status="fail", code=_CODES[kind], message=why)
        message = f"returned {type(verdict).__name__}: return True, None, False or a reason"
        return CheckResult(name=name, status="error", code="bad_verdict", message=message)

    return check


def _misfit(name: str, error: ValidationError) -> CheckResult:
    # No inputs: they are the model's text.
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    shown = "; ".join(f"{'.'.join(map(str, f['loc'])) or 'text'}: {f['msg']}" for f in faults)
    count = f"{len(faults)} fault{'' if len(faults) == 1 else 's'} against {error.title}"
    return CheckResult(
        name=name, status="fail", code=_CODES["schema"], message=count, evidence=shown
    )


def _schema_faults(schema: object) -> Iterator[str]:
    if schema is None or _is_model(schema):
        return
    if not isinstance(schema, Mapping):
        yield f"Gate(schema={schema!r}): give a pydantic model, or {{tool name: model}}"
        return
    for tool, model in schema.items():
        if not isinstance(tool, str) or not _is_model(model):
            yield f"Gate(schema={{{tool!r}: {model!r}}}): give a pydantic model by tool name"


def _is_model(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _each(given: object) -> tuple[Policy, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else (cast("Policy", given),)


def _name_of(check: object) -> str:
    return getattr(check, "__name__", None) or type(check).__name__
