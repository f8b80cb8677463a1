"""Views as outputs: killed, interrupted, on a full disc, refused by a store. There is the whole view under its name, or
none; ``--resume`` and ``--force`` are what they are for shards."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import Fault, FaultProxy, fault_proxy
from killed_runs import killed_runs
from shard_cases import content, interrupt_at, leftovers, no_new_files, numbered, wds, write_shards
from storage_servers import S3, forget_listings, forget_s3

from wdscli.shards import view_shards as views
from wdscli.storage import local

LINES = {
    "rows": "shuffle in --seed 1 -o {out}/v.json",
    "runs": "split in --slice 3: -o {out}/v.json",
    "keys": "split in --rekey new-{{n}} -o {out}/v.json",
    "parts": "split in --ratio a=2,b=1 -o {out}/{{part}}.json",
}
OTHER = "shuffle in --seed 2 --rekey {{n}} -o {out}/v.json"


@pytest.fixture(scope="module")
def killed() -> Iterator[Callable[[int, list[str]], int]]:
    with killed_runs() as run:
        yield run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "in", [numbered(9, "a"), numbered(9, "b"), numbered(7, "c")])
    return tmp_path


def words_of(line: str, out: object, *more: str) -> list[str]:
    return [*line.format(out=out).split(), "-q", "-j1", *more]


def wanted_of(line: str) -> dict[str, bytes]:
    """The files of an undisturbed run, beside the sets as ``out`` is."""
    ran = wds(*words_of(line, "wanted"))
    assert ran.code == 0, ran.err
    return content(Path("wanted"))


def assert_whole_or_none(folder: Path, *wanted: dict[str, bytes]) -> None:
    """Each view is that of one run, and reads."""
    views.forget()
    found = content(folder) if folder.exists() else {}
    for name, data in found.items():
        if name.endswith(".json"):
            [own] = [one for one in wanted if one[name] == data]
            rows = name.replace(".json", ".rows")
            # A view without rows does not look at those of an older one.
            assert rows not in own or found[rows] == own[rows], name
            ran = wds("cat", folder / name, "-o", "-")
            assert ran.code == 0, ran.err
        else:
            assert name.endswith((".rows", ".tmp")), name


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", LINES)
def test_killed(name: str, folder: Path, killed: Callable[[int, list[str]], int]) -> None:
    wanted = wanted_of(LINES[name])
    for step in range(20):
        out = folder / f"out{step}"
        out.mkdir()
        code = killed(step, words_of(LINES[name], out.name))
        assert_whole_or_none(out, wanted)
        if code == 0:
            assert step >= len(wanted)
            break
        assert content(out) != wanted
        # What a killed run leaves is in the way of no later one.
        again = words_of(LINES[name], out.name, "--resume")
        assert killed(step, again) in (0, -signal.SIGKILL)
        assert_whole_or_none(out, wanted)
        ran = wds(*again)
        assert ran.code == 0, ran.err
        assert content(out) == wanted
    else:
        pytest.fail("it never ended")


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", ["rows", "runs", "keys"])
def test_killed_while_it_replaces_a_view(
    name: str, folder: Path, killed: Callable[[int, list[str]], int]
) -> None:
    wanted, before = wanted_of(LINES[name]), folder / "before"
    assert wds(*words_of(OTHER, before)).code == 0
    old = content(before)
    for step in range(20):
        out = folder / f"out{step}"
        assert wds(*words_of(OTHER, out)).code == 0
        code = killed(step, words_of(LINES[name], out.name, "--force"))
        assert_whole_or_none(out, wanted, old)
        if code == 0:
            assert content(out) == wanted
            break
        assert wds(*words_of(LINES[name], out.name, "--force")).code == 0
        assert content(out) == wanted
    else:
        pytest.fail("it never ended")


@pytest.mark.parametrize("name", LINES)
def test_interrupted(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = wanted_of(LINES[name])
    for step in range(len(wanted)):
        out = folder / f"out{step}"
        with monkeypatch.context() as patch:
            interrupt_at(patch, step)
            assert wds(*words_of(LINES[name], out.name)).code == 130
        assert_whole_or_none(out, wanted)
        assert not leftovers(out)
        # A view that was written already stays; rows without their view do not.
        found = content(out) if out.exists() else {}
        assert [
            one for one in found if one.endswith(".rows") and one.replace(".rows", ".json") not in found
        ] == []
        ran = wds(*words_of(LINES[name], out.name, "--resume"))
        assert ran.code == 0, ran.err
        assert content(out) == wanted


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["rows", "runs"])
def test_a_full_disc(name: str, force: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each write: nothing new is there, and the old view stays."""
    wanted, out = wanted_of(LINES[name]), folder / "out"
    if force:
        assert wds(*words_of(OTHER, out.name)).code == 0
    before = content(out) if force else {}
    for step in range(20):
        left = step

        def write_all(descriptor: int, data: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            os.write(descriptor, data)

        with monkeypatch.context() as patch:
            patch.setattr(local, "write_all", write_all)
            ran = wds(*words_of(LINES[name], out.name, *(["--force"] if force else [])))
        if ran.code == 0:
            assert step > 1 or name == "runs"
            assert content(out) == wanted
            return
        assert ran.code == 4
        assert "no space" in ran.err.lower()
        assert (content(out) if out.exists() else {}) == before
    pytest.fail("it never ended")


def test_resume_and_force_as_for_shards(folder: Path) -> None:
    wanted = wanted_of(LINES["rows"])
    again = words_of(LINES["rows"], "out")
    assert wds(*again, "--resume").code == 0
    # A view that is whole stays as it is.
    inode = Path("out/v.json").stat().st_ino
    with no_new_files(folder / "out"):
        assert wds(*again, "--resume").code == 0
        assert Path("out/v.json").stat().st_ino == inode
        # Another view in its place is in the way.
        for line in (OTHER, LINES["runs"]):
            for more in ([], ["--resume"]):
                ran = wds(*words_of(line, "out", *more))
                assert (ran.code, "out/v.json" in ran.err, "--force" in ran.err) == (4, True, True), ran.err
    assert content(folder / "out") == wanted
    # A view without rows has none beside it.
    assert wds(*words_of(LINES["runs"], "out", "--force")).code == 0
    assert list(content(folder / "out")) == ["v.json"]
    # Rows that an older view has left are in the way too.
    Path("out/v.json").unlink()
    Path("out/v.rows").write_bytes(b"of another view")
    with no_new_files(folder / "out"):
        ran = wds(*again)
        assert (ran.code, "out/v.rows" in ran.err) == (4, True), ran.err
    assert wds(*again, "--resume").code == 0
    assert content(folder / "out") == wanted


def test_no_part_is_written_if_one_is_in_the_way(folder: Path) -> None:
    Path("out").mkdir()
    Path("out/b.json").write_text("{}")
    with no_new_files(folder / "out"):
        ran = wds(*words_of(LINES["parts"], "out"))
        assert (ran.code, "out/b.json" in ran.err) == (4, True), ran.err


@pytest.mark.parametrize("name", LINES)
def test_a_dry_run_writes_nothing(name: str, folder: Path) -> None:
    with no_new_files(folder):
        for more in ([], ["--resume"]):
            ran = wds(*words_of(LINES[name], "out", "--dry-run", *more))
            assert (ran.code, "Traceback" in ran.err) == (0, False), ran.err
    assert not Path("out").exists()


@pytest.fixture
def far(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """The way to the server."""
    with fault_proxy(int(s3.endpoint.rpartition(":")[2])) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("WDSCLI_RETRIES", "1")
        forget_s3()
        yield proxy
    forget_s3()


def stored(s3: S3, bucket: str) -> dict[str, bytes]:
    return {name: s3.get(bucket, name) for name in s3.names(bucket)}


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", ["rows", "runs"])
@pytest.mark.parametrize("where", ["v.json", "v.rows"])
@pytest.mark.parametrize("kind", ["503 once", "503", "403", "cut once"])
def test_a_store_that_fails(kind: str, where: str, name: str, s3: S3, far: FaultProxy, folder: Path) -> None:
    bucket = s3.bucket(f"view-{kind.replace(' ', '-')}-{where[2:]}-{name}")
    for path in sorted(Path("in").glob("*.tar")):
        s3.client.put_object(Bucket=bucket, Key=f"in/{path.name}", Body=path.read_bytes())
    forget_listings()
    line = words_of(LINES[name].replace(" in ", f" s3://{bucket}/in "), f"s3://{bucket}/out")
    fault = {
        "503 once": Fault("status", 1, where=f"^PUT .*{where}", status=503),
        "503": Fault("status", inf, where=f"^PUT .*{where}", status=503),
        "403": Fault("status", inf, where=f"^PUT .*{where}", status=403),
        "cut once": Fault("cut", 1, where=f"^PUT .*{where}", after=20),
    }[kind]
    far.clear(fault)
    before = stored(s3, bucket)
    ran = wds(*line)
    wanted = wanted_of(LINES[name])
    is_written = kind.endswith("once") or (name, where) == ("runs", "v.rows")
    if not is_written:
        assert ran.code == 4
        assert f"s3://{bucket}/out/{where}" in ran.err
        assert stored(s3, bucket) == before
        assert s3.pending(bucket) == []
        far.clear()
        ran = wds(*line)
    assert ran.code == 0, ran.err
    found = {one: data for one, data in stored(s3, bucket).items() if one.startswith("out/")}
    assert found.keys() == {f"out/{one}" for one in wanted}
    assert found.get("out/v.rows") == wanted.get("v.rows")


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", ["rows", "runs"])
def test_killed_on_s3(name: str, s3: S3, folder: Path, killed: Callable[[int, list[str]], int]) -> None:
    bucket, wanted = s3.bucket(f"view-killed-{name}"), dict[str, bytes]()
    for path in sorted(Path("in").glob("*.tar")):
        s3.client.put_object(Bucket=bucket, Key=f"in/{path.name}", Body=path.read_bytes())
    line = words_of(LINES[name].replace(" in ", f" s3://{bucket}/in "), f"s3://{bucket}/out")
    for step in (99, 4, 3, 2, 1, 0):
        forget_listings()
        code = killed(step, line)
        found = {one: data for one, data in stored(s3, bucket).items() if one.startswith("out/")}
        wanted = wanted or found
        assert found == wanted or "out/v.json" not in found
        forget_listings()
        assert wds(*line, "--resume").code == 0
        assert {one: data for one, data in stored(s3, bucket).items() if one.startswith("out/")} == wanted
        assert s3.pending(bucket) == []
        for one in wanted:
            s3.client.delete_object(Bucket=bucket, Key=one)
    assert code == -signal.SIGKILL


@pytest.mark.parametrize(
    "line",
    [
        "cat {} -o {}",
        "split {} -o {}",
        "map {} --cmd cat -o {}",
        "merge --join left {} in -o {} --allow-empty",
    ],
)
def test_a_view_without_shards(line: str, folder: Path) -> None:
    """It is a set like others: it is made real as a manifest, and further views are made of it."""
    assert wds("sort", "in", "--keys", "none", "--allow-empty", "-o", "v.json").code == 0
    for output in ("real/{name}.tar", "again.json")[: 1 if line.startswith("map") else 2]:
        ran = wds(
            *[word if word != "{}" else "v.json" for word in line.replace("-o {}", f"-o {output}").split()]
        )
        assert ran.code == 0, ran.err
    assert json.loads(Path("real/manifest.json").read_text())["wdscli"]["samples"] == 0


@pytest.mark.parametrize("name", ["v%d.json", "v%06d.json", "{name}.json", "v{0..3}.json"])
def test_a_name_of_several_files(name: str, folder: Path) -> None:
    for command in ("split", "shuffle"):
        ran = wds(command, "in", "-o", name)
        assert (ran.code, f"{name} names several files" in ran.err) == (2, True), ran.err


def test_a_damaged_shard_is_no_base(folder: Path) -> None:
    shard = Path("in/in-1.tar")
    shard.write_bytes(shard.read_bytes().replace(b"b003.cls", b"b0?3.cls"))
    ran = wds("split", "in", "--on-error", "skip", "-o", "v.json")
    assert (ran.code, "in/in-1.tar" in ran.err, "wds repair" in ran.err) == (3, True, True), ran.err
