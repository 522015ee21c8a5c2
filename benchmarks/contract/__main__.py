"""Probe all peers, or those that are named, and write the results and their page.

python -m benchmarks.contract [KEY …]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.contract.page import PAGE, RESULTS, page_of
from benchmarks.contract.probes import Subject, as_document, find
from benchmarks.contract.processes import ROOT, Store, World
from benchmarks.contract.registry import CONTESTANTS, PROPERTIES, Contestant
from benchmarks.contract.stores import FILES, postgres
from tests.postgres import new_server


def main(keys: Sequence[str]) -> None:
    """Probe, and keep what was found of the peers that are not named."""
    chosen = [one for one in CONTESTANTS if not keys or one.key in keys]
    assert chosen, f"there are {', '.join(one.key for one in CONTESTANTS)}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="contract-")))
        stores = {"files": FILES}
        if any(one.store == "postgres" for one in chosen):
            stores["postgres"] = postgres(stack.enter_context(new_server()).url)
        for contestant in chosen:
            _keep(contestant.key, _probed(contestant, stores[contestant.store], folder=folder))


def _keep(key: str, found: dict[str, Any]) -> None:
    """Write the results of a peer, and the page once all peers have results."""
    known = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    known[key] = found
    results = {one.key: known[one.key] for one in CONTESTANTS if one.key in known}
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", "utf-8")
    if len(results) == len(CONTESTANTS):
        PAGE.write_text(page_of(results), "utf-8")


def _probed(contestant: Contestant, store: Store, *, folder: Path) -> dict[str, Any]:
    python = _python(contestant)
    module = f"benchmarks.contract.peers.{contestant.module}"
    subject = Subject(
        lambda: World.new(python, module, folder=folder, stores=store), contestant.effects
    )
    findings = {}
    for name in PROPERTIES:
        finding = find(name, subject)
        findings[name] = as_document(finding)
        print(f"{contestant.title:30} {name:22} {finding.verdict:12} {finding.reason}")
    return {"versions": _versions(python, contestant.packages), "probes": findings}


def _python(contestant: Contestant) -> Path:
    folder = ROOT / (f".venv-peers/{contestant.environment}" if contestant.environment else ".venv")
    python = folder / "bin" / "python"
    assert python.exists(), f"{python} is missing: `make contract-peers` makes it"
    return python


def _versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    code = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run(
        [str(python), "-c", code, *packages], capture_output=True, check=True, text=True
    )
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    main(sys.argv[1:])
