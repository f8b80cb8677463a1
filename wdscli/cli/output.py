"""Everything the commands print: data to standard output, the rest to standard error. The only importer of rich.

Data leaves as bytes, in large writes, so that names that are not UTF-8 reach a pipe as they are. On a terminal the same
rows become aligned columns, and what a terminal would act on is written as escapes. Rich is loaded only for a bar
that has something to show for longer than a moment.

Knows nothing of shards or samples: rows, objects and lines come from the commands.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

from wdscli.errors import OutputError, UsageError, printable
from wdscli.shown import shown

if TYPE_CHECKING:
    from wdscli.cli.options import CommonOptions, GeneralOptions

Cell = str | bytes | int

_BUFFER_BYTES = 1 << 18
_FLUSH_SECONDS = 0.1
_BATCH_ROWS = 200
LINE_SECONDS = 30.0
"""How often long work without a terminal says how far it has come."""
ASKED_LINE_SECONDS = 5.0
"""How often with ``--progress``."""
BAR_DELAY_SECONDS = 0.3
"""A stage that is over by then draws no bar."""
BAR_SECONDS = 0.25
BAR_COLUMNS = 100


class Out:
    """Where one command prints. ``terminal`` says whether standard output is one.

    Rows and JSON Lines are held back a tenth of a second at most, and not at all on a terminal. ``data`` is where the
    command writes something else. Raises UsageError where both would be standard output.
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
            from wdscli.storage.retry import take_traffic

            take_traffic()  # of other commands in this process
        _outs.append(self)

    @classmethod
    def of(cls, general: GeneralOptions, data: str = "") -> Out:
        """That of a command with these options."""
        return cls(general.common, json=general.json.json, data=data)

    def write(self, data: bytes) -> None:
        """``data`` as it is, soon."""
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= _BUFFER_BYTES or self.terminal or time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Everything held back, now."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            if self.terminal:
                take_bars_away()
            with _writing():
                self._stream.write(b"".join(held))
                self._stream.flush()
        self._due = time.monotonic() + _FLUSH_SECONDS

    def line(self, text: str) -> None:
        """One line of text."""
        self.write(_to_bytes(printable(text) if self.terminal else text) + b"\n")

    def object(self, value: Any) -> None:
        """One line of JSON. Text that is not UTF-8 is written as the escapes of its lone surrogates."""
        self.write(json_line(value))

    def rows(
        self, header: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: Sequence[int] = ()
    ) -> None:
        """Rows as they come: TAB-separated with no header in a pipe, aligned columns on a terminal.

        ``right`` numbers the columns to align at the right. Columns are fitted to the rows of the first screens, so
        that memory does not grow with the rows and the first of them is seen at once.
        """
        if not self.terminal:
            for row in rows:
                self.write(_tab_line(row))
            return
        widths = [len(name) for name in header]
        for number, batch in enumerate(_batches(rows, _BATCH_ROWS)):
            cells = [[printable(_text(cell)) for cell in row] for row in batch]
            if number == 0:
                cells.insert(0, list(header))
            for row in cells:
                widths = [max(width, _width(cell)) for width, cell in zip(widths, row, strict=True)]
            self._aligned(cells, widths, right, has_header=number == 0)

    def listing(
        self, names: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: Sequence[int] = ()
    ) -> None:
        """The same, but with ``--json`` an object for each row."""
        if not self.json:
            self.rows(names, rows, right=right)
            return
        for row in rows:
            self.object(dict(zip(names, row, strict=True)))

    def pages(
        self,
        header: Sequence[str],
        pages: Iterable[Sequence[Sequence[bytes | int]]],
        *,
        right: Sequence[int] = (),
    ) -> None:
        """The same, of rows that come many at a time: in a pipe each page is one write."""
        if self.terminal:
            self.rows(header, chain.from_iterable(pages), right=right)
            return
        for page in pages:
            if page:
                self.write(tab_lines(page))

    def table(
        self, header: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: Sequence[int] = ()
    ) -> None:
        """A small table with a header: ruled on a terminal, TAB-separated elsewhere."""
        if not self.terminal:
            self.rows(header, [header, *rows])
            return
        cells = [list(header), *([printable(_text(cell)) for cell in row] for row in rows)]
        widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
        cells.insert(1, ["─" * width for width in widths])
        self._aligned(cells, widths, right, has_header=True)

    def _aligned(
        self, cells: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[int], *, has_header: bool
    ) -> None:
        lines = [_align(row, widths, right) for row in cells]
        if has_header and takes_colour(sys.stdout):
            lines[0] = f"\x1b[1m{lines[0]}\x1b[0m"
        self.write(_to_bytes("".join(line.rstrip() + "\n" for line in lines)))

    def warn(self, message: str) -> None:
        """Something the user should know, ``-q`` or not."""
        self._aside(message, "warning")

    def note(self, message: str) -> None:
        """Something for those who asked for more (``-v``)."""
        if self.talk.verbose:
            self._aside(message)

    def summary(self, message: str) -> None:
        """What was done, in a line, after the rows where both streams are one; not with ``-q``."""
        if not self.talk.quiet:
            self.flush()
            self._aside(message)

    def done(self, message: str, size_bytes: int, *, dry_run: bool = False) -> None:
        """The last line of what worked: what was done, in what time, and how fast. A plan takes no time of interest."""
        if dry_run:
            self.summary(message)
            return
        from wdscli.units import human_size

        took, seconds = self.took(), time.monotonic() - self._began
        # Of a moment no rate can be told.
        rate = f", {human_size(size_bytes / seconds)}/s" if size_bytes and seconds >= 0.1 else ""
        self.summary(f"{message} in {took}{rate}")

    def took(self) -> str:
        """The time since this was made."""
        from wdscli.units import human_time

        seconds = time.monotonic() - self._began
        return f"{seconds:.2f} s" if seconds < 1 else human_time(seconds)

    def _aside(self, message: str, label: str = "") -> None:
        message = shown(message)
        for bar in _bars:
            if bar.print(message, label):
                return
        say(message, label=label)

    def progress(self, *, rows: bool = False) -> Bar:
        """What shows how far an operation has come, for its argument ``progress``. ``rows`` says that rows are
        printed all the while, which would run through a bar."""
        drawn = self.talk.progress
        if drawn is None:
            drawn = not self.talk.quiet and not (rows and _is_terminal(sys.stderr))
        return Bar(self, drawn)


class Bar:
    """A :class:`wdscli.progress.Progress` that shows on standard error how far work has come: amount, rate, time left.

    On a terminal it is one bar, which stages of an operation share. Nothing is drawn for the first moment, so that a
    quick command neither flickers nor loads rich. Elsewhere it is a line every :data:`LINE_SECONDS`, which is what the
    log of a batch job can hold; with ``--progress`` more often, and one at the end of each stage.
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
        """See :class:`wdscli.progress.Progress`, here and below."""
        self.finish()
        self._what, self._total, self._unit, self._done = what, total, unit, 0
        self._started = time.monotonic()
        self._open = self._drawn
        if self._live is not None:
            self._live.reset(0, description=what, facts=self._facts())
            # What is None to reset stays as it was.
            self._live.tasks[0].total = total
            self._next = self._started + BAR_SECONDS
        elif self._terminal:
            self._next = self._started + BAR_DELAY_SECONDS
        elif self._next is None:
            # Stages that follow each other quickly are one wait to who reads the log.
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
        """Take the bar away, whatever it had reached: something else is about to be printed where it is."""
        if self._live is not None:
            self._live.stop()
            self._next = time.monotonic() + BAR_DELAY_SECONDS
        self._live = None

    def warn(self, message: str) -> None:
        self._out.warn(message)

    def note(self, message: str) -> None:
        self._out.note(message)

    def print(self, message: str, label: str) -> bool:
        """Print above the bar; False when no bar is drawn."""
        if self._live is None:
            return False
        from rich.text import Text

        self._live.console.print(Text(f"{label}: {message}" if label else message), soft_wrap=True)
        return True

    def _show(self) -> None:
        """The bar, or the line, that is due; when the next one is."""
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
        """Done of total, rate, and the time that is left if it goes on like this."""
        from wdscli.units import human_number, human_size, human_time

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
    """Rich's bar on standard error: what is done, a bar in the room that is left, and the facts in one line."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    columns = [
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        # Room for the longest facts, so that the bar keeps its length.
        TextColumn("{task.fields[facts]}", markup=False, table_column=Column(no_wrap=True, width=44)),
    ]
    console = Console(stderr=True, highlight=False)
    console.width = min(console.width, BAR_COLUMNS)
    bar = Progress(*columns, console=console, transient=True, refresh_per_second=4, expand=True)
    bar.add_task(what, total=total, facts="")
    return bar


def plural(count: int, word: str) -> str:
    """
    >>> plural(1, "sample"), plural(2, "sample")
    ('1 sample', '2 samples')
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def by_reason(counts: dict[str, int]) -> str:
    """
    >>> by_reason({"where": 3, "keys": 2})
    'keys 2, where 3'
    """
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))


def facts(record: Any, names: str) -> dict[str, Any]:
    """What a record says, for JSON: its attributes by name, or by another one.

    >>> facts(range(3), "start end=stop")
    {'start': 0, 'end': 3}
    """
    pairs = [name.partition("=") for name in names.split()]
    return {name: getattr(record, attribute or name) for name, _, attribute in pairs}


def json_line(value: Any) -> bytes:
    """One line of JSON. Text that is not UTF-8 becomes the escapes of its lone surrogates."""
    from json import dumps

    try:
        return dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    except UnicodeEncodeError:
        return dumps(value, separators=(",", ":")).encode() + b"\n"


_outs: list[Out] = []
_bars: list[Bar] = []


def say(message: str, *, label: str = "") -> None:
    """One line on standard error, with a label such as ``error``. Nothing happens when it cannot be written."""
    colour = {"error": "1;31", "warning": "1;33", "hint": "1;36", "note": "1;36"}.get(label)
    if colour and takes_colour(sys.stderr):
        label = f"\x1b[{colour}m{label}\x1b[0m"
    text = printable(shown(message))
    show(f"{label}: {text}" if label else text)


def show(text: str) -> None:
    """Lines of our own on standard error, as they are. Nothing happens when they cannot be written."""
    if sys.stderr is None:
        return
    with suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def note_costs() -> None:
    """With ``-v``, what a command took: time, time of the processors, memory, and what went over the network."""
    for out in _outs:
        if out.talk.verbose:
            import resource

            from wdscli.storage.retry import take_traffic
            from wdscli.units import human_size, human_time

            used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
            busy = human_time(sum(one.ru_utime + one.ru_stime for one in used))
            unit = 1 if sys.platform == "darwin" else 1024
            most = human_size(max(one.ru_maxrss for one in used) * unit)
            out.note(f"took {out.took()}, {busy} of processor time; the largest process had {most} of memory")
            traffic = take_traffic()
            if traffic.requests:
                parts = [plural(traffic.requests, "request"), f"{human_size(traffic.received)} received"]
                parts += [f"{human_size(traffic.sent)} sent"] if traffic.sent else []
                parts += [f"retries: {traffic.retries}"] if traffic.retries else []
                parts += [f"stalls: {traffic.stalls}"] if traffic.stalls else []
                out.note(f"network: {', '.join(parts)}")


def take_bars_away() -> None:
    """Before something is written where a bar may be drawn."""
    for bar in _bars:
        bar.close()


def close() -> None:
    """Take bars away and let go of every :class:`Out`, its held rows written."""
    while _bars:
        _bars.pop().close()
    while _outs:
        _outs.pop().flush()


def flush() -> None:
    """What Python itself holds back, out."""
    if sys.stdout is not None:
        with _writing():
            sys.stdout.flush()


def reader_is_gone() -> bool:
    """Whether nobody reads standard output or standard error any more: a broken pipe is then no fault of ours."""
    import select

    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            poll.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def abandon() -> None:
    """Point standard output at nothing, so that what is still held back cannot fail when Python leaves."""
    with suppress(AttributeError, OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def abandon_if_broken() -> None:
    """After an error: what can still be written is, and what cannot is not tried again."""
    try:
        flush()
    except (OSError, OutputError):
        abandon()


def stdout() -> IO[bytes]:
    """Standard output, for bytes. Raises OutputError when it is closed."""
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    return sys.stdout.buffer


@contextmanager
def _writing() -> Iterator[None]:
    """What fails in the block is an OutputError, but for a reader that went away."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write to standard output: {(error.strerror or str(error)).lower()}"
        ) from None


def _to_bytes(text: str) -> bytes:
    """As ``wdscli.model.to_bytes``, without the records of that module, which not every command needs."""
    return text.encode("utf-8", "surrogateescape")


def tab_lines(rows: Sequence[Sequence[bytes | int]]) -> bytes:
    r"""Rows of one shape with a TAB between cells and a line break after each; such bytes in a cell become escapes.
    A call a row would take longer than reading it, and so all are put into bytes by one format, where they can be.

    >>> tab_lines([(b"a\tb", 1), (b"c", 2)])
    b'a\\tb\t1\nc\t2\n'
    """
    pattern = b"\t".join([b"%d" if isinstance(cell, int) else b"%b" for cell in rows[0]]) + b"\n"
    text = (pattern * len(rows)) % tuple(chain.from_iterable(rows))
    return text if is_plain(text, len(rows), len(rows[0])) else b"".join(map(_tab_line, rows))


def is_plain(text: bytes, rows: int, columns: int) -> bool:
    """Whether no cell of ``text`` holds a TAB or a line break."""
    return text.count(b"\n") == rows and text.count(b"\t") == rows * (columns - 1) and b"\r" not in text


def _tab_line(row: Sequence[Cell]) -> bytes:
    return b"\t".join(map(_field, row)) + b"\n"


def _field(cell: Cell) -> bytes:
    """A cell for a pipe: the bytes it has, but a TAB or a line's end would make two of it."""
    if isinstance(cell, int):
        return b"%d" % cell
    raw = _to_bytes(cell) if isinstance(cell, str) else cell
    return raw.replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


def _text(cell: Cell) -> str:
    return cell.decode("utf-8", "surrogateescape") if isinstance(cell, bytes) else str(cell)


def _batches(rows: Iterable[Sequence[Cell]], count: int) -> Iterator[list[Sequence[Cell]]]:
    """Rows by ``count``, or fewer when the next is slow to come."""
    batch: list[Sequence[Cell]] = []
    due = time.monotonic() + _FLUSH_SECONDS
    for row in rows:
        batch.append(row)
        if len(batch) >= count or time.monotonic() >= due:
            yield batch
            batch, due = [], time.monotonic() + _FLUSH_SECONDS
    yield batch


def _width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _align(row: Sequence[str], widths: Sequence[int], right: Sequence[int]) -> str:
    cells = []
    for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
        fill = " " * (width - _width(cell))
        cells.append(fill + cell if place in right else cell + fill)
    return "  ".join(cells)


def takes_colour(stream: Any) -> bool:
    """Whether a stream is a terminal on which colours are wanted."""
    return _is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _is_terminal(stream: Any) -> bool:
    return bool(stream and stream.isatty())
