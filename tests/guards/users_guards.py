"""Guards as users write them, each whole in one class: nothing else in the product knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from agentgraph.guards import Decision, Guard, GuardedCall, Record


@dataclass(frozen=True)
class CallLimit(Guard[Mapping[str, int]]):
    """Lets each tool be called so often; counts models and moves too."""

    name: ClassVar[str] = "call_limit"
    most: int = 3
    action: Any = "deny"

    def start(self) -> Mapping[str, int]:
        return {}

    def fold(self, memory: Mapping[str, int], record: Record) -> Mapping[str, int]:
        key = f"{record.kind} {record.tool}".strip()
        return {**memory, key: memory.get(key, 0) + 1}

    def tighter(self, other: Self) -> Self:
        return min(self, other, key=lambda limit: limit.most)

    def before_tool(self, memory: Mapping[str, int], call: GuardedCall) -> Decision | None:
        count = memory.get(f"tool {call.tool}", 0)
        if count < self.most:
            return None
        return Decision(self.action, self.name, f"{call.tool} was called {count} times")


@dataclass(frozen=True)
class Steps:
    """A guard by its form alone: it notes all records, and asks what it is told to ask."""

    name: ClassVar[str] = "steps"
    says: Mapping[str, Decision] = field(default_factory=dict)
    """The decision of each hook."""
    when: str = ""
    """Only where this stands in what is asked about."""
    calls: list[tuple[str, GuardedCall]] = field(default_factory=list, compare=False)
    records: list[Record] = field(default_factory=list, compare=False)

    def start(self) -> int:
        return 0

    def fold(self, memory: int, record: Record) -> int:
        self.records.append(record)
        return memory + 1

    def tighter(self, other: Self) -> Self:
        return self

    def _say(self, hook: str, call: GuardedCall) -> Decision | None:
        self.calls.append((hook, call))
        text = f"{call.tool} {call.args} {getattr(call.result, 'text', call.result)}"
        return self.says.get(hook) if self.when in text else None

    def before_model(self, memory: int, call: GuardedCall) -> Decision | None:
        return self._say("before_model", call)

    async def after_model(self, memory: int, call: GuardedCall) -> Decision | None:
        return self._say("after_model", call)

    def before_tool(self, memory: int, call: GuardedCall) -> Decision | None:
        return self._say("before_tool", call)

    async def after_tool(self, memory: int, call: GuardedCall) -> Decision | None:
        return self._say("after_tool", call)

    def on_handoff(self, memory: int, call: GuardedCall) -> Decision | None:
        return self._say("on_handoff", call)

    def on_dispatch(self, memory: int, call: GuardedCall) -> Decision | None:
        return self._say("on_dispatch", call)
