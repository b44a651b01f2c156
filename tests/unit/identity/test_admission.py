"""Rules that decide which accounts may log in, and with which roles."""

import pytest

from waystation.approvers.identity.admission import Admission, is_public
from waystation.approvers.identity.identity_file import GrantSection, OidcSection, RequireSection
from waystation.core.approval import Verified
from waystation.core.errors import AuthorizationFailed

PRIVATE = "https://login.example.com/realms/main"
GOOGLE = "https://accounts.google.com"


def admission(issuer: str = PRIVATE, **tables: object) -> Admission:
    """Return the admission rules of a configuration section."""
    return Admission(OidcSection.model_validate({"issuer": issuer, "client_id": "inbox", **tables}))


def admits(rules: Admission, *roles: str, **claims: object) -> bool:
    """Return whether an account with these roles and claims may log in."""
    try:
        rules.check(claims, Verified(subject="dana", roles=roles))
    except AuthorizationFailed:
        return False
    return True


@pytest.mark.parametrize(
    "issuer",
    [
        GOOGLE,
        "https://Accounts.Google.com/",
        "https://accounts.google.com:443",
        "https://accounts.google.com.",
        "https://login.microsoftonline.com/common/v2.0",
        "https://login.microsoftonline.com/consumers/v2.0",
        "https://login.microsoftonline.com/organizations/v2.0",
        "https://login.microsoftonline.com/9188040d-6c67-4c5b-b112-36a304b66dad/v2.0",
        "https://github.com/login/oauth",
        "https://token.actions.githubusercontent.com",
        "https://gitlab.com",
        "https://appleid.apple.com",
        "https://acme.eu.auth0.com/",
        "https://cognito-idp.eu-west-1.amazonaws.com/eu-west-1_Ab1",
        "https://securetoken.google.com/project",
    ],
)
def test_well_known_issuers_of_accounts_for_anyone_are_public(issuer: str) -> None:
    """The spelling, port and path of the issuer do not matter."""
    assert is_public(issuer)
    assert admission(issuer).is_open


@pytest.mark.parametrize(
    "issuer",
    [
        PRIVATE,
        "https://login.microsoftonline.com/72f988bf-86f1-41af-91ab-2d7cd011db47/v2.0",
        "https://gitlab.example.com",
        "https://gitlab.com.example.com",
        "https://acme.okta.com",
        "https://oidc.eks.eu-west-1.amazonaws.com/id/1",
    ],
)
def test_other_issuers_are_private(issuer: str) -> None:
    """An unknown issuer is private, because it usually serves one organization."""
    assert not is_public(issuer)


def test_a_requirement_closes_a_public_issuer() -> None:
    """A requirement of roles, groups or domains closes a public issuer."""
    assert not any(admission(GOOGLE, require={kind: ["example.com"]}).is_open for kind in RequireSection.model_fields)


def test_a_person_meets_each_kind_of_requirement_with_one_name() -> None:
    """Roles and groups are read from the configured claims, and one matching name is enough."""
    rules = admission(groups_claim="realm.groups", require={"roles": ["staff", "boss"], "groups": ["payments"]})
    paying = {"realm": {"groups": ["other", "payments"]}}
    assert admits(rules, "boss", **paying)
    assert not admits(rules, "guest", **paying)
    assert not admits(rules, "boss", groups=["payments"])
    assert not admits(rules, "boss")


@pytest.mark.parametrize(
    ("claims", "admitted"),
    [
        ({"email": "dana@Example.com", "email_verified": True}, True),
        ({"email": "dana@example.com"}, False),
        ({"email": "dana@example.com", "email_verified": "true"}, False),
        ({"email": "dana@example.com", "email_verified": False}, False),
        ({"email": "dana@example.com@evil.example", "email_verified": True}, False),
        ({"email": "dana@sub.example.com", "email_verified": True}, False),
        ({"hd": "example.com"}, False),
        ({"email": ["dana@example.com"], "email_verified": True}, False),
        ({}, False),
    ],
)
def test_only_a_verified_address_has_a_domain(claims: dict[str, object], admitted: bool) -> None:
    """Only a verified address proves its domain."""
    assert admits(admission(require={"domains": ["example.com"]}), **claims) is admitted


def test_google_names_the_domain_that_manages_the_account() -> None:
    """The claim `hd` counts and not the address, because former employees keep accounts with their address."""
    rules = admission(GOOGLE, require={"domains": ["example.com"]})
    assert admits(rules, hd="example.com")
    assert not admits(rules, email="dana@example.com", email_verified=True)


def test_roles_are_granted_to_subjects_roles_and_groups() -> None:
    """Only an entry with the prefix matches a role or a group."""
    grant = {"viewer": ["dana"], "approver": ["role:finance"], "author": ["group:staff"], "operator": ["finance"]}
    rules = admission(grant=grant)
    assert rules.check({"groups": ["staff"]}, Verified(subject="dana", roles=("finance",))) == {
        "viewer",
        "approver",
        "author",
    }
    assert rules.check({"groups": ["finance"]}, Verified(subject="role:finance", roles=("group:staff",))) == set()
    assert rules.check({"groups": []}, Verified(subject="group:staff")) == set()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({}, "is empty"),
        ({"domains": ["*.example.com"]}, r"'\*.example.com' is not a domain"),
        ({"domains": ["dana@example.com"]}, "is not a domain"),
        ({"group": ["x"]}, "has no key 'group'"),
    ],
)
def test_a_misspelled_requirement_is_refused(table: dict[str, object], problem: str) -> None:
    """A misspelled requirement is refused, because ignoring it would admit everyone."""
    with pytest.raises(ValueError, match=problem):
        RequireSection.model_validate(table)
    with pytest.raises(ValueError, match="has no key 'viewers'"):
        GrantSection.model_validate({"viewers": ["dana"]})
