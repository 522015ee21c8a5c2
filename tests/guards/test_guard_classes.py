"""The class of a guard says all that policies know of it, and one list names the classes."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Any, Self, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgraph import Agent, Guards
from agentgraph.errors import ConfigurationError
from agentgraph.guards import (
    Backoff,
    Deadlines,
    Decision,
    DepthLimit,
    FanOutLimit,
    Gate,
    GuardedCall,
    HopLimit,
    Record,
    ReplanLimit,
    StepLimit,
    overrides,
)
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import TIERS, Tier
from agentgraph.guards.mechanisms.settings import is_whole
from agentgraph.guards.overrides import (
    BUILT_IN_GUARDS,
    Overrides,
    PolicyGuards,
    parameter_list,
    setting_names,
)
from agentgraph.testing import ScriptedModel, call
from tests.defaults import page
from tests.guards.guarded_agents import look, solo
from tests.guards.test_showing import rows_of


@dataclass(frozen=True, slots=True)
class QuestionLimit(BuiltInGuard):
    """Refuse the question to a human after the last allowed one. A test has added it."""

    setting = "questions"
    summary = "QuestionLimit(5): how often a human is asked"
    short_form = "how many questions, 0 or more"
    comes_with_tier = True

    questions: int = 5

    def __post_init__(self) -> None:
        if self.questions > 99:
            raise ConfigurationError(f"QuestionLimit({self.questions}): give 99 or less")

    @classmethod
    def of_tier(cls, tier: Tier) -> Self | None:
        return None if tier == "batch" else cls(2 if tier == "regulated" else 5)

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        return cls(value) if is_whole(value) else None

    def tighter(self, outer: Self) -> Self:
        return min(self, outer, key=lambda limit: limit.questions)


class PagerLimit(QuestionLimit):
    setting = "pages"
    is_removable = False
    is_input_wide = True

    @property
    def tools(self) -> frozenset[str]:
        return frozenset({"lok"})


@pytest.fixture(autouse=True)
def added_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name two more guards in the list, as a line for each in its module would."""
    monkeypatch.setattr(overrides, "BUILT_IN_GUARDS", (*BUILT_IN_GUARDS, QuestionLimit, PagerLimit))


def guards(tier: Tier | None = None, **settings: Any) -> Guards:
    if tier == "regulated":
        settings = {"budget": 1000, "velocity": None, **settings}
    return Guards(tier, **settings)


def questions(policy: object) -> int | None:
    limit: QuestionLimit | None = getattr(policy, QuestionLimit.setting)
    return None if limit is None else limit.questions


def test_each_tier_has_what_the_class_says() -> None:
    assert [questions(guards(tier)) for tier in TIERS] == [5, None, 2]


def test_the_guard_or_its_short_form_is_given_and_none_removes_it() -> None:
    settings: tuple[Any, ...] = (QuestionLimit(3), 3, None)
    assert [questions(guards("regulated", questions=value)) for value in settings] == [3, 3, None]


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        (
            "questions",
            "many",
            "give a QuestionLimit, or how many questions, 0 or more; None removes it",
        ),
        ("questions", 100, "QuestionLimit(100): give 99 or less"),
        ("pages", None, "give a PagerLimit, or how many questions, 0 or more"),
    ],
)
def test_what_cannot_be_the_guard_is_refused_with_what_to_give(
    setting: str, value: object, words: str
) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(ConfigurationError) as refusal:
        guards(None, **settings)
    assert refusal.value.faults == (f"{setting}={value!r}: {words}",)


def test_a_misspelt_setting_is_answered_with_all_settings() -> None:
    with pytest.raises(ConfigurationError, match=r"no such guard; .*audit, questions, pages, "):
        guards(question=3)


def below(inner: Guards, outer: Guards) -> int | None:
    """Return how many questions an agent may ask whose supervisor has guards too."""
    worker = Agent("worker", model=ScriptedModel([]), guards=inner)
    boss = Agent("boss", model=ScriptedModel([]), agents=[worker], guards=outer)
    return questions(boss.policy_at("worker"))


def test_the_stricter_one_of_an_inner_and_an_outer_policy_applies() -> None:
    assert below(guards(questions=9), guards()) == 5
    assert below(guards(questions=3), guards()) == 3
    assert below(guards(questions=9), guards(questions=None)) == 9
    assert below(guards(questions=None), guards()) == 5
    assert below(guards(hops=3), guards(questions=8)) == 8


def test_a_guard_that_comes_with_the_tier_of_an_inner_policy_tightens_the_outer_one() -> None:
    assert below(guards("regulated"), guards(questions=8)) == 2


def test_a_stage_may_have_its_own_unless_the_guard_is_for_a_whole_input() -> None:
    def staged(**settings: Any) -> Agent:
        return Agent(
            "desk", model=ScriptedModel([]), guards=guards(stages={"desk": guards(**settings)})
        )

    assert questions(staged(questions=1).policy_at("desk")) == 1
    with pytest.raises(ConfigurationError, match="stage 'desk' has pages=…, which holds for all"):
        staged(pages=1)


def test_a_misspelt_tool_is_found_in_any_guard_that_names_tools() -> None:
    with pytest.raises(ConfigurationError, match=r"Guards\(pages=\{'lok': …\}\): .* is 'look'"):
        Agent("desk", model=ScriptedModel([]), tools=[look], guards=guards())


def test_a_policy_shows_it() -> None:
    policy = guards(questions=3)
    assert repr(policy) == "Guards('interactive', questions=QuestionLimit(questions=3))"
    html = policy._repr_html_()
    assert rows_of(html)["questions"] == "QuestionLimit(questions=3)"
    assert "<b>questions</b>" in html and "<b>pages</b>" not in html
    assert rows_of(guards("batch")._repr_html_())["questions"] == "off"


def test_the_documentation_lists_it() -> None:
    assert "\nquestions   QuestionLimit(5): how often a human is asked\n" in parameter_list()


def test_the_page_of_defaults_has_a_row_of_it() -> None:
    assert (
        "| `questions` | Refuse the question to a human after the last allowed one | "
        "`QuestionLimit(questions=5)` | off | `QuestionLimit(questions=2)` | "
        "how many questions, 0 or more |\n"
    ) in page()


@dataclass(frozen=True, slots=True)
class LookLimit(BuiltInGuard):
    """Refuse to look something up after the last allowed time."""

    setting = "looks"
    summary = "LookLimit(2): how often something is looked up"
    short_form = "how often, 0 or more"
    name = "look_limit"

    looks: int = 2

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        return cls(value) if is_whole(value) else None

    def tighter(self, outer: Self) -> Self:
        return min(self, outer, key=lambda limit: limit.looks)

    def start(self) -> int:
        return 0

    def fold(self, memory: int, record: Record) -> int:
        return memory + (record.kind == "tool" and not record.failed)

    def before_tool(self, memory: int, call: GuardedCall) -> Decision | None:
        if memory < self.looks:
            return None
        return Decision("abort", self.name, f"{memory} of {self.looks} looks were taken")


async def test_one_with_hooks_decides_in_a_run_of_all_levels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The inner policy's limit of 3 tightens the outer one's 4; both levels are counted."""
    monkeypatch.setattr(overrides, "BUILT_IN_GUARDS", (*BUILT_IN_GUARDS, LookLimit))
    looks = [call("look", what=str(number)) for number in range(9)]
    worker_model = ScriptedModel(looks)
    worker = solo(worker_model, look, name="worker", guards=guards(looks=3))
    boss_model = ScriptedModel([looks[0], call("transfer_to_worker")])
    boss = solo(boss_model, look, name="boss", agents=[worker], guards=guards(looks=4))
    reply = await boss.ainvoke("go")
    assert (reply.close_reason, len(worker_model.requests)) == ("look_limit", 3)


# The lists for type checkers.


def test_type_checkers_know_each_setting_and_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "BUILT_IN_GUARDS", BUILT_IN_GUARDS)
    hints = get_type_hints(Overrides)
    assert tuple(hints) == setting_names()
    for guard in BUILT_IN_GUARDS:
        kinds = get_args(hints[guard.setting])
        assert kinds[0] is (Gate if guard.setting == "gates" else guard)
        assert (NoneType in kinds) is (guard.is_removable or guard.setting == "gates")
        assert bool({*kinds} - {guard, NoneType}) is bool(guard.short_form)


def test_attributes_of_a_policy_are_of_the_class_and_none_where_it_may_be() -> None:
    classes = {guard.setting: guard for guard in BUILT_IN_GUARDS}
    for name, hint in get_type_hints(PolicyGuards).items():
        kinds = {*get_args(hint)} or {hint}
        assert kinds == {classes[name], *([NoneType] if classes[name].is_removable else [])}


# The stricter of two.

counts, totals = st.integers(1, 50), st.none() | st.integers(1, 50)
seconds = st.none() | st.floats(0.1, 90)


def pairs(guard: st.SearchStrategy[BuiltInGuard]) -> st.SearchStrategy[Any]:
    return st.tuples(guard, guard)


def is_as_strict(limit: float | None, other: float | None) -> bool:
    return other is None or (limit is not None and limit <= other)


@given(
    pairs(st.builds(StepLimit, counts, totals))
    | pairs(st.builds(FanOutLimit, counts, totals))
    | pairs(st.builds(HopLimit, counts))
    | pairs(st.builds(DepthLimit, counts))
    | pairs(st.builds(ReplanLimit, counts))
    | pairs(st.builds(Deadlines, seconds, seconds, seconds, seconds))
)
def test_of_two_limits_the_stricter_is_as_strict_as_both(pair: tuple[Any, Any]) -> None:
    own, outer = pair
    both = own.tighter(outer)
    assert both == outer.tighter(own) and own.tighter(own) == own
    for name in (name for name in type(own).__match_args__):
        limit = getattr(both, name)
        assert is_as_strict(limit, getattr(own, name))
        assert is_as_strict(limit, getattr(outer, name))
        assert limit in (getattr(own, name), getattr(outer, name))


@given(pairs(st.builds(Backoff, st.floats(0, 9), st.floats(0, 99), counts)))
def test_the_stricter_backoff_waits_longer_and_tries_less(pair: tuple[Backoff, Backoff]) -> None:
    own, outer = pair
    both = own.tighter(outer)
    assert both.base_s == max(own.base_s, outer.base_s)
    assert both.cap_s == max(own.cap_s, outer.cap_s)
    assert both.attempts == min(own.attempts, outer.attempts)
