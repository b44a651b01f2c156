"""Signing answers of people who use another interface than the web application."""

import logging
from collections.abc import AsyncIterator, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from tests.unit.identity.conftest import APPROVE, CALL, NAMESPACE, Installation
from waystation.approvers import Gatekeeper, Person
from waystation.client import Outcome
from waystation.core.approval import ApprovalPolicy, Verified

ERIN = Verified(subject="erin@example.com", roles=("finance",), issuer="chat")


@pytest.fixture
def keeper(there: Installation) -> Gatekeeper:
    """The gatekeeper of an interface named `chat`."""
    return Gatekeeper.from_file(there.folder / "gateway.toml", NAMESPACE, interface="chat")


async def verify(there: Installation, keeper: Gatekeeper, person: Person) -> Verified:
    """Return the identity that a worker sees in an answer that the gatekeeper signs."""
    sign = keeper.make_signer(person)
    assert sign is not None
    who, _ = await there.verify(sign(namespace=NAMESPACE, approval_id=CALL, answer=APPROVE))
    return who


async def test_an_answer_is_signed_for_a_verified_person(there: Installation, keeper: Gatekeeper) -> None:
    """Workers see the person and the roles that the interface has verified."""
    who = await verify(there, keeper, Person("Erin", verified=ERIN))
    assert (who.subject, who.roles, who.issuer) == (ERIN.subject, ERIN.roles, "https://approvals.example.com")


async def test_an_answer_of_a_shared_token_is_never_signed(keeper: Gatekeeper) -> None:
    """A call whose policy requires a verified identity refuses it, and so does the interface beforehand."""
    sent: list[dict[str, Any]] = []

    class Approvals:
        async def answer_all(self, calls: Any, action: str, **fields: Any) -> AsyncIterator[Outcome]:
            sent.append(fields)
            yield Outcome("call")

    shared, approvals = Person("dana", vouched=False), Approvals()
    await keeper.answer(approvals, shared, [], "approve")  # type: ignore[arg-type]  # only what it uses
    assert (sent[0]["token"], keeper.identify(shared)) == (None, None)
    await keeper.answer(approvals, Person("dana"), [], "approve")  # type: ignore[arg-type]  # only what it uses
    assert sent[1]["token"] is not None
    assert keeper.make_signer(shared) is not None  # a request names who asked, which satisfies no policy


async def test_a_proof_of_the_person_is_sent_instead_of_a_signature(there: Installation, keeper: Gatekeeper) -> None:
    """Workers then trust the issuer of the token and not the interface."""
    person = Person("Erin", verified=ERIN, proof=there.provider.token("erin@example.com"))
    assert (await verify(there, keeper, person)).issuer == there.provider.url
    assert person.proof not in (None, "")
    assert str(person.proof) not in repr(person)


def test_an_interface_without_keys_names_its_own_command() -> None:
    """The error names the command of the interface, because a reader of the chat cannot restart the web application."""
    call: Any = SimpleNamespace(policy=ApprovalPolicy(approvers=("role:finance",)))
    problem = Gatekeeper(interface="chat", command="chat").why_not(Person("erin"), call, call, "approve")
    assert "`waystation chat --identity FILE`" in problem


async def test_an_accepted_answer_is_logged_with_the_interface(
    keeper: Gatekeeper, logs: list[MutableMapping[str, Any]]
) -> None:
    """Empty fields are not sent."""
    sent: list[dict[str, Any]] = []

    class Approvals:
        """A fake of the client's approvals that accepts every answer."""

        async def answer_all(self, calls: list[str], action: str, **fields: Any) -> AsyncIterator[Outcome]:
            """Record the fields of the answer."""
            sent.append(fields)
            for call in calls:
                yield Outcome(call, receipt={"ref": "1"})

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))  # `logs` restores it
    approvals: Any = Approvals()
    call: Any = CALL
    await keeper.answer(approvals, Person("Erin", verified=ERIN), [call], "approve", comment="")
    assert [(entry["event"], entry["approval_id"], entry["interface"]) for entry in logs] == [
        ("answer.taken", CALL, "chat")
    ]
    assert [set(fields) for fields in sent] == [{"by", "token", "interface"}]
    assert sent[0]["by"] == ERIN.subject
