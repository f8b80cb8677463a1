"""The demo does what it says: on the pictures that it draws, on any folder, and with the packages that it installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import wave
from io import BytesIO
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_demo(data: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {
        "WDSCLI_VENV": sys.prefix,
        "DEMO_DATA": str(data),
        "DEMO_PICTURES": "40",
        **environ,
    }
    return subprocess.run(
        [ROOT / "scripts" / "demo", *args],
        env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def demo(data: Path, *args: str, **environ: str) -> str:
    done = run_demo(data, *args, **environ)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.exhaustive
def test_demo_on_its_own_pictures_twice_in_a_row(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    for _ in range(2):
        said = demo(tmp_path)
        assert said.count("webdataset read 40 samples") == 3
        for command in ("create", "ls --summary", "cat", "verify --decode", "shuffle", "verify", "split", "sort",
                        "merge --join", "run"):  # fmt: skip
            assert f"$ wds {command} " in said
        steps = [before for before, line in zip(said.splitlines(), said.splitlines()[1:]) if line[:2] == "$ "]
        assert all(re.match("# [A-Z].+[.]$", why) for why in steps), "each step says what it is for"
        assert f"{tmp_path}/report.html" in said.splitlines()[-4]
        assert (tmp_path / "report.html").exists()


def png(shade: int) -> bytes:
    from PIL import Image

    held = BytesIO()
    Image.new("L", (1, 1), shade).save(held, "PNG")
    return held.getvalue()


def wav() -> bytes:
    held = BytesIO()
    with wave.open(held, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(b"\0\1" * 100)
    return held.getvalue()


FOLDERS = {
    "flat": (5, lambda: {f"{number}.png": png(number) for number in range(5)}),
    "one": (1, lambda: {"only.wav": wav()}),
    "labels": (6, lambda: {f"{kind}/{name}": b"1" for kind in "ab" for name in ("0.cls", "1.txt", "2.txt")}),
    "mixed": (
        9,
        lambda: {
            "a.png": png(1), "b.wav": wav(), "c/d/e.txt": b"text", "c/f g.txt": b"text", "v1.2/h.txt": b"text",
            "empty.txt": b"", "broken.json": b"{", "many.dots.in.name.png": png(2), "it's $HOME.txt": b"text",
            "README": b"no field", ".hidden.txt": b"hidden", ".git/config.txt": b"hidden",
        },
    ),
}  # fmt: skip


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", FOLDERS)
def test_demo_on_any_folder_of_files(name: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    count, make = FOLDERS[name]
    for path, payload in make().items():
        file = tmp_path / "in" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(payload)
    said = demo(tmp_path / "data", str(tmp_path / "in"))
    assert said.count(f"webdataset read {count} samples") >= 2
    assert said.count("webdataset read ") == 3


@pytest.mark.exhaustive
def test_demo_on_one_file(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text("text")
    assert demo(tmp_path / "data", str(tmp_path / "only.txt")).count("webdataset read 1 sample") == 3


def test_demo_on_a_path_that_is_missing(tmp_path: Path) -> None:
    done = run_demo(tmp_path / "data", "nowhere")
    assert (done.returncode, done.stdout) == (2, "error: nowhere: no such folder or file\n")


BLOCKED = """
import sys
for name in ("aiobotocore", "aiohttp", "botocore", "boto3", "duckdb", "obstore", "pyarrow", "s3fs", "torch"):
    sys.modules[name] = None
"""


@pytest.mark.exhaustive
def test_the_demo_needs_no_more_than_it_installs(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(BLOCKED)
    demo(tmp_path / "data", PYTHONPATH=f"{tmp_path / 'path'}")
    listed = subprocess.run(
        [sys.executable, "scripts/_requirements.py", "local,demo"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\n")
    names = {re.match(r"[\w-]*", line)[0].lower() for line in listed}  # type: ignore[index]
    assert {"numpy", "rich", "typer", "pillow", "jinja2", "webdataset"} <= names
    assert not names & {"s3fs", "obstore", "torch", "pytest"}


@pytest.mark.exhaustive
def test_demo_on_a_folder_of_ones_own(tmp_path: Path) -> None:
    photos = tmp_path / "my photos"
    photos.mkdir()
    for number in range(5):
        (photos / f"{number}.txt").write_text(f"text {number}")
        (photos / f"{number}.cls").write_text(str(number))
    said = demo(tmp_path / "data", str(photos))
    assert said.count("webdataset read 5 samples") == 3
