"""Only encrypted tokens may enter a history."""

import base64

import pytest

from waystation.core.approval import MAX_TOKEN_CHARS, is_encrypted


def part(text: str) -> str:
    """Return one part of a compact token."""
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


ENCRYPTED = ".".join([part('{"alg":"ECDH-ES","enc":"A256GCM"}'), "", "aXY", "Y2lwaGVy", "dGFn"])


def test_an_encrypted_token_is_recognized() -> None:
    """An encrypted token is recognized by its empty second part, as in direct key agreement."""
    assert is_encrypted(ENCRYPTED)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "secret",
        "....",
        ".".join([part('{"alg":"ES256"}'), part('{"sub":"dana"}'), "c2ln"]),
        ".".join([part('{"alg":"ES256"}'), "", part('{"sub":"dana"}'), "c2ln", "c2ln"]),
        ".".join([part('{"alg":"ECDH-ES","enc":"A256GCM"}'), "", "", "Y2lwaGVy", "dGFn"]),
        ".".join([part('["enc"]'), "", "aXY", "Y2lwaGVy", "dGFn"]),
        ".".join(["e", "", "aXY", "Y2lwaGVy", "dGFn"]),
        ".".join(["é", "", "aXY", "Y2lwaGVy", "dGFn"]),
        ENCRYPTED + "A" * MAX_TOKEN_CHARS,
    ],
)
def test_no_other_token_is_recognized(token: str) -> None:
    """Other tokens are not accepted: everyone who reads the history could use a signed one."""
    assert not is_encrypted(token)
