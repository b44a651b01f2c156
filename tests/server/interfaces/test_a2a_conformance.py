"""The conformance kit of A2A, which is not a package: `WAYSTATION_A2A_TCK` names a clone with its own environment."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from tests.server.conftest import Serve
from tests.server.interfaces.a2a_agent import front, make_agent
from tests.server.web.sites import TOKEN
from waystation.approvers import Gatekeeper
from waystation.extensions import load_interfaces
from waystation.web.access import Access
from waystation.web.limits import Limits
from waystation.web.server import create_app
from waystation.web.web_settings import WebSettings

KIT = os.environ.get("WAYSTATION_A2A_TCK", "")


@pytest.mark.slow
@pytest.mark.skipif(not KIT, reason="WAYSTATION_A2A_TCK names no clone of the conformance kit")
async def test_the_conformance_kit_passes(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit finds no other failure of a MUST than the exceptions."""
    monkeypatch.setenv("WAYSTATION_PUSH_HOSTS", "localhost,127.0.0.1,example.com")
    async with serve(make_agent(), verify=False) as env:
        limits = Limits(posts=100_000, posts_of_address=100_000, login_attempts=10_000)
        settings = WebSettings(interfaces=load_interfaces(["a2a"]), limits=limits, artifacts=env.services.artifacts)
        access = Access(
            announce=lambda _: None,
            token=TOKEN,
            person="dana",
            gatekeeper=Gatekeeper(interface="web"),
            is_local=True,
            limits=limits,
        )
        async with front(create_app(env.client, settings, access)) as url:
            command = [
                ".venv/bin/python",
                "-m",
                "pytest",
                "tests/compatibility/",
                f"--sut-host={url}",
                "-m",
                "must",
                "-q",
                "-rfs",
                "--tb=short",
            ]
            process = await asyncio.create_subprocess_exec(*command, cwd=KIT, stdout=asyncio.subprocess.PIPE)
            out, _ = await process.communicate()
    text = out.decode()
    Path("/tmp/tck-out.txt").write_text(text)
    assert re.findall(r"^FAILED (\S+)", text, re.M) == []
