"""This module opens the shards of views, which are tar files that are not stored.

:func:`open_view_shard` opens a shard of a view as a :class:`~wdscli.storage.Source`. :class:`OpenView` is the open
view. A view is a JSON file. Its shard NAME has the address ``VIEW.json/NAME``, which every reader can open like other
addresses. The index of a base has the places of its samples; without an index, the headers are scanned. A base with
another size or other headers than when the view was made is an error. This module does not know how samples were
chosen.
"""

from __future__ import annotations

import os
from functools import cached_property, partial
from itertools import accumulate

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, InputError, InputNotFoundError
from wdscli.model import UNKNOWN, ShardInfo
from wdscli.shards.index import Check, Index
from wdscli.shards.layout import Layer, Layout, ViewSource, laid_out
from wdscli.shards.manifest import Manifest, parse_manifest
from wdscli.shards.proof import checking, current_check, find_index, open_by_index, scanned_index
from wdscli.shards.view import (
    COPY_BOTH,
    MISSING,
    Section,
    needs_ranges,
    open_rows,
    read_section,
    rows_address,
    samples_of,
)
from wdscli.storage import Source, is_local, local_path, open_source
from wdscli.storage.addresses import HELD, TRUSTED, is_web, shard_address, view_of
from wdscli.storage.opening import is_pinnable, read_noted, refuse_device
from wdscli.threads import Recent

_NO_BASE = 0xFFFFFFFF
INDEX_CACHE_BYTES = 256 << 20
"""The most memory for indexes of bases that a process keeps for the next shard, in bytes."""
VIEWS_KEPT = 16
LAYOUT_CACHE_BYTES = 256 << 20
"""The most memory for layouts of a view that a process keeps, in bytes."""


class OpenView:
    """An open view: its manifest, and the addresses of its bases."""

    def __init__(self, address: str, trusted: bool, manifest: Manifest | None = None) -> None:
        self.address = address
        self.manifest = manifest or parse_manifest(read_noted(address)[0], address)
        view = self.manifest.view
        if view is None:
            raise InputError(
                f"cannot read {address}: it is a manifest of shards, not a view",
                hint=f"name the set by its manifest alone: {address}",
            )
        self.view = view
        self.places = {shard.name: number for number, shard in enumerate(self.manifest.shards)}
        self.bases = [shard_address(address, base.name, trusted=trusted) for base in view.bases]
        for base in filter(view_of, self.bases):
            # A view of a view refers to the bases of the other view. Otherwise a view could be its own base.
            raise DataError(
                f"{address} is not a view: its base {base} is a shard of a view",
                code="manifest-mismatch",
                hint="make the view again",
            )
        self._layouts: Recent[tuple[int, Check], Layout] = Recent(
            LAYOUT_CACHE_BYTES, lambda layout: layout.memory_bytes
        )
        self._states: dict[tuple[int, Check], object] = {}
        """The state (:func:`_state_of`) of each base when its index, or its headers, were compared with the view."""

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the set."""
        return self.manifest.fingerprint

    def layout(self, number: int, check: Check | None = None) -> Layout:
        """Return the layout of a shard. Its bases are checked. Raises DataError if a base has changed."""
        check = current_check() if check is None else check
        return self._layouts.used((number, check)) or self._new_layout(number, check)

    def renew(self, number: int) -> None:
        """Forget the layout of a shard if a local base was replaced."""
        key = number, check = (number, current_check())
        layout = self._layouts.used(key)
        bases = [] if layout is None else [layer.base for layer in layout.layers]
        if any(_state_of(self.bases[base]) != self._states[base, check] for base in bases):
            self._layouts.forget(key)

    def _new_layout(self, number: int, check: Check) -> Layout:
        rule, info = self.view.rule, self.manifest.shards[number]
        for base in {run.base for runs in self.view.shards[number].runs or () for run in runs} - {MISSING}:
            # Runs may be longer than memory. The index shows how many samples a base has.
            self.index(base, check)
        layers = [
            self._layer(base, numpy.flatnonzero(bases == base), places, set_number, check)
            for set_number, (bases, places) in enumerate(self.samples_of(number))
            # numpy.unique() is avoided: it imports numpy.ma, which takes as long as reading some hundred samples.
            for base in numpy.flatnonzero(numpy.bincount(bases[bases != MISSING])).tolist()
        ]
        arrange = None if rule.is_plain else rule.slots
        layout = laid_out(info.name, info.samples, layers, self.view.form, arrange, self.new_keys(number))
        self._check(layout, number)
        return self._layouts.keep((number, check), layout)

    def _layer(self, base: int, samples: I64, places: I64, set_number: int, check: Check) -> Layer:
        """Return the layer for the samples ``at`` of a shard. They are at ``places`` in a base."""
        index, rows = self.index(base, check), places[samples]
        if len(rows) and rows.max() >= index.samples:
            raise self.changed(base, f"it has only {index.samples} samples")
        if not numpy.array_equal(rows, numpy.arange(index.samples)):
            index = index.part(rows)
        return Layer(base, index, None if len(samples) == len(places) else samples, set_number)

    def samples_of(self, number: int) -> list[tuple[I64, I64]]:
        """Return, for each set, the base and the place of each sample of a shard. A missing part is :data:`MISSING`."""
        shard = self.view.shards[number]
        if shard.runs is not None:
            return [*map(samples_of, shard.runs)]
        assert shard.rows is not None
        columns = numpy.frombuffer(self._stored(shard.rows), dtype="<u4").astype(numpy.int64)
        columns[columns == _NO_BASE] = MISSING
        samples = self.manifest.shards[number].samples
        if len(columns) != 2 * self.view.rule.sets * samples:
            raise self._broken()
        counts: I64 = numpy.array(
            [*(_NO_BASE if base.samples == UNKNOWN else base.samples for base in self.view.bases), 0],
            dtype=numpy.int64,
        )
        pairs = [(bases, places) for bases, places in columns.reshape(-1, 2, samples)]
        for bases, places in pairs:
            is_there = bases != MISSING
            if (bases >= len(self.view.bases)).any() or (places >= counts[bases])[is_there].any():
                raise self._broken()
        if numpy.logical_and.reduce([bases == MISSING for bases, _ in pairs]).any():
            raise self._broken()
        return pairs

    def new_keys(self, number: int) -> dict[int, bytes]:
        """Return the new keys of a shard's samples, by sample number. A sample without a new key has the key from its
        base."""
        place = self.view.shards[number].keys
        if place is None:
            return {}
        data = self._stored(place)
        try:
            [count] = numpy.frombuffer(data, "<u4", 1).tolist()
            samples, lengths = numpy.frombuffer(data, "<u4", 2 * count, 4).reshape(2, count).tolist()
        except ValueError:
            raise self._broken() from None
        ends = [4 + 8 * count + end for end in accumulate(lengths)]
        return {sample: data[end - length : end] for sample, length, end in zip(samples, lengths, ends)}

    def _stored(self, section: Section) -> bytes:
        with open_rows(self.address) as source:
            data = read_section(source, section)
        if data is None:
            raise self._broken()
        return data

    def _broken(self) -> DataError:
        return DataError(
            f"{rows_address(self.address)} does not belong to {self.address}", code="changed", hint=COPY_BOTH
        )

    def _check(self, layout: Layout, number: int) -> None:
        info, index = self.manifest.shards[number], layout.index
        if (index.samples, layout.size) != (info.samples, info.size_bytes):
            raise DataError(
                f"according to {self.address}, {info.name} has {info.samples} samples in {info.size_bytes} bytes; "
                f"its base shards give {index.samples} in {layout.size}",
                code="changed",
                hint="make the view again",
            )

    def index(self, number: int, check: Check) -> Index:
        """Return the index of a base. With ALL, it is made from the headers, and has no stored values. Raises DataError
        if the base is not the same as when the view was made."""
        address, base, form = self.bases[number], self.view.bases[number], self.view.form
        state = _state_of(address)
        # ALL_LOCAL asks no more of a base on a store than SOME, so its index is read once for both.
        is_some = check is Check.ALL_LOCAL and not is_local(address)
        key = (address, state, base.headers or base.version, Check.SOME if is_some else check)
        index = _INDEXES.used(key)
        if index is None:
            source, stored = open_by_index(address) if is_pinnable(address) else (None, None)
            with source or self.open_base(number) as source:
                if why := self._why_changed(number, source):
                    raise self.changed(number, why)
                try:
                    if check is not Check.ALL:
                        index = find_index(address, source, form=form, check=check, stored=stored)
                    index = index or scanned_index(address, source, form)
                except DataError as error:
                    raise self.changed(number, error.message, error.offset) from None
            if base.headers and (index.digest, index.samples) != (base.headers, base.samples):
                raise self.changed(number, "its headers differ")
            _INDEXES.keep(key, index)
        self._states[number, check] = state
        return index

    def open_base(self, number: int) -> Source:
        """Open the bytes of a base. Raises DataError if it has another size than in the view."""
        try:
            refuse_device(self.bases[number])
            source = open_source(self.bases[number])
        except InputNotFoundError as error:
            error.hint = (
                f"the view {self.address} names this shard from its own folder: move both, or make it again"
            )
            raise
        if why := self._why_changed(number, source):
            with source:
                if source.size is None and is_web(self.bases[number]):
                    raise needs_ranges(self.bases[number], self.address)
                raise self.changed(number, why)
        return source

    def _why_changed(self, number: int, source: Source) -> str:
        """Return how the size of an open base, or its version in a plan, has changed. It is empty if both are the
        same."""
        base = self.view.bases[number]
        if source.size != base.size_bytes:
            return f"it has {source.size} bytes instead of the {base.size_bytes} bytes in the view"
        is_other = base.version not in ("", source.version)
        return "it has another time of change or version" if is_other else ""

    def changed(self, number: int, why: str, offset: int | None = None) -> DataError:
        """Return the error for a base that has changed since the view was made, at byte ``offset`` of the base."""
        return DataError(
            f"the shard was changed after {self.address} was made: {why}",
            code="changed",
            shard=self.bases[number],
            offset=offset,
            hint="make the view again, or restore the original shard",
        )


_INDEXES: Recent[tuple[str, object, str, Check], Index] = Recent(
    INDEX_CACHE_BYTES, lambda index: index.memory_bytes
)
_VIEWS: Recent[str, tuple[object, OpenView]] = Recent(VIEWS_KEPT)


def opened(address: str, *, trusted: bool | None = None, manifest: Manifest | None = None) -> OpenView:
    """Return the view at an address, from a cache if possible. A local file is read again after a change. A remote file
    is read again if ``trusted`` is not None, which is so when its set is opened. ``manifest`` is the view's manifest,
    if it was just read."""
    if trusted is not None:
        (TRUSTED.add if trusted else TRUSTED.discard)(address)
    version = (address in TRUSTED, _state_of(address))
    kept_view = _VIEWS.used(address)
    if kept_view is None or kept_view[0] != version or (trusted is not None and not is_local(address)):
        kept_view = _VIEWS.keep(address, (version, OpenView(address, address in TRUSTED, manifest)))
    return kept_view[1]


def _state_of(address: str) -> object:
    """Return a value that changes when a local file is replaced or changed. It is empty without a file, and None for
    other addresses."""
    if not is_local(address) or address in HELD:
        return None
    try:
        status = os.stat(local_path(address))
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _find(address: str) -> tuple[OpenView, int] | None:
    """Return the view and the number of the shard at ``VIEW.json/NAME``, or None if there is no such shard."""
    place = view_of(address)
    view = None if place is None else opened(place[0])
    number = None if view is None or place is None else view.places.get(place[1])
    return None if view is None or number is None else (view, number)


def shard_of(address: str) -> tuple[OpenView, int]:
    """Return the view and the number of the shard at ``VIEW.json/NAME``. Raises InputError for a name that the view
    does not have."""
    shard = _find(address)
    if shard is None:
        view, name = view_of(address) or (address, "")
        raise InputError(f"cannot read {address}: the view has no shard {name}", hint=f"wds ls {view}")
    return shard


def whole_base(address: str) -> tuple[str, ShardInfo] | None:
    """If the shard at ``VIEW.json/NAME`` is an unchanged base, return the base's address and its entry in the view.
    Otherwise return None."""
    place = _find(address)
    if place is None:
        return None
    view, number = place
    shard, info = view.view.shards[number], view.manifest.shards[number]
    runs = shard.runs or ()
    if not view.view.rule.is_plain or shard.keys or len(runs) != 1 or len(runs[0]) != 1 or not info.headers:
        return None
    [run] = runs[0]
    base = view.view.bases[run.base]
    is_whole = (run.samples, info.size_bytes, info.headers) == (base.samples, base.size_bytes, base.headers)
    return (view.bases[run.base], base) if is_whole else None


def open_view_shard(address: str) -> Source:
    """Open the bytes of a view's shard. Raises InputError, DataError."""
    view, number = shard_of(address)
    view.renew(number)
    layout, check = partial(view.layout, number), current_check()
    is_remote = not all(is_local(view.bases[layer.base]) for layer in layout(check).layers)
    return ViewSource(address, layout, check, view.open_base, view.changed, is_remote=is_remote)


def changed_shard(address: str, message: str, offset: int | None) -> DataError:
    """Return the error for a shard that differs from its index, or from a plan. If a base of the shard at
    ``VIEW.json/NAME`` has other headers than in the view, raise the view's error instead."""
    if (shard := _find(address)) is not None:
        view, number = shard
        with checking(Check.ALL):
            view.renew(number)
            view.layout(number)
    return DataError(
        message,
        code="changed",
        shard=address,
        offset=offset,
        hint="the shard was changed, or its index is stale: rebuild it with `wds index`",
    )


def check_view(address: str, fingerprint: str) -> None:
    """Raise DataError if the shard at ``VIEW.json/NAME`` is of a view with another fingerprint. Do nothing for other
    addresses."""
    place = view_of(address)
    if place is not None and opened(place[0]).fingerprint != fingerprint:
        message = f"{place[0]} was replaced after the set was opened"
        raise DataError(message, code="changed", hint="open the set again")


def size_of(address: str) -> int | None:
    """Return the size of a view's shard in bytes. Only the view is read. Return None if the view has no such shard."""
    shard = _find(address)
    return None if shard is None else shard[0].manifest.shards[shard[1]].size_bytes


def forget() -> None:
    """Forget all views and indexes, so that they are read again at the next use."""
    _VIEWS.clear()
    _INDEXES.clear()
