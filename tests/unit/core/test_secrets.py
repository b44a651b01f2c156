"""Recognizing secrets in answers, and hiding them from records."""

import base64
import json
from urllib.parse import quote

import pytest

from waystation.core.errors import NotJson
from waystation.core.payload import JsonObject, to_plain_json
from waystation.core.secrets import (
    HIDDEN,
    Secret,
    has_named_secret,
    hide_named_secrets,
    hide_secrets_at,
    mask,
    secret_keys,
    token_parts,
)


@pytest.mark.parametrize(
    ("response", "keys"),
    [
        ({"oauth2": {"accessToken": "abc"}}, ["oauth2.accessToken"]),
        ({"oauth2": {"access_token": "abc"}}, ["oauth2.access_token"]),
        ({"API-Key": "abc"}, ["API-Key"]),
        ({"apiKey": 1234}, ["apiKey"]),
        ({"http": {"credentials": {"username": "u", "password": "p"}}}, ["http.credentials.password"]),
        ({"exchanged": {"oauth2": {"authResponseUri": "x"}}}, ["exchanged.oauth2.authResponseUri"]),
        ({"token": ["a", "b"]}, ["token[0]", "token[1]"]),
        ({"link": "https://me/cb?state=1&code=abc"}, ["link"]),
        ({"link": "https://me/cb#access_token=abc"}, ["link"]),
        ({"note": "Bearer abcdefgh"}, ["note"]),
        ({"note": "it is eyJhbGciOi.eyJzdWIiOi.c2ln"}, ["note"]),
        ({"note": "-----BEGIN RSA PRIVATE KEY-----\nx"}, ["note"]),
    ],
)
def test_a_secret_is_recognized(response: JsonObject, keys: list[str]) -> None:
    """A secret is recognized by its form or by the name of its field, in any spelling."""
    assert secret_keys(response) == keys


@pytest.mark.parametrize(
    "response",
    [
        {},
        {"status": "done", "comment": "the token is in the store"},
        {"token": "", "apiKey": None, "password": True},
        {"credentialKey": "adk_oauth2_1", "state": "xyz", "clientId": "c", "authUri": "https://a/?state=1"},
        {"tokenCount": 5, "passwordless": "yes", "postcode": "8000"},
        {"link": "https://me/?barcode=1"},
    ],
)
def test_an_ordinary_value_is_not_a_secret(response: JsonObject) -> None:
    """Empty fields, similar names, and texts that only mention secrets are not secrets."""
    assert secret_keys(response) == []


def test_a_secret_is_masked_but_usable() -> None:
    """The representation of a secret is masked, but headers can be built from it like from any text."""
    key = Secret("s3cr3t-value")
    assert repr(key) == repr([key])[1:-1] == HIDDEN
    assert f"Bearer {key}" == "Bearer s3cr3t-value"
    assert json.dumps({"k": key}) == '{"k": "s3cr3t-value"}'


@pytest.mark.parametrize("value", [Secret("abc"), {"a": [Secret("abc")]}, [{"b": Secret("abc")}]])
def test_a_secret_cannot_be_recorded(value: object) -> None:
    """A secret at any depth is refused, and the error does not quote it."""
    with pytest.raises(NotJson, match="part of a credential") as caught:
        to_plain_json(value)
    assert "abc" not in str(caught.value)


def test_masking_replaces_secrets_inside_texts_and_keys() -> None:
    """Longer secrets are replaced first, and very short ones are ignored."""
    value = {"url": "https://x/?k=secret-1-long", "secret-1": ["secret-1!", 5, None], "n": "no"}
    assert mask(value, ["secret-1", "secret-1-long", "no"]) == {
        "url": f"https://x/?k={HIDDEN}",
        HIDDEN: [f"{HIDDEN}!", 5, None],
        "n": "no",
    }


def test_masking_without_secrets_returns_the_same_value() -> None:
    """The same object is returned, because most calls receive no secret."""
    value = {"a": [1]}
    assert mask(value, []) is value


def test_values_are_hidden_by_their_names_at_any_depth() -> None:
    """Only the values are hidden, so readers see which secrets exist."""
    value = {"to": "ada", "password": "p", "login": {"api_key": 5, "city": "Bern"}, "all": [{"token": None}]}
    hidden = {"to": "ada", "password": "…", "login": {"api_key": "…", "city": "Bern"}, "all": [{"token": "…"}]}
    assert hide_named_secrets(value) == hidden
    assert [has_named_secret(value), has_named_secret("x", "name"), has_named_secret("x", "apiKey")] == [1, 0, 1]


def test_a_number_of_tokens_is_displayed() -> None:
    """Counts of tokens are shown, but text with such a name is hidden."""
    usage = {"max_output_tokens": 5, "promptTokenCount": 7, "tokens": "a b", "token": 4}
    assert hide_named_secrets(usage) == {**usage, "tokens": "…", "token": "…"}


def test_a_secret_name_above_a_value_hides_it() -> None:
    """A value inside a field with a secret name is hidden."""
    assert [hide_secrets_at(place, 1) for place in ("args.password", "args.secret.a[0]", "args.to[1]")] == ["…", "…", 1]


@pytest.mark.parametrize("before", ["", "x", "xy"])
def test_masking_recognizes_secrets_in_their_usual_encodings(before: str) -> None:
    """A tool may encode a text that contains a secret. In Base64, only the ends of the text remain."""
    secret = 'se/cret"ü~?value'
    text = f"{before}{secret} and more"
    encoded = [
        quote(text, safe=""),
        json.dumps(text),
        text.encode().hex(),
        base64.b64encode(text.encode()).decode(),
        base64.urlsafe_b64encode(text.encode()).decode(),
    ]
    for form in mask(encoded, [secret]):
        assert HIDDEN in form
        assert len(form) < len(HIDDEN) + 2.7 * len(f"{before} and more")


def test_the_parts_of_a_signed_token_are_masked() -> None:
    """Its signature alone would be enough, because everything else in it can be guessed."""
    value = mask(["payload", "header", "signature"], token_parts("header.payload.signature"))
    assert value == [HIDDEN, "header", HIDDEN]
