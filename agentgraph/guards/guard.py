"""The protocol of a guard that anybody can bring: `Guards(extra=[MyGuard()])`.

A guard is one class: its settings, what it remembers of an input, and what it decides before and
after the steps of an agent. What it remembers is a fold of the records of that input, so it holds
over nested agents, parallel branches, kills and resumes, and the guard itself has no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    get_type_hints,
)
from weakref import WeakKeyDictionary

from langchain_core.messages import BaseMessage
from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError

from agentgraph.errors import kind_of
from agentgraph.guards.records.record import Record

M = TypeVar("M")

Hook = Literal[
    "before_model", "after_model", "before_tool", "after_tool", "on_handoff", "on_dispatch"
]


class Guard(Protocol[M]):
    """What a class needs to be a guard; the hooks are optional.

        @dataclass(frozen=True)
        class SearchLimit(Guard[int]):
            name: ClassVar[str] = "search_limit"
            most: int = 3

            def start(self) -> int:
                return 0

            def fold(self, memory: int, record: Record) -> int:
                return memory + (record.kind == "tool" and record.tool == "search")

            def tighter(self, other: Self) -> Self:
                return min(self, other, key=lambda limit: limit.most)

            def before_tool(self, memory: int, call: GuardedCall) -> Decision | None:
                if call.tool == "search" and memory >= self.most:
                    return Decision("deny", self.name, f"{memory} searches were made")
                return None

        agent = Agent("helper", tools=[search], guards=Guards(extra=[SearchLimit()]))

    Any of these hooks may be there, each as `hook(memory, call)`, sync or async: `before_model`,
    `after_model`, `before_tool`, `after_tool`, `on_handoff`, `on_dispatch`. A hook returns None, or
    a `Decision`, which is recorded and then carried out:

    - correct: a model gets the cause with its next call; a tool, a handoff or a worker does not
      begin, and the cause is the answer to the call. `replan` is the same.
    - deny: the model is not asked, and what the decision table has for the `failure_class` happens,
      without one the run ends; a tool, a handoff or a worker does not begin.
    - fallback: the breaker's fallback answers instead of the model, or a human where there is none
    - escalate: a human decides; after an approval the guard lets that step pass
    - abort: the run ends

    A hook that raises ends the run. Records of what other agents do are folded too; `record.agent`
    has the path. Where a session's round runs again after a kill, the records of its earlier
    attempts are in the memory as well, see `record.attempt`.
    """

    name: ClassVar[str]
    """Identifies the guard: in decisions, in close reasons, and in what is stored of its memory."""

    def start(self) -> M:
        """Return the memory of an input of which nothing is known: a value that pydantic knows."""
        ...

    def fold(self, memory: M, record: Record) -> M:
        """Return the memory with one more record; it changes nothing, and asks no clock."""
        ...

    def tighter(self, other: Self) -> Self:
        """Return a guard at least as strict as both, where a policy is inside of another."""
        ...


@dataclass(frozen=True, slots=True)
class GuardedCall:
    """What a guard is asked about: a call of a model or a tool, a handoff or a worker."""

    agent: str
    """The path of the agent, from the root of the outermost tree."""
    thread_id: str = ""
    messages: Sequence[BaseMessage] = ()
    """What the model is asked with; for a tool, the conversation as far as its graph shows it."""
    tool: str = ""
    """The tool; the target of a handoff, or the worker that is to begin. "" for a model."""
    args: Mapping[str, object] = field(default_factory=dict)
    call_id: str = ""
    result: object = None
    """The content of a tool's answer, or the model's message; None before the call."""
    failed: bool = False


GuardAt: TypeAlias = tuple[str, Guard[Any]]
"""A guard and the key of its memory: its name, after the path of the policy that brought it."""


def guards_at(path: str, guards: Sequence[Guard[Any]]) -> tuple[GuardAt, ...]:
    """Return the guards of a policy at a path, each with the key of its memory."""
    return tuple((f"{path}:{guard.name}" if path else guard.name, guard) for guard in guards)


def tighter_guards(
    own: Sequence[GuardAt], outer: Sequence[GuardAt], path: str
) -> tuple[GuardAt, ...]:
    """Return the guards where a policy with `own` ones is inside of one with `outer` ones.

    Two of one name become the stricter one of both, with the memory of the outer one.
    """
    own_guards = {guard.name: guard for _, guard in own}
    outer_guards = [
        (key, own_guards.pop(guard.name).tighter(guard) if guard.name in own_guards else guard)
        for key, guard in outer
    ]
    return (*outer_guards, *guards_at(path, [*own_guards.values()]))


def replaced_guards(
    own: Sequence[GuardAt], outer: Sequence[GuardAt], path: str
) -> tuple[GuardAt, ...]:
    """Return the guards of a stage: its own ones replace those of the same name."""
    own_names = {guard.name for _, guard in own}
    inherited_guards = [(key, guard) for key, guard in outer if guard.name not in own_names]
    return (*inherited_guards, *guards_at(path, [guard for _, guard in own]))


class Memories:
    """The memories of the guards of one input, each by its key.

    What another process has stored is read when the guard is first asked: only then the type of
    its memory is known.
    """

    __slots__ = ("_counts", "_dumps", "_guards", "_stored_dumps", "_values")

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        """How many records each memory has."""
        self._stored_dumps: dict[str, Mapping[str, Any]] = {}
        self._guards: dict[str, Guard[Any]] = {}
        self._dumps: dict[str, dict[str, object]] = {}

    def __bool__(self) -> bool:
        return bool(self._values or self._stored_dumps)

    def of(self, key: str, guard: Guard[M]) -> M:
        """Return the memory of a guard."""
        if key not in self._values:
            start, values = guard.start(), self._stored_dumps.pop(key, None)
            self._values[key], self._counts[key] = start, 0
            if values is not None:
                self._counts[key] = values["records"]
                self._values[key] = _adapter(guard).validate_python(values["memory"])
            self._guards[key] = guard
        value: M = self._values[key]
        return value

    def fold(self, key: str, guard: Guard[Any], record: Record) -> None:
        """Add a record to the memory of a guard."""
        self._values[key] = guard.fold(self.of(key, guard), record)
        self._counts[key] += 1
        self._dumps.pop(key, None)

    def dump(self) -> dict[str, object]:
        """Return the memories as JSON-able values."""
        for key, value in self._values.items():
            if key not in self._dumps:
                memory = _adapter(self._guards[key]).dump_python(value, mode="json")
                self._dumps[key] = {"records": self._counts[key], "memory": memory}
        return {**self._stored_dumps, **self._dumps}

    def merge(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what another process has dumped, where that has more records."""
        for key, dump in values.items():
            own_dump = self._stored_dumps.get(key)
            count = self._counts.get(key, -1) if own_dump is None else own_dump["records"]
            if dump["records"] > count:
                for memory in (self._values, self._counts, self._dumps):
                    memory.pop(key, None)
                self._stored_dumps[key] = dump


_adapters: WeakKeyDictionary[type[Guard[Any]], TypeAdapter[Any]] = WeakKeyDictionary()


def _adapter(guard: Guard[Any]) -> TypeAdapter[Any]:
    """Return what stores and reads the memories of a class of guards."""
    kind = type(guard)
    if (adapter := _adapters.get(kind)) is None:
        adapter = _adapters[kind] = TypeAdapter(_memory_type(guard))
    return adapter


def _memory_type(guard: Guard[Any]) -> Any:
    """Return the type of a guard's memories: what `start` says that it returns, or what it does."""
    try:
        memory_type = get_type_hints(type(guard).start).get("return")
    except NameError:  # a class of a function's body, which annotations cannot name
        memory_type = None
    if memory_type is None or isinstance(memory_type, TypeVar):
        return type(guard.start())
    return memory_type


def guard_faults(guards: Sequence[object]) -> Iterator[str]:
    """Yield what is wrong with guards that a user brings."""
    names: set[str] = set()
    for guard in guards:
        kind = guard.__name__ if isinstance(guard, type) else type(guard).__name__
        if isinstance(guard, type):
            yield f"extra: {kind} is a class: give {kind}()"
            continue
        name = getattr(guard, "name", None)
        if not isinstance(name, str) or not name:
            yield f"extra: {kind} has no name: give it a text, name: ClassVar[str] = …"
        elif name in names:
            yield f"extra: {kind} is called {name!r}, as another guard is: give it another name"
        else:
            names.add(name)
        absent_methods = [
            method
            for method in ("start", "fold", "tighter")
            if not callable(getattr(guard, method, None))
        ]
        if absent_methods:
            yield f"extra: {kind} has no {', '.join(f'{method}()' for method in absent_methods)}"
            continue
        yield from _memory_faults(guard, kind)


def _memory_faults(guard: Any, kind: str) -> Iterator[str]:
    try:
        start, adapter = guard.start(), _adapter(guard)
        memory = adapter.validate_python(adapter.dump_python(start, mode="json"))
    except (PydanticSchemaGenerationError, PydanticSerializationError):
        yield (
            f"extra: the memory of {kind} cannot be stored: let start() return what pydantic "
            "knows, such as a number, a dict, a tuple or a dataclass"
        )
    except Exception as error:
        yield f"extra: start() of {kind} fails, or its memory cannot be stored: {kind_of(error)}"
    else:
        if memory != start:
            yield (
                f"extra: the memory of {kind} is not the same once it was stored: "
                f"{start!r} becomes {memory!r}"
            )
