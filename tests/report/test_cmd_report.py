"""``wds report``: what stands on the page, for each option and for sets of every make. A browser looks at it in
test_report_in_browser.py."""

from __future__ import annotations

import gzip
import io
import json
import re
import shutil
import subprocess
import sys
import wave
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from indexing import index
from PIL import Image
from report_sets import EVIL, Page, picture, tone, write_set
from shard_cases import Ran, keys_of, tar_of, wds, wds_here

from wdscli.ordering import mix
from wdscli.report import charts
from wdscli.shards import ShardWriter

pytestmark = pytest.mark.usefixtures("shared_workers")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 4 shards, 40 samples, sorted by nothing."""
    return write_set(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Its page."""
    target = tmp_path_factory.mktemp("page") / "page.html"
    assert wds_here("report", made, "-o", target, "--decode", "-q").code == 0
    return Page(target.read_bytes())


Look = Callable[..., Page]


@pytest.fixture
def look(tmp_path: Path, made: Path) -> Look:
    """The page of a set (default: the one above), and options."""

    def call(*args: object, of: object = None, code: int = 0) -> Page:
        target = tmp_path / "page.html"
        ran = wds_here("report", of or made, "-o", target, "--force", *args)
        assert ran.code == code, ran.err
        return Page(target.read_bytes())

    return call


def failed(*args: object) -> Ran:
    ran = wds_here("report", *args)
    assert ran.code
    assert "Traceback" not in ran.err
    return ran


class TestThePage:
    def test_the_last_line_says_what_is_on_it(self, made: Path, tmp_path: Path) -> None:
        ran = wds_here("report", made, "-o", tmp_path / "page.html", "-q")
        assert ran.err == ""
        ran = wds_here("report", made, "-o", tmp_path / "page.html", "--force")
        assert "40 samples in 4 shards: nothing wrong, even shards, classes well mixed" in ran.err

    def test_totals_and_verdicts(self, page: Page) -> None:
        text = page.text()
        assert "train: 40 samples" in text
        assert "nothing wrong even shards classes well mixed" in text
        assert "samples 40 shards 4" in text
        assert "files 240 classes 4" in text

    def test_a_row_for_each_field(self, page: Page) -> None:
        text = page.text("fields")
        assert "npy array 100% 128 B" in text
        assert "png image 100%" in text
        assert "json: note text, 100%" in text
        assert "json: score number, 100%" in text
        assert len([one for one in page.all("svg") if one["class"] == "spark"]) == 4

    def test_classes_texts_pictures(self, page: Page) -> None:
        assert "4 classes of 10 samples each" in page.text("classes")
        assert "json: label 4 classes" in page.text("classes")
        assert "<b>fox</b> 10 25%" in page.text("classes")
        assert "40 texts. Median: 3 words, 16 characters. Longest: 79 characters. None empty" in page.text(
            "captions"
        )
        assert "40 measured, of 5 sizes" in page.text("pictures")
        assert "20 × 30 8 20%" in page.text("pictures")

    def test_shards_mixing_findings_provenance(self, page: Page) -> None:
        assert "4 shards of 10 samples and" in page.text("shards")
        assert "train-000003.tar 10" in page.text("shards")
        assert "samples of one class in a row 1 " in page.text("mixing")
        assert "correlation with the order of the keys 1.000 0" in page.text("mixing")
        assert page.text("findings") == "Findings wds verify finds nothing wrong."
        assert "fingerprint xxh3_128:" in page.text("provenance")
        assert "index next to the shards" in page.text("provenance")

    def test_every_sample_is_on_the_sheet_with_what_it_holds(self, page: Page) -> None:
        assert sorted(page.keys) == [f"n{number:03d}" for number in range(40)]
        text = page.text("samples")
        assert "40 of 40 , chosen at random with seed 0" in text
        assert "float32 2 × 30" in text
        assert '"score": 1.5' in text
        assert "in train-000003.tar, sample 9" in text
        assert len(page.all("audio")) == 40

    def test_pictures_are_those_of_the_samples(self, page: Page) -> None:
        shown = [Image.open(io.BytesIO(uri_bytes(one["src"]))) for one in page.all("img")]
        assert len(shown) == 40
        whole = {Image.open(io.BytesIO(picture(number))).tobytes() for number in range(40)}
        assert {image.convert("RGB").tobytes() for image in shown} == whole

    def test_whatever_a_set_holds_is_text(self, page: Page) -> None:
        assert len(page.all("script")) == 1
        assert not [one for one in page.all("img") if not (one["src"] or "").startswith("data:image/")]
        assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
        assert EVIL in page.text("samples")

    def test_nothing_is_loaded(self, page: Page) -> None:
        for _, attrs in page.tags:
            for name in ("src", "href"):
                assert (attrs.get(name) or "#").startswith(("data:", "#"))
        policies = [one["content"] for one in page.all("meta") if one.get("http-equiv")]
        assert policies[0] is not None
        assert policies[0].startswith("default-src 'none'; img-src data:;")
        assert "'unsafe-inline'" not in policies[0].partition("script-src")[2]


def uri_bytes(uri: str | None) -> bytes:
    return b64decode((uri or "").partition("base64,")[2])


class TestTheSamePage:
    def pages(self, tmp_path: Path, *inputs: tuple[object, ...]) -> list[bytes]:
        found = []
        for words in inputs:
            assert wds_here("report", *words, "-o", tmp_path / "one.html", "--force").code == 0
            found.append((tmp_path / "one.html").read_bytes())
        return found

    def test_whatever_the_order_of_shards_and_the_processes(self, made: Path, tmp_path: Path) -> None:
        shards = sorted(made.glob("*.tar"))
        draw = ("--samples", "5:12")
        one, other, jobs = self.pages(
            tmp_path, (*shards, *draw), (*shards[::-1], *draw), (*shards, *draw, "-j", 2)
        )
        assert one == other == jobs

    def test_by_an_index_and_compressed(self, made: Path, tmp_path: Path) -> None:
        (plain,) = self.pages(tmp_path, (made / "train-000000.tar", "--skip", "checks", "--title", "x"))
        packed = tmp_path / "train-000000.tar.gz"
        packed.write_bytes(gzip.compress((made / "train-000000.tar").read_bytes()))
        (other,) = self.pages(tmp_path, (packed, "--skip", "checks", "--title", "x"))
        assert Page(plain).text("samples") == Page(other).text("samples").replace(".tar.gz", ".tar")
        assert Page(plain).all("img") == Page(other).all("img")

    def test_no_folder_of_this_machine_is_on_it(self, made: Path, tmp_path: Path) -> None:
        folder = tmp_path / "a" / "secret"
        shutil.copytree(made, folder)
        shutil.copy(folder / "train-000000.tar", folder / "train-000009.tar")
        (page,) = self.pages(tmp_path, (folder,))
        assert b"has the same key" in page
        assert str(tmp_path).encode() not in page

    def test_standard_input(self, made: Path) -> None:
        shard = (made / "train-000001.tar").read_bytes()
        done = subprocess.run(
            [sys.executable, "-m", "wdscli", "report", "-", "-o", "-"], input=shard, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        page = Page(done.stdout)
        assert sorted(page.keys) == [f"n{number:03d}" for number in range(10, 20)]
        assert "in stdin, sample 3" in page.text("samples")


class TestOptions:
    def test_samples_and_seed(self, look: Look) -> None:
        few, same, other = look("--samples", 6), look("--samples", 6), look("--samples", 6, "--seed", 1)
        assert len(few.keys) == 6
        assert few.keys == same.keys
        assert few.keys != other.keys
        more = look("--samples", 9).keys
        assert more[:6] == few.keys
        assert "samples" not in look("--samples", 0).sections

    def test_a_frequent_name_is_shown_after_many_rare_ones(self, look: Look, tmp_path: Path) -> None:
        rare = {f"id{number}": 1 for number in range(300)}
        texts = [json.dumps(one).encode() for one in (rare, {"size": 1}, {"size": 2})]
        members = [(f"n{number:03d}.json", text) for number, text in enumerate(texts)]
        (tmp_path / "s.tar").write_bytes(tar_of(members))
        text = look(of=tmp_path / "s.tar").text("fields")
        assert "Names in JSON, the 200 most frequent json: size number, 66.7%" in " ".join(text.split())

    def test_samples_is_exact_if_shards_repeat_the_keys(self, look: Look, tmp_path: Path) -> None:
        for number in range(9):
            (tmp_path / f"s-{number}.tar").write_bytes(
                tar_of([("n000.txt", b"%d" % number), ("n001.txt", b"a")])
            )
        assert len(look("--samples", "4:6", of=f"{tmp_path}/s-*.tar").keys) == 4

    def test_no_images(self, look: Look) -> None:
        page = look("--skip", "images")
        assert not page.all("img")
        assert not page.all("audio")
        assert len(page.keys) == 40

    def test_title(self, look: Look) -> None:
        assert EVIL in look("--title", EVIL).text()

    def test_look_into(self, look: Look) -> None:
        page = look("--samples", "3:35")
        assert "Measured on 35 of 40 samples, chosen at random with seed 0" in page.text("classes")
        assert "35 texts" in page.text("captions")
        assert "40 of" not in page.text("samples")

    def test_selection(self, look: Look) -> None:
        page = look("--where", "cls == 1", "--rename", "image=png", "--drop", "json")
        assert "10 of 10" in page.text("samples")
        assert "image " in page.text("fields")
        assert "json" not in page.text("fields")
        assert "Samples left out: 30 where" in page.text("fields")
        assert "7 of 7" in look("--sample", 7, "--seed", 3).text("samples")
        assert sorted(look("--limit", 3).keys) == ["n000", "n001", "n002"]

    def test_stored_sizes_of_pictures_are_shown_without_reading_headers(
        self, look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = write_set(tmp_path / "set")
        index([str(folder)], values=["width(png)", "height(png)"])
        monkeypatch.setattr("wdscli.report.looking.picture_size", lambda data: (1, 1))
        text = look("-j", "1", "--samples", "3", of=folder).text("pictures")
        assert "40 measured, of 5 sizes" in text
        assert "20 × 30 8 20%" in text

    def test_decode_and_no_verify(self, look: Look, tmp_path: Path) -> None:
        broken = tmp_path / "broken.tar"
        broken.write_bytes(
            tar_of([("a.json", b"{"), ("a.png", b"no picture"), ("b.json", b"{}"), ("b.png", b"")])
        )
        assert "undecodable" in look("--decode", of=broken).text("findings")
        page = look(of=broken)
        assert "undecodable" not in page.text("findings")
        assert "1 of json , 2 of png" in page.text("fields")
        assert "findings" not in look("--skip", "checks", of=broken).sections
        assert "exclude each other" in failed(broken, "-o", "-", "--decode", "--skip", "checks").err

    def test_json(self, made: Path, tmp_path: Path) -> None:
        ran = wds_here("report", made, "-o", tmp_path / "x.html", "--json", "-q")
        found: dict[str, Any] = json.loads(ran.out)
        assert found["output_bytes"] == (tmp_path / "x.html").stat().st_size
        assert (found["samples"], found["shards"]) == (40, 4)
        assert found["classes"]["cls"]["counts"]["1"] == 10
        assert found["mixing"]["here"]["class_run"] == 1
        assert "both write" in failed(made, "-o", "-", "--json").err

    def test_an_output_that_is_there(self, made: Path, tmp_path: Path) -> None:
        there = tmp_path / "there.html"
        there.write_bytes(b"mine")
        ran = failed(made, "-o", there)
        assert ran.code == 4
        assert there.read_bytes() == b"mine"
        ran = wds_here("report", made, "-o", there, "--force", "-v", "--samples", 7)
        assert ran.code == 0
        assert "40 of 40 samples are read with their payloads; 7 of them are shown" in ran.err
        assert wds_here("report", made, "-o", "/dev/null", "-q").code == 0

    def test_to_and_from_a_store(self, made: Path) -> None:
        import fsspec

        store = fsspec.filesystem("memory")
        try:
            for path in (made / "train-000001.tar", made / "train-000002.tar"):
                store.pipe(f"/report/{path.name}", path.read_bytes())
            words = ("memory://report/*.tar", "-o", "memory://report/page.html", "-j", 1)
            assert wds_here("report", *words).code == 0
            assert len(Page(store.cat("/report/page.html")).keys) == 20
            assert failed(*words).code == 4
        finally:
            store.rm("/report", recursive=True)

    def test_a_missing_package_names_the_command(
        self, made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setitem(sys.modules, "pygal", None)
        ran = failed(made, "-o", tmp_path / "x.html")
        assert ran.code == 2
        assert "pip install 'wdscli[report]'" in ran.err
        assert not (tmp_path / "x.html").exists()


class TestSetsOfEveryMake:
    def test_sorted_by_class(self, look: Look, tmp_path: Path) -> None:
        samples = [(f"k{number:02d}.cls", b"%d" % (number // 20)) for number in range(80)]
        (tmp_path / "sorted.tar").write_bytes(tar_of(samples))
        page = look(of=tmp_path / "sorted.tar")
        assert "sorted by class" in page.text()
        assert "no manifest" in page.text()

    def test_a_random_order_of_few_samples_does_not_follow_the_keys(self, look: Look, tmp_path: Path) -> None:
        """121 samples in random order have a correlation of -0.12, a little more than one standard deviation."""
        numbers = sorted(range(121), key=lambda number: mix(number + 13_000))
        (tmp_path / "few.tar").write_bytes(tar_of([(f"k{number:03d}.cls", b"0") for number in numbers]))
        text = look(of=tmp_path / "few.tar").text("mixing")
        assert "correlation with the order of the keys -0.1" in text
        assert "not in the order of the keys" in text

    def test_uneven_and_missing_shards(self, look: Look, made: Path, tmp_path: Path) -> None:
        folder = tmp_path / "set"
        shutil.copytree(made, folder)
        (folder / "train-000002.tar").unlink()
        # The page is written, and then the command fails as `ls` does: it said nothing of the set.
        assert "1 shard missing" in look(of=folder, code=4).text()
        (folder / "train-manifest.json").unlink()
        (folder / "train-000001.tar").write_bytes(tar_of([("x.txt", b"alone")]))
        assert "uneven shards" in look(of=folder).text()

    def test_broken_shards_are_shown_as_far_as_they_go(self, look: Look, made: Path, tmp_path: Path) -> None:
        cut = tmp_path / "cut.tar"
        cut.write_bytes((made / "train-000000.tar").read_bytes()[:-9000])
        page = look(of=cut)
        assert "truncated" in page.text("findings")
        assert "1 error" in page.text()
        assert page.keys

    def test_nothing(self, look: Look, tmp_path: Path) -> None:
        (tmp_path / "empty.tar").write_bytes(tar_of([]))
        assert "samples 0" in look(of=tmp_path / "empty.tar").text()
        assert failed(tmp_path / "none.tar", "-o", "-").code == 4

    def test_names_of_any_bytes(self, look: Look, tmp_path: Path) -> None:
        name = b"k\xff\x01.txt".decode("utf-8", "surrogateescape")
        (tmp_path / "odd.tar").write_bytes(
            tar_of([(name, "a\0b \u202ec".encode()), ("z.\xe9t\xe9", b"\x00\x01")])
        )
        page = look(of=tmp_path / "odd.tar")
        assert "k\\udcff�" in page.text("samples")
        assert "a�b �c" in page.text("samples")
        assert "00 01" in page.text("samples")

    def test_sound_and_pictures_are_cut_to_the_room_that_there_is(
        self, look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wdscli.ops.report.MEDIA_BYTES", 6000)
        noise = Image.effect_noise((900, 600), 90)
        stream = io.BytesIO()
        noise.save(stream, "JPEG")
        (tmp_path / "large.tar").write_bytes(
            tar_of([("a.jpg", stream.getvalue()), ("b.wav", tone(1)), ("c.mp4", bytes(9000))])
        )
        page = look(of=tmp_path / "large.tar")
        (image,) = page.all("img")
        assert len(uri_bytes(image["src"])) <= 2000
        (sound,) = page.all("audio")
        with wave.open(io.BytesIO(uri_bytes(sound["src"]))) as cut:
            assert 900 <= cut.getnframes() <= 1000
        assert "the beginning" in page.text("samples")
        assert "video, too large for this page" in page.text("samples")


def test_warnings_name_what_was_given(tmp_path: Path) -> None:
    for shard in ("/dev/null", "pipe:printf text"):
        ran = wds_here("report", shard, "-o", tmp_path / "page.html", "--force")
        assert f"in {shard} at byte 0" in ran.err
        assert "/wds-" not in ran.err
        assert "/wds-" not in (tmp_path / "page.html").read_text()


def test_the_title_is_the_folder_and_the_set(made: Path, tmp_path: Path) -> None:
    def title(*words: object, cwd: Path = tmp_path) -> str:
        ran = wds(
            "report", *words, "-o", tmp_path / "p.html", "--force", "-q", "--skip", "images,checks", cwd=cwd
        )
        assert ran.code == 0, ran.err
        return (tmp_path / "p.html").read_text().partition("<title>")[2].partition(":")[0]

    for folder in ("photos", "other"):
        (tmp_path / folder).mkdir()
        for one in made.glob("*.tar"):
            shutil.copy(one, tmp_path / folder)
    assert (
        title("photos")
        == title(tmp_path / "photos" / "*.tar")
        == title(".", cwd=tmp_path / "photos")
        == "photos/train"
    )
    assert title("photos", "other") == "train"
    assert title("photos", "--title", "Mine") == "Mine"
    for number, one in enumerate(sorted((tmp_path / "photos").glob("*.tar"))):
        one.rename(one.with_name(f"{number}.tar"))
    assert title("photos") == "photos"


def test_keys_break_after_separators(tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path / "a.tar")) as writer:
        writer.write("n01/ab_c-1", {"txt": b"x"})
    assert wds_here("report", tmp_path / "a.tar", "-o", tmp_path / "p.html", "-q").code == 0
    assert "<code>n01/<wbr>ab_<wbr>c-<wbr>1</code>" in (tmp_path / "p.html").read_text()


def test_the_last_bar_of_a_cut_histogram_has_a_label() -> None:
    few, many = charts.histogram(Counter(range(50)), "texts"), Counter(range(1000)) + Counter({90_000: 2})
    assert "≥" not in few
    svg = charts.histogram(many, "texts")
    labels = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    assert "≥ 966" in labels
    assert "966 and more: 36 texts" in svg
    assert {"0", "200", "500", "700"} <= set(labels)


def test_provenance_names_options_as_they_are_called_today(made: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "id,caption\n" + "".join(f"{key},text\n" for key in keys_of(*made.glob("*.tar")))
    )
    words = ["merge", made, "--table", tmp_path / "t.csv", "--key-column", "id", "--column", "note=caption"]
    ran = wds_here(*words, "-o", tmp_path / "out.tar", "-q")
    assert ran.code == 0, ran.err
    assert wds_here("report", tmp_path / "out.tar", "-o", tmp_path / "page.html", "-q").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "--key-column id" in page
    assert "--column note=caption" in page
    assert "field note=caption" not in page


def test_findings_come_first_and_name_the_samples_that_are_missing(tmp_path: Path) -> None:
    wds_here("create", made_texts(tmp_path), "-o", tmp_path / "s-%d.tar", "--max-count", "10", "-q")
    shard = tmp_path / "s-1.tar"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    target = tmp_path / "page.html"
    ran = wds_here("report", tmp_path, "-o", target)
    text = target.read_text()
    assert re.search(r"[1-9] errors?, 1 damaged, [1-9] lost", ran.err)
    assert re.search(r"Samples that this page lacks: 1 damaged, [1-9] lost", text)
    assert text.index('<section id="findings"') < text.index('<section id="samples"')
    assert text.index('href="#findings">Findings') < text.index('href="#samples">Samples')


def made_texts(folder: Path) -> Path:
    """A folder of 30 programs."""
    (folder / "src").mkdir()
    for number in range(30):
        (folder / "src" / f"p{number:02}.py").write_text(f"# program {number}\n" + "x = 1\n" * (number % 5))
        (folder / "src" / f"p{number:02}.bin").write_bytes(bytes(range(number, 256)))
    return folder / "src"


@pytest.mark.parametrize("form", ["files", "stream"])
def test_any_field_of_text_has_previews_and_a_section(form: str, tmp_path: Path) -> None:
    made_texts(tmp_path)
    shard = tmp_path / ("s.tar.gz" if form == "stream" else "s.tar")
    wds_here("create", tmp_path / "src", "-o", shard, "-q")
    assert wds_here("report", shard, "-o", tmp_path / "page.html").code == 0
    text = (tmp_path / "page.html").read_text()
    section = text[text.index('<section id="captions"') : text.index('<section id="shards"')]
    assert re.findall("<h3><code>(.*?)</code></h3>", section) == ["py"]
    assert "30 texts." in section
    assert len(re.findall('<p class="caption" dir="auto"># program', text)) == 30
    assert "Cannot be decoded" not in text


def test_a_caption_is_shown_rather_than_another_text(tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(
        tar_of([("a.md", b"# heading"), ("a.py", b"pass"), ("a.txt", b"a caption")])
    )
    assert wds_here("report", tmp_path / "s.tar", "-o", tmp_path / "page.html").code == 0
    assert '<p class="caption" dir="auto">a caption</p>' in (tmp_path / "page.html").read_text()


def test_a_lone_chart_is_as_wide_as_two() -> None:
    wide = charts.histogram(Counter({1: 2, 5: 3}), "texts", alone=True)
    assert f'viewBox="0 0 {2 * charts.WIDTH} {charts.HEIGHT}"' in wide
    assert f'viewBox="0 0 {charts.WIDTH} {charts.HEIGHT}"' in charts.histogram(Counter({1: 2, 5: 3}), "texts")


def test_provenance_names_the_stored_values(tmp_path: Path) -> None:
    wds_here(
        "create", made_texts(tmp_path), "-o", tmp_path / "s-%d.tar", "--values", "len(py),lines(py)", "-q"
    )
    assert wds_here("report", tmp_path, "-o", tmp_path / "page.html").code == 0
    assert "<dt>values</dt><dd>len(py), lines(py)</dd>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("form", ["files", "stream"])
def test_texts_are_seen_after_empty_files_and_in_any_script(form: str, tmp_path: Path) -> None:
    """The probe of a field's first bytes may end inside a character, and the first file may be empty."""
    (tmp_path / "src").mkdir()
    for name, text in (("a", ""), ("b", "x" + "語" * 3000), ("c", "# c")):
        (tmp_path / "src" / f"{name}.py").write_text(text, encoding="utf-8")
    shard = tmp_path / ("s.tar.gz" if form == "stream" else "s.tar")
    wds_here("create", tmp_path / "src", "-o", shard, "-q")
    assert wds_here("report", shard, "-o", tmp_path / "page.html").code == 0
    assert "3 texts." in Page((tmp_path / "page.html").read_bytes()).text("captions")


def test_a_set_without_its_only_shard(tmp_path: Path) -> None:
    wds_here("create", made_texts(tmp_path), "-o", tmp_path / "s.tar", "-q")
    (tmp_path / "s.tar").unlink()
    ran = wds_here("report", tmp_path / "s-manifest.json", "-o", tmp_path / "page.html")
    assert ran.code == 4
    assert "internal error" not in ran.err
