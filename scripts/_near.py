"""The test files near what changed, for scripts/test --near.

    python scripts/_near.py [REVISION]    one name on each line; by default, near the changes since HEAD

Near a module are the test files that import it or name it, and the tests of its command. A changed test file is near
itself. Files that git does not track yet count as changed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

TOP = Path(__file__).parents[1]


def changed_files(revision: str) -> list[str]:
    """The files that differ from a revision."""
    commands = (["diff", "--name-only", revision], ["ls-files", "--others", "--exclude-standard"])
    outputs = [subprocess.check_output(["git", *words], cwd=TOP, text=True) for words in commands]
    return sorted({name for output in outputs for name in output.splitlines()})


def near(changed: Iterable[str]) -> Iterator[str]:
    """The test files near these files, in order."""
    tests = sorted(TOP.glob("tests/**/test_*.py"))
    patterns = [pattern for name in changed if (pattern := _pattern_of(name))]
    for path in tests:
        name = str(path.relative_to(TOP))
        if "interop" not in path.parts and (
            name in changed or any(re.search(pattern, f"{name}\n{path.read_text()}") for pattern in patterns)
        ):
            yield name


def _pattern_of(name: str) -> str:
    """The pattern of test files near a module, in their name or text; empty for other files."""
    path = Path(name)
    if path.parts[0] != "wdscli" or path.suffix not in (".py", ".c"):
        return ""
    if path.parts[1:3] == ("cli", "commands"):
        return rf"\Atests/commands/test_cmd_{path.stem}"
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    package, _, stem = module.rpartition(".")
    return rf"\b{re.escape(module)}\b|from {re.escape(package)} import .*\b{re.escape(stem)}\b"


if __name__ == "__main__":
    print("\n".join(near(changed_files(sys.argv[1] if len(sys.argv) > 1 else "HEAD"))))
