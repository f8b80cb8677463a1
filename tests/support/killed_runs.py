"""Commands that SIGKILL ends before the file of a number gets its name or is removed.

One process imports wdscli and forks a child for each run, because starting Python takes longer than most runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

KILLER = """
import json, os, signal, sys
from importlib import import_module
import msgpack, numpy
from wdscli.cli.commands import COMMANDS
from wdscli.cli.main import main
from wdscli.storage import remote
from wdscli.storage.ends import Sink

# What each child would import.
for name in COMMANDS:
    import_module(f"wdscli.cli.commands.{name}")
for name in ("cat", "create", "map"):
    import_module(f"wdscli.ops.{name}")

def dies_at(steps, function):
    def step(*args, **options):
        steps[0] -= 1
        if steps[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)
    return step

for line in sys.stdin:
    at, words, environment, folder = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.update(environment)
        os.chdir(folder)
        steps = [at]
        Sink.commit = dies_at(steps, Sink.commit)
        os.unlink = dies_at(steps, os.unlink)
        remote.remove_remote = dies_at(steps, remote.remove_remote)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os._exit(main(words))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@contextmanager
def killed_runs() -> Iterator[Callable[[int, list[str]], int]]:
    """A function that runs a command and kills it before it writes or removes the file of a number. It returns the exit
    code: 0 if the run has ended before."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(at: int, words: list[str]) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([at, words, dict(os.environ), os.getcwd()]) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        assert code in (0, -signal.SIGKILL)
        return code

    yield run
    process.communicate()
