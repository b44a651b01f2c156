"""Completion URLs, with which machines answer calls, and the proof of such an answer that workers verify.

A completion URL is a secret. Only the key and facts about its call are needed to make it, so nothing stores it. The
server at its address replaces it with a token for one answer. Histories contain only this token, which is of no use for
any other answer.
"""

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any

from joserfc.jwk import OctKey

from waystation.approvers.identity.identity_file import Configuration
from waystation.approvers.identity.tokens import Sealer, open_envelope, read_claims, sign_claims
from waystation.core.approval import MACHINE, Answer, CompletionGrant, Request, TokenSigner, Verified
from waystation.core.errors import NotAllowed
from waystation.core.payload import JsonObject, digest
from waystation.core.secrets import is_private_url

PATH = "/completions/"
"""The path of a completion URL. The token follows."""
ISSUER = "completion URL"
"""The issuer of a machine's verified identity."""
AUDIENCE = "waystation-completion"


class Completions:
    """Makes and reads completion URLs, and makes and verifies the tokens of machines' answers."""

    def __init__(self, secret: bytes, *, url: str | None = None, clock: Callable[[], float] = time.time) -> None:
        """Derive the keys from a secret of at least 32 random bytes. The address `url` is only for making URLs."""
        self._url_key, self._answer_key = (
            OctKey.import_key(hmac.digest(secret, f"waystation completion {use}".encode(), "sha256"))
            for use in ("url", "answer")
        )
        self._address, self._clock = url, clock

    @classmethod
    def of(cls, configuration: Configuration, *, clock: Callable[[], float] = time.time) -> "Completions | None":
        """Return what the section `[completion]` configures, or None if there is none.

        Raises:
            InvalidConfiguration: The key is too short, or the address does not use HTTPS.
        """
        section = configuration.completion
        if section is None:
            return None
        if section.url is not None and not is_private_url(section.url):
            raise configuration.fault("completion.url", "is not an https URL. Completion URLs are secrets.")
        return cls(configuration.hmac_key("completion.key", section.key).raw_value, url=section.url, clock=clock)

    def make_url(self, grant: CompletionGrant) -> str:
        """Return the completion URL, which is always the same for the same `grant`.

        Raises:
            ValueError: The configuration has no address for completion URLs.
        """
        if self._address is None:
            raise ValueError("Completion URLs have no address. Set `url` in `[completion]` of the identity file.")
        claims = {"aud": AUDIENCE, **vars(grant)}
        return f"{self._address.rstrip('/')}{PATH}{sign_claims(claims, self._url_key)}"

    def read(self, token: str, *, namespace: str) -> CompletionGrant:
        """Verify the token of a completion URL, and return the permission that the URL gives.

        Raises:
            NotAllowed: The token is not authentic, is for another namespace or has expired. All cases look the same.
        """
        claims = read_claims(token, self._url_key)
        if claims.pop("aud", None) == AUDIENCE:
            grant = CompletionGrant(**claims)
            if grant.namespace == namespace and grant.until > self._clock():
                return grant
        raise NotAllowed("This completion URL is not valid, or it has expired.")

    def make_signer(self, grant: CompletionGrant) -> TokenSigner:
        """Return a function that makes the token for an answer of the machine."""
        sealer, revoked = Sealer(self._answer_key, clock=self._clock), str(grant.revoked)

        def make(*, namespace: str, approval_id: str, answer: Mapping[str, Any] | Request) -> str:
            place = {"namespace": namespace, "approval_id": approval_id}
            return sealer.seal(grant.machine, **place, answer=answer, nonce=revoked)

        return make

    def make_answer(
        self, grant: CompletionGrant, response: JsonObject, *, final: bool = True, answer_id: str | None = None
    ) -> dict[str, Any]:
        """Return the arguments for `client.approvals.answer`. It is safe to send the answer again.

        Args:
            grant: The permission that the machine's completion URL gives.
            response: The final response, or the progress.
            final: Whether the response closes the call.
            answer_id: For progress: an ID that the machine chooses. By default, the same progress counts once.
        """
        # A call takes only one final answer, and a repetition returns its receipt. No one else can use up this ID.
        place = f"{grant.namespace} {grant.approval_id} {grant.run}"
        final_id = f"completion {hmac.digest(self._answer_key.raw_value, place.encode(), 'sha256').hex()[:32]}"
        return {
            "approval_id": grant.approval_id,
            "action": "respond" if final else "progress",
            "response": response,
            "by": f"{MACHINE}{grant.machine}",
            "digest": grant.digest,
            "run": grant.run,
            "answer_id": final_id if final else f"progress {answer_id or digest(response)}",  # never the same
            "token": self.make_signer(grant),
        }

    def verify(self, token: str, *, namespace: str, approval_id: str, answer: Answer | Request) -> tuple[Verified, str]:
        """Return the machine that sent an answer, and the number of revocations as text; see `WorkerIdentity.verify`.

        Raises:
            NotAllowed: The token is not valid for this answer, or it belongs to a request.
        """
        if isinstance(answer, Request):
            raise NotAllowed("A machine can only answer calls.")
        place = {"namespace": namespace, "approval_id": approval_id}
        opened = open_envelope(token, [self._answer_key], **place, answer=answer, now=self._clock())
        return Verified(subject=f"{MACHINE}{opened.token}", issuer=ISSUER), opened.nonce
