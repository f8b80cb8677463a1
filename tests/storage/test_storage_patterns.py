"""What a user writes for an output, and the names it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from wdscli.errors import UsageError
from wdscli.storage import OutputPattern

parse = OutputPattern.parse


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestPrintf:
    @pytest.mark.parametrize(
        ("text", "index", "address"),
        [
            ("out-%06d.tar", 7, "out-000007.tar"),
            ("out-%06d.tar", 1234567, "out-1234567.tar"),
            ("%d.tar", 7, "7.tar"),
            ("100%%-%02d%%.tar", 3, "100%-03%.tar"),
            ("s3://b/%04d.tar", 3, "s3://b/0003.tar"),
            ("%03d/x.tar", 3, "003/x.tar"),
            ("out-{part}-%06d.tar", 3, "out-{part}-000003.tar"),
            ("pipe:gzip > out-%03d.tar.gz; date +%s", 3, "pipe:gzip > out-003.tar.gz; date +%s"),
            ("pipe:gzip > %03d.tar.gz; date +%%d", 3, "pipe:gzip > 003.tar.gz; date +%d"),
        ],
    )
    def test_address(self, text: str, index: int, address: str) -> None:
        pattern = parse(text)
        assert pattern.address(index) == address
        assert pattern.count is None
        assert not pattern.single
        assert pattern.is_stream == text.startswith("pipe:")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("out-%d-%d.tar", "two fields"),
            ("pipe:cat > %d-%d", "two fields"),
            ("out-%s.tar", "cannot read the % at character 5 of out-%s.tar"),
            ("100%.tar", "cannot read the %"),
            ("out-%x-%06d.tar", "cannot read the %"),
            ("out-{0..3}-%06d.tar", "braces and a %d field"),
            ("", "needs a name"),
            ("out/", "is a folder's name"),
            ("cat.jpg", "shards are tar archives"),
        ],
    )
    def test_errors(self, text: str, message: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse(text)
        assert message in str(caught.value)
        assert caught.value.hint


class TestBraces:
    def test_exactly_so_many(self) -> None:
        pattern = parse("d/out-{0000..0127}.tar")
        assert pattern.count == 128
        assert pattern.address(0) == "d/out-0000.tar"
        assert pattern.address(127) == "d/out-0127.tar"
        assert not pattern.single
        with pytest.raises(UsageError, match="is for 128 shards, but more are needed"):
            pattern.address(128)

    def test_words_and_percent_signs(self) -> None:
        assert [parse("{a,b}%%.tar").address(i) for i in range(2)] == ["a%.tar", "b%.tar"]

    def test_a_placeholder_is_text(self) -> None:
        pattern = parse("{part}-{0..1}.tar")
        assert pattern.count == 2
        assert pattern.address(1) == "{part}-1.tar"
        assert parse("{part}.tar").single

    @pytest.mark.parametrize(("text", "message"), [("{a,a}.tar", "twice"), ("{a,b}{1..2", "do not pair")])
    def test_errors(self, text: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            parse(text)


class TestSingle:
    @pytest.mark.parametrize("text", ["out.tar", "-", "pipe:cat > 100%.tar", "/dev/null", "s3://b/out.tar"])
    def test_one_address(self, text: str) -> None:
        pattern = parse(text)
        assert pattern.single
        assert pattern.count is None
        assert pattern.address(0) == text
        with pytest.raises(UsageError, match="one shard, but more shards are needed"):
            pattern.address(1)

    @pytest.mark.parametrize(
        ("text", "stream"),
        [
            ("out.tar", False),
            ("-", True),
            ("pipe:cat", True),
            ("/dev/null", True),
            ("/dev/stdout", True),
            ("s3://b/o", False),
        ],
    )
    def test_is_stream(self, text: str, stream: bool) -> None:
        assert parse(text).is_stream == stream

    def test_compressed_names(self) -> None:
        """Compressed shards can be written, so these names are not refused."""
        for text in ("out.tar.gz", "out-%06d.tgz", "s3://b/{0..3}.tar.zst", "out.xz"):
            assert not parse(text).is_stream
        with pytest.raises(UsageError, match=r"compress\(1\)"):
            parse("out.tar.Z")


@pytest.mark.parametrize(
    ("text", "manifest"),
    [
        ("out-%06d.tar", "out-manifest.json"),
        ("out.tar", "out-manifest.json"),
        ("out.tar.zst", "out-manifest.json"),
        ("out.tzst", "out-manifest.json"),
        ("out", "out-manifest.json"),
        ("out-000.v1.tar", "out-000.v1-manifest.json"),
        ("dir/%05d.tar", "dir/manifest.json"),
        ("dir/a_-.%05d.tar", "dir/a-manifest.json"),
        ("%05d.tar", "manifest.json"),
        ("%03d/x.tar", "manifest.json"),
        ("d-%03d/x.tar", "d-manifest.json"),
        ("out-{0000..0127}.tar", "out-manifest.json"),
        ("dir/{a,b}.tar", "dir/manifest.json"),
        ("50%%-%03d.tar", "50%-manifest.json"),
        ("50%%-{0..1}.tar", "50%-manifest.json"),
        ("s3://b/p/out-%06d.tar", "s3://b/p/out-manifest.json"),
        ("out-{part}-%06d.tar", "out-{part}-manifest.json"),
    ],
)
def test_prefix_address(text: str, manifest: str) -> None:
    assert parse(text).prefix_address("manifest.json") == manifest


def test_streams_have_no_prefix() -> None:
    for text in ("-", "pipe:cat", "pipe:cat > %d", "/dev/null"):
        with pytest.raises(UsageError, match="has no folder for manifest"):
            parse(text).prefix_address("manifest.json")


class TestExisting:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("out-%03d.tar", ["out-002.tar", "out-010.tar", "out-1000.tar"]),
            ("out-%d.tar", ["out-7.tar", "out-1000.tar"]),
            ("out-{000..003}.tar", ["out-002.tar"]),
            ("out-7.tar", ["out-7.tar"]),
            ("gone.tar", []),
            ("gone/%d.tar", []),
            ("d%d/x.tar", ["d1/x.tar"]),
            ("d1/%s.tar".replace("%s", "%d"), []),
            ("-", []),
            ("pipe:cat > out-7.tar", []),
            ("/dev/null", []),
        ],
    )
    def test_local(self, text: str, found: list[str]) -> None:
        names = [
            "out-010.tar",
            "out-002.tar",
            "out-1000.tar",
            "out-7.tar",
            "out-x.tar",
            "out-003.tar.bak",
            "d1/x.tar",
            "d2/y.tar",
        ]
        for name in names:
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(b"")
        assert parse(text).existing() == found

    def test_remote(self, here: Path) -> None:
        import fsspec

        for name in ("out-01.tar", "out-10.tar", "other.tar"):
            fsspec.filesystem("memory").pipe_file(f"{here}/{name}", b"")
        base = f"memory://{here}"
        assert parse(f"{base}/out-%02d.tar").existing() == [f"{base}/out-01.tar", f"{base}/out-10.tar"]
        assert parse(f"{base}/out-{{00..02}}.tar").existing() == [f"{base}/out-01.tar"]
        assert parse(f"{base}/other.tar").existing() == [f"{base}/other.tar"]


@pytest.mark.parametrize("text", ["out", "a.b/out", "s3://bucket/out"])
def test_an_output_without_number_and_suffix(text: str) -> None:
    with pytest.raises(UsageError, match="has neither a number nor a suffix") as raised:
        OutputPattern.parse(text).check_name()
    assert f"use -o {text}/%06d.tar for shards in a folder" in str(raised.value.hint)
    for name in (f"{text}.tar", f"{text}/%06d.tar", "/dev/null", "-"):
        OutputPattern.parse(name).check_name()
