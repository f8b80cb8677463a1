"""Print requirements of pyproject.toml, one per line: ``_requirements.py GROUP[,GROUP]...``.

A GROUP is a dependency group (PEP 735), which pip reads only from version 25.1 on. The GROUP ``local`` is what wdscli
itself requires, without the clients of object stores: enough to work on files.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore

PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
STORE_CLIENTS = {"s3fs", "obstore"}


def requirements(group: str) -> list[str]:
    """The requirements of one group."""
    if group != "local":
        return list(PYPROJECT["dependency-groups"][group])
    return [
        one
        for one in PYPROJECT["project"]["dependencies"]
        if re.match(r"[\w.-]+", one)[0] not in STORE_CLIENTS  # type: ignore[index]
    ]


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        print(*requirements(name), sep="\n")
