"""Every command with a view as its input, and with the shards that the view's command writes: the same output.

Views are whole, with samples removed, joined (aligned or not), shuffled, renamed, of foreign shards, and of views; on
this machine and on S3. Shards and indexes are compared byte for byte. In manifests only the fingerprint of the input
may differ. What a command prints is compared after the view's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shard_cases import Ran, content, wds
from storage_servers import S3, s3_server
from view_sets import VIEWS, slug, write_bases, write_views

from wdscli.shards import view_shards as views

PLACES = ["local", "S3"]

WRITING = {
    "split": "split {} -o OUT/o-%d.tar --max-count 7",
    "split, ratio": "split {} -o OUT/{part}-%d.tar --ratio train=3,val=1 --seed 2",
    "split, keys": "split {} -o OUT/o-%d.tar --keys *[0-4] --shards 2",
    "split, name": "split {} -o OUT/{name}.tar --not-keys-from some.txt",
    "split, limit": "split {} -o OUT/o-%d.tar --max-count 7 --limit 9",
    "split, limit, spill": "split {} -o OUT/o-%d.tar --max-count 7 --limit 9 --strategy spill",
    "split, view": "split {} -o OUT/o.json --slice ::2 --rekey {n}",
    "merge": "merge {} other -o OUT/o-%d.tar --shards 3",
    "merge, dedup": "merge {} other -o OUT/o-%d.tar --dedup json",
    "join": "merge --join left {} right -o OUT/o-%d.tar --max-size 20kB",
    "join, second": "merge --join outer right {} -o OUT/o-%d.tar",
    "shuffle": "shuffle {} -o OUT/o-%d.tar --seed 5 --max-count 8",
    "shuffle, spill": "shuffle {} -o OUT/o-%d.tar --seed 5 --max-count 8 --strategy spill",
    "shuffle, rekey": "shuffle {} -o OUT/o-%d.tar --rekey {shard}-{index:04d}",
    "sort": "sort {} -o OUT/o-%d.tar --by key:r --max-count 8",
    "sort, json": "sort {} -o OUT/o-%d.tar --by json.w:n --missing first",
    "cat": "cat {} -o OUT/o.tar",
    "cat, slice": "cat {} -o OUT/o.tar --slice 1::3",
    "cat, where": "cat {} -o OUT/o.tar --where json.w>=2 --drop json",
    "cat, each": "cat {} -o OUT/{name}.tar",
    "cat, sample": "cat {} -o OUT/o.tar --sample 40% --seed 9",
    "map": "map {} -o OUT/{name}.tar --filter json cat",
    "map, numbered": "map {} -o OUT/o-%d.tar --max-count 9 --filter json cat",
}

SHOWING = {
    "ls": "ls {}",
    "ls, long": "ls {} --long",
    "ls, members": "ls {} --by member",
    "ls, shards": "ls {} --by shard",
    "ls, json": "ls {} --json",
    "ls, summary": "ls {} --summary",
    "ls, count": "ls {} --count json.w",
    "ls, where": "ls {} --where json.w==3",
    "ls, sample": "ls {} --sample 5 --seed 1",
    "ls, keys": "ls {} --keys *k0*",
    "cat, table": "cat {} --to jsonl",
    "cat, stdout": "cat {} -o -",
    "verify": "verify {}",
    "verify, json": "verify {} --json",
    "verify, absent": "verify {} --absent some.txt",
    "diff, other": "diff {} other",
    "diff, itself": "diff {} FLAT",
    "diff, json": "diff {} photos --json",
    "bench": "bench {} --json --seconds 0.01",
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sets and their views, in one folder. ``right`` has fields that no other set has."""
    folder = tmp_path_factory.mktemp("views")
    write_bases(folder)
    write_views(folder)
    listed = [json.loads(line)["key"] for name in VIEWS for line in
              wds("ls", f"{slug(name)}.json", "--json", cwd=folder).out.splitlines()]  # fmt: skip
    rows = "".join(f"{key},{number}\n" for number, key in enumerate(dict.fromkeys(listed)) if number % 3)
    (folder / "right.csv").write_text("id,extra\n" + rows)
    words = "create --from right.csv --key-column id --column txt2=extra -o right/r-%d.tar --max-count 30 -q"
    assert wds(*words.split(), cwd=folder).code == 0
    return folder


@pytest.fixture(scope="module")
def s3(sets: Path) -> Iterator[str]:
    """The same files in a bucket."""
    with s3_server() as server:
        bucket = server.bucket("view-inputs")
        put_all(server, bucket, sets)
        yield f"s3://{bucket}"


def put_all(server: S3, bucket: str, folder: Path) -> None:
    for name, data in content(folder).items():
        server.client.put_object(Bucket=bucket, Key=name, Body=data)


@pytest.fixture
def place(request: pytest.FixtureRequest, sets: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What precedes the names of inputs."""
    monkeypatch.chdir(sets)
    views.forget()
    return "" if request.param == "local" else f"{request.getfixturevalue('s3')}/"


def run_both(line: str, name: str, place: str, out: Path) -> tuple[Ran, Ran]:
    """Run a line with the shards, and with the view of them."""
    found = []
    for given, folder in ((f"{slug(name)}", "flat"), (f"{place}{slug(name)}.json", "view")):
        words = line.replace("OUT", str(out / folder)).replace("FLAT", slug(name)).split()
        words = [
            f"{place if folder == 'view' else ''}{word}" if word in ("other", "right", "photos") else word
            for word in words
        ]
        more = ["-j1"] if words[0] not in ("ls", "cat", "diff", "bench") else []
        found.append(wds(*[given if word == "{}" else word for word in words], *more))
    return found[0], found[1]


def without_inputs(manifest: bytes) -> Any:
    plain = json.loads(manifest)
    del plain["wdscli"]["made"]["inputs"]
    return plain


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("place", PLACES, indirect=True)
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("command", WRITING)
def test_the_same_bytes_are_written(command: str, name: str, place: str, tmp_path: Path) -> None:
    flat, view = run_both(WRITING[command], name, place, tmp_path)
    assert view.code == flat.code, view.err + flat.err
    if flat.code:
        # Such as a key that both sets have.
        assert said(view, name, place) == said(flat, name, "")
        return
    wanted, found = content(tmp_path / "flat"), content(tmp_path / "view")
    assert found.keys() == wanted.keys()
    for file in wanted:
        if file.endswith(".json") and command != "split, view":
            assert without_inputs(found[file]) == without_inputs(wanted[file])
        elif command != "split, view":
            assert found[file] == wanted[file], file
    if command == "split, view":
        for folder in ("flat", "view"):
            ran = wds(
                "cat", tmp_path / folder / "o.json", "-o", tmp_path / folder / "real.tar", "--trust-addresses"
            )
            assert ran.code == 0, ran.err
        assert (tmp_path / "view/real.tar").read_bytes() == (tmp_path / "flat/real.tar").read_bytes()


def said(ran: Ran, name: str, place: str) -> tuple[int, bytes, str]:
    """What a command prints, with one name for both inputs."""
    out = ran.out.replace(place.encode(), b"").replace(f"{slug(name)}.json".encode(), slug(name).encode())
    err = ran.err.replace(place, "").replace(f"{slug(name)}.json", slug(name))
    return ran.code, out, re.sub(r"in [0-9.]+ s(, .*/s)?$", "in 0 s", err, flags=re.MULTILINE)


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", PLACES, indirect=True)
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("command", SHOWING)
def test_the_same_is_shown(command: str, name: str, place: str, tmp_path: Path) -> None:
    flat, view = run_both(SHOWING[command], name, place, tmp_path)
    wanted, found = said(flat, name, ""), said(view, name, place)
    if command == "bench":
        assert found[0] == wanted[0] == 0, view.err
        return
    if command == "ls, summary":
        # A view has one line more.
        lines = [line for line in found[1].splitlines(True) if not line.startswith(b"descent\t")]
        found = found[0], b"".join(lines), found[2]
    if command == "verify, absent":
        # Only a view knows the old keys.
        found = found[0], found[1], re.sub(r"warning: .* searches only the new keys\n", "", found[2])
    assert found == wanted


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("place", PLACES, indirect=True)
@pytest.mark.parametrize("name", VIEWS)
def test_the_same_report(name: str, place: str, tmp_path: Path) -> None:
    flat, view = run_both("report {} -o OUT.html", name, place, tmp_path)
    assert (flat.code, view.code) == (0, 0), view.err
    pages = [(tmp_path / f"{one}.html").read_text() for one in ("flat", "view")]
    flat_page, view_page = (re.sub(UNLIKE, "", page, flags=re.DOTALL) for page in pages)
    view_page = view_page.replace(place, "") if place else view_page
    assert view_page.replace(f"{slug(name)}.json", slug(name)) == flat_page


UNLIKE = r"<title>.*?</title>|<h1.*?</h1>|<section id=\"provenance\".*?</section>"
"""What a page says of the set as a whole: its name, and how it was made."""


@pytest.mark.parametrize("line", ["index {}", "index {} --for wids -o OUT.json", "index {} --check"])
def test_index_has_nothing_to_do_with_a_view(line: str, sets: Path, tmp_path: Path) -> None:
    before = content(sets)
    ran = wds(*line.format(sets / "whole.json").replace("OUT", str(tmp_path / "o")).split())
    assert (ran.code, "Traceback" in ran.err) == (2, False), ran.err
    assert content(sets) == before


def test_the_views_have_the_forms_that_a_view_can_have(sets: Path) -> None:
    """Whole bases, runs, rows, new keys, a rule, and several layers."""
    forms = set()
    for name in VIEWS:
        text = json.loads((sets / f"{slug(name)}.json").read_text())
        view = text["view"]
        forms |= {form for shard in view["shards"] for form in ("runs", "rows", "keys") if form in shard}
        forms |= {"whole" for shard in text["shardlist"] if "headers" in shard}
        forms |= {"layers"} if len(view["rule"]["parts"]) > 1 else set()
        forms |= {"rule"} if view["rule"]["fields"] else set()
    assert forms == {"runs", "rows", "keys", "whole", "layers", "rule"}
