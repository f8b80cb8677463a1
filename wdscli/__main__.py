"""Where the commands ``wds`` and ``wdscli`` begin and end.

Worker processes that are spawned import this module again, and never call :func:`main`; so it imports nothing. A plain
``--version`` is answered here, before anything is built.

Three things make a short command quicker. The collector of cycles rests while modules are loaded, none of which is
garbage. A process that holds nothing to tidy leaves without Python taking every module apart. And numpy is kept from
starting threads for linear algebra, which nothing here does, in each process that it is loaded in.
"""

from __future__ import annotations

import sys

# Whoever loaded one of these may have processes, threads or connections that want to be closed in order.
_WANT_TIDYING = {"multiprocessing", "concurrent.futures.process", "concurrent.futures.thread", "fsspec"}


def main() -> None:
    """Run the command line and leave with its exit code."""
    if sys.argv[1:] == ["--version"]:
        from wdscli.version import version_line

        try:
            sys.stdout.write(f"{version_line()}\n")
            sys.stdout.flush()
            return
        except (AttributeError, OSError):
            pass  # closed, full, or nobody reads it: what every command says of that
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
    gc.freeze()
    gc.enable()
    _tidy_when_terminated()
    _heed_lost_signals()
    return run()


def _occupy_closed() -> None:
    """Open something on standard streams that are closed (``2>&-``), or the next file that is opened becomes one of
    them. It cannot be used: to read standard input still fails, and so does to write the others."""
    import os

    for descriptor, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            opened = os.open(os.devnull, os.O_RDONLY if descriptor else os.O_WRONLY)
            os.set_inheritable(opened, True)


def _tidy_when_terminated() -> None:
    """Leave by the same doors as Ctrl-C when a job scheduler ends the program: no half-written file, no scratch folder,
    no worker stays behind. 143 is what a shell reports of a program that SIGTERM ended."""
    import signal

    def leave(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(143)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, leave)


def _heed_lost_signals() -> None:
    """Python passes over an exception in a finalizer or in a callback of its own, even where it is Ctrl-C that came
    just then: it is raised again a moment later."""

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
    import os

    executors = sys.modules.get("wdscli.executors")
    if executors is not None and executors.is_stuck():
        os._exit(code)
    if not _WANT_TIDYING.isdisjoint(sys.modules):
        sys.exit(code)
    atexit._run_exitfuncs()
    os._exit(code)


if __name__ == "__main__":
    main()
