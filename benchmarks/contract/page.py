"""The page of docs/ that tells what the probes found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.contract.registry import CONTESTANTS, PROPERTIES

__all__ = ["PAGE", "RESULTS", "page_of"]

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "resume_contract_peers.md"

_HEAD = """# The resume contract, here and elsewhere

What a stored run owes its users when its process is killed, when it is forked, damaged, or answered
by many at once: seven properties, probed on agentgraph and on its peers, each in its documented way
of persistence. `make contract-peers` makes an environment for each peer, probes all of them and
writes this page and `benchmarks/contract/results.json`; `PEER=` names one of them.

Each peer plays the same run without a model: a draft, a charge, a report, then a question to a
human, then a payment. A step writes one synced line into a ledger, and the ledger decides, not what
the peer says. Processes are real, and so is SIGKILL. **held**: the property held in the probe.
**broken**: the documented mechanism was used, and the property did not hold. **not offered**: the
documentation has no mechanism for it.

"""


def page_of(results: Mapping[str, Any]) -> str:
    """Return the page for these results."""
    return "\n".join([_HEAD.rstrip("\n"), "", *_table(results), "", *_rest(results)]) + "\n"


def _table(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a row for each peer, and a column for each property."""
    yield f"| | {' | '.join(PROPERTIES)} |"
    yield "|---" * (len(PROPERTIES) + 1) + "|"
    for contestant in CONTESTANTS:
        probes = results[contestant.key]["probes"]
        verdicts = [_strong(probes[name]["verdict"]) for name in PROPERTIES]
        yield f"| {contestant.title} | {' | '.join(verdicts)} |"


def _better(results: Mapping[str, Any]) -> Iterator[str]:
    """Name the peers that hold what this project does not hold everywhere."""
    ours = [one for one in CONTESTANTS if not one.environment]
    peers = [one for one in CONTESTANTS if one.environment]
    for name in PROPERTIES:
        if all(results[one.key]["probes"][name]["verdict"] == "held" for one in ours):
            continue
        holders = [
            one.title for one in peers if results[one.key]["probes"][name]["verdict"] == "held"
        ]
        yield f"- {name}: held by {', '.join(holders) or 'no peer'}"


def _strong(verdict: str) -> str:
    return f"**{verdict}**" if verdict == "broken" else verdict


def _rest(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was asked for, and what was found of each peer."""
    yield "| property | what was done, and what has to hold |"
    yield "|---|---|"
    yield from (f"| {name} | {promise} |" for name, promise in PROPERTIES.items())
    yield ""
    if better := list(_better(results)):
        yield "Where agentgraph does not hold a property everywhere, peers that do:"
        yield ""
        yield from better
        yield ""
    yield "## What was found"
    for contestant in CONTESTANTS:
        found = results[contestant.key]
        versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        yield ""
        yield f"**{contestant.title}** ({versions}): {contestant.way}. {contestant.notes}".rstrip()
        yield ""
        reasons: dict[str, list[str]] = {}
        for name in PROPERTIES:
            probe = found["probes"][name]
            if probe["verdict"] != "held" or name in ("consume once", "effect once"):
                reasons.setdefault(f"{probe['verdict']}: {probe['reason']}", []).append(name)
        yield from (f"- {', '.join(names)}, {reason}" for reason, names in reasons.items())
