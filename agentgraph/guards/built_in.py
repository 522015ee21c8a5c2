"""A guard that a policy has a setting for: its class says all that policies know of it.

To add one, write its class in a module of `mechanisms`, and name it in `BUILT_IN_GUARDS` and in
`Overrides`, both in `overrides`. For example, with a docstring whose first sentence goes into
`docs/guards.md`:

    @dataclass(frozen=True, slots=True)
    class QuestionLimit(BuiltInGuard):
        setting = "questions"
        summary = "QuestionLimit(5): how often a human is asked"
        short_form = "how many questions, 0 or more"

        questions: int = 5

        @classmethod
        def from_value(cls, value: object, tier: Tier) -> Self | None:
            return cls(value) if is_whole(value) else None

        def tighter(self, outer: Self) -> Self:
            return min(self, outer, key=lambda limit: limit.questions)

Where it has the methods and hooks of `Guard` too, it is asked by them as a user's guard is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Self

from agentgraph.guards.decision import Tier


class BuiltInGuard:
    """What a policy knows of a guard. What is said here holds for most guards; others override it.

    Do not give a dataclass's field one of these names: the value here would be its default.
    """

    __slots__ = ()

    setting: ClassVar[str]
    """The name that a policy has it under: `hops` in `Guards(hops=3)`."""
    summary: ClassVar[str]
    """Its line in the documentation of `Guards`: the interactive tier's, and what it is for."""
    short_form: ClassVar[str] = ""
    """The plain value that stands for it, in words that follow "give"; "" where none does."""
    is_removable: ClassVar[bool] = True
    """Whether None removes it. One that is not is called without a check for None."""
    is_input_wide: ClassVar[bool] = False
    """Whether it applies to a whole input, so that no stage can have its own."""
    comes_with_tier: ClassVar[bool] = False
    """Whether a tier that is given to an inner policy brings its own, to tighten the outer one.

    Most do not: a second budget would be a second account, a second trail would split the trail.
    """

    @classmethod
    def of_tier(cls, tier: Tier) -> Self | None:
        """Return what a tier has where no other is given: a new one, as most guards have memory."""
        return cls()

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the guard that a plain value stands for in a tier, None where it stands for none.

        Raises `ConfigurationError` for a value of the right kind that is wrong.
        """
        return None

    @classmethod
    def absence_faults(cls, tier: Tier, *, is_removed: bool) -> Iterable[str]:
        """Yield what is wrong with a policy of a tier that has no such guard.

        `is_removed` says that the policy was given None, and not just nothing.
        """
        return ()

    def policy_faults(self) -> Iterable[str]:
        """Yield what a policy cannot carry out of its settings, though each is valid by itself."""
        return ()

    def tighter(self, outer: Self) -> Self:
        """Return a guard at least as strict as this one, and as `outer`, which an outer policy has.

        Of guards that cannot be compared, such as two breakers, this one applies.
        """
        return self
