"""An installation with its own keys: an identity provider, a gateway, workers and a client."""

import json
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OctKey

from tests.fakes.openid import FakeOpenId
from waystation.approvers.identity import Configuration, Gateway, Sealer, WorkerIdentity, write_examples
from waystation.core.approval import Answer, Verified

NAMESPACE, CALL = "default", "invoice-7/fc-1"
KEY = OctKey.import_key("k" * 40)
"""The key that signs links."""
APPROVE: dict[str, Any] = {"function_call_id": "fc-1", "action": "approve", "comment": "fine"}


@dataclass
class Clock:
    """A clock that a test can advance."""

    ahead_s: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return time.time() + self.ahead_s


@dataclass(kw_only=True)
class Installation:
    """The programs and keys of an installation."""

    folder: Path
    provider: FakeOpenId
    clock: Clock
    worker: WorkerIdentity
    sealer: Sealer
    gateway: Gateway

    def seal(self, token: str, *, namespace: str = NAMESPACE, call: str = CALL, **answer: Any) -> str:
        """Return a token as a client sends it."""
        return self.sealer.seal(token, namespace=namespace, approval_id=call, answer=APPROVE | answer)

    async def verify(
        self, sealed: str, *, namespace: str = NAMESPACE, call: str = CALL, **answer: Any
    ) -> tuple[Verified, str]:
        """Return the verification of a worker."""
        content = Answer.model_validate(APPROVE | answer)
        return await self.worker.verify(sealed, namespace=namespace, approval_id=call, answer=content)


def installed(folder: Path, provider: FakeOpenId, issuer: Mapping[str, str | bool] | None = None) -> Installation:
    """Set up an installation that trusts its gateway and a provider."""
    write_examples(folder)
    settings = {"issuer": provider.url, "audience": "waystation-test"} | dict(issuer or {})
    lines = [
        f"{name} = {value if str(value).startswith('[') else json.dumps(value)}" for name, value in settings.items()
    ]
    file = folder / "workers.toml"
    file.write_text(file.read_text().replace("[links]", "\n".join(["[[issuers]]", *lines, "", "[links]"])))
    assert tomllib.loads(file.read_text())["issuers"][1]["issuer"] == settings["issuer"]
    clock = Clock()
    worker = WorkerIdentity.load(file, clock=clock)
    gateway = Configuration.read(folder / "gateway.toml")
    sealer = Sealer.of(Configuration.read(folder / "clients.toml"))
    return Installation(
        folder=folder, provider=provider, clock=clock, worker=worker, sealer=sealer, gateway=Gateway.of(gateway)
    )


@pytest.fixture
def there(tmp_path: Path, openid: FakeOpenId) -> Installation:
    """Return an installation that trusts its gateway and the provider."""
    return installed(tmp_path / "identity", openid)
