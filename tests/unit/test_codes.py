"""Short codes: generated ones are even and never a word, aliases keep to the rules, the route tables are reserved."""

import ast
import inspect
import secrets
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.errors import Invalid
from refract.kernel.ids import ALPHABET, MAX_AGE_MILLISECONDS, decode_base62, encode_base62
from refract.services.gateway.api import OWN_PATHS, ROUTES, reserved_words
from refract.services.links.domain import codes
from refract.services.links.domain.codes import (
    CODE_LENGTH,
    RESERVED,
    check_alias,
    code_source,
    is_reserved,
    random_code,
)
from refract.services.links.settings import Strategy

WRONG_FORM = "custom_code must be 3 to 50 letters, digits or hyphens"
APPENDIX_A = (
    "admin api app auth dashboard docs help health login logout register signup "
    "settings status support www web assets static"
)


def refusal(alias: str) -> str:
    with pytest.raises(Invalid) as refused:
        check_alias(alias)
    return refused.value.message


def test_a_random_code_has_seven_characters_of_base62() -> None:
    assert CODE_LENGTH == 7
    for _ in range(1_000):
        code = random_code()
        assert len(code) == 7
        assert set(code) <= set(ALPHABET)


def test_a_thousand_random_codes_are_a_thousand_codes() -> None:
    assert len({random_code() for _ in range(1_000)}) == 1_000


def test_every_character_is_as_likely_as_another_in_every_place() -> None:
    # A byte modulo 62 (M3) makes eight characters a quarter likelier than the rest: nine deviations above their due.
    draws = 124_000
    generated = [random_code() for _ in range(draws)]
    expected = draws / 62
    deviation = expected**0.5
    for place in range(CODE_LENGTH):
        counts = Counter(code[place] for code in generated)
        assert all(abs(counts[character] - expected) < 6.5 * deviation for character in ALPHABET), place


def test_chance_comes_from_the_system_and_not_from_the_random_module() -> None:
    tree = ast.parse(inspect.getsource(codes))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "secrets" in imported
    assert not any(module.split(".")[0] in {"random", "numpy"} for module in imported)


@pytest.mark.parametrize("word", ["metrics", "Shorten", "SUPPORT"])
def test_a_draw_that_spells_a_reserved_word_is_drawn_again(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([decode_base62(word), decode_base62(word), 61])
    monkeypatch.setattr(secrets, "randbelow", lambda _limit: next(draws))
    assert random_code() == "000000Z"


def test_small_draws_are_filled_up_and_one_draw_spans_all_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []

    def lowest(limit: int) -> int:
        limits.append(limit)
        return 0

    monkeypatch.setattr(secrets, "randbelow", lowest)
    assert random_code() == "0000000"
    assert limits == [62**7]


def test_the_snowflake_strategy_writes_the_id_in_base62() -> None:
    assert code_source("snowflake")(123456789012345678) == "97qS0b7N2m"


def test_the_random_strategy_does_not_show_the_id() -> None:
    source = code_source("random")
    made = {source(123456789012345678) for _ in range(100)}
    assert len(made) == 100
    assert {len(code) for code in made} == {7}


@given(st.integers(0, (MAX_AGE_MILLISECONDS << 22) | 0x3FFFFF), st.sampled_from(["random", "snowflake"]))
def test_every_generated_code_could_be_an_alias_or_is_only_too_short(link_id: int, strategy: Strategy) -> None:
    code = code_source(strategy)(link_id)
    assert not is_reserved(code)
    assert len(code) < 3 or check_alias(code) == code


@pytest.mark.parametrize("word", sorted(RESERVED))
def test_no_snowflake_spells_a_reserved_word(word: str) -> None:
    for spelling in (word, word.upper(), word.title()):
        code = code_source("snowflake")(decode_base62(spelling))
        assert not is_reserved(code)
        assert len(code) == CODE_LENGTH
        assert encode_base62(decode_base62(spelling)) == spelling, "the word was never in danger"


@pytest.mark.parametrize("alias", ["abc", "a-b", "---", "123", "My-Link-2024", "x" * 50, "apis", "adm1n", "api-docs"])
def test_an_alias_is_taken_as_it_is(alias: str) -> None:
    assert check_alias(alias) == alias


@pytest.mark.parametrize(
    "alias",
    [
        *("", "a", "ab", "x" * 51, "a b", "a_b", "a.b", "a/b", "a%2Fb", "../x", "abc?", "abc#", "a\\b"),
        *(" abc", "abc ", "abc\n", "\nabc", "a\x00bc"),
        *("äbc", "\uff41\uff42\uff43", "١٢٣", "a\u200bbc", "ab\ud800", "e\u0301ab"),
    ],
)
def test_an_alias_of_another_form_is_refused(alias: str) -> None:
    assert refusal(alias) == WRONG_FORM


@given(st.text(st.characters(), max_size=60) | st.text(ALPHABET + "-", max_size=60))
def test_any_text_is_either_an_alias_of_the_right_form_or_refused(text: str) -> None:
    if 3 <= len(text) <= 50 and set(text) <= set(ALPHABET) | {"-"} and not is_reserved(text):
        assert check_alias(text) == text
    else:
        assert refusal(text) in {WRONG_FORM, "custom_code is reserved"}


@pytest.mark.parametrize("word", sorted(word for word in RESERVED if len(word) >= 3))
def test_a_reserved_word_is_no_alias_in_whichever_case(word: str) -> None:
    for spelling in (word, word.upper(), word.title(), word[0] + word[1:].upper()):
        assert refusal(spelling) == "custom_code is reserved"


def test_the_names_of_the_appendix_are_reserved() -> None:
    assert set(APPENDIX_A.split()) <= RESERVED


def test_the_words_of_the_route_tables_are_reserved() -> None:
    assert reserved_words() <= RESERVED
    first = {path.split("/")[1] for route in ROUTES for path in (route.path, route.forward)}
    own = {path.split("/")[1] for path in OWN_PATHS}
    words = {segment for segment in first | own if not segment.startswith("{")}
    assert words <= RESERVED
    assert {"shorten", "urls", "metrics", "ready", "summary", "stats", "me"} <= RESERVED
