"""Where the commands ``wds`` and ``wdscli`` begin.

Worker processes that are spawned import this module again, and never call :func:`main`; so it imports nothing. A plain
``--version`` is answered here, before anything is built.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:] == ["--version"]:
        from wdscli import __version__

        sys.stdout.write(f"wdscli {__version__}\n")
        return
    from wdscli.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
