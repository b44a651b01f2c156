"""Sign the answers of people for the interface through which they came, and check and record these answers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from waystation.approvers.permissions import ROLES, Person, why_not
from waystation.core import approval
from waystation.core.actions import Action
from waystation.core.approval import Answer, PendingCall, TokenSigner, Verified
from waystation.core.errors import NotAllowed
from waystation.core.log import CallState, check_authority, check_claim

if TYPE_CHECKING:
    from waystation.approvers.identity import Gateway, Links, OidcLogin, Sealer
    from waystation.client import Approvals, Outcome

log = structlog.get_logger("waystation.approvers")


@dataclass(frozen=True, kw_only=True)
class Gatekeeper:
    """Answers for the people of one interface, with the parts of an identity configuration. Each part is optional."""

    interface: str
    """The name of the interface, which is also the command that starts it. Logs and errors contain it."""
    gateway: "Gateway | None" = None
    sealer: "Sealer | None" = None
    oidc: "OidcLogin | None" = None
    links: "Links | None" = None

    @classmethod
    def from_file(
        cls, file: str | Path, namespace: str, *, interface: str, clock: Callable[[], float] = time.time
    ) -> "Gatekeeper":
        """Read an identity configuration.

        Raises:
            InvalidConfiguration: The file is invalid, or it lacks a section that another section requires.
        """
        from waystation.approvers.identity import Configuration, Gateway, Links, OidcLogin, Sealer

        configuration = Configuration.read(file)
        envelope = configuration.envelope
        if configuration.gateway is None and (configuration.links is None or (envelope and envelope.private_key)):
            raise configuration.make_missing_section_error(
                "gateway", f"`waystation {interface}` finds no settings in this file; pass gateway.toml"
            )
        if configuration.oidc is not None and configuration.gateway is None:
            raise configuration.make_missing_section_error("gateway", "workers verify logins with its key")
        return cls(
            interface=interface,
            gateway=Gateway.of(configuration, clock=clock) if configuration.gateway else None,
            sealer=Sealer.of(configuration, clock=clock) if configuration.gateway else None,
            oidc=OidcLogin.of(configuration, clock=clock) if configuration.oidc else None,
            links=Links.of(configuration, namespace=namespace, clock=clock) if configuration.links else None,
        )

    def roles_of(self, person: str) -> frozenset[str]:
        """Return the roles of a person that no provider has identified. Without a provider, these are all roles."""
        return self.oidc.admission.roles_of(Verified(subject=person)) if self.oidc else ROLES

    def identify(self, person: Person) -> Verified | None:
        """Return the identity that workers will verify, or None if they will receive only an unverified name."""
        return None if self.gateway is None else person.verified or Verified(subject=person.name)

    def make_signer(self, person: Person) -> TokenSigner | None:
        """Return a function that creates the encrypted token of an answer or request.

        It contains the person's proof or, without one, a token that the gateway signs for the person. Return None if
        the interface cannot sign and encrypt tokens.
        """
        who, proof = self.identify(person), person.proof
        if who is None or self.gateway is None or self.sealer is None:
            return None
        signer, sealer = self.gateway.signer(who.subject, who.roles), self.sealer

        def make(*, namespace: str, approval_id: str, answer: Mapping[str, Any] | approval.Request) -> str:
            place = {"namespace": namespace, "approval_id": approval_id}
            return sealer.seal(proof or signer(**place, answer=answer), **place, answer=answer)

        return make

    def why_not(self, person: Person, state: CallState, call: PendingCall, action: Action) -> str:
        """Return why a person may not perform an action on a visible call, or an empty string if it is allowed."""
        who = self.identify(person)
        if who is None and call.policy is not None and call.policy.must_verify:
            return (
                "This call accepts only answers with a verified identity, and this server cannot verify yours. "
                f"Its operator can set that up with `waystation {self.interface} --identity FILE`."
            )
        answer = Answer(function_call_id=state.id, action=action, by=person.name or None)
        try:
            check_authority(state, answer, who, call.requesters)
            check_claim(state, answer, who)
        except NotAllowed as error:
            return str(error)
        return why_not(person, call, action)

    async def answer(
        self, approvals: "Approvals", person: Person, calls: Sequence[PendingCall], action: Action, **fields: Any
    ) -> "list[Outcome]":
        """Send the same answer to several calls for a person, and return the outcomes.

        Each answer contains the digest and the run of its call, which must be those that the person has seen. Fields
        without a value are left out.
        """
        fields = {key: value for key, value in fields.items() if value not in (None, "", False) or key == "wake"}
        fields |= {"by": person.subject or None, "token": self.make_signer(person)}
        outcomes = [outcome async for outcome in approvals.answer_all(calls, action, **fields)]
        for outcome in outcomes:
            if outcome.receipt is not None:
                log.info("answer.taken", approval_id=outcome.approval_id, action=action, interface=self.interface)
        return outcomes
