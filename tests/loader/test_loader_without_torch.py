"""The loader where torch is not installed: numpy batches, and WebLoader says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from loader_sets import write_set

SCRIPT = """
import sys

sys.modules["torch"] = None  # as if it were not installed
import numpy
import wdscli.loader as wds
from wdscli.errors import UsageError

data = wds.WebDataset(sys.argv[1], shuffle="window", threads=2).decode().to_tuple("cls", "json").batched(4)
classes, notes = next(iter(data))
assert isinstance(classes, numpy.ndarray) and classes.dtype == numpy.int64, classes
assert [type(note) for note in notes] == [dict] * 4, notes
raw = next(iter(wds.WebDataset(sys.argv[1]).batched(4)))
assert [bytes(one) for one in raw["cls"]] == [b"0", b"1", b"2", b"0"]
again = wds.WebDataset(sys.argv[1], shuffle="window").decode().to_tuple("cls", "json").batched(4)
again.load_state_dict(data.state_dict())
assert len(list(again)) == 5
assert wds.IndexedDataset(sys.argv[1])[3]["cls"] == b"0"
assert len(list(wds.mix([wds.WebDataset(sys.argv[1])] * 2))) == 46
for loader in (wds.WebLoader(data), wds.WebLoader(iter([1]))):
    try:
        list(loader)
    except UsageError as error:
        assert "not installed" in error.message and "wdscli[torch]" in error.hint, error
    else:
        raise AssertionError("a WebLoader without torch")
print(sorted(name for name in sys.modules if name.partition(".")[0] in {"fsspec", "s3fs", "typer", "rich", "PIL"}))
"""


def test_batches_of_numpy(tmp_path: Path) -> None:
    write_set(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, f"{tmp_path}/in-manifest.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[]\n")
