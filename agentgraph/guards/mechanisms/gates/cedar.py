"""Cedar policies as a gate's policy; needs the package cedarpy.

Cedar skips a policy that it cannot evaluate, even one that forbids, and then may allow. So any
error denies, and the constructor refuses policies that could read a missing attribute.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from types import ModuleType
from typing import TypeAlias

from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.gates.gate import Subject

Entity: TypeAlias = tuple[str, str]
"""A type and an id, as in `("Agent", "billing")`."""
_EntityOf: TypeAlias = Entity | Callable[[Subject], Entity]
_Path: TypeAlias = tuple[str, ...]
_Facts: TypeAlias = frozenset[_Path]
"""The paths of attributes that certainly exist, because the policy has checked them by `has`."""

_NO_FACTS: _Facts = frozenset()
_DIGITS = 4  # of a decimal in Cedar, after the point


class CedarPolicy:
    """A policy for a gate, evaluated by Cedar.

        Gate(policy=CedarPolicy(Path("refunds.cedar").read_text()))

    By default the principal is the stage, the action is the tool, and the subject's context and the
    arguments of the call, as `context.args`, are the context. Raises `ConfigurationError` where the
    policies are wrong.
    """

    def __init__(
        self,
        policies: str,
        *,
        schema: str | Mapping[str, object] | None = None,
        principal: _EntityOf = lambda subject: ("Agent", subject.stage),
        action: _EntityOf = lambda subject: ("Action", subject.tool or "answer"),
        resource: _EntityOf = lambda subject: ("Stage", subject.stage),
        entities: Sequence[Mapping[str, object]] = (),
    ) -> None:
        cedar = _import_cedar()
        text = json.dumps(schema) if isinstance(schema, Mapping) else schema
        if faults := list(_faults(cedar, policies, text, has_entities=bool(entities))):
            raise ConfigurationError(f"CedarPolicy: {fault}" for fault in faults)
        try:
            self._policies = cedar.PolicySet.from_str(policies)
            self._schema = None if text is None else _parse_schema(cedar, schema, text)
            self._entities = cedar.Entities.from_json_str(json.dumps(list(entities)), text)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"CedarPolicy: {error}") from error
        self._cedar = cedar
        self._parts = {"principal": principal, "action": action, "resource": resource}

    def __call__(self, subject: Subject) -> str | None:
        """Return why the subject is denied, None when it is allowed."""
        request: dict[str, object] = {}
        for part, entity in self._parts.items():
            kind, id = entity(subject) if callable(entity) else entity
            request[part] = {"type": kind, "id": id}
        try:
            request["context"] = _context_of(subject)
        except ValueError as error:
            return str(error)
        answer = self._cedar.is_authorized(request, self._policies, self._entities, self._schema)
        if errors := answer.diagnostics.errors:
            return f"Cedar could not evaluate every policy: {'; '.join(errors)}"
        if answer.allowed:
            return None
        ids = answer.diagnostics.id_annotations_by_reason
        reasons = [ids.get(reason) or reason for reason in answer.diagnostics.reasons]
        return f"denied by {', '.join(reasons)}" if reasons else "no policy permits it"


def _import_cedar() -> ModuleType:
    try:
        import cedarpy
    except ImportError as error:
        raise ConfigurationError("CedarPolicy needs cedarpy: pip install cedarpy") from error
    return cedarpy


def _parse_schema(cedar: ModuleType, schema: object, text: str) -> object:
    read = cedar.Schema.from_json_str if isinstance(schema, Mapping) else cedar.Schema.from_str
    return read(text)


def _faults(
    cedar: ModuleType, policies: object, schema: object, *, has_entities: bool
) -> Iterator[str]:
    if not isinstance(policies, str) or not policies.strip():
        yield "give policies as Cedar text"
        return
    try:
        policy_set = json.loads(cedar.policies_to_json_str(policies))
    except ValueError as error:
        yield f"the policies cannot be parsed: {error}"
        return
    for name in policy_set["templates"]:
        yield f"{name} is a template, which Cedar never applies: write out its entities"
    if isinstance(schema, str):
        validation = cedar.validate_policies(policies, schema)
        yield from (error.error for error in validation.errors)
    for name, policy in policy_set["staticPolicies"].items():
        for path in dict.fromkeys(_unguarded_paths(policy)):
            reads = f"{_id_of(name, policy)} reads {'.'.join(path)}, which"
            asks = f"`{path[0]} has {'.'.join(path[1:])} && …`"
            if path[0] == "context" and schema is None:
                yield f"{reads} may be missing: write {asks} before it, or give a schema"
            elif path[0] != "context" and not has_entities:
                yield f"{reads} no entity has, as none is given: give entities, or write {asks}"


def _id_of(name: str, policy: Mapping[str, Mapping[str, str]]) -> str:
    return policy.get("annotations", {}).get("id") or name


def _unguarded_paths(policy: Mapping[str, list[Mapping[str, object]]]) -> Iterator[_Path]:
    """Yield the paths that a policy reads without a check by `has` that they exist."""
    facts = _NO_FACTS
    for condition in policy["conditions"]:
        body = condition["body"]
        yield from _unguarded_in(body, facts)
        facts |= _facts_of(body, condition["kind"] == "when")


def _unguarded_in(expression: object, facts: _Facts) -> Iterator[_Path]:
    if isinstance(expression, list):
        for part in expression:
            yield from _unguarded_in(part, facts)
        return
    if not isinstance(expression, Mapping):
        return
    for operator, parts in expression.items():
        if operator == "Value":
            continue
        if operator == ".":
            yield from _unguarded_path(expression, facts)
        if operator in ("&&", "||"):
            yield from _unguarded_in(parts["left"], facts)
            yield from _unguarded_in(
                parts["right"], facts | _facts_of(parts["left"], operator == "&&")
            )
        elif operator == "if-then-else":
            yield from _unguarded_in(parts["if"], facts)
            yield from _unguarded_in(parts["then"], facts | _facts_of(parts["if"], True))
            yield from _unguarded_in(parts["else"], facts | _facts_of(parts["if"], False))
        else:
            yield from _unguarded_in(
                list(parts.values()) if isinstance(parts, Mapping) else parts, facts
            )


def _unguarded_path(read: Mapping[str, Mapping[str, object]], facts: _Facts) -> Iterator[_Path]:
    path = _path(read)
    if path is None:
        # Inside a record or an `if` it cannot be followed which part of the context is read.
        if _mentions_context(read["."]["left"]):
            yield ("context", "…", str(read["."]["attr"]))
    elif path not in facts:
        yield path


def _path(expression: object) -> _Path | None:
    """Return the attributes from a variable to here, None where no variable is at the start."""
    match expression:
        case {"Var": str(variable)}:
            return (variable,)
        case {".": {"left": left, "attr": str(attribute)}}:
            above = _path(left)
            return None if above is None else (*above, attribute)
    return None


def _mentions_context(expression: object) -> bool:
    if isinstance(expression, Mapping):
        if expression.get("Var") == "context":
            return True
        return any(map(_mentions_context, expression.values()))
    return isinstance(expression, list) and any(map(_mentions_context, expression))


def _facts_of(expression: object, value: bool) -> _Facts:
    """Return the paths that certainly exist when an expression has this value."""
    match expression:
        case {"has": {"left": left, "attr": str(attribute)}} if value:
            above = _path(left)
            return _NO_FACTS if above is None else frozenset({(*above, attribute)})
        case {"!": {"arg": negated}}:
            return _facts_of(negated, not value)
        case {"&&": {"left": left, "right": right}}:
            left_facts, right_facts = _facts_of(left, value), _facts_of(right, value)
            return left_facts | right_facts if value else left_facts & right_facts
        case {"||": {"left": left, "right": right}}:
            left_facts, right_facts = _facts_of(left, value), _facts_of(right, value)
            return left_facts & right_facts if value else left_facts | right_facts
    return _NO_FACTS


def _context_of(subject: Subject) -> dict[str, object]:
    context = {str(name): _cedar(v) for name, v in subject.context.items() if v is not None}
    if subject.args is not None:
        if _has_reserved_names(subject.args):
            # Cedar reads {"__entity": …} as an entity: a model could impersonate one.
            raise ValueError(
                "the arguments have names beginning with __, which Cedar gives meaning"
            )
        context["args"] = _cedar(subject.args)
    return context


def _has_reserved_names(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(str(n).startswith("__") or _has_reserved_names(v) for n, v in value.items())
    return isinstance(value, list | tuple) and any(map(_has_reserved_names, value))


def _cedar(value: object) -> object:
    """Convert a value for Cedar, which has no null, and an exact decimal in place of a float."""
    match value:
        case bool() | int() | str():
            return value
        case Mapping():
            return {str(name): _cedar(v) for name, v in value.items() if v is not None}
        case list() | tuple() | set() | frozenset():
            return [_cedar(item) for item in value if item is not None]
        case float() | Decimal():
            return {"__extn": {"fn": "decimal", "arg": _decimal(Decimal(str(value)))}}
    raise ValueError(f"Cedar has no {type(value).__name__}: leave it out of the context")


def _decimal(number: Decimal) -> str:
    if not number.is_finite() or number != round(number, _DIGITS):
        raise ValueError(f"Cedar cannot hold the number {number}: it has {_DIGITS} decimals")
    return f"{number:.{_DIGITS}f}"
