"""This module is the entry point of ``wds`` and ``wdscli``: it starts and ends the process.

Spawned worker processes import this module again and never call :func:`main`, so it imports nothing at the top. A plain
``--version`` is answered here, before the command line is built.

Three things make a short command faster. Garbage collection is off while modules are loaded, and at exit. A process
without open resources exits without Python's teardown of every module. numpy starts no threads for linear algebra,
which wdscli does not use.
"""

from __future__ import annotations

import sys

# Modules with processes, threads or connections that must be closed in order at exit.
_WANT_TIDYING = {"multiprocessing", "concurrent.futures.thread", "fsspec"}


def main() -> None:
    """Run the command line, and exit with its exit code."""
    if sys.argv[1:] == ["--version"]:
        from wdscli import version_line

        try:
            sys.stdout.write(f"{version_line()}\n")
            sys.stdout.flush()
            return
        except (AttributeError, OSError):
            pass  # standard output is closed, full, or has no reader: continue to the usual error of every command
    _leave(_run())


def _run() -> int:
    import gc
    import os

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    _occupy_closed()
    try:
        from wdscli.cli.main import main as run
    except KeyboardInterrupt:
        return 130
    _tidy_when_terminated()
    _heed_lost_signals()
    return run(loaded=_collect_garbage)


def _collect_garbage() -> None:
    """Turn garbage collection on, without the objects of loaded modules."""
    import gc

    gc.freeze()
    gc.enable()


def _occupy_closed() -> None:
    """Open the null device in place of closed standard streams (``2>&-``), so that no other file becomes one of them.
    Reading standard input still fails, and so does writing to the others."""
    import os

    for descriptor, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            opened = os.open(os.devnull, os.O_RDONLY if descriptor else os.O_WRONLY)
            os.set_inheritable(opened, True)


def _tidy_when_terminated() -> None:
    """Handle SIGTERM, which job schedulers send, like Ctrl-C: remove partial files and scratch folders, and end the
    workers. The exit code is 143, as a shell reports for SIGTERM."""
    import signal

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(143)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, leave)


def _heed_lost_signals() -> None:
    """Raise Ctrl-C again if it came during a finalizer or a callback of Python, because Python ignores exceptions
    there."""

    def again(args: sys.UnraisableHookArgs) -> None:
        import signal

        def throw(*_: object) -> None:
            raise args.exc_value or args.exc_type()

        if issubclass(args.exc_type, (KeyboardInterrupt, SystemExit)):
            signal.signal(signal.SIGALRM, throw)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        else:
            sys.__unraisablehook__(args)

    sys.unraisablehook = again


def _leave(code: int) -> None:
    """Leave with ``code``. Standard output has been flushed."""
    import atexit
    import gc
    import os

    # Python's last garbage collections would walk all objects of the clients of stores.
    gc.freeze()
    if not _WANT_TIDYING.isdisjoint(sys.modules):
        sys.exit(code)
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    main()
