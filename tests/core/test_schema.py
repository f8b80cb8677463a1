"""One check of documents: what fits a table, and the words for what does not."""

from __future__ import annotations

import pytest

from wdscli.schema import check

TABLE = {
    "n": int,
    "low?": range(-1, 5),
    "text?": (str, None),
    "inner?": ({"list": [int, ...]}, None),
    "any?": {...: int},
    "pair?": [int, str],
    "word?": ("pax", "gnu"),
    "kind?": ("a", "b", "c"),
    "whatever?": object,
}


@pytest.mark.parametrize(
    "value",
    [
        {"n": 0},
        {"n": (1 << 63) - 1, "other": 7},
        {"n": 1, "low": -1, "text": None, "inner": None, "any": {}, "pair": [1, ""], "word": "gnu"},
        {"n": 1, "text": "", "inner": {"list": []}, "any": {"a?": 1}, "whatever": [None]},
    ],
)
def test_fits(value: object) -> None:
    check(value, TABLE)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "it is 3, not an object"),
        ({}, "it has no n"),
        ({"n": True}, "n is true, not a whole number from 0"),
        ({"n": 1.0}, "n is 1.0, not a whole number from 0"),
        ({"n": -1}, "n is -1, not a whole number from 0"),
        ({"n": 1 << 63}, "n is 9223372036854775808, not a whole number from 0"),
        ({"n": 1, "low": 5}, "low is 5, not a whole number from -1 to 4"),
        ({"n": 1, "text": 7}, "text is 7, not text or null"),
        ({"n": 1, "inner": {"list": [1, "2"]}}, 'inner.list.1 is "2", not a whole number from 0'),
        ({"n": 1, "inner": {}}, "inner has no list"),
        ({"n": 1, "any": {"a": 1, "b?": None}}, "any.b? is null, not a whole number from 0"),
        ({"n": 1, "pair": [1]}, "pair is a list, not a list of 2"),
        ({"n": 1, "word": b"pax"}, 'word is bytes, not "pax" or "gnu"'),
        ({"n": 1, "kind": "d"}, 'kind is "d", not one of a, b, c'),
    ],
)
def test_names_the_field(value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        check(value, TABLE)
    assert str(caught.value) == message
