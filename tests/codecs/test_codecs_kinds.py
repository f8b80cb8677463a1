"""The table of kinds of fields: nothing else in the house says what a name means, and what it says is followed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wdscli
from wdscli.codecs.images import EXTENSIONS
from wdscli.codecs.kinds import KINDS, TABLE
from wdscli.codecs.media import AV_SOUND, FILM, SOUNDFILE
from wdscli.codecs.values import DEFAULTS, ENCODERS

HOUSE = Path(wdscli.__file__).parent
NO_TABLES_OF_FIELDS = {
    "selection/places.py": "the names that --where offers in its expressions",
    "selection/where.py": "the values of these names",
    "storage/patterns.py": "files next to shards that are no shards",
}
MOST_NAMES = 2


def literals(tree: ast.AST) -> Iterator[tuple[int, list[object]]]:
    """The line and the constants of each collection, and the words of each text that is split."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            yield node.lineno, [one.value for one in node.elts if isinstance(one, ast.Constant)]
        elif isinstance(node, ast.Dict):
            yield node.lineno, [one.value for one in node.keys if isinstance(one, ast.Constant)]
        elif (
            isinstance(node, ast.Attribute) and node.attr == "split" and isinstance(node.value, ast.Constant)
        ):
            text = node.value.value
            yield node.lineno, list(text.split() if isinstance(text, (str, bytes)) else ())


def lists_of_fields(tree: ast.AST) -> list[tuple[int, list[str]]]:
    """Literals that hold more than a few names of kinds."""
    found = []
    for line, values in literals(tree):
        texts = {one.decode("latin-1") if isinstance(one, bytes) else one for one in values}
        names = sorted({one.removeprefix(".") for one in texts if isinstance(one, str)} & KINDS.keys())
        if len(names) > MOST_NAMES:
            found.append((line, names))
    return found


@pytest.mark.exhaustive
def test_no_other_module_lists_fields() -> None:
    found = {}
    for path in HOUSE.rglob("*.py"):
        name = path.relative_to(HOUSE).as_posix()
        # Inside codecs functions are listed by form; some forms have the name of an extension.
        if name not in NO_TABLES_OF_FIELDS and not name.startswith("codecs/"):
            found[name] = lists_of_fields(ast.parse(path.read_text()))
    assert not {name: lists for name, lists in found.items() if lists}


@pytest.mark.parametrize(
    "line",
    [
        'SOUND = ("wav", "mp3", "x")  # two',
        'SOUND = ("wav", "mp3", "flac")',
        'SOUND = {b"wav", b"mp3", b"flac"}',
        'SOUND = {"wav": 1, "mp3": 2, "flac": 3}',
        'SOUND = "wav mp3 flac".split()',
        'SOUND = [".wav", ".mp3", ".flac"]',
        'Sound = Literal["wav", "mp3", "flac"]',
    ],
)
def test_lists_are_found(line: str) -> None:
    assert bool(lists_of_fields(ast.parse(line))) == (not line.endswith("two"))


def test_every_decoder_and_encoder_is_in_the_table() -> None:
    assert {*EXTENSIONS, *SOUNDFILE, *AV_SOUND, *FILM, *DEFAULTS, *ENCODERS} <= KINDS.keys()


def test_every_form_is_decoded_or_encoded() -> None:
    known = {*EXTENSIONS, *SOUNDFILE, *AV_SOUND, *FILM, *DEFAULTS, *ENCODERS}
    assert not [kind for kind in TABLE if kind.form and not known.issuperset(kind.names.split())]


def test_no_name_has_two_rows() -> None:
    names = [name for kind in TABLE for name in kind.names.split()]
    assert len(names) == len(set(names)) == len(KINDS)
    assert all(name == name.lower() for name in names)


def test_a_row_is_all_that_a_name_of_a_known_format_needs() -> None:
    """The same as ``opus``, by another name: decoded, shown, and known to the profile of a reader."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from wdscli.codecs import kinds\n"
            'kinds.KINDS["oga"] = kinds.find("opus")._replace(names="oga")\n'
            'kinds.KINDS["note"] = kinds.find("txt")._replace(names="note")\n'
            "from wdscli.codecs.cells import cell_payload\n"
            "from wdscli.codecs.media import AV_SOUND, MEDIA\n"
            "from wdscli.codecs.values import basichandlers\n"
            "from wdscli.codecs.values import encode_field\n"
            "from wdscli.look.unpack import text_form\n"
            "from wdscli.report.looking import DrawnSample, field_type, make_card\n"
            "from wdscli.report.looking import CAPTIONS\n"
            "from wdscli.verify.profiles import _is_raw_for_hf\n"
            'assert AV_SOUND["oga"] == "ogg" and MEDIA["audio"].find("oga") is not None\n'
            'assert field_type("oga") == "audio" and not _is_raw_for_hf(b"oga")\n'
            'drawn = DrawnSample(0, "a.tar", 0, b"k", ())\n'
            'part, = make_card(drawn, [("oga", 4, b"OggS")], [], [], 100, "a.tar").parts\n'
            'assert part.uri.startswith("data:audio/ogg;base64,")\n'
            'assert basichandlers.find("note")(b"a") == "a" and encode_field("a", "note") == b"a"\n'
            'assert cell_payload("a", "x", "note") == b"a"\n'
            'assert text_form(b"note") == "text" and "note" in CAPTIONS\n',
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_table_loads_no_decoder() -> None:
    code = "import sys\nimport wdscli.codecs.kinds\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.startswith("wdscli")}
    assert ours == {"wdscli", "wdscli.codecs", "wdscli.codecs.kinds"}
    assert not {"numpy", "PIL", "json"} & set(done.stdout.split())
