"""The failure decision table."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any, get_args

import pytest

from agentgraph.errors import ConfigurationError
from agentgraph.guards.decision import FAILURE_CLASSES, TIERS, Action, FailureClass, Tier
from agentgraph.guards.table import DEFAULT_CELLS, Cell, DecisionTable

GOES_ON = {"correct", "deny", "fallback", "replan"}
EVERY_CELL = [(failure, tier) for failure in FAILURE_CLASSES for tier in TIERS]


def test_every_failure_has_a_cell_in_every_tier() -> None:
    assert set(DEFAULT_CELLS) == set(EVERY_CELL)
    assert len(DEFAULT_CELLS) == 24
    assert all(cell.told for cell in DEFAULT_CELLS.values())


@pytest.mark.parametrize(("failure", "tier"), EVERY_CELL)
def test_every_chain_ends_and_none_is_silent(failure: FailureClass, tier: Tier) -> None:
    table = DecisionTable()
    decisions = [table.decide(failure, tier, made=made) for made in range(4)]
    actions = [decision.action for decision in decisions]
    ended = [action in ("escalate", "abort") for action in actions]
    assert ended == sorted(ended) and ended[-1]
    assert all(d.cause and d.failure_class == failure for d in decisions)
    assert json.loads(json.dumps(decisions[0].to_dict()))["evidence"]["tier"] == tier


@pytest.mark.parametrize("tier", TIERS)
def test_at_most_two_plans_are_made_anew(tier: Tier) -> None:
    for failure in FAILURE_CLASSES:
        assert DecisionTable().decide(failure, tier, made=2).action != "replan"


def test_the_regulated_tier_never_swaps_models_nor_replans_by_itself() -> None:
    for failure in FAILURE_CLASSES:
        cell = DecisionTable().cell(failure, "regulated")
        assert cell.action not in ("fallback", "replan")


@pytest.mark.parametrize(
    ("failure", "tier", "actions"),
    [
        ("provider_error", "interactive", ["fallback", "abort"]),
        ("schema_failure", "interactive", ["correct", "abort"]),
        ("schema_failure", "batch", ["replan", "replan", "abort"]),
        ("spec_malformed", "regulated", ["abort", "abort"]),
        ("no_progress", "batch", ["replan", "escalate"]),
        ("cost_overrun", "regulated", ["escalate", "escalate"]),
    ],
)
def test_the_table_says_what_the_specification_says(
    failure: FailureClass, tier: Tier, actions: list[Action]
) -> None:
    table = DecisionTable()
    assert [table.decide(failure, tier, made=n).action for n in range(len(actions))] == actions


def test_an_override_replaces_its_cell_alone_and_is_evident() -> None:
    table = DecisionTable({("no_progress", "batch"): Cell("abort", alert=True)})
    decision = table.decide("no_progress", "batch", guard="monitor", cause="stuck")
    assert (decision.action, decision.guard, decision.cause) == ("abort", "monitor", "stuck")
    assert decision.evidence["overridden"] is True and decision.evidence["alert"] is True
    assert table.cell("no_progress", "regulated") == DEFAULT_CELLS["no_progress", "regulated"]
    assert table.decide("deadlock", "batch").evidence["overridden"] is False


def test_the_caller_s_evidence_is_kept() -> None:
    decision = DecisionTable().decide("deadlock", "batch", evidence={"cycle": ["a", "b"]})
    assert decision.evidence["cycle"] == ["a", "b"]


def test_the_cause_says_that_the_bound_is_reached() -> None:
    decision = DecisionTable().decide("no_progress", "batch", made=1, cause="stuck")
    assert decision.cause == "stuck (replan was taken 1 times; 1 allowed)"


def test_what_would_change_nothing_is_not_tried_and_not_told_as_done() -> None:
    decision = DecisionTable().decide("no_progress", "batch", possible=False, cause="stuck")
    assert (decision.action, decision.evidence["made"]) == ("escalate", 0)
    assert decision.cause == "stuck (replan is not possible here)"
    ending = DecisionTable().decide("deadlock", "batch", possible=False, cause="stuck")
    assert (ending.action, ending.cause) == ("abort", "stuck")


def test_a_later_change_of_the_overrides_changes_nothing() -> None:
    given: dict[tuple[FailureClass, Tier], Cell] = {}
    table = DecisionTable(given)
    given["deadlock", "batch"] = Cell("escalate")
    assert table.cell("deadlock", "batch").action == "abort"
    assert table == deepcopy(table) and hash(table) == hash(deepcopy(table))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("retry",), "as the action"),
        (("allow",), "as the action"),
        (("replan",), "bound of 1 or more"),
        (("deny",), "bound of 1 or more"),
        (("replan", 2, "deny"), "every chain has an end"),
        (("replan", True), "whole number"),
        (("replan", -1), "whole number"),
        (("replan", 1.5), "whole number"),
        (("abort", 0, "abort", "yes"), "True or False"),
        (("abort", 0, "abort", False, None), "a text"),
    ],
)
def test_a_cell_without_an_end_is_a_fault(arguments: tuple[Any, ...], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        Cell(*arguments)


def test_unknown_keys_are_faults_all_told() -> None:
    overrides: Any = {("looping", "batch"): Cell("abort"), ("deadlock", "batch"): "abort"}
    with pytest.raises(ConfigurationError) as caught:
        DecisionTable(overrides)
    assert len(caught.value.faults) == 2
    with pytest.raises(ConfigurationError, match="failure class, tier"):
        DecisionTable([("deadlock", "batch")])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is no cell"):
        DecisionTable().decide("looping", "batch")  # type: ignore[arg-type]


def test_the_documentation_shows_every_cell() -> None:
    table = DecisionTable({("deadlock", "batch"): Cell("replan", 1, told="a | b\nc")})
    head, rule, *rows = table.markdown().splitlines()
    assert head == "| failure | interactive | batch | regulated |"
    assert rule == "|---|---|---|---|"
    assert [row.split("`")[1] for row in rows] == list(FAILURE_CLASSES)
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)
    assert "a \\| b c: `replan` ≤ 1, then `escalate`" in rows[1]


def test_the_actions_that_go_on_are_all_but_the_ends() -> None:
    assert GOES_ON | {"allow", "escalate", "abort"} == set(get_args(Action))
