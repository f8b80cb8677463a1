"""Print for the commands: data to standard output, everything else to standard error. Only this module and ``cells``
import rich.

Data is written as bytes, in large writes, so that a pipe gets names that are not UTF-8 unchanged. On a terminal the
rows become aligned columns, and control characters become escapes. Rich is loaded only for a progress bar that stays
visible for longer than a moment.

:func:`write_file` writes files besides shards; a file gets its name only when it is complete. The commands pass rows,
objects and lines. This module does not know shards or samples.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from wdscli.cli.cells import Cell, aligned, cell_text, fitting, tab_line, tab_lines, width_of
from wdscli.errors import OutputError, UsageError, printable
from wdscli.shown import shown
from wdscli.text import to_bytes
from wdscli.units import human_number, human_size, human_time
from wdscli.units import plural as plural

if TYPE_CHECKING:
    from wdscli.cli.options import CommonOptions, GeneralOptions

_BUFFER_BYTES = 1 << 18
_FLUSH_SECONDS = 0.1
_BATCH_ROWS = 200
LINE_SECONDS = 30.0
"""Seconds between two progress lines if there is no terminal."""
ASKED_LINE_SECONDS = 5.0
"""Seconds between two progress lines with ``--progress``."""
BAR_DELAY_SECONDS = 0.3
"""A stage that takes less time draws no bar."""
BAR_SECONDS = 0.25
BAR_COLUMNS = 100


class Out:
    """The printer of one command. ``terminal`` is true if standard output is a terminal.

    Rows and JSON Lines are buffered for a tenth of a second at most, and not at all on a terminal. ``data`` is the
    address of the command's data output. Raises UsageError if rows and data would both go to standard output.
    """

    def __init__(self, talk: CommonOptions, *, json: bool = False, data: str = "") -> None:
        if json and data == "-":
            raise UsageError("--json and -o - both write to standard output", hint="-o FILE")
        self.talk = talk
        self.json = json
        self.terminal = _is_terminal(sys.stdout)
        self._stream = stdout()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._due = 0.0
        self._began = time.monotonic()
        if talk.verbose:
            from wdscli.executors.local import pool_sizes
            from wdscli.storage.retry import take_traffic

            take_traffic()  # output of other commands in this process
            pool_sizes.clear()
        _outs.append(self)

    @classmethod
    def of(cls, general: GeneralOptions, data: str = "") -> Out:
        """Return the printer for a command with these options."""
        return cls(general.common, json=general.json, data=data)

    def write(self, data: bytes) -> None:
        """Write ``data`` unchanged. The buffer may delay it for a moment."""
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= _BUFFER_BYTES or self.terminal or time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write the buffer."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            if self.terminal:
                take_bars_away()
            with _writing():
                self._stream.write(b"".join(held))
                self._stream.flush()
        self._due = time.monotonic() + _FLUSH_SECONDS

    def line(self, text: str) -> None:
        """Write one line of text."""
        self.write(to_bytes(printable(text) if self.terminal else text) + b"\n")

    def object(self, value: Any) -> None:
        """Write one line of JSON. Bytes that are not UTF-8 become escapes of lone surrogates."""
        line = json_line(value)
        self.write(escaped_json(line) if self.terminal else line)

    def rows(
        self,
        header: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        *,
        right: Sequence[int] = (),
        droppable: Sequence[int] = (),
    ) -> None:
        """Write rows when they arrive: TAB-separated without a header in a pipe, aligned columns on a terminal.

        ``right`` has the numbers of right-aligned columns. A narrow terminal does not get the columns in ``droppable``;
        the first is dropped first. The first rows decide the column widths and the dropped columns. So the first rows
        are shown at once, and memory does not grow with the number of rows.
        """
        if self.terminal:
            self._aligned(header, _batches(rows, _BATCH_ROWS), right=right, droppable=droppable)
            return
        for row in rows:
            self.write(tab_line(row))

    def listing(self, names: Sequence[str], rows: Iterable[Sequence[Cell]], **layout: Sequence[int]) -> None:
        """Write rows, or with ``--json`` an object for each row. ``layout`` is ``right`` and ``droppable`` of
        :meth:`rows`, also in the methods below."""
        if not self.json:
            self.rows(names, rows, **layout)
            return
        for row in rows:
            self.object(dict(zip(names, row, strict=True)))

    def pages(
        self,
        header: Sequence[str],
        pages: Iterable[Sequence[Sequence[bytes | int]]],
        **layout: Sequence[int],
    ) -> None:
        """Write rows that arrive in pages. In a pipe, each page is one write."""
        if self.terminal:
            self.rows(header, chain.from_iterable(pages), **layout)
            return
        for page in pages:
            if page:
                self.write(tab_lines(page))

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Cell]], **layout: Sequence[int]) -> None:
        """Write a small table with a header. A terminal also gets a line below the header, and columns as in
        :meth:`rows`; a pipe gets TAB-separated cells."""
        if not self.terminal:
            self.rows(header, [header, *rows])
            return
        self._aligned(header, [list(rows)], has_rule=True, **layout)

    def _aligned(
        self,
        header: Sequence[str],
        batches: Iterable[Sequence[Sequence[Cell]]],
        *,
        right: Sequence[int] = (),
        droppable: Sequence[int] = (),
        has_rule: bool = False,
    ) -> None:
        from shutil import get_terminal_size

        widths, columns = [len(name) for name in header], list(range(len(header)))
        for number, batch in enumerate(batches):
            cells = [[printable(cell_text(cell)) for cell in row] for row in batch]
            if number == 0:
                cells.insert(0, list(header))
            for row in cells:
                widths = [max(width, width_of(cell)) for width, cell in zip(widths, row, strict=True)]
            if number == 0:
                columns = fitting(widths, droppable, get_terminal_size((80, 24)).columns)
                cells[1:1] = [["─" * width for width in widths]] * has_rule
            lines = [aligned(row, widths, right, columns) for row in cells]
            if number == 0 and takes_colour(sys.stdout):
                lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
            self.write(to_bytes("".join(line.rstrip() + "\n" for line in lines)))

    def warn(self, message: str) -> None:
        """Print a warning, also with ``-q``."""
        self._aside(message, "warning")

    def note(self, message: str) -> None:
        """Print a message if ``-v`` is given."""
        if self.talk.verbose:
            self._aside(message)

    def summary(self, message: str) -> None:
        """After all rows, print a line about the result, unless ``-q`` is given."""
        if not self.talk.quiet:
            self.flush()
            self._aside(message)

    def done(self, message: str, size_bytes: int, *, dry_run: bool = False) -> None:
        """Print the last line: the result, the time, and the rate. A dry run shows neither time nor rate."""
        if dry_run:
            self.summary(message)
            return
        took, seconds = self.took(), time.monotonic() - self._began
        # A rate that is measured in less than a tenth of a second means nothing.
        rate = f", {human_size(size_bytes / seconds)}/s" if size_bytes and seconds >= 0.1 else ""
        self.summary(f"{message} in {took}{rate}")

    def took(self) -> str:
        """Return the time since this object was made, as text."""
        seconds = time.monotonic() - self._began
        return f"{seconds:.2f} s" if seconds < 1 else human_time(seconds)

    def _aside(self, message: str, label: str = "") -> None:
        message = shown(message)
        for bar in _bars:
            if bar.print(message, label):
                return
        say(message, label=label)

    def progress(self, *, rows: bool = False) -> Bar:
        """Return the progress display for an operation's argument ``progress``. ``rows`` says that the operation prints
        rows, which a bar would disturb."""
        drawn = self.talk.progress
        if drawn is None:
            drawn = not self.talk.quiet and not (rows and _is_terminal(sys.stderr))
        return Bar(self, drawn)


class Bar:
    """A :class:`wdscli.progress.Progress` that shows amount, rate and time left on standard error.

    On a terminal the stages of an operation share one bar. Quick commands draw no bar, and do not load rich. Without a
    terminal, a line is printed every :data:`LINE_SECONDS`, which suits the log of a batch job. With ``--progress``,
    lines are more frequent, and each stage ends with one.
    """

    def __init__(self, out: Out, drawn: bool) -> None:
        self._out = out
        self._drawn = drawn
        self._terminal = _is_terminal(sys.stderr)
        self._asked = bool(out.talk.progress)
        self._what = ""
        self._unit = ""
        self._total: int | None = None
        self._done = 0
        self._started = 0.0
        self._next: float | None = None
        self._open = False
        self._live: Any = None
        _bars.append(self)

    def start(self, what: str, total: int | None, unit: str) -> None:
        """See :class:`wdscli.progress.Progress`, also for the methods below."""
        self.finish()
        self._what, self._total, self._unit, self._done = what, total, unit, 0
        self._started = time.monotonic()
        self._open = self._drawn
        if self._live is not None:
            self._live.reset(0, description=what, facts=self._facts())
            # Rich does not reset a total to None here.
            self._live.tasks[0].total = total
            self._next = self._started + BAR_SECONDS
        elif self._terminal:
            self._next = self._started + BAR_DELAY_SECONDS
        elif self._next is None:
            # Several quick stages share one interval between lines.
            self._next = self._started + self._line_seconds

    @property
    def _line_seconds(self) -> float:
        return ASKED_LINE_SECONDS if self._asked else LINE_SECONDS

    def advance(self, amount: int) -> None:
        self._done += amount
        if self._open and self._next is not None and time.monotonic() >= self._next:
            self._show()

    def finish(self) -> None:
        if self._live is not None:
            self._update()
        elif self._open and self._asked and not self._terminal:
            self._print_line()
        self._open = False

    def close(self) -> None:
        """Remove the bar, so that something else can be printed."""
        if self._live is not None:
            self._live.stop()
            self._next = time.monotonic() + BAR_DELAY_SECONDS
        self._live = None

    def warn(self, message: str) -> None:
        self._out.warn(message)

    def note(self, message: str) -> None:
        self._out.note(message)

    def print(self, message: str, label: str) -> bool:
        """Print above the bar. Return False if no bar is drawn."""
        if self._live is None:
            return False
        from rich.text import Text

        self._live.console.print(Text(f"{label}: {message}" if label else message), soft_wrap=True)
        return True

    def _show(self) -> None:
        """Draw the bar or print a line, and set the time of the next one."""
        if not self._terminal:
            self._print_line()
            self._next = time.monotonic() + self._line_seconds
            return
        if self._live is None:
            self._live = _new_bar(self._what, self._total)
            self._live.start()
        self._update()
        self._next = time.monotonic() + BAR_SECONDS

    def _update(self) -> None:
        self._live.update(0, completed=self._done, facts=self._facts())

    def _print_line(self) -> None:
        say(f"{self._what}: {self._facts()}")

    def _facts(self) -> str:
        """Return the amount done, the rate, and the time left at this rate."""
        count = human_size if self._unit == "bytes" else human_number
        seconds = max(time.monotonic() - self._started, 1e-6)
        rate = self._done / seconds
        unit = "" if self._unit == "bytes" else " " + self._unit
        facts = [count(self._done) + (f" of {count(self._total)}" if self._total is not None else "") + unit]
        if not self._done:
            return facts[0]
        facts.append(f"{count(rate)}{unit}/s" if self._unit == "bytes" else f"{count(rate)}/s")
        if self._total is not None and 0 < self._done < self._total:
            facts.append(f"{human_time((self._total - self._done) / rate)} left")
        return ", ".join(facts)


def _new_bar(what: str, total: int | None) -> Any:
    """Make Rich's bar on standard error: description, bar and facts in one line."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    columns = [
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        # Reserve the width of the longest facts, so that the bar keeps its length.
        TextColumn("{task.fields[facts]}", markup=False, table_column=Column(no_wrap=True, width=44)),
    ]
    console = Console(stderr=True, highlight=False)
    console.width = min(console.width, BAR_COLUMNS)
    bar = Progress(*columns, console=console, transient=True, refresh_per_second=4, expand=True)
    bar.add_task(what, total=total, facts="")
    return bar


def parse_form(text: str) -> tuple[str, str | None]:
    """Return the format and the address in a value of ``--to``. The value is ``FORMAT``, ``FORMAT:FILE``,
    ``FILE.FORMAT`` or ``FOLDER/``; the format of a folder is "dir". Raises UsageError.

    >>> parse_form("tsv"), parse_form("s3://b/t.parquet"), parse_form("csv:-"), parse_form("out/")
    (('tsv', None), ('parquet', 's3://b/t.parquet'), ('csv', '-'), ('dir', 'out'))
    """
    from wdscli.shards.tables import FORMATS
    from wdscli.storage.opening import compression_of

    forms = ("raw", "jsonl", *FORMATS)
    form, colon, address = text.partition(":")
    if form in forms and (address or not colon):
        return form, address or None
    if text.endswith("/"):
        return "dir", text.rstrip("/") or "/"
    form = text.removesuffix(compression_of(text)).rpartition(".")[2].lower()
    if form in forms:
        return form, text
    raise UsageError(
        f"--to {text} has no known format",
        hint=f"name a table (captions.csv), a folder (out/), or a format: {', '.join(forms)}, with or without -o FILE",
    )


class FileTarget(NamedTuple):
    """The address and the kind of a file to write. ``table`` is the format of a table; it is None for other files."""

    address: str
    table: str | None = None
    force: bool = False
    fsync: bool = False


def write_file(out: Out, target: FileTarget, pieces: Iterable[bytes], inputs: Sequence[str]) -> int:
    """Write ``pieces`` and return their size in bytes. The file's name is checked before the first piece is made.
    Raises OutputExistsError and OutputError. Raises UsageError if the file is one of ``inputs``, if a table has a
    suffix for compressed files, and for Parquet on a terminal."""
    address, table, force, fsync = target
    if table is not None:
        from wdscli.storage.opening import compression_of

        if suffix := compression_of(address):
            raise UsageError(
                f"{address}: wds does not compress a Parquet file as a whole",
                hint=f"leave out {suffix}; the data inside a Parquet file is compressed",
            )
    if address == "-" and table != "parquet":
        size = 0
        for piece in pieces:
            out.write(piece)
            size += len(piece)
        out.flush()
        return size
    from wdscli.storage import open_sink, same_file

    for input_address in inputs:
        if same_file(input_address, address):
            raise UsageError(
                f"{input_address} would be both an input and an output", hint="give the output another name"
            )
    with open_sink(address, force=force, fsync=fsync) as sink:
        for piece in pieces:
            sink.write(piece)
    return sink.written


def by_reason(counts: dict[str, int]) -> str:
    """
    >>> by_reason({"where": 3, "keys": 2})
    'keys 2, where 3'
    """
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))


def facts(record: Any, names: str) -> dict[str, Any]:
    """Return some attributes of a record for JSON, by name. ``name=attribute`` renames an attribute.

    >>> facts(range(3), "start end=stop")
    {'start': 0, 'end': 3}
    """
    pairs = [name.partition("=") for name in names.split()]
    return {name: getattr(record, attribute or name) for name, _, attribute in pairs}


def json_line(value: Any) -> bytes:
    """One line of JSON. Bytes that are not UTF-8 become escapes of lone surrogates."""
    from json import dumps

    try:
        return dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:
        return dumps(value, separators=(",", ":")).encode() + b"\n"


def escaped_json(line: bytes) -> bytes:
    r"""Return a line of JSON with escapes instead of characters that change what a terminal shows.

    >>> escaped_json('{"a":"\u202e\u00e4"}\n'.encode())
    b'{"a":"\\u202e\xc3\xa4"}\n'
    """
    from json import dumps

    text = line.decode()
    if text.rstrip("\n").isprintable():
        return line
    return "".join(
        char if char.isprintable() or char == "\n" else dumps(char)[1:-1] for char in text
    ).encode()


_outs: list[Out] = []
_bars: list[Bar] = []


def say(message: str, *, label: str = "") -> None:
    """Print one line on standard error, with a label such as ``error``. Ignore errors while writing it."""
    colour = {"error": "1;31", "warning": "1;33", "hint": "1;36", "note": "1;36"}.get(label)
    if colour and takes_colour(sys.stderr):
        label = f"\x1b[{colour}m{label}\x1b[0m"
    text = printable(shown(message))
    show(f"{label}: {text}" if label else text)


def show(text: str) -> None:
    """Print text on standard error unchanged. Ignore errors while writing it."""
    if sys.stderr is None:
        return
    with suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def note_costs() -> None:
    """With ``-v``: print a command's time, processor time, memory and network traffic."""
    for out in _outs:
        if out.talk.verbose:
            import resource

            from wdscli.executors.local import pool_sizes
            from wdscli.storage.retry import take_traffic

            used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
            busy = human_time(sum(usage.ru_utime + usage.ru_stime for usage in used))
            unit = 1 if sys.platform == "darwin" else 1024
            most = human_size(max(usage.ru_maxrss for usage in used) * unit)
            workers = f" in {plural(max(pool_sizes), 'worker')}" if pool_sizes else ""
            out.note(
                f"took {out.took()}{workers}, {busy} of processor time; the largest process used {most} of memory"
            )
            traffic = take_traffic()
            if traffic.requests:
                parts = [plural(traffic.requests, "request"), f"{human_size(traffic.received)} received"]
                parts += [f"{human_size(traffic.sent)} sent"] if traffic.sent else []
                parts += [f"retries: {traffic.retries}"] if traffic.retries else []
                parts += [f"stalls: {traffic.stalls}"] if traffic.stalls else []
                out.note(f"network: {', '.join(parts)}")


def take_bars_away() -> None:
    """Remove all bars before something else is written."""
    for bar in _bars:
        bar.close()


def close() -> None:
    """Remove bars, and flush and forget every :class:`Out`."""
    while _bars:
        _bars.pop().close()
    while _outs:
        _outs.pop().flush()


def flush() -> None:
    """Flush Python's own buffer of standard output."""
    if sys.stdout is not None:
        with _writing():
            sys.stdout.flush()


def reader_is_gone() -> bool:
    """Return whether the reader of standard output or standard error has closed the pipe."""
    import select

    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            poll.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def abandon() -> None:
    """Redirect standard output to /dev/null, so that Python's flush at exit cannot fail."""
    with suppress(AttributeError, OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def abandon_if_broken() -> None:
    """Flush after an error. If that fails, redirect standard output to /dev/null."""
    try:
        flush()
    except (OSError, OutputError):
        abandon()


def stdout() -> IO[bytes]:
    """Return standard output as a binary stream. Raises OutputError if it is closed."""
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    return sys.stdout.buffer


@contextmanager
def _writing() -> Iterator[None]:
    """Turn OSError in the block into OutputError, except a broken pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write to standard output: {(error.strerror or str(error)).lower()}"
        ) from None


def _batches(rows: Iterable[Sequence[Cell]], count: int) -> Iterator[list[Sequence[Cell]]]:
    """Yield batches of ``count`` rows. A batch has fewer rows if the next row takes long to arrive."""
    batch: list[Sequence[Cell]] = []
    due = time.monotonic() + _FLUSH_SECONDS
    for row in rows:
        batch.append(row)
        if len(batch) >= count or time.monotonic() >= due:
            yield batch
            batch, due = [], time.monotonic() + _FLUSH_SECONDS
    yield batch


def takes_colour(stream: Any) -> bool:
    """Return whether a stream is a terminal that shows colours."""
    return _is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _is_terminal(stream: Any) -> bool:
    return bool(stream and stream.isatty())
