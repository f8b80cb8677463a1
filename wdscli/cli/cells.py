"""This module turns the cells of a row into text: a line with TABs for a pipe, or aligned columns for a terminal.

Cells are bytes, text or numbers. A name that is not UTF-8 passes a pipe unchanged. :func:`fitting` chooses the columns
that a narrow terminal shows. This module writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from wdscli.text import to_bytes, to_text

Cell = str | bytes | int

_GAP = "  "


def tab_lines(rows: Sequence[Sequence[bytes | int]]) -> bytes:
    r"""Return rows as bytes: a TAB between cells, and a line break after each row. TABs and line breaks in a cell
    become escapes. If possible, one format call makes all rows, because one call per row would take longer than reading
    the row.

    >>> tab_lines([(b"a\tb", 1), (b"c", 2)])
    b'a\\tb\t1\nc\t2\n'
    """
    pattern = b"\t".join([b"%d" if isinstance(cell, int) else b"%b" for cell in rows[0]]) + b"\n"
    text = (pattern * len(rows)) % tuple(chain.from_iterable(rows))
    return text if is_plain(text, len(rows), len(rows[0])) else b"".join(map(tab_line, rows))


def is_plain(text: bytes, rows: int, columns: int) -> bool:
    """Return whether no cell of ``text`` contains a TAB or a line break."""
    return text.count(b"\n") == rows and text.count(b"\t") == rows * (columns - 1) and b"\r" not in text


def tab_line(row: Sequence[Cell]) -> bytes:
    """Return a row as bytes, as :func:`tab_lines`."""
    return b"\t".join(map(_escaped, row)) + b"\n"


def _escaped(cell: Cell) -> bytes:
    """Return the bytes of a cell for a pipe. TABs and line breaks are escaped."""
    if isinstance(cell, int):
        return b"%d" % cell
    raw = to_bytes(cell) if isinstance(cell, str) else cell
    return raw.replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


def cell_text(cell: Cell) -> str:
    """Return a cell as text."""
    return to_text(cell) if isinstance(cell, bytes) else str(cell)


def width_of(text: str) -> int:
    """Return how many columns of a terminal ``text`` takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[int], columns: Sequence[int]) -> str:
    """Return the cells of a row in these ``columns`` as a line. The columns in ``right`` are aligned to the right."""
    cells = []
    for column in columns:
        fill = " " * (widths[column] - width_of(row[column]))
        cells.append(fill + row[column] if column in right else row[column] + fill)
    return _GAP.join(cells)


def fitting(widths: Sequence[int], droppable: Sequence[int], terminal_width: int) -> list[int]:
    """Return the numbers of the columns that fit. The columns in ``droppable`` are left out one after the other, until
    a row fits in the terminal.

    >>> fitting([20, 5, 30], [2, 1], 40), fitting([20, 5, 30], [2, 1], 20), fitting([90, 5, 30], [2], 80)
    ([0, 1], [0], [0, 1])
    """
    columns = list(range(len(widths)))
    for column in droppable:
        if sum(widths[kept] + len(_GAP) for kept in columns) - len(_GAP) <= terminal_width:
            break
        columns.remove(column)
    return columns
