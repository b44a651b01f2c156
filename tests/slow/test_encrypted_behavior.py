"""The behavior of the engine does not depend on encryption: other tests pass with it, too."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from google.protobuf.json_format import MessageToJson, Parse
from temporalio.api.common.v1 import Payloads
from temporalio.converter import WorkflowSerializationContext

from tests.paths import ROOT
from tests.server.approvals.asking import payer
from tests.server.encryption.test_encrypted_namespace import asker, restart_with, write_keys
from tests.server.processes.workers import Process
from tests.steps import approve_and_finish, start_and_wait, wait_for_calls, wait_until
from waystation.core.errors import InvalidAnswer
from waystation.embedded import EmbeddedServer
from waystation.history import format_saved_history
from waystation.replay import redact
from waystation.storage import ENCRYPTION_VARIABLE, USER_KEYS_VARIABLE, Blobs, offloading
from waystation.testing import AgentEnvironment, assert_keeps_replaying

TOKEN = "a-token-of-at-least-thirty-two-characters"
SELECTED = {
    "approvals": ["approvals/test_edits.py", "approvals/test_quorum.py", "approvals/test_standing.py"],
    "sessions": ["sessions/test_conversation.py", "sessions/test_standing.py", "sessions/test_deletion.py"],
    "state": ["scopes/test_scopes.py", "workflows/test_continuing.py"],
    "forks": ["workflows/test_forks.py"],
    "artifacts": ["examples/test_document_analysis.py", "examples/test_user_preferences.py"],
    "pages": ["web/test_call_page.py", "web/test_timeline.py", "web/test_invocation_pages.py"],
    "chat": ["web/test_chat.py", "cli/test_chat.py"],
    "inbox": ["web/test_inbox.py", "cli/test_pending.py"],
    "operations": ["cli/test_doctor.py", "cli/test_operating.py", "cli/test_held.py"],
    "deletion": ["sessions/test_user_deletion.py"],
    "export": ["cli/test_reading.py", "cli/test_offloaded.py", "cli/test_chains.py", "test_history_pages.py"],
    "replay": ["recordings", "cli/test_replay.py", "approvals/test_resets.py", "sessions/test_resets.py"],
    "redaction": ["../slow/recordings/test_redacted_continued_runs.py", "../slow/recordings/test_gate.py"],
    "audit": ["cli/test_audit.py"],
    "contract": [
        "workflows/test_answers_to_long_running_calls.py",
        *(f"approvals/test_{name}.py" for name in ("answers_that_come_twice", "other_versions", "reviews")),
    ],
}
"""Tests of each area: files and folders. Each test replays the histories that it makes."""
NEED_PLAIN = {
    "recordings/test_canaries.py": ["the_command_writes_a_redacted_file"],
    "cli/test_offloaded.py": [
        "without_the_store_events_show_short_forms",
        "a_history_is_replayed_only_with_all_of_its_values",
        "a_session_is_shown_without_the_store",
        "pages_and_streams_show_short_forms",
        "a_call_with_unavailable_arguments_cannot_be_approved",
        "a_page_offers_no_approval_of_unavailable_arguments",
    ],
    "sessions/test_user_deletion.py": ["the_recorded_input_shows_the_owner_not_the_id"],
}
"""Tests, by file, of behavior that encryption changes: exported files are encrypted, encrypted values have no short
form, and an invocation whose ID names another user's key is refused.
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("area", SELECTED)
def test_an_area_behaves_the_same_with_encryption(area: str, tmp_path: Path) -> None:
    """With encryption keys and user keys, all tests of the area pass."""
    write_keys(tmp_path / "encryption.json", "first")
    switches = {
        ENCRYPTION_VARIABLE: str(tmp_path / "encryption.json"),
        USER_KEYS_VARIABLE: str(tmp_path / "user-keys.db"),
    }
    files = [f"tests/server/{file}" for file in SELECTED[area]]
    plain = [f"--deselect=tests/server/{file}::test_{name}" for file in NEED_PLAIN for name in NEED_PLAIN[file]]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, *plain],
        cwd=ROOT,
        env=os.environ | switches,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-5_000:]
    assert (tmp_path / "user-keys.db").exists()


@pytest.mark.parametrize("ends", [False, True])
async def test_saved_histories_with_approvals_keep_replaying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """An exported one replays with the keys and a redacted one without: memo, receipts and refusals are compared."""

    def pay(amount: int) -> dict[str, int]:
        return {"paid": amount}

    write_keys(tmp_path / "keys.json", "first")
    monkeypatch.setenv(ENCRYPTION_VARIABLE, str(tmp_path / "keys.json"))
    async with EmbeddedServer() as server, AgentEnvironment(payer(pay), server=server, store=tmp_path / "store") as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        with pytest.raises(InvalidAnswer):
            await invocation.answer("edit", "fc-1", args={"amount": "much"})
        if ends:
            await approve_and_finish(invocation)
        saved = await invocation.saved()
    for name, content in {"exported": saved, "redacted": await redact(saved, ["text"])}.items():
        (tmp_path / name).write_text(json.dumps(format_saved_history(content)))
    await assert_keeps_replaying(tmp_path / "exported")
    monkeypatch.delenv(ENCRYPTION_VARIABLE)
    await assert_keeps_replaying(tmp_path / "redacted")


async def test_a_worker_without_the_key_holds_an_invocation_until_another_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workflow tasks fail with the key's ID and the remedy, and nothing is lost."""
    monkeypatch.setenv(ENCRYPTION_VARIABLE, "set below")  # restores the variable at the end
    keys, agent = tmp_path / "keys.json", asker()
    async with EmbeddedServer() as server:
        place: dict[str, Any] = {"server": server, "store": tmp_path / "store"}
        restart_with(keys, "first")
        async with AgentEnvironment(agent, **place) as env:
            id = (await env.client.start("asker", "go")).id
            await wait_for_calls(env.client.invocation(id), "fc-1")
        restart_with(keys, "second")
        async with AgentEnvironment(agent, **place) as env:
            await env.client.invocation(id).approve("fc-1", signal=True)
            [problem] = await wait_until(lambda: _list_task_failures(env, id), "a failed workflow task")
            assert "encrypted with the key 'first'" in problem
            assert ENCRYPTION_VARIABLE in problem
        restart_with(keys, "second", "first")
        async with AgentEnvironment(agent, **place) as env:
            assert (await env.client.invocation(id).result()).text


async def _list_task_failures(env: AgentEnvironment, id: str) -> list[str]:
    history = await env.client.temporal.get_workflow_handle(id).fetch_history()
    failures = [event.workflow_task_failed_event_attributes for event in history.events]
    decode = env.client.temporal.data_converter.decode_failure
    return [str(await decode(failed.failure)) for failed in failures if failed.HasField("failure")][:1]


async def test_the_codec_server_decrypts_as_a_process(tmp_path: Path) -> None:
    """The codec server reads the keys from its environment, and decrypts the payloads of a client with the keys."""
    write_keys(tmp_path / "keys.json", "first")
    switches = {
        ENCRYPTION_VARIABLE: str(tmp_path / "keys.json"),
        USER_KEYS_VARIABLE: str(tmp_path / "user-keys.db"),
        "WAYSTATION_WEB_TOKEN": TOKEN,
    }
    command = (
        sys.executable,
        "-m",
        "waystation.cli",
        "codec-server",
        "--port",
        "0",
        "--store",
        str(tmp_path / "store"),
    )
    async with Process(*command, environment=switches) as process:
        [url] = await wait_until(lambda: _find_urls(process), "the address of the server")
        with pytest.MonkeyPatch.context() as patch:
            for name in (ENCRYPTION_VARIABLE, USER_KEYS_VARIABLE):
                patch.setenv(name, switches[name])
            context = WorkflowSerializationContext("default", "session/shop/ann/s")
            payloads = await offloading(Blobs(tmp_path / "store")).with_context(context).encode(["secret"])
        async with httpx.AsyncClient(base_url=url) as http:
            response = await http.post(
                "/decode",
                content=MessageToJson(Payloads(payloads=payloads)),
                headers={"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
            )
    assert response.status_code == 200
    assert [payload.data for payload in Parse(response.content, Payloads()).payloads] == [b'"secret"']


async def _find_urls(process: Process) -> list[str]:
    return re.findall(r"http://127\.0\.0\.1:\d+", "\n".join(process.other))[:1]
