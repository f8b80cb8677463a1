"""An unfinished set is marked, and readers refuse it where old and new shards may be mixed.

Runs are killed by SIGKILL before every file they write or remove.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from killed_runs import killed_runs
from shard_cases import content, keys_of, numbered, wds, write_shards
from storage_servers import S3, forget_listings

import wdscli.loader as wds_loader
from wdscli.errors import InputError
from wdscli.shards import ShardWriter, open_set

STATE = ".out.unfinished"


@pytest.fixture(scope="module")
def killed() -> Iterator[Callable[[int, list[str]], int]]:
    with killed_runs() as run:
        yield run


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files, a set, and in ``old`` the set that is replaced or added to: more shards than the new one has."""
    folder = tmp_path_factory.mktemp("given")
    for name, count in (("files", 6), ("more", 9)):
        (folder / name).mkdir()
        for number in range(count):
            (folder / name / f"{name}{number}.txt").write_text(f"{name} {number}")
    write_shards(folder / "in", [numbered(2, "a"), numbered(2, "b"), numbered(2, "c")])
    old = ["create", str(folder / "more"), "-o", f"{folder}/old/out-%06d.tar", "--max-count", "2", "-q"]
    assert wds(*old).code == 0
    old = ["cat", *sorted(map(str, (folder / "in").glob("*.tar"))), "-o", f"{folder}/each/{{name}}.tar", "-q"]
    assert wds(*old).code == 0
    return folder


COMMANDS = {
    "create": "create {given}/files -o {out}/out-%06d.tar --max-count 2 --force",
    "append": "create {given}/more {given}/files -o {out}/out-%06d.tar --max-count 2 --append --on-duplicate skip",
    "shuffle": "shuffle {given}/in -o {out}/out-%06d.tar --max-count 3 --force",
    "braces": "shuffle {given}/in -o {out}/out-{{000000..000002}}.tar --force",
    "map": "map {given}/in -o {out}/out-%06d.tar --filter cls cat --force",
    "cat": "cat {given}/in -o {out}/{{name}}.tar --force",
}


def words_of(name: str, given: Path, out: object) -> list[str]:
    return [*COMMANDS[name].format(given=given, out=out).split(), "-q", "-j1"]


def keys_read(*names: object) -> list[str] | None:
    """The keys that the loader and the commands read; None where both refuse the set."""
    ran = wds("ls", *names, "--json")
    loaded = None
    try:
        data = wds_loader.WebDataset([str(name) for name in names], shuffle="none")
        loaded = [sample["__key__"] for sample in data]
    except InputError as error:
        assert "unfinished" in error.message
        assert "--resume" in str(error.hint) or "--force" in str(error.hint)
    if ran.code == 4:
        assert "is unfinished" in ran.err
        assert all(len(line) < 200 for line in ran.err.splitlines())
        assert loaded is None
        return None
    assert ran.code == 0, ran.err
    listed = [json.loads(line)["key"] for line in ran.out.splitlines()]
    assert loaded is None or loaded == listed
    return listed


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_every_step(
    name: str, given: Path, tmp_path: Path, killed: Callable[[int, list[str]], int]
) -> None:
    """Whoever reads the set sees the old one, the new one, or an error; --resume makes the new one of it."""
    old, wanted = given / ("each" if name == "cat" else "old"), tmp_path / "wanted"
    shutil.copytree(old, wanted)
    assert wds(*words_of(name, given, wanted)).code == 0
    before, after = (keys_of(*sorted(folder.glob("*.tar"))) for folder in (old, wanted))
    refused = 0
    for step in range(99):
        out = tmp_path / f"step-{step}"
        shutil.copytree(old, out)
        words = words_of(name, given, out)
        if killed(step, words) == 0:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for found in (keys_read(out), keys_read(out / "*.tar"), keys_read(*sorted(out.glob("*.tar")))):
                refused += found is None
                assert found is None or found in (before, after), (step, found)
        again = [*words, "--resume"] if name != "cat" else words
        assert wds(*again).code == 0, step
        assert content(out) == content(wanted), step
    assert refused > 5
    assert step > 5


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", ["create", "append", "shuffle"])
def test_killed_on_s3(
    name: str, given: Path, s3: S3, tmp_path: Path, killed: Callable[[int, list[str]], int]
) -> None:
    """The same in a bucket, where no lock says that a run has ended; no receipt stays."""
    shutil.copytree(given / "old", tmp_path / "wanted")
    assert wds(*words_of(name, given, tmp_path / "wanted")).code == 0
    wanted = content(tmp_path / "wanted")
    before = keys_of(*sorted((given / "old").glob("*.tar")))
    after = keys_of(*sorted((tmp_path / "wanted").glob("*.tar")))
    refused = 0
    for step in range(0, 99, 4):
        bucket = s3.bucket(f"{name}-{step}")
        for path in filter(Path.is_file, (given / "old").rglob("*")):
            s3.client.put_object(
                Bucket=bucket, Key=str(path.relative_to(given / "old")), Body=path.read_bytes()
            )
        words = words_of(name, given, f"s3://{bucket}")
        if killed(step, words) == 0:
            break
        shards = [f"s3://{bucket}/{key}" for key in s3.names(bucket) if key.endswith(".tar")]
        for names in ([f"s3://{bucket}/"], [f"s3://{bucket}/*.tar"], shards):
            forget_listings()
            found = keys_read(*names)
            refused += found is None
            assert found is None or found in (before, after), (step, found)
        assert wds(*words, "--resume").code == 0, step
        assert {key: s3.get(bucket, key) for key in s3.names(bucket)} == wanted, step
    assert refused > 5
    assert step > 11


@pytest.mark.exhaustive
def test_receipts_that_stayed_are_cleared_by_the_next_run(given: Path, s3: S3, tmp_path: Path) -> None:
    """A run that was killed after its manifest has left them."""
    bucket = s3.bucket("receipts")
    receipts = [".wds/out-000000.tar.done", ".wds/out-000009.tar.done", ".wds/out-manifest.json.done"]
    other = ".wds/else-000000.tar.done"
    for out in (f"s3://{bucket}", str(tmp_path)):
        words = [*words_of("shuffle", given, out)[:-3], "--force", "-q"]
        assert wds(*words).code == 0
        for more in (["--resume"], [], ["--if-changed"], ["--if-changed"]):
            for name in (*receipts, other):
                s3.client.put_object(Bucket=bucket, Key=name, Body=b"{}")
                (tmp_path / ".wds").mkdir(exist_ok=True)
                (tmp_path / name).write_bytes(b"{}")
            forget_listings()
            assert wds(*[word for word in words if word != "--force" or not more], *more).code == 0, more
            left = s3.names(bucket) if out.startswith("s3") else list(content(tmp_path))
            assert [name for name in left if name.endswith(".done")] == [other], more


@pytest.fixture
def half(given: Path, tmp_path: Path, killed: Callable[[int, list[str]], int]) -> Path:
    """A set in which one shard of three was replaced, and the run has ended."""
    shutil.copytree(given / "old", tmp_path / "out")
    words = words_of("create", given, tmp_path / "out")
    assert killed(9, words) < 0
    assert keys_of(tmp_path / "out" / "out-000000.tar") == ["files0", "files1"]
    return tmp_path / "out"


READERS = """
    ls
    ls --by shard
    ls --on-error skip
    cat -o -
    cat --to tsv
    cat -o {new}/{{name}}.tar
    shuffle -o {new}/%d.tar
    merge -o {new}/%d.tar
    split --max-count 1 -o {new}/%d.tar
    sort --by key -o {new}/%d.tar
    map --filter txt cat -o {new}/%d.tar
    diff {given}/old
    index
    report -o {new}.html
    bench
    repair -o {new}/%d.tar
"""


@pytest.mark.parametrize("line", READERS.strip().splitlines())
def test_every_command_refuses_it(line: str, half: Path, given: Path, tmp_path: Path) -> None:
    command, *more = line.format(given=given, new=tmp_path / "new").split()
    shards = sorted(half.glob("*.tar"))
    for names in ([half], [half / "out-*.tar"], [half / "out-{000000..000002}.tar"], shards):
        if command == "diff" and len(names) > 1:
            continue
        ran = wds(command, *names, *more)
        assert ran.code == 4, (line, ran.err)
        assert "is unfinished: a run has replaced only some of its shards" in ran.err
        assert "--resume" in ran.err
        assert "`wds index --force`" in ran.err
    assert not (tmp_path / "new").exists()


def test_the_library_refuses_it(half: Path) -> None:
    for names in (str(half), f"{half}/out-{{000000..000002}}.tar", list(map(str, half.glob("*.tar")))):
        with pytest.raises(InputError, match="unfinished"):
            len(wds_loader.IndexedDataset(names))
        with pytest.raises(InputError, match="unfinished"):
            next(iter(wds_loader.WebDataset(names)))
        with pytest.raises(InputError, match="unfinished"):
            open_set([names] if isinstance(names, str) else names)


def test_a_shard_that_is_named_alone_is_read(half: Path) -> None:
    assert wds("ls", half / "out-000000.tar").code == 0
    assert open_set([str(half / "out-000002.tar")]).unfinished == ()


def test_verify_reports_it(half: Path) -> None:
    ran = wds("verify", half, "--json")
    assert ran.code == 1
    assert [one["code"] for one in ran.objects if "code" in one] == ["unfinished"]


def test_index_force_accepts_the_shards_as_they_are(half: Path) -> None:
    assert (half / STATE).exists()
    assert wds("index", half, "--force").code == 0
    assert not [name for name in content(half) if name.endswith((".unfinished", ".done"))]
    assert wds("verify", half).code in (0, 1)
    assert len(keys_read(half) or []) == 9


def test_a_run_that_is_replacing_it_now(given: Path, tmp_path: Path) -> None:
    shutil.copytree(given / "old", tmp_path / "out")
    with ShardWriter(f"{tmp_path}/out/out-%06d.tar", max_count=1, force=True) as writer:
        for number in range(3):
            writer.write(f"k{number}", {"txt": b"x"})
        ran = wds("ls", tmp_path / "out")
        assert ran.code == 4
        assert "is being replaced by another run" in ran.err
        assert "hint: wait until that run has ended" in ran.err
    assert keys_read(tmp_path / "out") == ["k0", "k1", "k2"]


def test_a_new_set_is_read_with_a_warning(tmp_path: Path) -> None:
    writer = ShardWriter(f"{tmp_path}/out-%06d.tar", max_count=1)
    writer.write("k0", {"txt": b"x"})
    writer.write("k1", {"txt": b"x"})
    for ran in (wds("ls", tmp_path), wds("cat", tmp_path, "-o", "-")):
        assert ran.code == 0
        assert ran.err.count("out-%06d.tar is being written by another run") == 1
    with pytest.warns(UserWarning, match="is being written by another run"):
        assert [sample["__key__"] for sample in wds_loader.WebDataset(str(tmp_path))] == ["k0"]
    writer.discard()
    ran = wds("ls", tmp_path)
    assert "is unfinished: a run has not written all of its shards" in ran.err
    assert "run the program again with force=True, and close its writer" in ran.err


def test_shards_that_are_appended(
    given: Path, tmp_path: Path, killed: Callable[[int, list[str]], int]
) -> None:
    """Reading the old shards by their manifest, or by their names, is right at any time."""
    shutil.copytree(given / "old", tmp_path / "out")
    assert killed(6, words_of("append", given, tmp_path / "out")) < 0
    before = keys_of(*sorted((given / "old").glob("*.tar")))
    ran = wds("ls", tmp_path / "out")
    assert ran.code == 4
    assert f"read {tmp_path}/out/out-manifest.json" in ran.err
    assert keys_read(tmp_path / "out" / "out-manifest.json") == before
    assert keys_read(f"{tmp_path}/out/out-{{000000..000004}}.tar") == before
    assert keys_read(f"{tmp_path}/out/out-{{000000..000005}}.tar") is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("pattern", ["{part}/out-%d.tar", "{part}-%d.tar", "%03d/x.tar", "50%%/x-%d.tar"])
def test_parts_and_folders_with_numbers(
    pattern: str, given: Path, tmp_path: Path, killed: Callable[[int, list[str]], int]
) -> None:
    out = tmp_path / "out"
    words = ["split", *map(str, (given / "in").glob("*.tar")), "--max-count", "1", "-q", "-j1"]
    words += ["-o", f"{out}/{pattern}", *(["--ratio", "one=1,two=1"] if "part" in pattern else [])]
    assert wds(*words).code == 0
    wanted = content(out)
    assert not [name for name in wanted if name.endswith(".unfinished")]
    assert killed(14, [*words, "--force"]) < 0
    assert keys_read(out / "*" / "*.tar" if "/" in pattern else out) is None
    assert wds(*words, "--resume").code == 0
    assert content(out) == wanted


@pytest.mark.exhaustive
def test_a_run_that_fails_before_its_first_shard_leaves_nothing(given: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for pattern in ("out/x-%d.tar", "new/x-%d.tar", "new/{name}.tar"):
        assert wds("map", given / "in", "-o", tmp_path / pattern, "--filter", "cls", "false", "-q").code != 0
        assert list((tmp_path / "out").rglob("*")) == []
        assert not (tmp_path / "new").exists()
