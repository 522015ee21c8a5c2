"""Cedar policies in a gate: whatever cannot be evaluated denies."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from agentgraph.errors import ConfigurationError
from agentgraph.guards.mechanisms.gates.cedar import CedarPolicy
from agentgraph.guards.mechanisms.gates.gate import Gate, Subject

PERMIT = "permit(principal, action, resource);"
CAP = (
    '@id("cap") forbid(principal, action == Action::"refund", resource) '
    'when { context has args.amount && context.args.amount.greaterThan(decimal("100.0")) };'
)
SCHEMA = """
entity Agent, Stage;
action "refund" appliesTo {
    principal: [Agent], resource: [Stage], context: { amount: Long, note?: String }
};
"""


TIERED = """
entity Agent, Stage { tier: String };
action "refund" appliesTo { principal: [Agent], resource: [Stage], context: {} };
"""


def refund(amount: object, **context: object) -> Subject:
    return Subject("pay", tool="refund", args={"amount": amount}, context=context)


def test_what_is_permitted_passes_and_what_is_forbidden_names_its_policy() -> None:
    policy = CedarPolicy(PERMIT + CAP)
    assert policy(refund(99.5)) is None
    assert policy(refund(100.5)) == "denied by cap"
    assert CedarPolicy('permit(principal, action == Action::"read", resource);')(refund(1)) == (
        "no policy permits it"
    )


async def test_it_is_a_policy_of_a_gate() -> None:
    result = await Gate(policy=CedarPolicy(PERMIT + CAP)).check(refund(500.0), "pre")
    assert result.cause == "policy:CedarPolicy: denied by cap"
    assert result.failure_class == "unsafe_output"


def test_a_forbid_that_cannot_be_evaluated_denies() -> None:
    """Cedar itself leaves it out and answers Allow: here the decimal is compared with a string."""
    assert "could not evaluate" in str(CedarPolicy(PERMIT + CAP)(refund("500")))


def test_a_forbid_that_reads_what_may_be_missing_is_refused_from_the_start() -> None:
    with pytest.raises(ConfigurationError, match=r"cap reads context\.amount, which may be miss"):
        CedarPolicy(
            PERMIT + '@id("cap") forbid(principal, action, resource) when { context.amount > 1 };'
        )


@pytest.mark.parametrize("schema", [None, TIERED])
@pytest.mark.parametrize("variable", ["principal", "resource"])
def test_an_attribute_of_an_entity_that_nobody_has_given_is_refused(
    variable: str, schema: str | None
) -> None:
    forbid = f'@id("low") forbid(principal, action, resource) when {{ {variable}.tier == "low" }};'
    with pytest.raises(ConfigurationError, match=rf"low reads {variable}\.tier, which no entity"):
        CedarPolicy(PERMIT + forbid, schema=schema)
    asks = forbid.replace("when {", f"when {{ {variable} has tier &&")
    assert CedarPolicy(PERMIT + asks)(refund(1)) is None
    kind = {"principal": "Agent", "resource": "Stage"}[variable]
    known = [{"uid": {"type": kind, "id": "pay"}, "attrs": {"tier": "low"}, "parents": []}]
    assert CedarPolicy(PERMIT + forbid, entities=known)(refund(1)) == "denied by low"


@pytest.mark.parametrize(
    "condition",
    [
        "when { context has a && context.a > 1 }",
        "when { context has a } when { context.a > 1 }",
        "unless { !(context has a) } unless { context.a > 1 }",
        "unless { !(context has a) || context.a > 1 }",
        "when { if context has a then context.a > 1 else false }",
        "when { if !(context has a) then true else context.a > 1 }",
        "when { context has a.b && context.a.b > 1 }",
        "when { context has a && (context has b && (context.a == context.b)) }",
        "when { (context has a && context has b || context has a) && context.a > 1 }",
        'when { context == {a: 1} || "context.a" like "*" }',
        "when { principal has a && principal.a > 1 }",
    ],
)
def test_a_read_that_is_asked_for_first_is_accepted(condition: str) -> None:
    CedarPolicy(f"forbid(principal, action, resource) {condition};")


@pytest.mark.parametrize(
    "condition",
    [
        "when { context.a > 1 }",
        "when { context.a > 1 && context has a }",
        "when { context has a || context.a > 1 }",
        "when { (context has a || context has b) && context.a > 1 }",
        "when { !(context has a) && context.a > 1 }",
        "when { context has b && context.a > 1 }",
        "when { context has a && context.a.b > 1 }",
        "unless { context has a } unless { context.a > 1 }",
        "when { if context has a then true else context.a > 1 }",
        "when { [1, context.a].contains(1) }",
        'when { ip(context.a).isIpv4() || context["a"] like "x*" }',
        "when { {r: context}.r.a > 1 }",
        "when { context has a && (if context has b then context else context).a > 1 }",
        "when { context.a has b }",
    ],
)
def test_a_read_of_what_may_be_missing_is_refused(condition: str) -> None:
    with pytest.raises(ConfigurationError, match="may be missing"):
        CedarPolicy(f"forbid(principal, action, resource) {condition};")


def test_with_a_schema_cedar_knows_what_is_always_there() -> None:
    policy = CedarPolicy(
        PERMIT + "forbid(principal, action, resource) when { context.amount > 100 };",
        schema=SCHEMA,
    )
    subject = Subject("pay", tool="refund", context={"amount": 5})
    assert policy(subject) is None
    assert "denied by" in str(policy(Subject("pay", tool="refund", context={"amount": 500})))
    assert "could not evaluate" in str(policy(Subject("pay", tool="refund")))
    with pytest.raises(ConfigurationError, match="note"):
        CedarPolicy(
            'permit(principal, action, resource) when { context.note == "x" };', schema=SCHEMA
        )


def test_a_schema_may_be_json() -> None:
    entities: dict[str, object] = {"Agent": {}, "Stage": {}}
    applies = {"principalTypes": ["Agent"], "resourceTypes": ["Stage"]}
    schema = {"": {"entityTypes": entities, "actions": {"refund": {"appliesTo": applies}}}}
    assert CedarPolicy(PERMIT, schema=schema)(Subject("pay", tool="refund")) is None


@pytest.mark.parametrize(
    ("policies", "options"),
    [
        ("permit(prin", {}),
        ("", {}),
        (None, {}),
        (PERMIT, {"schema": "entity"}),
        (PERMIT, {"entities": [{"uid": 3}]}),
        ("permit(principal == ?principal, action, resource);", {}),
    ],
)
def test_what_cedar_cannot_read_is_a_fault(policies: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="CedarPolicy"):
        CedarPolicy(policies, **options)


def test_entities_and_who_asks_can_be_given() -> None:
    entity = {"uid": {"type": "User", "id": "ann"}, "attrs": {"role": "boss"}, "parents": []}
    policy = CedarPolicy(
        'permit(principal, action, resource) when { principal.role == "boss" };',
        principal=lambda subject: ("User", str(subject.context["user"])),
        resource=("Shop", "one"),
        entities=[entity],
    )
    assert policy(Subject("pay", context={"user": "ann"})) is None
    assert "could not evaluate" in str(policy(Subject("pay", context={"user": "bob"})))


def test_a_model_cannot_name_entities_in_its_arguments() -> None:
    forged = {"who": [{"__entity": {"type": "User", "id": "root"}}]}
    assert "beginning with __" in str(CedarPolicy(PERMIT)(Subject("s", tool="t", args=forged)))


@pytest.mark.parametrize("value", [0.00001, float("nan"), float("inf"), object(), 2**70])
def test_what_cedar_cannot_hold_denies(value: object) -> None:
    assert CedarPolicy(PERMIT)(refund(value)) is not None


@pytest.mark.parametrize("value", [1, -2.5, "x", True, None, [1, None], {"a": {"b": 0.1}}])
def test_what_json_has_is_held(value: object) -> None:
    assert CedarPolicy(PERMIT)(refund(value, other=None)) is None


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cedarpy", None)
    with pytest.raises(ConfigurationError, match=r"agentgraph\[cedar\]"):
        CedarPolicy(PERMIT)
