"""``wds dsort``: jobs of AIStore's dSort against the commands that say the same, every field, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shard_cases import (
    Ran,
    content,
    keys_of,
    leftovers,
    no_new_files,
    numbered,
    outputs,
    wds,
    write_shards,
)
from storage_servers import web_server

from wdscli.errors import UsageError
from wdscli.ops.dsort_job import parse_job

Command = Callable[..., Ran]
COMMAND = ["run"]
POST: dict[str, Any] = {
    "extension": ".tar",
    "bck": {"name": "images"},
    "input_format": "samples-{00..18}",
    "output_format": "shuffled-shard-%d",
    "output_shard_size": "100MB",
    "description": "Create new shuffled shards",
    "algorithm": {"kind": "shuffle"},
}
"""The job of AIStore's post on WebDataset, as it stands."""
PLAIN: dict[str, Any] = {
    "input_extension": ".tar",
    "input_bck": {"name": "in", "provider": "ais"},
    "output_bck": {"name": "out"},
    "input_format": {"template": "shard-{0..2}"},
    "output_format": "new-{0000..1000}",
    "output_shard_size": "10KB",
}
SAMPLES = [numbered(5, "b"), numbered(7, "a"), numbered(3, "c")]
KEYS = sorted(name.split(".")[0] for shard in SAMPLES for (name, _), *_ in shard)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the folder ``in`` of three shards, in which the command runs."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(write_shards(tmp_path / "in", SAMPLES)):
        Path(name).rename(tmp_path / "in" / f"shard-{number}.tar")
    return tmp_path


@pytest.fixture
def job(good: Command, bucket: Path) -> Callable[..., Ran]:
    """Carry out PLAIN with some fields changed; one that is None is left out."""

    def call(*options: object, **changes: Any) -> Ran:
        return good(written(bucket, **changes), *options)

    return call


def written(folder: Path, **changes: Any) -> Path:
    plain = {name: value for name, value in {**PLAIN, **changes}.items() if value is not None}
    path = folder / "job.json"
    path.write_text(json.dumps(plain))
    return path


def new_keys(folder: Path, pattern: str = "new-*.tar") -> list[str]:
    return keys_of(*outputs(folder / "out", pattern))


Job = Callable[..., Ran]


class TestThePost:
    def test_as_it_stands(self, good: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        made = write_shards(tmp_path / "images", [numbered(4, f"n{shard:02d}-") for shard in range(19)])
        for number, name in enumerate(made):
            Path(name).rename(tmp_path / "images" / f"samples-{number:02d}.tar")
        (tmp_path / "job.json").write_text(json.dumps(POST))
        ran = good("job.json")
        assert "shuffled 76 samples into 1 shard" in ran.err
        assert wds("shuffle", "images/samples-{00..18}.tar", "-o", "same-%d.tar").code == 0
        assert (tmp_path / "images/shuffled-shard-0.tar").read_bytes() == (
            tmp_path / "same-0.tar"
        ).read_bytes()

    def test_elsewhere_and_from_standard_input(self, tmp_path: Path) -> None:
        write_shards(tmp_path / "x", [])
        for number, name in enumerate(write_shards(tmp_path / "x", SAMPLES)):
            Path(name).rename(tmp_path / "x" / f"samples-{number:02d}.tar")
        short = {**POST, "input_format": "samples-{00..02}"}
        ran = wds("run", "-", "--bucket", f"images={tmp_path}/x/", stdin=json.dumps(short).encode())
        assert ran.code == 0, ran.err
        assert sorted(keys_of(tmp_path / "x/shuffled-shard-0.tar")) == KEYS


class TestAlgorithms:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("algorithm", "command"),
        [
            (None, ["sort"]),
            ({"kind": "alphanumeric", "decreasing": True}, ["sort", "--reverse"]),
            ({"kind": "shuffle", "seed": "1056"}, ["shuffle", "--seed", "1056"]),
            ({"kind": "md5"}, ["sort", "--by", "md5"]),
            ({"kind": "md5", "decreasing": True}, ["sort", "--by", "md5:r"]),
            ({"kind": "none"}, ["split"]),
            ({"kind": "content", "extension": ".cls"}, ["sort", "--by", "cls", "--missing", "error"]),
            (
                {"kind": "content", "extension": ".cls", "content_key_type": "int", "decreasing": True},
                ["sort", "--by", "cls:nr", "--missing", "error"],
            ),
        ],
        ids=str,
    )
    def test_the_same_bytes(self, job: Job, bucket: Path, algorithm: Any, command: list[str]) -> None:
        job(algorithm=algorithm)
        name, *options = command
        out = ("-o", "same/new-%04d.tar", "--max-size", 10240, *options)
        assert wds(name, "in/shard-{0..2}.tar", *out, cwd=bucket).code == 0
        assert content(bucket / "out") == content(bucket / "same")
        assert len(outputs(bucket / "out", "new-*.tar")) > 1

    def test_content_of_every_record(self, run: Command, bucket: Path) -> None:
        changes = {"algorithm": {"kind": "content", "extension": ".json"}}
        ran = run(written(bucket, **changes))
        assert ran.code == 3
        assert "json" in ran.err

    @pytest.mark.parametrize(
        ("algorithm", "says"),
        [
            ({"kind": "random"}, "one of alphanumeric, shuffle"),
            ({"kind": "shuffle", "seed": "x"}, "a whole number"),
            ({"kind": "content"}, ".cls"),
            ({"kind": "content", "extension": ".cls", "content_key_type": "date"}, "int, float, string"),
            ({"kinds": "md5"}, "kind"),
            ("shuffle", "kind"),
        ],
    )
    def test_refused(self, run: Command, bucket: Path, algorithm: Any, says: str) -> None:
        ran = run(written(bucket, algorithm=algorithm))
        assert ran.code == 2
        assert says in ran.err


class TestInputs:
    @pytest.mark.parametrize(
        ("given", "keys"),
        [
            ("shard-{0..2}", "bac"),
            ("shard-{0..2..2}.tar", "bc"),
            ({"template": "shard-@1"}, "ba"),
            ({"template": "shard-%d"}, "bac"),
            ({"template": "shard-"}, "bac"),
            ({"template": ""}, "bac"),
            ({"template": "*"}, "bac"),
            ({"prefix": "shard-1"}, "a"),
            ({"objnames": ["shard-2.tar", "shard-0"]}, "cb"),
            ({"regex": "shard-[02][.]tar$"}, "bc"),
        ],
        ids=str,
    )
    def test_formats(self, job: Job, bucket: Path, given: Any, keys: str) -> None:
        job(input_format=given, algorithm={"kind": "none"})
        assert "".join(dict.fromkeys(key[0] for key in new_keys(bucket))) == keys

    @pytest.mark.parametrize(
        "given", [{"template": "a", "regex": "b"}, {"objnames": "a"}, {"list": ["a"]}, 7, "s-{a}"]
    )
    def test_what_is_no_format(self, run: Command, bucket: Path, given: Any) -> None:
        ran = run(written(bucket, input_format=given))
        assert ran.code == 2
        assert "input_format cannot be" in ran.err

    @pytest.mark.parametrize("given", ["shard-{0..3}", {"objnames": ["shard-0", "x"]}])
    def test_missing_shards(self, run: Command, good: Command, bucket: Path, given: Any) -> None:
        with no_new_files(bucket / "in"):
            assert run(written(bucket, input_format=given)).code == 4
        good(written(bucket, input_format=given, missing_shards="warn"))
        assert new_keys(bucket) == [key for key in KEYS if "3" in str(given) or key[0] == "b"]

    def test_none_is_there(self, run: Command, bucket: Path) -> None:
        for given in ({"objnames": ["x"]}, "y-{0..1}", {"regex": "z"}, "q-%d"):
            ran = run(written(bucket, input_format=given, missing_shards="ignore"))
            assert ran.code == 4, given

    def test_no_bucket(self, run: Command, bucket: Path) -> None:
        ran = run(written(bucket, input_bck={"name": "elsewhere"}))
        assert ran.code == 4
        assert "the bucket elsewhere would be the folder elsewhere" in ran.err
        assert "--bucket elsewhere=DIR" in ran.err

    def test_duplicated_records(self, run: Command, good: Command, bucket: Path) -> None:
        again = {"objnames": ["shard-0", "shard-1", "shard-0"]}
        ran = run(written(bucket, input_format=again))
        assert ran.code == 3
        assert '"duplicated_records": "ignore"' in ran.err
        told = good(written(bucket, input_format=again, duplicated_records="ignore")).err
        assert "duplicate-key 5" in told
        assert new_keys(bucket) == [key for key in KEYS if key[0] in "ab"]


class TestOutputs:
    @pytest.mark.parametrize(
        ("given", "first"),
        [
            ("new-{0000..1000}", "new-0000"),
            ("new-@100", "new-000"),
            ("new-%03d", "new-000"),
            ("new-{0..99}", "new-0"),
        ],
    )
    def test_names(self, job: Job, bucket: Path, given: str, first: str) -> None:
        job(output_format=given)
        assert outputs(bucket / "out", "*.tar")[0].name == f"{first}.tar"
        assert new_keys(bucket, "*.tar") == KEYS

    def test_as_many_as_there_are_names(self, job: Job, bucket: Path) -> None:
        job(output_format="new-{05..11..2}", output_shard_size=None)
        assert [path.name for path in outputs(bucket / "out", "*.tar")] == [
            f"new-{n:02d}.tar" for n in (5, 7, 9, 11)
        ]

    def test_more_than_there_are_names(self, run: Command, bucket: Path) -> None:
        path = written(bucket, output_format="new-{0..1}", output_shard_size="4KB")
        for options in ([], ["-n"]):
            ran = run(path, *options)
            assert ran.code == 2
            assert "output_format names 2 shards, but" in ran.err
        assert not outputs(bucket / "out", "*.tar")

    @pytest.mark.parametrize(
        "given", ["new", "new-{1..9}", "new-{0..9..2}", "a-{0..9}-{0..9}", "a-%d-%d", ""]
    )
    def test_refused(self, run: Command, bucket: Path, given: str) -> None:
        ran = run(written(bucket, output_format=given))
        assert ran.code == 2
        assert "output" in ran.err

    def test_sizes_are_powers_of_1024(self) -> None:
        sizes = [
            parse_job({**PLAIN, "output_shard_size": text}, {}).shard_size
            for text in ("10KB", "10KiB", 10240, "1g")
        ]
        assert sizes == [10240, 10240, 10240, 1 << 30]

    def test_another_suffix(self, job: Job, bucket: Path) -> None:
        job(output_extension=".tgz", output_format="new-%d")
        assert (bucket / "out/new-0.tgz").read_bytes()[:2] == b"\x1f\x8b"
        job(
            input_bck={"name": "out"}, input_format="new-%d", input_extension=".tgz", output_extension=".tar",
            output_bck={"name": "again"},
        )  # fmt: skip
        assert keys_of(*outputs(bucket / "again", "*.tar")) == KEYS

    @pytest.mark.parametrize("suffix", [".zip", "rar"])
    def test_what_is_no_tar(self, run: Command, bucket: Path, suffix: str) -> None:
        ran = run(written(bucket, input_extension=suffix))
        assert ran.code == 2
        assert f"input_extension is .{suffix.lstrip('.')}" in ran.err
        assert ("wds create" in ran.err) == (suffix == ".zip")


class TestExternalKeyMap:
    LINES = "".join(f"{key} {'even' if int(key[1:]) % 2 == 0 else 'odd'}-%02d\n" for key in KEYS)

    @pytest.fixture
    def mapped(self, good: Command, bucket: Path) -> Callable[..., Ran]:
        def call(text: str, **changes: Any) -> Ran:
            (bucket / "map").write_text(text)
            more = {"ekm_file": "map", "ekm_file_sep": " ", "output_format": None, **changes}
            return good(written(bucket, **more), "--force")

        return call

    def evens(self, keys: list[str]) -> list[str]:
        return [key for key in keys if int(key[1:]) % 2 == 0]

    def test_lines(self, mapped: Callable[..., Ran], bucket: Path) -> None:
        mapped(self.LINES)
        assert new_keys(bucket, "even-*.tar") == self.evens(KEYS)
        assert len(outputs(bucket / "out", "even-*.tar")) > 1
        assert sorted(new_keys(bucket, "*.tar")) == KEYS

    @pytest.mark.parametrize(
        "algorithm",
        [{"kind": "md5"}, {"kind": "none"}, {"kind": "shuffle", "seed": "3"}, {"decreasing": True}],
        ids=str,
    )
    def test_order_in_each(self, mapped: Callable[..., Ran], bucket: Path, algorithm: dict[str, Any]) -> None:
        mapped(self.LINES, algorithm=algorithm)
        kind = algorithm.get("kind")
        if kind == "md5":
            keys = sorted(KEYS, key=lambda key: hashlib.md5(key.encode()).digest())
        elif kind == "shuffle":
            assert wds("shuffle", "in", "-o", "one.tar", "--seed", 3, cwd=bucket).code == 0
            keys = keys_of(bucket / "one.tar")
        else:
            keys = KEYS[::-1] if kind is None else keys_of(*sorted((bucket / "in").glob("*.tar")))
        assert new_keys(bucket, "even-*.tar") == self.evens(keys)

    def test_names_of_members_json_and_expressions(self, mapped: Callable[..., Ran], bucket: Path) -> None:
        field = write_field(bucket)
        records = {
            "a-{00..99}": ["^a[0-9]+[.]" + field],
            "b-{00..09}": [f"b{n:03d}.{field}" for n in range(5)],
            "c-%02d": ["c"],
        }
        ran = wds("run", self.json(bucket, records), cwd=bucket)
        assert ran.code == 3
        assert 'map has no shard for "c' in ran.err
        assert "ekm_missing_key" in ran.err
        mapped(json.dumps({**records, "c-%02d": ["^c"]}))
        for name in "abc":
            assert new_keys(bucket, f"{name}-*.tar") == [key for key in KEYS if key[0] == name]

    def json(self, folder: Path, records: Any) -> Path:
        (folder / "map").write_text(json.dumps(records))
        return written(folder, ekm_file="map", output_format=None)

    def test_missing_keys(self, mapped: Callable[..., Ran], bucket: Path) -> None:
        told = mapped(self.LINES.replace("b001 ", "x "), ekm_missing_key="warn").err
        assert "left out 1 sample: missing 1" in told
        assert sorted(new_keys(bucket, "*.tar")) == [key for key in KEYS if key != "b001"]

    def test_malformed_lines(self, mapped: Callable[..., Ran], run: Command, bucket: Path) -> None:
        mapped(self.LINES + "nothing\na b c\n", ekm_malformed_line="ignore")
        ran = run(written(bucket, ekm_file="map", ekm_file_sep=" "), "--force")
        assert ran.code == 2
        assert "map, line 16: expected a record and a shard" in ran.err

    @pytest.mark.parametrize(
        ("text", "changes", "says"),
        [
            ("a0\tx-%d\nb0\ty-%02d\n", {}, "numbered in the same way"),
            ("a0\tx-%d-y\n", {}, "does not end with a number"),
            ("a0\tx-%d\na0\ty-%d\n", {}, '"a0" has a second shard'),
            ("a0\tx-%d\n", {"output_shard_size": None}, "needs output_shard_size"),
            (
                "a0\tx-%d\n",
                {"algorithm": {"kind": "content", "extension": ".cls"}},
                "cannot also sort by content",
            ),
            ("", {}, "nothing"),
        ],
    )
    def test_refused(self, run: Command, bucket: Path, text: str, changes: Any, says: str) -> None:
        (bucket / "map").write_text(text)
        ran = run(written(bucket, **{"ekm_file": "map", "output_format": None, **changes}))
        assert ran.code == 2
        assert says in ran.err

    def test_two_expressions_for_one(self, run: Command, bucket: Path) -> None:
        ran = run(self.json(bucket, {"x-%d": ["^a"], "y-%d": ["[a-c]"]}))
        assert ran.code == 3
        assert "of different shards" in ran.err


def write_field(folder: Path) -> str:
    """The first field of the samples."""
    return members_of_first(folder)[0].partition(".")[2]


def members_of_first(folder: Path) -> list[str]:
    import tarfile

    with tarfile.open(folder / "in/shard-0.tar") as tar:
        return tar.getnames()


class TestTheJobItself:
    def test_fields_of_a_cluster_are_named(self, job: Job) -> None:
        told = job(
            max_mem_usage="80%", create_concurrency_max_limit=5, algorithm={"kind": "md5", "seed": "1"}
        ).err
        assert "max_mem_usage" in told
        assert "create_concurrency_max_limit" in told
        assert "algorithm.seed" in told
        assert "description" not in told

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"algoritm": {}}, "did you mean algorithm"),
            ({"bck": {"name": "x"}}, "mean the same"),
            ({"input_bck": None}, "the job has no input_bck"),
            ({"input_bck": {"name": "x", "provider": "ht"}}, "--bucket x="),
            ({"output_shard_size": "big"}, "not a size"),
            ({"output_shard_size": [1]}, "output_shard_size"),
            ({"missing_shards": "retry"}, "ignore, warn, abort"),
            ({"output_format": 7}, "output_format"),
            ({"output_shard_size": True}, "output_shard_size"),
            ({"dry_run": "no"}, "dry_run"),
            ({"input_bck": {"name": "pipe:touch x #"}}, "input_bck"),
            ({"output_bck": {"name": ".."}}, "output_bck"),
            ({"input_format": "a::pipe:touch x #"}, "input_format"),
            ({"input_format": {"objnames": ["../../x"]}}, "input_format"),
            ({"output_format": "../x-%d"}, "output_format"),
            ({"output_format": "/tmp/x-%d"}, "output_format"),
            ({"ekm_file": "pipe:touch x"}, "ekm_file"),
            ({"ekm_file": "-"}, "ekm_file"),
        ],
    )
    def test_refused(self, run: Command, bucket: Path, changes: Any, says: str) -> None:
        ran = run(written(bucket, **changes))
        assert ran.code == 2
        assert says in ran.err

    def test_a_job_that_was_fetched(self, bucket: Path) -> None:
        """It names no place of this machine, unless somebody types where its buckets are."""
        text = written(bucket, ekm_file="map", output_format=None).read_bytes()
        with web_server("ranges") as web:
            web.files["a/job.json"] = text
            web.files["a/map"] = "".join(f"{key}\tnew-%d\n" for key in KEYS).encode()
            job = web.url("a/job.json")
            ran = wds("run", job, cwd=bucket)
            assert ran.code == 4
            assert "--bucket in=DIR" in ran.err
            assert wds("run", job, "--bucket", "in=in", "--bucket", "out=out", cwd=bucket).code == 0
            assert new_keys(bucket) == KEYS
            assert wds("run", job, "--trust-addresses", "--force", cwd=bucket).code == 0
            web.files["a/job.json"] = text.replace(b'"map"', b'"/etc/passwd"')
            ran = wds("run", job, "--bucket", "in=in", "--bucket", "out=out", "--force", cwd=bucket)
            assert ran.code == 4
            assert "/etc/passwd" in ran.err

    def test_where_buckets_are(self) -> None:
        def root(value: Any, **buckets: str) -> str:
            return parse_job({**PLAIN, "input_bck": value, "output_bck": value}, buckets).source.at("a.tar")

        assert root({"name": "b"}) == root("ais://b") == "b/a.tar"
        assert root({"name": "b", "provider": "aws"}) == root("s3://b") == "s3://b/a.tar"
        assert root("gs://b") == "gs://b/a.tar"
        assert root({"name": "b"}, b="/data/x/") == "/data/x/a.tar"
        with pytest.raises(UsageError, match="no bucket c"):
            root({"name": "b"}, c="x")

    @pytest.mark.parametrize("given", ["in", "=x", "in="])
    def test_what_is_no_bucket(self, run: Command, bucket: Path, given: str) -> None:
        assert "NAME=WHERE" in run(written(bucket), "--bucket", given).err

    def test_as_text(self, good: Command, run: Command, bucket: Path) -> None:
        good(json.dumps(PLAIN))
        assert new_keys(bucket) == KEYS
        ran = run('{"input_bck": ')
        assert ran.code == 2
        assert "the job is not JSON" in ran.err

    def test_yaml(self, good: Command, run: Command, bucket: Path) -> None:
        pytest.importorskip("yaml")
        text = (
            "input_bck: {name: in}\noutput_bck:\n    name: out\ninput_format:\n    template: shard-{0..2}\n"
        )
        (bucket / "job").write_text(text + "output_format: new-{0000..1000}\noutput_shard_size: 10KB\n")
        good("job")
        assert new_keys(bucket) == KEYS
        for broken in ("[1", "- a\n", "{"):
            (bucket / "job").write_text(broken)
            assert run("job").code == 2

    def test_yaml_that_is_not_there(
        self, run: Command, bucket: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "yaml", None)
        (bucket / "job").write_text("input_bck: x")
        ran = run("job")
        assert ran.code == 2
        assert "pip install 'wdscli[yaml]'" in ran.err

    @pytest.mark.parametrize("way", ["option", "job"])
    def test_dry(self, good: Command, bucket: Path, way: str) -> None:
        with no_new_files(bucket / "in"):
            ran = good(written(bucket, dry_run=way == "job"), *(["-n"] if way == "option" else []))
        assert b"out/new-0000.tar\t" in ran.out
        assert not (bucket / "out").exists()

    @pytest.mark.exhaustive
    def test_a_plan_resumed_and_in_json(self, good: Command, bucket: Path) -> None:
        path = written(bucket)
        good(path, "--plan", "p")
        assert wds("run", "p", "--task", 0, cwd=bucket).code == 0
        report = json.loads(good(path, "--resume", "--json").out)
        assert report["kept"] == 1
        assert new_keys(bucket) == KEYS
        assert leftovers(bucket / "out") == []
        assert good(path, "--force", "-j", 2, "--no-index", "--hash", "none", "--mtime", 7)

    def test_broken_shards(self, run: Command, bucket: Path) -> None:
        shard = bucket / "in/shard-0.tar"
        shard.write_bytes(shard.read_bytes()[:-2000])
        assert run(written(bucket)).code == 3
        assert run(written(bucket), "--on-error", "skip").code == 0


def test_a_seed_of_many_digits(run: Command, bucket: Path) -> None:
    ran = run(written(bucket, algorithm={"kind": "shuffle", "seed": "9" * 5000}))
    assert (ran.code, "of at most 4300 digits" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize("template", ["new-%0{}d", "new-@{}", "new-{{0..{}}}", "new-{{{}..3}}"])
def test_names_of_many_digits(run: Command, bucket: Path, template: str) -> None:
    for name in ("output_format", "input_format"):
        ran = run(written(bucket, **{name: template.format("9" * 5000)}))
        assert "internal error" not in ran.err
        assert ran.code in ((0, 2) if name == "output_format" else (2, 4)), ran.err


def test_a_hint_names_no_option_of_another_command(run: Command, bucket: Path) -> None:
    ran = run(written(bucket, algorithm={"kind": "content", "extension": ".json"}))
    assert ran.code == 3
    assert "--missing" not in ran.err
    assert "wds sort --by json" in ran.err
