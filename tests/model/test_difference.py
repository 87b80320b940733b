"""How a stored input differs from what its function takes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Struct, json

from ostinato.model.difference import differences


class Artist(Struct):
    name: str
    born: int | None = None


class Track(Struct, forbid_unknown_fields=True):
    title: str
    artists: list[Artist]
    length: float = 0.0


SCHEMA = json.decode(json.encode(msgspec.json.schema(Track)))
FITTING = {"title": "Kyrie", "artists": [{"name": "Ockeghem", "born": None}], "length": 3}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"length": 3.5}, []),
        ({"title": 5}, ["title is an integer, not string"]),
        ({"length": "3"}, ["length is a string, not number"]),
        ({"length": True}, ["length is a boolean, not number"]),
        ({"artists": [{"name": "Binchois"}, {}]}, ["it lacks artists[1].name"]),
        ({"artists": [{"name": "Dufay", "born": "1397"}]}, ["artists[0].born is a string, not integer or null"]),
        ({"artists": None}, ["artists is null, not array"]),
        ({"album": "x", "title": None}, ["title is null, not string", "it has album, which is not taken"]),
    ],
)
def test_each_field_that_differs_is_named(changed: dict[str, Any], expected: list[str]):
    assert sorted(differences(SCHEMA, FITTING | changed)) == sorted(expected)


def test_what_is_missing_is_named():
    assert differences(SCHEMA, {"artists": []}) == ["it lacks title"]


def test_a_whole_that_is_no_object_is_named():
    assert differences(SCHEMA, [1]) == ["the input is an array, not object"]


def test_a_schema_that_says_nothing_finds_nothing():
    assert differences({}, {"anything": 1}) == []
