"""A graph as a document: writing it, reading it, and the limits of its size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from agentgraph.errors import ConfigurationError
from agentgraph.routing.arguments import inner_of
from agentgraph.routing.document.codec import (
    MAX_DEPTH,
    MAX_NODES,
    VERSION,
    Decoder,
    Keys,
    Place,
    encode,
)
from agentgraph.routing.document.registry import Registry
from agentgraph.routing.rules import Transition
from agentgraph.routing.targets import Target
from agentgraph.routing.values import is_whole, short

Parts: TypeAlias = tuple[str, tuple[Transition, ...], Target, int | None, str | None]
"""First speaker, rules, default target, maximum of turns, first phase."""

_GRAPH = Keys(
    ("version", "initial_speaker", "transitions", "default_target"), ("max_turns", "initial_phase")
)
_RULE = Keys(("when", "then"), ("priority",))
_Node: TypeAlias = Mapping[str, Any]


def write(parts: Parts) -> dict[str, Any]:
    """Write a graph's parts; the first phase only if there is one."""
    initial_speaker, transitions, default, max_turns, initial_phase = parts
    return {
        "version": VERSION,
        "initial_speaker": initial_speaker,
        "transitions": [
            {"when": encode(rule.when), "then": encode(rule.then), "priority": rule.priority}
            for rule in transitions
        ],
        "default_target": encode(default),
        "max_turns": max_turns,
        **({} if initial_phase is None else {"initial_phase": initial_phase}),
    }


def read(data: object, registry: Registry) -> Parts:
    """Read a graph's parts; raise `ConfigurationError` with all faults, each with its path."""
    decoder = Decoder(registry)
    entry = decoder.mapping(data, (), _GRAPH) or {}
    _check_version(entry, decoder)
    rules = entry.get("transitions", [])
    if not isinstance(rules, list | tuple):
        decoder.fault(("transitions",), f"is {short(rules)}: a list is wanted")
        rules = []
    if len(rules) > MAX_NODES:
        message = f"has {len(rules):,} rules: a graph may have {MAX_NODES:,} parts"
        decoder.fault(("transitions",), message)
        rules = []
    transitions = [_rule(rule, ("transitions", n), decoder) for n, rule in enumerate(rules)]
    default: Any = None
    if "default_target" in entry:
        default = decoder.target(entry["default_target"], ("default_target",))
    initial = entry.get("initial_speaker", "nobody")
    if not isinstance(initial, str) or not initial:
        decoder.fault(("initial_speaker",), f"is {short(initial)}: a name is wanted")
    turns = entry.get("max_turns")
    if turns is not None:
        _check_whole(turns, ("max_turns",), decoder)
    phase = entry.get("initial_phase")
    if phase is not None and not isinstance(phase, str):
        decoder.fault(("initial_phase",), f"is {short(phase)}: a name is wanted")
    if decoder.faults:
        raise ConfigurationError(decoder.faults, code="graph")
    return initial, tuple(transitions), default, turns, phase


def size_faults(transitions: Sequence[Transition], default: Target) -> Iterator[str]:
    """Yield a fault if a graph is too deep or too large; cyclic parts count as too deep."""
    parts, depth = 0, 0
    level: list[Any] = [part for rule in transitions for part in (rule.when, rule.then)]
    level.append(default)
    while level:
        parts, depth = parts + len(level), depth + 1
        if depth > MAX_DEPTH:
            yield f"a rule is nested deeper than {MAX_DEPTH}: split it"
            return
        if parts > MAX_NODES:
            yield f"the graph has more than {MAX_NODES:,} parts: split it"
            return
        below = (inner for part in level for inner in inner_of(part))
        level = list(islice(below, MAX_NODES + 1))


def _check_version(entry: _Node, decoder: Decoder) -> None:
    """Refuse documents of a newer format version."""
    version = entry.get("version", VERSION)
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        decoder.fault(("version",), f"is {short(version)}: this code writes {VERSION}")
    elif version > VERSION:
        message = f"is {short(version)}, newer than {VERSION}, which this code reads: update it"
        decoder.fault(("version",), message)


def _rule(data: object, place: Place, decoder: Decoder) -> Any:
    """Read one rule; None if any part of it has a fault."""
    before = decoder.count
    entry = decoder.mapping(data, place, _RULE) or {}
    when: Any = None
    then: Any = None
    if "when" in entry:
        when = decoder.condition(entry["when"], (*place, "when"))
    if "then" in entry:
        then = decoder.target(entry["then"], (*place, "then"))
    priority = entry.get("priority", 0)
    _check_whole(priority, (*place, "priority"), decoder)
    return None if decoder.count > before else Transition(when, then, priority)


def _check_whole(value: object, place: Place, decoder: Decoder) -> None:
    if not is_whole(value):
        decoder.fault(place, f"is {short(value)}: a whole number of 64 bits is wanted")
