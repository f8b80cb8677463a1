"""The compiled core: built where it can be, left out where it cannot, and what is packed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from wdscli import __version__
from wdscli.tar.core import CORE

ROOT = Path(__file__).parent.parent.parent
HEADERS = Path(sysconfig.get_path("include")) / "Python.h"
HAS_COMPILER = bool((shutil.which("cc") or shutil.which("gcc")) and HEADERS.exists())
BUILD = """
import os, sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""
ASK = """
from wdscli import version_line
before = version_line()
from wdscli.tar.core import CORE
assert version_line() == before
print(CORE is not None, before)
"""


def test_both_cores_are_tested() -> None:
    """Where this is skipped, the tests of tar, samples, copying and reading ran with plain Python alone."""
    if os.environ.get("WDSCLI_PURE", "") not in ("", "0"):
        pytest.skip("the compiled core was not tested: WDSCLI_PURE is set")
    if not HAS_COMPILER and CORE is None:
        pytest.skip("the compiled core was not tested: no C compiler here, or no headers of Python")
    assert CORE is not None, "it can be built here: python setup.py build_ext --inplace"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone has, without what was built in it."""
    pytest.importorskip("setuptools", minversion="77")
    if not (ROOT / "setup.py").exists():
        pytest.skip("not a checkout")
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("wdscli", "man", "scripts"):
        leave = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
        shutil.copytree(ROOT / name, copy / name, ignore=leave)
    (copy / "tests").mkdir()
    for path in ROOT.glob("*.*"):
        if path.is_file():
            shutil.copy(path, copy)
    shutil.copy(ROOT / "LICENSE", copy)
    return copy


def build(what: str, folder: Path, out: Path, **environ: str) -> Path:
    """``wheel`` or ``sdist`` of the checkout in ``folder``, as pip would have it made, but for the isolation."""
    shutil.rmtree(folder / "build", ignore_errors=True)
    out.mkdir()
    words = [sys.executable, "-c", BUILD, f"build_{what}", str(out)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environ
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.split()[-1]


def packed(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


@pytest.mark.exhaustive
def test_without_a_compiler_it_is_built_all_the_same(checkout: Path, tmp_path: Path) -> None:
    wheel = build("wheel", checkout, tmp_path / "out", CC=str(tmp_path / "no-compiler"))
    assert not [name for name in packed(wheel) if name.endswith(".so")]
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as opened:
        [about] = [name for name in opened.namelist() if name.endswith(".dist-info/WHEEL")]
        assert "Root-Is-Purelib: true" in opened.read(about).decode()
        assert "wdscli/__init__.py" in opened.namelist()
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "installed")
    told = subprocess.run(
        [sys.executable, "-m", "wdscli", "--version"],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
    )  # fmt: skip
    assert told.stdout.endswith("(plain Python core)\n")


@pytest.mark.exhaustive
@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler here, or no headers of Python")
def test_a_wheel_from_the_sdist_holds_everything(checkout: Path, tmp_path: Path) -> None:
    sdist = build("sdist", checkout, tmp_path / "sdist")
    with tarfile.open(sdist) as opened:
        opened.extractall(tmp_path)
    wheel = build("wheel", tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "wheel")
    assert "-cp310-abi3-" in wheel.name
    names = packed(wheel)
    modules = {
        str(path.relative_to(ROOT)) for path in (ROOT / "wdscli").rglob("*.py*") if path.suffix != ".pyc"
    }
    page = {str(path.relative_to(ROOT)) for path in (ROOT / "wdscli" / "report").glob("page.[!p]*")}
    assert len(page) == 3
    assert {name for name in names if name.startswith("wdscli/")} == modules | page | {
        "wdscli/py.typed",
        "wdscli/tar/_core.abi3.so",
        "wdscli/tar/_crc.abi3.so",
    }
    pages = {f"share/man/{path.parent.name}/{path.name}" for path in (ROOT / "man").glob("man[157]/*")}
    assert {name.partition(".data/data/")[2] for name in names if ".data/" in name} == pages
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "installed")
    told = subprocess.run(
        [sys.executable, "-m", "wdscli", "--version"],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
    )  # fmt: skip
    assert told.stdout.endswith("(compiled core)\n")


@pytest.mark.skipif(CORE is None, reason="not with the compiled core")
@pytest.mark.parametrize("state", ["there", "plain chosen", "not there", "broken"])
def test_the_version_names_the_core_that_is_imported(state: str, tmp_path: Path) -> None:
    leave = shutil.ignore_patterns("__pycache__", *([] if state in ("there", "plain chosen") else ["*.so"]))
    shutil.copytree(ROOT / "wdscli", tmp_path / "wdscli", ignore=leave)
    if state == "broken":
        (tmp_path / "wdscli" / "tar" / "_core.abi3.so").write_bytes(b"no library")
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path),
        "WDSCLI_PURE": "1" if state == "plain chosen" else "",
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    told = "True wdscli {} (compiled core)\n" if state == "there" else "False wdscli {} (plain Python core)\n"
    assert done.stdout == told.format(__version__), done.stderr
