"""The conformance kit of A2A, which is not a package: `WAYSTATION_A2A_TCK` names a clone with its own environment."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from tests.server.conftest import Serve
from tests.server.interfaces.a2a_agent import front, make_agent
from tests.server.web.sites import TOKEN
from tests.unit.identity.conftest import Installation
from waystation.approvers import Gatekeeper
from waystation.client.token_encryption import TokenEncryption
from waystation.extensions import load_interfaces
from waystation.web.access import Access
from waystation.web.limits import Limits
from waystation.web.server import create_app
from waystation.web.web_settings import WebSettings

KIT = os.environ.get("WAYSTATION_A2A_TCK", "")
EXCEPTIONS = {
    "test_agent_card_validates_against_schema": "cards also have the fields of 0.3, which clients of 0.3 require",
    "test_returns_message_with_text_part": "every message starts a task, so that its result is not lost",
    "test_content_type_not_supported": "a wrong content type is refused before the protocol is known",
}
OPTIONS = ("tests/compatibility/", "-m", "must", "-q", "-rf", "--tb=line")


@pytest.mark.slow
@pytest.mark.skipif(not KIT, reason="WAYSTATION_A2A_TCK names no clone of the conformance kit")
async def test_the_conformance_kit_passes(
    serve: Serve, there: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kit finds no other failure of a MUST than the exceptions."""
    monkeypatch.setenv("WAYSTATION_PUSH_HOSTS", "localhost,127.0.0.1,example.com")
    limits = Limits(posts=100_000, posts_of_address=100_000, login_attempts=10_000)
    access = Access(
        announce=lambda _: None,
        token=TOKEN,
        person="dana",
        gatekeeper=Gatekeeper(interface="web"),
        is_local=True,
        limits=limits,
    )
    async with serve(make_agent(), verify=False, identity=there.worker) as env:
        env.client.token_encryption = TokenEncryption(there.sealer)
        artifacts = env.services.artifacts or tmp_path / "artifacts"
        settings = WebSettings(interfaces=load_interfaces(["a2a"]), limits=limits, artifacts=artifacts)
        async with front(create_app(env.client, settings, access)) as url:
            command = (f"{KIT}/.venv/bin/python", "-m", "pytest", *OPTIONS, f"--sut-host={url}")
            process = await asyncio.create_subprocess_exec(*command, cwd=KIT, stdout=asyncio.subprocess.PIPE)
            out, _ = await process.communicate()
    report = out.decode()
    failed = re.findall(r"^FAILED \S+::(\w+)", report, re.M)
    assert [name for name in failed if not name.startswith(tuple(EXCEPTIONS))] == [], report
