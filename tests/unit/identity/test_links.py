"""Signed links that open one call."""

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import OctKey

from tests.tiers import drawn_examples
from tests.unit.identity.conftest import CALL, KEY, Clock
from waystation.approvers.identity import Configuration, Link, Links, write_examples
from waystation.core.errors import NotAllowed


@pytest.fixture
def clock() -> Clock:
    """Return a clock that a test can advance."""
    return Clock()


@pytest.fixture
def links(clock: Clock) -> Links:
    """Return links that last three days, in one namespace."""
    return Links(KEY, namespace="default", lifetime=timedelta(days=3), clock=clock)


def test_a_link_contains_the_call_and_the_person(links: Links) -> None:
    """A link contains only characters that an address need not escape."""
    token = links.sign(CALL, "dana@example.com")
    assert links.read(token) == Link(approval_id=CALL, person="dana@example.com", until=links.read(token).until)
    assert links.read(links.sign(CALL)).person is None
    assert token.replace("-", "").replace("_", "").replace(".", "").isalnum()


def test_a_link_expires(links: Links, clock: Clock) -> None:
    """A link expires after three days, or after the lifetime that its creator chose."""
    usual, short = links.sign(CALL), links.sign(CALL, lifetime=timedelta(minutes=5))
    clock.ahead_s = 400
    assert links.read(usual).approval_id == CALL
    with pytest.raises(NotAllowed, match="expired"):
        links.read(short)
    clock.ahead_s = 3 * 86_400 + 1
    with pytest.raises(NotAllowed, match="expired"):
        links.read(usual)


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "waystation-link", "ns": "other", "call": CALL, "sub": None, "exp": 4e9},
        {"aud": "waystation", "ns": "default", "call": CALL, "sub": None, "exp": 4e9},
        {"aud": "waystation-link", "ns": "default", "call": 7, "sub": None, "exp": 4e9},
        {"aud": "waystation-link", "ns": "default", "call": CALL, "sub": ["dana"], "exp": 4e9},
        {"aud": "waystation-link", "ns": "default", "call": CALL, "sub": None},
    ],
)
def test_a_token_for_another_purpose_is_not_a_link(links: Links, claims: dict[str, object]) -> None:
    """A token for another purpose is refused although the same key signed it."""
    token = jwt.encode({"alg": "HS256"}, claims, KEY)
    with pytest.raises(NotAllowed, match="is not valid"):
        links.read(token)


def test_a_link_signed_with_another_key_is_refused(links: Links) -> None:
    """A link with another signature, a changed one, and one without a signature are refused."""
    other = Links(OctKey.import_key("x" * 40), namespace="default", lifetime=timedelta(days=3)).sign("other/fc-1")
    head, body, signature = links.sign(CALL).split(".")
    for forged in (other, f"{head}.{body}.", f"{head}.{other.split('.')[1]}.{signature}", "", "x", "." * 5_000):
        with pytest.raises(NotAllowed, match="is not valid"):
            links.read(forged)


@settings(max_examples=drawn_examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text() | st.lists(st.text(max_size=30), min_size=3, max_size=3).map(".".join))
def test_any_text_is_read_or_refused_as_a_link(links: Links, text: str) -> None:
    """An invalid text raises only `NotAllowed`, because it comes from an address bar."""
    with pytest.raises(NotAllowed):
        links.read(text)


def test_a_link_of_the_workers_is_read_by_the_gateway(tmp_path: Path) -> None:
    """Workers and the gateway share the key; by default, a link only shows the call."""
    write_examples(tmp_path)
    workers = Links.of(Configuration.read(tmp_path / "workers.toml"), namespace="default")
    gateway = Links.of(Configuration.read(tmp_path / "gateway.toml"), namespace="default")
    assert gateway.read(workers.sign(CALL, "dana")).person == "dana"
    assert not gateway.decide
