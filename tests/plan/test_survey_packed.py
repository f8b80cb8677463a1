"""Small usual samples are surveyed a buffer at a time, with the rows, counts and errors of the scan."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
from shard_cases import foreign_tar, tar_of

from wdscli.errors import DataError
from wdscli.plan.inputs import Input
from wdscli.plan.survey import Survey, SurveyTask, survey
from wdscli.samples import reading
from wdscli.selection import Selection
from wdscli.tar import CANONICAL, core

pytestmark = pytest.mark.skipif(core.CORE is None, reason="plain Python scans every shard")

PLAIN = [(f"k{number:03}.{field}", b"x" * number) for number in range(300) for field in ("cls", "txt")]


def changed(name: str) -> list[tuple[str, bytes]]:
    """The plain members with another name in one place."""
    return [*PLAIN[:301], (name, b"x"), *PLAIN[302:]]


CASES = {
    "canonical": tar_of(PLAIN),
    "foreign": foreign_tar(PLAIN),
    "foreign-at-the-end": tar_of(PLAIN[:400])[:-1024] + foreign_tar(PLAIN[400:]),
    "canonical-at-the-end": foreign_tar(PLAIN[:400]).rstrip(b"\0") + bytes(512) + tar_of(PLAIN[400:]),
    "different-fields": foreign_tar([member for number, member in enumerate(PLAIN) if number % 7]),
    "unsafe": tar_of(changed("../k150.txt")),
    "no-field": foreign_tar(changed("k150")),
    "same-field-twice": foreign_tar(changed("k150.cls")),
    "repeated-key": tar_of(changed("k003.txt")),
    "long-names": foreign_tar([("n" * 120 + name, data) for name, data in PLAIN], format=tarfile.PAX_FORMAT),
    "gnu": foreign_tar([("n" * 99 + name, data) for name, data in PLAIN], format=tarfile.GNU_FORMAT),
    "deep-names": foreign_tar([("folder/" * 13 + name, data) for name, data in PLAIN]),
    "large": foreign_tar([(name, data * 999) for name, data in PLAIN]),
    "damaged": foreign_tar(PLAIN)[:200_000] + b"?" * 1000 + foreign_tar(PLAIN)[201_000:],
    "truncated": foreign_tar(PLAIN)[:200_100],
    "bad-padding": tar_of(PLAIN).replace(b"x" * 9 + b"\0" * 9, b"x" * 9 + b"\0" * 8 + b"x"),
    "empty": tar_of([]),
}


def surveyed(path: Path) -> dict[str, Any] | str:
    """The result of a survey, or its error."""
    blocks = []
    try:
        result: Survey = survey(SurveyTask(Input(str(path)), CANONICAL, Selection()), take=blocks.append)
    except DataError as error:
        return f"{error} {error.code} {error.offset} {error.member}"
    names = ("total", "members", "payload_bytes", "end", "ignored", "dropped", "stamp")
    rows = b"".join(block.rows.tobytes() for block in blocks)
    return {name: getattr(result, name) for name in names} | {"rows": rows}


@pytest.mark.parametrize("case", CASES)
def test_it_has_the_rows_of_the_scan(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(CASES[case])
    scanned = surveyed(path)
    monkeypatch.setattr(reading, "SMALL_SHARD_BYTES", 0)
    for buffer_bytes in (1 << 12, 1 << 15, 1 << 22):
        monkeypatch.setattr(reading, "BUFFER_BYTES", buffer_bytes)
        assert surveyed(path) == scanned, buffer_bytes


def test_most_samples_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, totals = tmp_path / "x.tar", []
    path.write_bytes(CASES["foreign"])
    monkeypatch.setattr(reading, "SMALL_SHARD_BYTES", 0)
    survey(
        SurveyTask(Input(str(path)), CANONICAL, Selection()),
        take=lambda block: totals.append(len(block.rows)),
    )
    assert totals == [299, 1]
