"""What `waystation web` does with an identity configuration: vouch for people, have them log in, read links."""

from pathlib import Path

from waystation.core.payload import JsonObject
from waystation.identity import Configuration, Gateway, Links, Sealer
from waystation.identity.oidc import OidcLogin
from waystation.web.logins import Login


class Gatekeeper:
    """The parts of an identity configuration that a web server uses; each may be missing."""

    def __init__(
        self,
        namespace: str,
        *,
        gateway: Gateway | None = None,
        sealer: Sealer | None = None,
        oidc: OidcLogin | None = None,
        links: Links | None = None,
    ) -> None:
        self.oidc, self.links = oidc, links
        self.vouches = Vouching(namespace, gateway, sealer) if gateway and sealer else None

    @classmethod
    def of(cls, file: str | Path, namespace: str) -> "Gatekeeper":
        """Return what a configuration allows.

        Raises:
            InvalidConfiguration: It cannot be used, or has only half of what it takes to vouch for people.
        """
        configuration = Configuration.read(file)
        envelope = configuration.envelope
        if configuration.gateway is None and (configuration.links is None or (envelope and envelope.private_key)):
            raise configuration.lacks("gateway", "the file says nothing for `waystation web`; gateway.toml does")
        if configuration.oidc is not None and configuration.gateway is None:
            raise configuration.lacks("gateway", "its key tells the workers who has logged in")
        return cls(
            namespace,
            gateway=Gateway.of(configuration) if configuration.gateway else None,
            sealer=Sealer.of(configuration) if configuration.gateway else None,
            oidc=OidcLogin.of(configuration) if configuration.oidc else None,
            links=Links.of(configuration, namespace=namespace) if configuration.links else None,
        )


class Vouching:
    """Signs who answers, and seals that for the workers: the token of one answer to one call."""

    def __init__(self, namespace: str, gateway: Gateway, sealer: Sealer) -> None:
        self._namespace, self._gateway, self._sealer = namespace, gateway, sealer

    def __call__(self, login: Login, approval_id: str, answer: JsonObject) -> str:
        """Return the token of one answer."""
        subject = login.verified.subject if login.verified else login.person
        roles = login.verified.roles if login.verified else ()
        place = {"namespace": self._namespace, "approval_id": approval_id}
        token = self._gateway.sign(subject, roles, **place, answer=answer)
        return self._sealer.seal(token, **place, answer=answer)
