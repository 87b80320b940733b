"""Named SQL blocks."""

from __future__ import annotations

import pytest

from ostinato.store.sql import Block, numbered, parse

TEXT = """\
-- What this file is about; with :no_parameter and even a name: nothing

-- name: claim
-- A comment inside, with :not_a_parameter.
update runs set worker = :worker::text, due = :due::bigint
where queue = :queue and id = any(:ids) and worker <> :worker
  and label <> 'a::b'

-- name: count_all
select count(*) from runs
"""


def test_blocks_are_found_by_name():
    """In the order in which they stand."""
    assert [block.name for block in parse(TEXT)] == ["claim", "count_all"]


def test_parameters_are_kept_in_the_order_of_their_first_use():
    """Each once."""
    assert parse(TEXT)[0].parameters == ("worker", "due", "queue", "ids")
    assert parse(TEXT)[1].parameters == ()


def test_casts_are_not_parameters():
    """`::text` is PostgreSQL's."""
    assert not {"text", "bigint", "b"} & set(parse(TEXT)[0].parameters)


def test_comments_are_no_part_of_a_statement():
    """They are for people."""
    assert "--" not in parse(TEXT)[0].text
    assert parse(TEXT)[1].text == "select count(*) from runs"


def test_numbers_take_the_place_of_names():
    """As PostgreSQL's protocol wants them; the same name has the same number."""
    text = numbered(parse(TEXT)[0]).text
    assert "worker = $1::text, due = $2::bigint" in text
    assert "queue = $3 and id = any($4) and worker <> $1" in text


def test_arguments_come_in_the_order_of_the_numbers():
    """Whatever order they are given in."""
    assert Block("x", "", ("a", "b")).arguments({"b": 2, "a": 1}) == [1, 2]


def test_a_missing_argument_is_an_error():
    """It is never silently null."""
    with pytest.raises(KeyError, match="b"):
        Block("x", "", ("a", "b")).arguments({"a": 1})
