"""Push configurations: the URLs that they may name, and who is asked."""

import pytest

from waystation.core.approval import ApprovalPolicy, PendingCall
from waystation.core.push import PushPerson, find_push_fault, parse_hosts

HOSTS = parse_hosts(" Hooks.example.com, 127.0.0.1,")


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "https://other.example.com/",
        "https://hooks.example.com.evil.example/",
        "https://user:secret@hooks.example.com/",
        "https://hooks.example.com/?token=secret",
        "https://hooks.example.com/#part",
        "https://hooks.example.com:port/",
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "",
    ],
)
def test_only_allowed_hosts_without_secrets_receive_states(url: str) -> None:
    """Every other URL is refused with a reason that quotes no secret."""
    fault = find_push_fault(url, HOSTS)
    assert fault
    assert "secret" not in fault.replace("Send secrets", "")


@pytest.mark.parametrize("url", ["https://HOOKS.example.com:8443/a", "http://127.0.0.1:1/"])
def test_allowed_hosts_receive_states(url: str) -> None:
    """The host counts, whatever its case, its port and the path."""
    assert find_push_fault(url, HOSTS) == ""
    assert find_push_fault(url, ())


@pytest.mark.parametrize(
    ("policy", "is_asked"),
    [
        (None, True),
        (ApprovalPolicy(approvers=("dana",), verified=False), True),
        (ApprovalPolicy(approvers=("erin",), verified=False), False),
        (ApprovalPolicy(verified=False, not_requester=True), False),
    ],
)
def test_a_person_is_asked_as_the_policy_says(policy: ApprovalPolicy | None, is_asked: bool) -> None:
    """An approver is asked unless the policy names others, or excludes the requester."""
    person = PushPerson(subject="dana", names=("dana",), is_approver=True)
    call = PendingCall(
        function_call_id="fc-1",
        invocation_id="i",
        agent="a",
        tool="t",
        args={},
        kind="confirmation",
        digest="d",
        requested_at=0.0,
        deadline=1.0,
        user_id="dana",
        policy=policy,
    )
    assert person.is_asked(call) is is_asked
