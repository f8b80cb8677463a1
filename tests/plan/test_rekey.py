"""``{n}`` in ``--rekey``: numbers over all shards, whoever writes and wherever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shard_cases import keys_of, numbered, outputs, samples_of, wds, write_shards

pytestmark = pytest.mark.usefixtures("shared_workers")
KEYS = [
    f"{prefix}{number:03d}" for prefix, count in (("a", 12), ("b", 1), ("c", 8)) for number in range(count)
]
"""Those of the three shards of the fixture."""
NEW = {key: f"x{place:04d}" for place, key in enumerate(KEYS)}


@pytest.mark.parametrize("indexed", [False, True])
def test_the_place_among_all(shards: list[str], tmp_path: Path, indexed: bool) -> None:
    if indexed:
        wds("index", *shards)
    for command, *options in (
        ["cat"],
        ["split"],
        ["shuffle", "--seed", 3],
        ["sort", "--by", "key:r"],
        ["merge"],
    ):
        old, new = tmp_path / f"{command}.tar", tmp_path / f"{command}-new.tar"
        assert wds(command, *shards, *options, "-o", old).code == 0
        assert wds(command, *shards, *options, "-o", new, "--rekey", "x{n:04d}").code == 0
        assert keys_of(new) == [NEW[key] for key in keys_of(old)]
        assert [fields for _, fields in samples_of(new)] == [fields for _, fields in samples_of(old)]


@pytest.mark.parametrize("command", ["cat", "split"])
def test_counted_before_any_selection(shards: list[str], tmp_path: Path, command: str) -> None:
    options = ("--where", "cls >= 6", "--rekey", "x{n:04d}", "-o", tmp_path / "o.tar")
    assert wds(command, *shards, *options).code == 0
    assert keys_of(tmp_path / "o.tar") == [NEW[key] for key in KEYS if int(key[1:]) >= 6]


@pytest.mark.parametrize("command", ["cat", "split"])
def test_for_those_that_come_again(shards: list[str], tmp_path: Path, command: str) -> None:
    options = ("--on-duplicate", "rekey", "--rekey", "{key}-{n}", "-o", tmp_path / "o.tar")
    assert wds(command, *shards, shards[1], *options).code == 0
    assert keys_of(tmp_path / "o.tar") == [*KEYS, "b000-21"]


@pytest.mark.parametrize("strategy", ["gather", "spill"])
def test_a_plan_says_how_many_come_before(shards: list[str], tmp_path: Path, strategy: str) -> None:
    options = ("-o", tmp_path / "o-%d.tar", "--max-count", 5, "--rekey", "x{n:04d}")
    assert wds("shuffle", *shards, *options, "--plan", tmp_path / "p").code == 0
    assert wds("run", tmp_path / "p", "--task", 1).code == 0
    assert wds("run", tmp_path / "p").code == 0
    planned = [path.read_bytes() for path in outputs(tmp_path, "o-*.tar")]
    assert sorted(keys_of(*outputs(tmp_path, "o-*.tar"))) == sorted(NEW.values())
    assert wds("shuffle", *shards, *options, "--force", "--strategy", strategy).code == 0
    assert [path.read_bytes() for path in outputs(tmp_path, "o-*.tar")] == planned
    made = json.loads((tmp_path / "o-manifest.json").read_bytes())["wdscli"]["made"]
    assert made["options"]["rekey"] == "x{n:04d}"


def test_streams_and_broken_shards(shards: list[str], tmp_path: Path) -> None:
    """No number comes twice, and none is another where a sample before it is lost."""
    data = Path(shards[2]).read_bytes()
    for command in ("cat", "shuffle"):
        out = tmp_path / f"{command}.tar"
        assert wds(command, shards[0], shards[1], "-", "--rekey", "x{n:04d}", "-o", out, stdin=data).code == 0
        assert sorted(keys_of(out)) == sorted(NEW.values())
    path = Path(shards[0])
    path.write_bytes(path.read_bytes()[:-3000])
    for command in ("cat", "split"):
        out = tmp_path / f"{command}-broken.tar"
        assert wds(command, *shards, "--on-error", "skip", "--rekey", "x{n:04d}", "-o", out).code == 0
        keys = keys_of(out)
        assert keys[:11] == list(NEW.values())[: len(keys[:11])][:11]
        assert len(set(keys)) == len(keys) >= 19


def test_files_too(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "1.txt").write_text(name)
    assert wds("create", tmp_path / "in", "-o", tmp_path / "o.tar", "--rekey", "{n:02d}").code == 0
    assert keys_of(tmp_path / "o.tar") == ["00", "01"]


@pytest.mark.parametrize("text", ["{}", "{1}", "{n:x.}"])
def test_refused(shards: list[str], tmp_path: Path, text: str) -> None:
    ran = wds("split", *shards, "-o", tmp_path / "o.tar", "--rekey", text)
    assert ran.code == 2
    assert "--rekey" in ran.err


def test_all_empty_before(tmp_path: Path) -> None:
    names = write_shards(tmp_path / "in", [[], numbered(2), [], numbered(2, "z")])
    assert wds("split", *names, "-o", tmp_path / "o.tar", "--rekey", "{n}").code == 0
    assert keys_of(tmp_path / "o.tar") == ["0", "1", "2", "3"]


@pytest.fixture
def urls(tmp_path: Path) -> Path:
    """Two shards, in which the fourth sample repeats the URL of the first. The last sample is larger than a buffer."""
    from wdscli.shards import ShardWriter

    with ShardWriter(f"{tmp_path}/in-%d.tar", max_count=3) as writer:
        for number, name in enumerate(["a", "b", "c.d", "a", "e"]):
            document = json.dumps({"url": f"http://x/{name}.jpg", "id": number}).encode()
            payload = bytes(5 << 20) if name == "e" else b"x"
            writer.write(f"k{number}", {"json": document, "bin": payload})
    return tmp_path


URL_KEYS = ["http://x/a", "http://x/b", "http://x/c", "http://x/e"]


@pytest.mark.parametrize("command", ["cat", "split", "shuffle", "sort", "merge", "map"])
def test_keys_of_values(urls: Path, command: str) -> None:
    more = {"sort": ["--by", "key"], "map": ["--filter", "json", "cat"]}.get(command, [])
    options = [*more, "--rekey", "{json.url!k}", "--on-duplicate", "skip", "-o", urls / "o.tar"]
    ran = wds(command, *outputs(urls, "in-*.tar"), *options, "--drop", "bin" if command == "map" else "json")
    assert ran.code == 0, ran.err
    assert sorted(keys_of(urls / "o.tar")) == URL_KEYS


@pytest.mark.parametrize("strategy", ["gather", "spill"])
def test_keys_of_values_in_plans_and_views(urls: Path, strategy: str) -> None:
    sources, options = outputs(urls, "in-*.tar"), ("--rekey", "{index}-{json.id:03d}-{json.url!k}")
    assert wds("shuffle", *sources, *options, "-o", urls / "p.tar", "--plan", urls / "p").code == 0
    assert wds("run", urls / "p").code == 0
    assert wds("shuffle", *sources, *options, "-o", urls / "o.tar", "--strategy", strategy).code == 0
    assert (urls / "o.tar").read_bytes() == (urls / "p.tar").read_bytes()
    assert sorted(keys_of(urls / "o.tar"))[3:] == ["1-004-http://x/e", "2-002-http://x/c"]
    assert wds("shuffle", *sources, *options, "-o", urls / "v.json").code == 0
    listed = [line.split(b"\t")[0].decode() for line in wds("ls", urls / "v.json").out.splitlines()]
    assert listed == keys_of(urls / "o.tar")
    ran = wds(
        "merge",
        *sources,
        "-o",
        urls / "r.json",
        "--on-duplicate",
        "rekey",
        "--rekey",
        "{json.id}",
        sources[0],
    )
    assert ran.code == 0, ran.err
    assert [line.split(b"\t")[0] for line in wds("ls", urls / "r.json").out.split(b"\n")[5:8]] == [
        b"0",
        b"1",
        b"2",
    ]


def test_of_a_stream(urls: Path) -> None:
    data = (urls / "in-0.tar").read_bytes()
    for command, option in (("cat", ()), ("cat", ("--dry-run",)), ("split", ())):
        ran = wds(
            command, "-", "--rekey", "{json.url!k}", "-o", urls / "s.tar", "--force", *option, stdin=data
        )
        assert ran.code == 0, ran.err
    assert keys_of(urls / "s.tar") == URL_KEYS[:3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{json.url!k}", 'repeated key "http://x/a"'),
        ("{json.url}", 'key "http://x/a.jpg" and field "x" would be read back'),
        ("../{json.id}", "unsafe name"),
        ("{json.urk}", "no value of json.urk for --rekey"),
        ("{json.url:d}", "Unknown format code 'd'"),
        ("{0}", "there is no {0}"),
        ("{json.id:5000d}", "wider than"),
    ],
)
@pytest.mark.parametrize("command", ["cat", "split"])
def test_refused_values(urls: Path, command: str, text: str, said: str) -> None:
    ran = wds(command, *outputs(urls, "in-*.tar"), "--rekey", text, "-o", urls / "o.tar")
    assert ran.code in (2, 3), ran.err
    assert said in ran.err
    assert ('sample "k0"' in ran.err) or text in ("{json.url!k}", "{0}", "{json.id:5000d}")
    assert not (urls / "o.tar").exists()
