"""The error tree: every error has a kind and a public message, and keeps private what is private."""

import pytest

from refract.kernel.errors import (
    BodyTooLarge,
    Forbidden,
    Invalid,
    Kind,
    Limited,
    Misconfigured,
    NotFound,
    NotPublished,
    PoisonMessage,
    RefractError,
    Unauthenticated,
    Unavailable,
    UniqueViolation,
    Unroutable,
)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (RefractError(), Kind.INTERNAL, "internal server error"),
        (Invalid(), Kind.INVALID, "invalid request"),
        (Unauthenticated(), Kind.UNAUTHENTICATED, "unauthorized"),
        (Forbidden(), Kind.FORBIDDEN, "forbidden"),
        (NotFound(), Kind.NOT_FOUND, "not found"),
        (BodyTooLarge(), Kind.TOO_LARGE, "request body too large"),
        (Limited(1.5), Kind.LIMITED, "rate limit exceeded"),
        (Unavailable("postgresql", "refused"), Kind.UNAVAILABLE, "service unavailable"),
        (UniqueViolation("users_email_key"), Kind.CONFLICT, "already exists"),
        (NotPublished("no confirm"), Kind.UNAVAILABLE, "service unavailable"),
        (Unroutable("smap.events", "email.sent"), Kind.UNAVAILABLE, "service unavailable"),
        (Misconfigured("FATAL: no"), Kind.INTERNAL, "FATAL: no"),
        (PoisonMessage("not JSON"), Kind.INVALID, "not JSON"),
    ],
)
def test_kinds_and_public_messages(error: RefractError, kind: Kind, message: str) -> None:
    assert (error.kind, error.message) == (kind, message)


@pytest.mark.parametrize("kind_of_error", [Invalid, NotFound, Forbidden, Unauthenticated, BodyTooLarge])
def test_a_message_of_ones_own_is_public_and_changes_no_other_error(kind_of_error: type[RefractError]) -> None:
    usual = kind_of_error().message
    assert kind_of_error("short_code is empty").message == "short_code is empty"
    assert str(kind_of_error("short_code is empty")) == "short_code is empty"
    assert kind_of_error().message == usual


def test_a_subclass_in_a_service_needs_a_kind_and_a_message_only() -> None:
    class AliasTaken(RefractError):
        kind = Kind.CONFLICT
        message = "short code already taken"

    assert (AliasTaken().kind, AliasTaken().message) == (Kind.CONFLICT, "short code already taken")


def test_limited_says_when_to_come_back() -> None:
    error = Limited(12.5, "too many failed logins")
    assert (error.retry_after, error.message) == (12.5, "too many failed logins")


@pytest.mark.parametrize(
    ("error", "log_line"),
    [
        (
            Unavailable("redis", "connection refused by 10.0.0.7"),
            "redis is unavailable: connection refused by 10.0.0.7",
        ),
        (UniqueViolation("links_code_key"), "unique constraint links_code_key violated"),
        (NotPublished("no confirm within 5 s"), "no confirm within 5 s"),
        (Unroutable("url-shortener", "url.clicked"), "no queue takes 'url.clicked' from exchange 'url-shortener'"),
    ],
)
def test_what_the_log_says_is_not_what_a_stranger_reads(error: RefractError, log_line: str) -> None:
    assert str(error) == log_line
    assert error.message not in log_line


def test_a_returned_message_is_one_that_was_not_published() -> None:
    assert issubclass(Unroutable, NotPublished)
