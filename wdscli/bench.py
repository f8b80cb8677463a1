"""This module measures how fast a training loop can read a set, and finds the bottleneck.

:func:`bench` makes the dataset that its arguments describe. For some seconds, :func:`bench` takes batches of the
dataset and drops them, epoch after epoch. Then the dataset's ``stats()`` show how its processes spent their time. Only
worker processes need torch. This module does not print."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.loader.order.order import Shuffle
from wdscli.loader.stages.per_batch import default_collation
from wdscli.loader.streams import ShardStream
from wdscli.loader.webdataset import WebDataset


class TimeShares(NamedTuple):
    """How the processes that make batches spend their time. The three shares are from 0 to 1: ``reading`` is the wait
    for bytes, ``decoding`` is the work of stages such as decode and of making batches, and ``handing_over`` is the wait
    for the consumer."""

    reading: float
    decoding: float
    handing_over: float


class BenchReport(NamedTuple):
    """The result of :func:`bench`. ``seconds`` is the time from the first batch to the last batch; ``samples`` and
    ``bytes`` count the samples and the payload bytes that were read in this time. ``first_seconds`` is the time from
    the start to the first batch. ``epochs`` is the number of epochs that were started. ``bottleneck`` is one sentence
    that names the slowest part."""

    samples: int
    bytes: int
    seconds: float
    first_seconds: float
    epochs: int
    workers: int
    shares: TimeShares
    bottleneck: str

    @property
    def samples_per_second(self) -> float:
        """The number of samples read per second after the first batch."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """The number of payload bytes read per second after the first batch."""
        return self.bytes / self.seconds if self.seconds else 0.0


def bench(
    urls: str | Sequence[str],
    *,
    decode: str | None = None,
    workers: int = 0,
    threads: int = 1,
    batch: int = 64,
    shuffle: Shuffle = "window",
    fields: Sequence[str] | None = None,
    seconds: float = 10.0,
    trust_addresses: bool = False,
) -> BenchReport:
    """Measure for about ``seconds`` how fast the loader makes batches of ``batch`` samples from ``urls``. With
    ``batch=0`` the loader yields single samples. ``decode`` is the argument of ``decode()`` (``"pil"``, ``"rgb8"``), or
    None for raw bytes. ``workers`` is the number of DataLoader processes, 0 for none. ``shuffle``, ``fields``
    and ``threads`` are arguments of WebDataset. Raises UsageError (for example for workers without torch),
    InputError and DataError."""
    trust: dict[str, Any] = {"trust_addresses": True} if trust_addresses else {}
    data = WebDataset(urls, shuffle=shuffle, fields=fields, threads=threads, **trust)
    if decode is not None:
        data = data.decode(decode)
    if batch:
        data = data.batched(batch, collation_fn=collated)
    loader = _loader(data, workers)
    times, samples, epochs = _taken(loader, seconds, _is_read_once(data))
    stats: dict[str, Any] = loader.stats()
    parts = [stats[f"seconds_{name}"] for name in ("reading", "working", "waiting")]
    shares = TimeShares(*[part / (sum(parts) or 1.0) for part in parts])
    return BenchReport(
        samples=samples,
        bytes=round(stats["bytes"] / max(1, stats["samples"]) * samples),
        seconds=times[2] - times[1],
        first_seconds=times[1] - times[0],
        epochs=epochs,
        workers=workers,
        shares=shares,
        bottleneck=_sentence(shares, decode, workers, threads),
    )


def _taken(loader: Any, seconds: float, is_once: bool) -> tuple[list[float], int, int]:
    """Take batches for ``seconds``, or for one epoch if ``is_once``. Return three values: the times of the start, the
    first batch and the last batch; the number of samples after the first batch; the number of epochs. Samples of the
    first batch do not count, because its time includes the start of the loader."""
    clock = time.perf_counter
    begin = last = clock()
    first: float | None = None
    samples = epochs = 0
    is_over = False
    while not is_over:
        epochs += 1
        for batch in loader:
            last = clock()
            if first is None:
                first = last
            else:
                samples += _count(batch)
            if last - first >= seconds:
                break
        is_over = first is None or is_once or clock() - first >= seconds
    return [begin, last if first is None else first, last], samples, epochs


def collated(samples: list[Any]) -> Any:
    """Return the batch that :meth:`batched` would make. If pictures have different sizes, each column is a list."""
    try:
        return default_collation(samples)
    except DataError:
        first = samples[0]
        return {name: [sample.get(name) for sample in samples] for name in first}


def _is_read_once(data: WebDataset) -> bool:
    """Whether the set contains standard input, which cannot be read again."""
    return isinstance(data.source, ShardStream) and "-" in data.source.addresses


def _loader(data: WebDataset, workers: int) -> Any:
    if not workers:
        return data
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UsageError(
            "workers need torch, because they are processes of its DataLoader",
            hint="pip install 'wdscli[torch]'",
        )
    from wdscli.loader.torch_loader import WebLoader

    return WebLoader(data, batch_size=None, num_workers=workers, persistent_workers=True)


def _count(batch: Any) -> int:
    """Return the number of samples in a batch. A dict with a ``__key__`` of type str is a single sample."""
    if not isinstance(batch, dict):
        return len(batch)
    key = batch.get("__key__")
    return 1 if isinstance(key, str) else len(key or ())


def _sentence(shares: TimeShares, decode: str | None, workers: int, threads: int) -> str:
    largest = max(range(3), key=lambda number: shares[number])
    part = f"{shares[largest]:.0%}"
    where = "the workers' time" if workers else "the time"
    if largest == 0:
        advice = "more workers, larger batches of nearby samples or fewer fields would help"
        return f"Reading is the bottleneck: {part} of {where} goes into getting bytes; {advice}."
    if largest == 1:
        what = "Decoding" if decode else "Making batches"
        advice = "more workers would help" if workers else "workers or threads would help"
        return f"{what} is the bottleneck: {part} of {where} goes into it; {advice}."
    if workers:
        return (
            f"The main process is the bottleneck: {part} of {where} is spent waiting for it to take batches; "
            "fewer workers would do, and smaller decoded data would help."
        )
    return f"Nothing is slow here: {part} of {where} is the loop that takes the samples; batches would help."
