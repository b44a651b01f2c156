"""The data of tenants is separated by one key, which no name can forge."""

import itertools
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from waystation.artifacts.object_store_artifact_service import Scope
from waystation.core import ids
from waystation.core.approval import Verified
from waystation.core.contract import InvocationInput
from waystation.core.errors import InvalidInput
from waystation.core.log import begin_entry
from waystation.core.payload import encode
from waystation.core.scope_state import app_scope, user_scope
from waystation.core.session_log import SessionInput, parse_session

TENANTS = st.none() | st.from_regex(ids.TENANT, fullmatch=True)
NAMES = st.text(st.sampled_from("acme~@/%.-_é ") | st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
"""Names of apps, users and sessions; many look like parts of a key."""


@st.composite
def places(draw: st.DrawFn) -> tuple[str | None, str, str, str]:
    """Return a tenant, an app, a user and a session."""
    app = draw(NAMES)
    if ids.parse_app_key(app) != (app, None):
        app = app.replace("~", "-")
    return draw(TENANTS), app, draw(NAMES), draw(NAMES)


@given(st.lists(places(), min_size=2, max_size=6, unique=True))
def test_different_places_never_share_a_key(drawn: list[tuple[str | None, str, str, str]]) -> None:
    """Sessions, scopes and artifacts of another tenant, app, user or session have other keys."""
    for one, other in itertools.combinations(drawn, 2):
        (first, *names), (second, *more) = ((ids.app_key(app, tenant), *rest) for tenant, app, *rest in (one, other))
        assert ids.session(first, *names) != ids.session(second, *more)
        assert Scope(first, *names).folder != Scope(second, *more).folder
        if (one[:3]) != (other[:3]):
            assert user_scope(first, names[0]) != user_scope(second, more[0])
        if one[:2] != other[:2]:
            assert app_scope(first) != app_scope(second)
        is_shared = one[0] == other[0] if one[0] or other[0] else one[:3] == other[:3]
        assert (ids.fairness_key(first, names[0]) == ids.fairness_key(second, more[0])) is is_shared


@given(places())
def test_a_fairness_key_fits_the_limit_of_the_server(place: tuple[str | None, str, str, str]) -> None:
    """The server refuses keys of more than 64 bytes."""
    tenant, app, user, _ = place
    assert len(ids.fairness_key(ids.app_key(app, tenant), user).encode()) <= 64


@given(places())
def test_keys_without_a_tenant_are_unchanged(drawn: tuple[str | None, str, str, str]) -> None:
    """An installation without tenants keeps its data."""
    _, app, user, session = drawn
    key = ids.app_key(app, None)
    assert key == app
    assert ids.session(key, user, session) == "/".join(("session", *(quote(n, safe="") for n in (app, user, session))))


@given(places())
def test_a_key_is_parsed_into_its_parts(drawn: tuple[str | None, str, str, str]) -> None:
    """Lists of sessions show the app and the tenant."""
    tenant, app, *_ = drawn
    assert ids.parse_app_key(ids.app_key(app, tenant)) == (app, tenant)


@pytest.mark.parametrize("tenant", ["", "Acme", "a/b", "a~b", "a~~b", "-a", ".a", "acme\n", "acmé", "a" * 64, " a", 7])
def test_a_forged_tenant_is_refused(tenant: object) -> None:
    """Both workflows and the function that makes keys refuse it."""
    for kind in (InvocationInput, SessionInput):
        with pytest.raises(ValidationError, match="tenant"):
            kind.model_validate({"agent": "a", "message": "x", "session_id": "s", "tenant": tenant})
    with pytest.raises(ValueError, match="is not a valid tenant"):
        ids.app_key("shop", tenant)  # type: ignore[arg-type]  # a number is also refused


def test_an_app_cannot_be_named_like_the_key_of_a_tenant() -> None:
    """The error does not repeat the name and asks for `tenant` instead."""
    with pytest.raises(ValueError, match="pass the tenant as `tenant`"):
        ids.app_key("acme~~shop", None)
    refused = begin_entry([encode({"agent": "a", "message": "x", "app": "acme~~shop"})])
    assert "pass the tenant as `tenant`" in str(refused)
    with pytest.raises(InvalidInput, match="pass the tenant as `tenant`"):
        parse_session(encode({"agent": "a", "session_id": "s", "app": "acme~~shop"}), "s", continues=False)


@pytest.mark.parametrize("tenant", [None, "other"])
def test_a_session_must_be_the_session_of_the_tenant(tenant: str | None) -> None:
    """Neither an invocation nor a session workflow can name another tenant than the one in its ID."""
    id = ids.session(ids.app_key("shop", "acme"), "ann", "s")
    names = {"agent": "a", "message": "x", "app": "shop", "user_id": "ann", "session_id": "s"}
    for claimed in ({} if tenant is None else {"tenant": tenant}), {"app": "acme~~shop"}:
        forged = encode({**names, "session": {"id": id, "run_id": "r", "number": 1}, **claimed})
        assert type(begin_entry([forged], parent=id)).__name__ == "Refused"
        with pytest.raises(InvalidInput):
            parse_session(encode({**names, **claimed}), id, continues=False)
    own = {**names, "tenant": "acme"}
    assert type(begin_entry([encode({**own, "session": {"id": id, "number": 1}})], parent=id)).__name__ == "Began"
    assert parse_session(encode(own), id, continues=False).tenant == "acme"


@pytest.mark.parametrize(
    ("claimed", "tenant", "allowed"),
    [
        (None, None, True),
        (None, "acme", True),
        ("acme", "acme", True),
        ("acme", None, False),
        ("acme", "other", False),
        ("", None, True),
        ("", "acme", False),
    ],
)
def test_people_may_access_only_their_own_tenant(claimed: str | None, tenant: str | None, allowed: bool) -> None:
    """People see only their own tenant.

    None means an issuer without tenants, and an empty text a person without one.
    """
    assert Verified(subject="dana", tenant=claimed).may_access(tenant) is allowed


def test_the_tenant_of_an_approver_is_not_recorded() -> None:
    """Records omit the tenant of an approver, so MACs of earlier approvals stay valid and histories the same."""
    assert Verified(subject="dana", tenant="acme").model_dump() == Verified(subject="dana").model_dump()
