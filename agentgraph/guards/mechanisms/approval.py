"""The approval of tool calls: which calls a human decides on before the tool runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Self, TypeAlias

from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Decision, Tier
from agentgraph.guards.mechanisms.escalation import VERBS, Verb

APPROVAL: Final = "interrupt_on"
"""The guard that a decision names where a call waits for a human."""

VerbChoice: TypeAlias = bool | Sequence[Verb] | Mapping[str, Sequence[Verb]]
"""True is all answers, False never asks; `{"allowed_decisions": […]}` is LangChain's form."""


@dataclass(frozen=True, slots=True)
class ToolApproval(BuiltInGuard):
    """Ask a human before a tool runs, and allow these answers.

        Guards(interrupt_on={"pay": True, "mail": ["approve", "reject"]})

    `approve` runs the call, `edit` runs it with other arguments once they have passed the gates.
    `reject` and `respond` answer it without the tool: the model reads the reason, or the text as
    the tool's result, and goes on. A call that nobody decides on in `Escalation.ttl_s` is rejected.
    """

    setting = "interrupt_on"
    summary = "None, or {tool: True}: the tools that run only after a human has decided"
    short_form = "{tool name: True, or the answers that are allowed}"

    tools: Mapping[str, VerbChoice]
    _verbs: Mapping[str, tuple[Verb, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if faults := [*_faults(self.tools)]:
            raise ConfigurationError(faults)
        verbs = {tool: _verbs_of(setting) for tool, setting in self.tools.items()}
        by_tool = {tool: tuple(setting) for tool, setting in verbs.items() if setting}
        object.__setattr__(self, "_verbs", MappingProxyType(by_tool))

    @classmethod
    def of_tier(cls, tier: Tier) -> None:
        """Return None: no tier asks before single tools."""
        return None

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the approval of these tools."""
        return cls(value) if isinstance(value, Mapping) else None

    def verbs(self, tool: str) -> tuple[Verb, ...]:
        """Return the answers that are allowed to a call of a tool, () where nobody is asked."""
        return self._verbs.get(tool, ())

    def ask(self, tool: str) -> Decision:
        """Return the decision that a call waits for a human."""
        evidence: dict[str, object] = {"tool": tool, "allowed": list(self.verbs(tool))}
        cause = f"`{tool}` runs only after a human has decided"
        return Decision("escalate", APPROVAL, cause, evidence=evidence)

    def tighter(self, outer: Self) -> Self:
        """Return the approvals of both; of one tool, the answers that both allow."""
        if outer is self:
            return self
        tools: dict[str, VerbChoice] = {}
        for tool in {**outer._verbs, **self._verbs}:
            verbs = [own for own in (outer.verbs(tool), self.verbs(tool)) if own]
            common = [verb for verb in verbs[0] if all(verb in own for own in verbs)]
            tools[tool] = common or ["reject"]
        return replace(self, tools=tools)


def _verbs_of(setting: VerbChoice) -> Sequence[Verb]:
    if isinstance(setting, bool):
        return VERBS if setting else ()
    return setting.get("allowed_decisions", ()) if isinstance(setting, Mapping) else setting


def _faults(tools: object) -> Iterator[str]:
    if not isinstance(tools, Mapping):
        yield f"ToolApproval({tools!r}): give {{tool name: True, or the answers that are allowed}}"
        return
    for tool, setting in tools.items():
        is_named = isinstance(tool, str) and tool
        if not is_named or not (isinstance(setting, bool) or _are_verbs(setting)):
            yield (
                f"ToolApproval({{{tool!r}: {setting!r}}}): give True, False, or some of "
                f"{', '.join(VERBS)} by the name of a tool"
            )


def _are_verbs(setting: object) -> bool:
    if isinstance(setting, Mapping):
        setting = setting.get("allowed_decisions")
    if isinstance(setting, str) or not isinstance(setting, Sequence) or not setting:
        return False
    return all(verb in VERBS for verb in setting)
