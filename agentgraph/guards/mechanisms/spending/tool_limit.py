"""The limit on calls of single tools, and its memory: which calls an input has made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from typing import Any, Literal, Self, TypeAlias

from agentgraph.errors import ConfigurationError
from agentgraph.guards.built_in import BuiltInGuard
from agentgraph.guards.decision import Decision, Tier
from agentgraph.guards.mechanisms.settings import is_whole

Scope: TypeAlias = Literal["input", "thread"]


@dataclass(frozen=True, slots=True)
class ToolLimit(BuiltInGuard):
    """Refuse the calls of a tool after the last allowed one; the run goes on.

        Guards(tool_limit={"pay": 1})
        Guards(tool_limit=ToolLimit({"search": 20}, per="thread"))

    Calls are counted for one input, over all its levels, or for all inputs of a thread or session.
    A call that failed counts; one that goes on after a human's answer or a kill is the same call.
    """

    setting = "tool_limit"
    summary = "None, or {tool: 1}: how many calls of single tools"
    short_form = "{tool name: how many calls}"

    calls: Mapping[str, int]
    per: Scope = "input"
    _outer_limits: tuple[ToolLimit, ...] = field(default=(), init=False, repr=False)
    """The limits of policies around this one."""

    def __post_init__(self) -> None:
        if faults := [*_faults(self.calls, self.per)]:
            raise ConfigurationError(faults)
        object.__setattr__(self, "calls", dict(self.calls))

    @classmethod
    def of_tier(cls, tier: Tier) -> None:
        """Return None: no tier limits single tools."""
        return None

    @classmethod
    def from_value(cls, value: object, tier: Tier) -> Self | None:
        """Return the limit of so many calls of each tool, for one input."""
        return cls(value) if isinstance(value, Mapping) else None

    @property
    def tools(self) -> frozenset[str]:
        """Return the names of the tools whose calls are limited."""
        return frozenset(chain(self.calls, *(limit.calls for limit in self._outer_limits)))

    def ask(self, tool: str, key: str, memory: ToolCalls) -> Decision:
        """Decide on a call, and count it where it may run; `key` is the same when it runs again."""
        if tool not in self.tools or memory.is_under_way(tool, key):
            return _ALLOW
        for limit in (self, *self._outer_limits):
            most, count = limit.calls.get(tool), memory.count(tool, limit.per)
            if most is not None and count >= most:
                return _denial(tool, count, most, limit.per)
        memory.begin(tool, key)
        return _ALLOW

    def end(self, tool: str, key: str, memory: ToolCalls) -> None:
        """Note that a call has ended."""
        if tool in self.tools:
            memory.end(key)

    def tighter(self, outer: Self) -> Self:
        """Return a limit that applies both."""
        if self == outer:
            return self
        limit = replace(self)
        object.__setattr__(
            limit, "_outer_limits", (*self._outer_limits, outer, *outer._outer_limits)
        )
        return limit


class ToolCalls:
    """The calls of limited tools: those of an input, and how many its thread had made before."""

    __slots__ = ("_admitted", "_ended_keys", "earlier", "keys")

    def __init__(self) -> None:
        self.keys: dict[str, list[str]] = {}
        """A short digest of each call's key, by tool."""
        self.earlier: dict[str, int] = {}
        """The number of calls of the thread's earlier inputs, by tool."""
        self._ended_keys: set[str] = set()
        self._admitted: dict[str, set[str]] = {}
        """The keys of calls that were counted and have not begun, by tool; of this process."""

    def count(self, tool: str, per: Scope) -> int:
        """Return how many calls of a tool were made."""
        earlier = self.earlier.get(tool, 0) if per == "thread" else 0
        return earlier + len(self.keys.get(tool, ()))

    def is_under_way(self, tool: str, key: str) -> bool:
        """Tell whether a call has begun and has not ended, as far as this process knows."""
        short = _short(key)
        return bool(key) and short in self.keys.get(tool, ()) and short not in self._ended_keys

    def begin(self, tool: str, key: str) -> None:
        """Count a call that begins."""
        self._ended_keys.discard(_short(key))
        self.keys.setdefault(tool, []).append(_short(key))

    def end(self, key: str) -> None:
        """Note that a call has ended: if it is made again, it counts again."""
        self._ended_keys.add(_short(key))

    def take_back(self, tool: str, key: str) -> None:
        """Forget a call that was counted and does not run."""
        self.keys[tool].remove(_short(key))

    def admit(self, tool: str, key: str) -> None:
        """Note a counted call that will begin where its key is not known."""
        self._admitted.setdefault(tool, set()).add(key)

    def take_admitted(self, tool: str) -> bool:
        """Tell whether a call that begins was counted before."""
        keys = self._admitted.get(tool)
        if not keys:
            return False
        keys.pop()
        return True

    def dump(self) -> dict[str, Any]:
        """Return the memory as JSON-able values, empty where no such tool was called."""
        keys = {tool: list(keys) for tool, keys in self.keys.items()}
        return {
            **({"calls": keys} if keys else {}),
            **({"earlier": dict(self.earlier)} if self.earlier else {}),
        }

    def merge(self, values: Mapping[str, Any]) -> None:
        """Add what another process has dumped for the same input."""
        for tool, keys in values.get("calls", {}).items():
            own = self.keys.setdefault(tool, [])
            for key in dict.fromkeys(keys):
                own += [key] * max(0, keys.count(key) - own.count(key))
        for tool, count in values.get("earlier", {}).items():
            self.earlier[tool] = max(count, self.earlier.get(tool, 0))


def earlier_calls(values: Mapping[str, Any]) -> dict[str, int]:
    """Return how many calls a thread has made, from the dump of its last input; never raises."""
    calls, earlier = values.get("calls", {}), values.get("earlier", {})
    counts = dict(earlier) if isinstance(earlier, Mapping) else {}
    for tool, keys in calls.items() if isinstance(calls, Mapping) else ():
        counts[tool] = counts.get(tool, 0) + len(keys)
    return counts


_ALLOW = Decision("allow", "tool_limit")


def _denial(tool: str, count: int, most: int, per: Scope) -> Decision:
    cause = f"`{tool}` was called {count} times for one {per}; {most} are allowed: go on without it"
    evidence: dict[str, object] = {"tool": tool, "made": count, "limit": most, "per": per}
    return Decision("deny", "tool_limit", cause, evidence=evidence)


def _short(key: str) -> str:
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _faults(calls: object, per: object) -> Iterator[str]:
    if per not in ("input", "thread"):
        yield f'ToolLimit(per={per!r}): give "input" or "thread"'
    if not isinstance(calls, Mapping):
        yield f"ToolLimit({calls!r}): give {{tool name: how many calls}}"
        return
    for tool, count in calls.items():
        if not isinstance(tool, str) or not tool or not is_whole(count):
            yield f"ToolLimit({{{tool!r}: {count!r}}}): give 0 or more calls by the name of a tool"
