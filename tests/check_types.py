"""Check what users see of the types: by pyright in its default mode, and by mypy in its strict one.

Both read the Python blocks of the README, the code cells of the notebooks, `examples/`, and the
programs of `tests/typing/`, which say which types they expect and which mistakes are to be found.

    python -m tests.check_types
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "build" / "programs"
CHECKED = (PROGRAMS, ROOT / "examples", ROOT / "tests" / "typing")

PYRIGHT = {
    "include": [os.path.relpath(path, PROGRAMS) for path in CHECKED],
    "extraPaths": [os.path.relpath(path, PROGRAMS) for path in (ROOT, ROOT / "server")],
    # The rest is pyright's default mode, and stricter: no comment hides what is not wrong.
    "enableTypeIgnoreComments": False,
    "reportUnnecessaryTypeIgnoreComment": "error",
    "reportUnusedExpression": "none",  # a cell of a notebook ends with what it shows
}


def main() -> int:
    """Write the programs, check them, and return 0 where neither checker finds a fault."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    for old in PROGRAMS.glob("*.py"):
        old.unlink()
    for name, blocks in programs():
        (PROGRAMS / f"{name}.py").write_text(program_of(blocks), "utf-8")
    (PROGRAMS / "pyrightconfig.json").write_text(json.dumps(PYRIGHT, indent=2), "utf-8")
    python = sys.executable
    commands = [
        [python, "-m", "pyright", "--pythonpath", python, "-p", str(PROGRAMS)],
        [python, "-m", "mypy", *map(str, CHECKED)],
    ]
    # Else pyright asks the package index whether there is a newer one.
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    # One after the other, so that their texts do not mix; neither hides the other's faults.
    return max([subprocess.call(each, cwd=ROOT, env=environment) for each in commands])


def programs() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the blocks of code of the README, and of each notebook."""
    readme = (ROOT / "README.md").read_text("utf-8")
    yield "readme", re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        yield f"notebook_{path.stem}", code


def program_of(blocks: Sequence[str]) -> str:
    """Join blocks that share their names to one program, in a function where they await."""
    code = "\n\n".join(blocks)
    if not _awaits(code):
        return code
    return f"async def program() -> None:\n{textwrap.indent(code, '    ')}\n"


def _awaits(code: str) -> bool:
    compiled = compile(code, "program", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return bool(compiled.co_flags & inspect.CO_COROUTINE)


if __name__ == "__main__":
    sys.exit(main())
