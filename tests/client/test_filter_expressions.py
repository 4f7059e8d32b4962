"""Filter expressions: what they mean, and what they say of what is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import InvalidFilter, InvalidRequest
from lsmq.filter_expressions import MAX_FILTER_LENGTH, Expression, Fields
from lsmq.filters import MAX_FILTER_WORDS, MessageFilter

MESSAGE = Fields(
    "k", "t", None, 3, 7, 1_000, {"region": "eu", "n": "10", "order.total": "99.5", "it's": "%", "tag": "own"}
)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("region = 'eu'", True),
        ("region <> 'eu'", False),
        ("region != 'us'", True),
        ("'eu' = region", True),
        ("n > 9", True),
        ("n > '9'", False),
        ("9 < n", True),
        ("n BETWEEN 1 AND 20", True),
        ("n not between 1 and 20", False),
        ("n IN (1, 10)", True),
        ("n IN ('1', '10')", True),
        ("region NOT IN ('us', 'uk')", True),
        ("region LIKE 'e%'", True),
        ("region LIKE '_u'", True),
        ("region LIKE '_'", False),
        ("\"it's\" LIKE '!%' ESCAPE '!'", True),
        ("region LIKE '!%' ESCAPE '!'", False),
        ("type IS NULL", True),
        ("missing IS NULL AND region IS NOT NULL", True),
        ("order.total > 99", True),
        ("properties.tag = 'own' AND tag = 't'", True),
        ("\"tag\" = 'own'", True),
        ("priority >= 3 AND stored_ms < 1001", True),
        ("subpriority BETWEEN 7 AND 9 AND NOT subpriority = priority", True),
        ("key = 'k' OR missing = 1", True),
        ("NOT (key = 'other')", True),
        ("region = 'it''s'", False),
        ("n = 10.0", True),
        ("n = n", True),
        ("region < 'f'", True),
        ("region = 'eu' OR region = 'us' AND n = 0", True),
        ("(region = 'eu' OR region = 'us') AND n = 0", False),
    ],
)
def test_an_expression_means_what_sql_says(text: str, matches: bool) -> None:
    assert Expression(text).matches(MESSAGE) is matches


@pytest.mark.parametrize("number", [2**53, 10**18, 2**63 - 1, 2**63, 2**64, 2**127 - 1, -(2**63), -(2**127)])
def test_whole_numbers_are_told_apart_however_large(number: int) -> None:
    """Ids of 64 bits have 19 digits, and those of 128 bits 39; a float tells 15 of them."""
    for value, is_it in ((number, True), (number - 1, False), (number + 1, False)):
        message = MESSAGE._replace(properties={"id": str(value)})
        for text in (f"id = {number}", f"{number} = id", f"id IN (0, {number})", f"id BETWEEN {number} AND {number}"):
            assert Expression(text).matches(message) is is_it, text
        assert Expression(f"id < {number}").matches(message) is (value < number)
        assert Expression(f"id <> {number}").matches(message) is not is_it


@pytest.mark.parametrize("text", ["id > 1e308", f"id > {'9' * 300}", "id = 1e400"])
def test_numbers_of_any_length_are_compared(text: str) -> None:
    for value in ("9" * 10_000, "1e999", "+" + "9" * 5_000):
        assert Expression(text).matches(MESSAGE._replace(properties={"id": value})) is True


@pytest.mark.parametrize(
    "text", ["missing = 1", "missing <> 1", "region = 10", "type = 'x'", "missing LIKE '%'", "region IN (1)"]
)
def test_what_is_unknown_matches_neither_way(text: str) -> None:
    assert not Expression(text).matches(MESSAGE)
    assert not Expression(f"NOT ({text})").matches(MESSAGE)
    assert Expression(f"{text} OR n = 10").matches(MESSAGE)


@pytest.mark.parametrize("value", [5, 1.5, True, b"eu", ["eu"], {"eu": 1}])
@pytest.mark.parametrize("text", ["n = 'x'", "n < 'x'", "n IN ('x', 1)", "n > 1", "n LIKE '%'", "n = region"])
def test_a_property_that_is_no_text_is_null(text: str, value: object) -> None:
    """Brokers store what a sender of record batches gives as properties, and do not look."""
    message = MESSAGE._replace(properties={"region": "eu", "n": value})  # type: ignore[dict-item]
    assert not Expression(text).matches(message) and not Expression(f"NOT ({text})").matches(message)
    assert Expression("n IS NULL").matches(message)


@pytest.mark.parametrize(
    ("text", "position", "what"),
    [
        ("", 0, "empty"),
        ("region =", 8, "expected, not the end"),
        ("region = 'eu", 9, "has no end"),
        ("priority = 'x'", 0, "priority is a number"),
        ("priority LIKE 'x'", 0, "LIKE is for text"),
        ("n IN ()", 6, "expected, not ')'"),
        ("n IN (region)", 6, "texts and numbers only"),
        ("(n = 1", 6, ") is expected"),
        ("n = 1 region", 6, "AND, OR or the end"),
        ("n ! 1", 2, "does not begin anything"),
        ("region", 6, "a comparison"),
        ("region LIKE 'a' ESCAPE 'ab'", 23, "one character"),
        ("a. = 1", 0, "ends with a dot"),
        ("NOT " * 65 + "n = 1", 260, "64 parentheses"),
    ],
)
def test_what_is_wrong_is_said_with_its_position(text: str, position: int, what: str) -> None:
    with pytest.raises(InvalidFilter) as wrong:
        Expression(text)
    assert wrong.value.details["position"] == position
    assert what in wrong.value.message


def test_an_expression_that_is_too_long_is_refused_and_a_long_one_is_not_deep() -> None:
    chain = " AND ".join(["n=10"] * 900)
    assert Expression(chain).matches(MESSAGE)
    with pytest.raises(InvalidFilter, match=str(MAX_FILTER_LENGTH)):
        Expression("n=10 OR " * MAX_FILTER_LENGTH + "n=1")


def test_no_pattern_is_tried_in_all_ways() -> None:
    """It would take longer than the universe is old."""
    pattern = Expression("region LIKE '" + "%a" * 1_000 + "%b'")
    assert not pattern.matches(MESSAGE._replace(properties={"region": "a" * 20_000}))


def test_a_pattern_is_not_tried_at_each_character() -> None:
    """It would take minutes, in which no other thread does anything."""
    text = "region LIKE '%" + "a" * 8_000 + "b%'"
    assert not Expression(text).matches(MESSAGE._replace(properties={"region": "a" * 20_000_000}))


def _is_like(text: str, pattern: list[str]) -> bool:
    """What SQL says, of a pattern whose characters are ``%``, ``_``, or stand for themselves with ``!`` before them."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(_is_like(text[at:], pattern[1:]) for at in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0], f"!{text[0]}") and _is_like(text[1:], pattern[1:])


@given(
    st.text("ab%\n", max_size=12),
    st.lists(st.sampled_from(["%", "_", "a", "b", "ä", "!%", "!_", "!!", "\n"]), max_size=9),
)
def test_a_pattern_fits_what_it_says(text: str, pattern: list[str]) -> None:
    found = Expression(f"region LIKE '{''.join(pattern)}' ESCAPE '!'")
    assert found.matches(MESSAGE._replace(properties={"region": text})) is _is_like(text, pattern)


@pytest.mark.parametrize(("tag", "kind"), [([], None), (None, ["a"] * (MAX_FILTER_WORDS + 1)), (3, None), ([3], None)])
def test_words_that_cannot_be_picked_by_are_refused(tag: object, kind: object) -> None:
    with pytest.raises((InvalidRequest, TypeError)):
        MessageFilter.of(tag, kind, None)  # type: ignore[arg-type]


def test_no_filter_is_none() -> None:
    assert MessageFilter.of(None, None, None) is None
