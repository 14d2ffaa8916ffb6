"""Short codes: the generated ones, the aliases that people choose, and the words that none may be."""

import re
import secrets
from collections.abc import Callable

from refract.kernel.errors import Invalid
from refract.kernel.ids import ALPHABET, encode_base62
from refract.services.gateway.api import reserved_words
from refract.services.links.settings import Strategy

CODE_LENGTH = 7

CodeSource = Callable[[int], str]
"""Makes a code for the link with this id."""

# fmt: off
_NAMES_KEPT_BACK = frozenset({
    "admin", "api", "app", "auth", "dashboard", "docs", "help", "health", "login", "logout", "register", "signup",
    "settings", "status", "support", "www", "web", "assets", "static",
})
# fmt: on
"""Document 004, appendix A."""

RESERVED: frozenset[str] = _NAMES_KEPT_BACK | reserved_words()
"""What no code may be: those names, and every word of the route tables that stands where a code could."""

_RESERVED_IN_LOWER_CASE = frozenset(word.lower() for word in RESERVED)
ALIAS_PATTERN = "[A-Za-z0-9-]{3,50}"
_ALIAS = re.compile(ALIAS_PATTERN)
_CODES = len(ALPHABET) ** CODE_LENGTH


def is_reserved(code: str) -> bool:
    """Whether a code is a reserved word in any mixture of cases.

    Routes tell cases apart, people do not: `/Login` on our domain, leading elsewhere, is a trap.
    """
    return code.lower() in _RESERVED_IN_LOWER_CASE


def check_alias(text: str) -> str:
    """The alias, if it may be one; whether it is free is for the unique index to say."""
    if _ALIAS.fullmatch(text) is None:
        raise Invalid("custom_code must be 3 to 50 letters, digits or hyphens")
    if is_reserved(text):
        raise Invalid("custom_code is reserved")
    return text


def random_code() -> str:
    """Seven characters of base62, each code as likely as any other and none to be guessed from another."""
    while True:
        # One draw for all seven: `randbelow` has no modulo bias, and costs a system call.
        code = encode_base62(secrets.randbelow(_CODES)).rjust(CODE_LENGTH, ALPHABET[0])
        if not is_reserved(code):
            return code


def code_source(strategy: Strategy) -> CodeSource:
    """How `CODE_STRATEGY` makes codes."""
    return _snowflake_code if strategy == "snowflake" else _code_for_any_id


def can_be_foreseen(source: CodeSource) -> bool:
    """Whether somebody can know its codes before they are made: an id says little more than when it was."""
    return source is _snowflake_code


def _code_for_any_id(_link_id: int) -> str:
    return random_code()


def _snowflake_code(link_id: int) -> str:
    """The id in base62. An id that spells a reserved word has no second spelling, so a random code stands in."""
    code = encode_base62(link_id)
    return random_code() if is_reserved(code) else code
