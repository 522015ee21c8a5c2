"""`Guards`, the policy that users write; it is a patcher too."""

from __future__ import annotations

from enum import Enum
from inspect import cleandoc
from typing import Final, Unpack

from agentgraph.graphs.compiled import AnyGraph
from agentgraph.guards.decision import Tier
from agentgraph.guards.nodes.agent_graph import agent_patcher
from agentgraph.guards.nodes.foreign.graph import foreign_patcher
from agentgraph.guards.nodes.foreign.parts import Names, is_agent
from agentgraph.guards.overrides import (
    Overrides,
    call_text,
    parameter_list,
    policy_html,
    setting_names,
)
from agentgraph.guards.place import Place
from agentgraph.guards.policy import Policy
from agentgraph.patching import Patcher

_CODE_NODES = (
    "render_system_prompt",
    "router",
    ".before_agent",
    ".before_model",
    ".after_model",
    ".after_agent",
)
"""How the names of the nodes end in which an agent without guards runs code of the user."""


class Default(Enum):
    """The type of `DEFAULT`, which means the default of the library."""

    DEFAULT = "DEFAULT"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT: Final = Default.DEFAULT


class Guards(Policy):
    """A policy: which guards hold, and with which limits. It owns its breakers and retry budget.

    The default tier is "interactive"; a stage of another policy has the tier of that policy.
    It is a patcher too: `patched(compiled, Guards.batch())` guards a compiled graph.

    A guard that is not given is the tier's, see `interactive`, `batch` and `regulated`. None
    removes a guard. Its main setting may be given alone: `Guards(hops=3, budget=1000, audit=sink)`;
    `deadlines=30` are the seconds of a whole input. Counts are those of one outside input, over all
    agents; all runs under this policy share breaker and retry. `help(Guards)` lists all settings:
    """

    def __init__(self, tier: Tier | None = None, **overrides: Unpack[Overrides[Guards]]) -> None:
        super().__init__(tier, **overrides)

    @classmethod
    def default(cls) -> Guards:
        """Return the policy of an agent or a team that was given none.

        It is `interactive`, with the breakers and retry budgets of the process.
        """
        return cls("interactive").share_with_process()

    @classmethod
    def interactive(cls, **overrides: Unpack[Overrides[Guards]]) -> Guards:
        """Return the policy for a user who waits for the answer.

        It has Deadlines(60, 180, 600), FanOutLimit(8), ReplanLimit(1), Escalation(0.5) and
        CostBudget(tokens=1_000_000).
        """
        return cls("interactive", **overrides)

    @classmethod
    def batch(cls, **overrides: Unpack[Overrides[Guards]]) -> Guards:
        """Return the policy for long work in the background.

        It has Deadlines(120, 1_800, 21_600), FanOutLimit(16), ReplanLimit(2), Escalation(0.7) and
        CostBudget(tokens=10_000_000).
        """
        return cls("batch", **overrides)

    @classmethod
    def regulated(cls, **overrides: Unpack[Overrides[Guards]]) -> Guards:
        """Return the policy for high stakes: humans decide, and no fallback replaces a model.

        It has Deadlines(120, 900, 86_400), FanOutLimit(8), ReplanLimit(2) and Escalation(0.85);
        budget and velocity must be given, and a run stops where its audit trail cannot be written.
        """
        return cls("regulated", **overrides)

    def __call__(self, graph: AnyGraph) -> AnyGraph:
        """Guard a foreign graph and all graphs in it.

        The guards decide how often a model's node runs, and observe the answers of the tools. Where
        a guard ends an input, the last message says so: its
        `response_metadata["agentgraph"]["stopped_by"]` is the guard.
        """
        if is_agent(graph):
            nodes = [name for name in graph.nodes if name.endswith(_CODE_NODES)]
            return agent_patcher(self, Place(), code_nodes=nodes)(graph)
        return foreign_patcher(self)(graph)

    def with_names(self, model: tuple[str, ...], tools: tuple[str, ...]) -> Patcher:
        """Return the patcher that guards the nodes of these names too, see `patched`."""
        return foreign_patcher(self, Names(model, tools))

    def __repr__(self) -> str:
        names = sorted(self.override_names)
        overrides = "".join(f", {name}={call_text(getattr(self, name))}" for name in names)
        return f"Guards({self.tier!r}{overrides})"

    def _repr_html_(self) -> str:
        guards = {name: getattr(self, name) for name in setting_names()}
        return policy_html(self.tier, guards, self.override_names)


Guards.__doc__ = f"{cleandoc(Guards.__doc__ or '')}\n\n{parameter_list()}"
