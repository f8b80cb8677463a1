"""Other programs' indexes, written from ours.

What it is: a table of dialects by name, and what they have in common. How: a dialect is told each shard of a set with
its index, in order, and gives files to write, some at once and some at the end; it never opens a shard or a sink, so
that one pass over the indexes serves any number of dialects and the caller decides how files are replaced. Each module
says where its format is described. It must not know commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import NamedTuple, Protocol

from wdscli.errors import DataError, UsageError
from wdscli.model import to_text
from wdscli.shards.index import Index

DIALECTS = ("dali", "energon", "webshart", "wids")


class SideFile(NamedTuple):
    """A file to write: its address, and its bytes in pieces that may be had once."""

    address: str
    pieces: Iterable[bytes]


class ShardPlace(NamedTuple):
    """One shard of the set: ``address`` as it was given, ``name`` its path from the set's folder."""

    address: str
    name: str


class SetPlace(NamedTuple):
    """The set: ``folder`` is the address of the folder that holds all shards, with its last slash (empty: the current
    one); ``prefix`` what the names of its shards begin with, for names of files that belong to the set."""

    folder: str
    prefix: str


class Dialect(Protocol):
    """What a module's ``Dialect`` class does. :meth:`add` is called for every shard in order, :meth:`finish` once.

    Both raise DataError for what the other program could not read.
    """

    def __init__(self, place: SetPlace) -> None: ...

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]: ...

    def finish(self) -> Iterable[SideFile]: ...


def make_dialect(name: str, place: SetPlace) -> Dialect:
    """The dialect called ``name``. Raises UsageError for one that is not known."""
    if name not in DIALECTS:
        raise UsageError(f"unknown dialect {name!r}", hint="choose of " + ", ".join(DIALECTS))
    dialect: Dialect = import_module(f"wdscli.shards.dialects.{name}").Dialect(place)
    return dialect


def utf8_name(shard: ShardPlace, name: bytes, start: int, why: str) -> str:
    """A name as text. DataError, saying ``why``, for one that is not UTF-8; ``start`` is its member's first byte."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise DataError(
            why, code="unsafe-name", shard=shard.address, offset=start, member=to_text(name)
        ) from None
