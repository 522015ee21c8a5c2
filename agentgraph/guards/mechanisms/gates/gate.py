"""The gate of a stage: the checks that its calls, its texts or its outputs have to pass.

The checks run in the order schema, policy, invariants, grounding: the cheapest and most certain
come first. A check that raises does not pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Annotated, Literal, Protocol, Self, TypeAlias, cast

from pydantic import AfterValidator, BaseModel, ConfigDict

from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import FailureClass, Tier
from agentgraph.guards.mechanisms.failures import is_control_flow
from agentgraph.guards.mechanisms.gates.schema import (
    Checker,
    Misfit,
    Schema,
    SchemaForm,
    checker_of,
    forms_by_tool,
    schema_faults,
)
from agentgraph.guards.mechanisms.settings import takes_one_argument

_MAX_TEXT = 500
_MAX_EVIDENCE = 4_000

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
    """What a gate looks at: a tool call, or a text and what it was made from.

    A tool call has `tool` and `args`; an answer has `text`, and the `documents` it rests on.
    """

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
InputCheck: TypeAlias = SchemaForm | Policy | Sequence[Policy]
"""What judges a user's words: a schema for the text as JSON, or functions of a `Subject`."""


def _shorten(text: str, most: int = _MAX_TEXT) -> str:
    """Return a text that can be stored: of limited length, and without lone surrogates.

    JSON in UTF-8 cannot contain half of a surrogate pair, and models do write such halves.
    """
    storable = text.encode("utf-8", "replace").decode("utf-8")
    return storable if len(storable) <= most else storable[: most - 1] + "…"


_Text = Annotated[str, AfterValidator(_shorten)]
_LongText = Annotated[str, AfterValidator(partial(_shorten, most=_MAX_EVIDENCE))]


class CheckResult(BaseModel):
    """The result of one check: `code` for programs, `message` for people, `evidence` for both."""

    model_config = ConfigDict(frozen=True)

    name: _Text
    status: Status
    code: str = ""
    message: _Text = ""
    evidence: _LongText = ""

    @property
    def stands_in_the_way(self) -> bool:
        """Tell whether this result keeps the subject from passing the gate."""
        return self.status in ("fail", "error")


class ValidationResult(BaseModel):
    """The result of a gate: whether the subject passed, and the results of all its checks."""

    model_config = ConfigDict(frozen=True)

    stage: _Text
    phase: Phase
    passed: bool
    checks: tuple[CheckResult, ...] = ()
    failure_class: FailureClass | Literal[""] = ""
    confidence: float | None = None

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON-able values, which are shared: do not change them."""
        return self._json

    @cached_property
    def _json(self) -> dict[str, object]:
        return self.model_dump(mode="json")

    @property
    def cause(self) -> str:
        """Return which checks did not pass and why, with all faults; "" where all did."""
        failures = [check for check in self.checks if check.stands_in_the_way]
        return "; ".join(
            f"{check.name}: {check.message}{f' ({check.evidence})' if check.evidence else ''}"
            for check in failures
        )


@dataclass(frozen=True, slots=True)
class Gate:
    """The checks of a stage.

        Gate(schema={"refund": Refund}, policy=may_refund, grounding=cited_ids())

    `schema` is a pydantic model or a JSON Schema for the text as JSON, or one for the arguments of
    each tool, by its name. The other checks are functions of a `Subject`, sync or async: True or
    None passes, False or a reason denies. `input` judges what a user says before the first model
    call, by such functions or by a schema; an input that it refuses ends the run.
    """

    schema: Schema | None = None
    policy: Policy | Sequence[Policy] | None = None
    invariants: Sequence[Invariant] = ()
    grounding: Grounding | Sequence[Grounding] | None = None
    input: InputCheck | None = field(default=None, kw_only=True)
    _checks: tuple[_NamedCheck, ...] = field(init=False, repr=False, compare=False)
    _call_checks: tuple[_NamedCheck, ...] = field(init=False, repr=False, compare=False)
    _input_checks: tuple[_NamedCheck, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if faults := [*schema_faults(self.schema), *self._callable_faults()]:
            raise ConfigurationError(faults)
        checks = tuple(self._named_checks())
        object.__setattr__(self, "_checks", checks)
        call_checks = tuple(check for check in checks if check[0] in ("schema", "policy"))
        object.__setattr__(self, "_call_checks", call_checks)
        object.__setattr__(self, "_input_checks", tuple(self._named_input_checks()))

    def _callable_faults(self) -> Iterator[str]:
        names = ["policy", "invariants", "grounding"]
        if isinstance(self.input, Mapping | type):
            faults = [*schema_faults(self.input, "input")]
            if not faults and forms_by_tool(self.input) is not None:
                faults = [f"Gate(input={self.input!r}): give a JSON Schema for what is said"]
            yield from faults
        else:
            names.append("input")
        for name in names:
            for function in _functions_of(getattr(self, name)):
                if not callable(function):
                    yield f"Gate({name}={function!r}): give a function of a Subject"
                elif not takes_one_argument(function):
                    hint = "it is given a Subject: let it take that alone"
                    yield f"Gate({name}={function!r}): {hint}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its checks, in their order."""
        return tuple(name for _, name, _ in (*self._checks, *self._input_checks))

    @property
    def tools(self) -> Mapping[str, SchemaForm] | None:
        """Return the schemas by the names of tools, None where there are none."""
        return forms_by_tool(self.schema)

    @property
    def judges_input(self) -> bool:
        """Tell whether it judges what a user says."""
        return bool(self._input_checks)

    @property
    def judges_work(self) -> bool:
        """Tell whether it judges answers and calls, and not only what a user says."""
        return bool(self._checks)

    async def check(self, subject: Subject, phase: Phase, stage: str = "") -> ValidationResult:
        """Run the checks; after a failed schema or policy the rest is skipped.

        `stage` is the name in the result, by default the subject's.
        """
        return await _run_checks(self._checks, subject, phase, stage)

    async def check_call(self, subject: Subject, stage: str = "") -> ValidationResult:
        """Run the checks that apply to a tool call before it: schema and policy.

        Invariants and grounding check the content of an answer, which does not exist yet.
        """
        return await _run_checks(self._call_checks, subject, "pre", stage)

    async def check_input(self, subject: Subject, stage: str = "") -> ValidationResult:
        """Run the checks of what a user says."""
        return await _run_checks(self._input_checks, subject, "pre", stage)

    def _named_input_checks(self) -> Iterator[_NamedCheck]:
        if isinstance(self.input, Mapping | type):
            yield "schema", "input", _check_text_by(checker_of(self.input))
        else:
            for function in _functions_of(self.input):
                yield "policy", f"input:{_name_of(function)}", _check_by(function, "policy")

    def _named_checks(self) -> Iterator[_NamedCheck]:
        if (forms := self.tools) is not None:
            checkers = {tool: checker_of(form) for tool, form in forms.items()}
            yield "schema", "schema", _check_args_by(checkers)
        elif self.schema is not None:
            yield "schema", "schema", _check_text_by(checker_of(self.schema))
        kinds: tuple[tuple[_Kind, object], ...] = (
            ("policy", self.policy),
            ("invariant", self.invariants),
            ("grounding", self.grounding),
        )
        for kind, functions in kinds:
            for function in _functions_of(functions):
                yield kind, f"{kind}:{_name_of(function)}", _check_by(function, kind)


class Gates(tuple[Gate, ...], BuiltInGuard):
    """The checks of a stage.

    They are those of several gates, in this order: the gates of an outer policy come first.
    """

    __slots__ = ()

    setting = "gates"
    summary = "None, a Gate or several: schema, policy, invariants, grounding"
    short_form = "a schema for the text as JSON, or by tool"
    is_removable = False  # where None is given, there are no gates

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self:
        """Return the gates of one gate or of several; a schema stands for the gate that has it."""
        values = () if value is None else value
        if isinstance(values, Gate | Mapping | type):
            values = (values,)
        # An empty text has no part that could be wrong, and would pass for an empty list of gates.
        if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
            values = (value,)
        gates: list[Gate] = []
        faults: list[str] = []
        for gate in values:
            try:
                gates.append(_gate_of(gate))
            except ConfigurationError as error:
                faults += error.faults
        if faults:
            raise ConfigurationError(["; ".join(dict.fromkeys(faults))])
        return cls(gates)

    def tighter(self, outer: Self) -> Self:
        return type(self)((*outer, *self))


def _gate_of(value: object) -> Gate:
    if isinstance(value, Gate):
        return value
    if isinstance(value, Mapping | type):
        return Gate(value)
    raise ConfigurationError("give a Gate, a schema, or several")


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


async def _run_checks(
    checks: Sequence[_NamedCheck], subject: Subject, phase: Phase, stage: str
) -> ValidationResult:
    results: list[CheckResult] = []
    failure: FailureClass | Literal[""] = ""
    is_shut, all_pass = False, True
    for kind, name, run in checks:
        if is_shut:
            results.append(CheckResult(name=name, status="skipped", code="skipped"))
            continue
        result = await _run_check(name, kind, run, subject)
        results.append(result)
        if result.status == "pass":
            continue
        all_pass = False
        if result.stands_in_the_way:
            failure = failure or _FAILURES[kind]
            # Only these two end the checks: all failures of the others are reported.
            is_shut = kind in ("schema", "policy")
    stage = stage or subject.stage
    if all_pass:
        return _pass_result_of_all(stage, phase, tuple([name for _, name, _ in checks]))
    return ValidationResult(
        stage=stage, phase=phase, passed=not failure, checks=tuple(results), failure_class=failure
    )


@lru_cache(maxsize=256)
def _pass_result_of_all(stage: str, phase: Phase, names: tuple[str, ...]) -> ValidationResult:
    checks = tuple(map(_pass_result, names))
    return ValidationResult(stage=stage, phase=phase, passed=True, checks=checks)


async def _run_check(name: str, kind: _Kind, run: _Check, subject: Subject) -> CheckResult:
    try:
        return await run(name, subject)
    except Exception as error:
        if is_control_flow(error):
            raise
        # Without the error's text, which may contain secrets: models and clients see the message.
        message = f"the {kind} check raised {type(error).__name__}"
        return CheckResult(name=name, status="error", code="check_raised", message=message)


@lru_cache(maxsize=256)
def _pass_result(name: str) -> CheckResult:
    return CheckResult(name=name, status="pass")


def _check_by(judge: Policy, kind: _Kind) -> _Check:
    async def check(name: str, subject: Subject) -> CheckResult:
        verdict: object = judge(subject)
        if verdict is not True and inspect.isawaitable(verdict):
            verdict = await verdict
        if verdict is True or verdict is None:
            return _pass_result(name)
        if verdict is False or isinstance(verdict, str):
            reason = verdict or "no reason given"
            return CheckResult(name=name, status="fail", code=_CODES[kind], message=reason)
        message = f"returned {type(verdict).__name__}: return True, None, False or a reason"
        return CheckResult(name=name, status="error", code="bad_verdict", message=message)

    return check


def _check_args_by(checkers: Mapping[str, Checker]) -> _Check:
    async def check(name: str, subject: Subject) -> CheckResult:
        checker = checkers.get(subject.tool or "")
        if checker is None:
            return CheckResult(name=name, status="skipped", code="no_schema")
        return _schema_result(name, checker.check_args(subject.args or {}))

    return check


def _check_text_by(checker: Checker) -> _Check:
    async def check(name: str, subject: Subject) -> CheckResult:
        if subject.tool is not None:
            return CheckResult(name=name, status="skipped", code="no_schema")
        return _schema_result(name, checker.check_text(subject.text))

    return check


def _schema_result(name: str, misfit: Misfit | None) -> CheckResult:
    if misfit is None:
        return _pass_result(name)
    code, evidence = _CODES["schema"], "; ".join(misfit.faults)
    return CheckResult(
        name=name, status="fail", code=code, message=misfit.summary, evidence=evidence
    )


def _functions_of(functions: object) -> tuple[Policy, ...]:
    if functions is None:
        return ()
    return tuple(functions) if isinstance(functions, list | tuple) else (cast("Policy", functions),)


def _name_of(check: object) -> str:
    return getattr(check, "__name__", None) or type(check).__name__
