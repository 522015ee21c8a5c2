"""The guards of a flow at each of its stages and workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig

from agentgraph.flow.stage import STAGES
from agentgraph.graphs.task import read_value
from agentgraph.guards import Effect, Guards
from agentgraph.guards.nodes.interceptor import NodeInterceptor, interceptor_of
from agentgraph.guards.place import Place
from agentgraph.guards.records.enclosure import Enclosure
from agentgraph.interception import OuterCall

GUARD_CHANNELS = ("turn", "guarded", "human")


class StageInterceptor(NodeInterceptor):
    """The guards of a flow around one of its stages: a member's run is a part of the flow's."""

    def __init__(self, interceptor: NodeInterceptor, guards: StageGuards) -> None:
        super().__init__(interceptor.site, interceptor.values)
        self.guards = guards

    def enclosure(self, call: OuterCall) -> Enclosure:
        """Return what the guards know of the stage in which a member runs."""
        outer = super().enclosure(call)
        flow = self.guards.path
        path = f"{flow}/{call.tool}"  # the stage is no agent, and so no level
        depth = flow.count("/") + 1
        return Enclosure(outer.account, outer.policy, path, depth, outer.ledger)


@dataclass(frozen=True, slots=True)
class StageGuards:
    """The guards of a flow, at all of its stages."""

    policies: Mapping[str, Guards]
    """The policy of each stage, and of each worker."""
    path: str
    effects: Mapping[str, Effect] = field(default_factory=dict)
    """How the actions of all members are undone, by path and tool."""

    def at(self, stage: str, state: Mapping[str, Any], config: RunnableConfig) -> StageInterceptor:
        """Return the guards at one stage, or at one worker."""
        place = Place(path_of(self.path, stage))
        if "guarded" not in state:  # the flow's nodes do not get that channel
            state = {"guarded": read_value(config, "guarded"), **state}
        interceptor = interceptor_of(self.policies[stage], place, GUARD_CHANNELS, state, config)
        if self.effects and interceptor.account.root.effect_log is None:
            interceptor.log_effects_of(config)
        return StageInterceptor(interceptor, self)


def path_of(flow: str, stage: str) -> str:
    """Return the path of a stage, or of a worker, in a flow."""
    return f"{flow}/{stage}" if stage in STAGES else f"{flow}/fan_out/{stage}"
