"""The program of the page `receive-events` accepts signed events and refuses others."""

import base64
import json
import secrets
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.testclient import TestClient

from tests.documents import blocks, how_to

(PROGRAM,) = blocks(how_to("receive-events"), "python")
BODY = json.dumps({"type": "waystation.invocation.ended", "data": {"invocation_id": "meals-1"}})


def test_the_documented_receiver_verifies_the_signature(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An event with a signature of the shared secret is accepted, and one with another body is not."""
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    monkeypatch.setenv("BILLING_SECRET", secret)
    program: dict[str, Any] = {}
    exec(compile(PROGRAM, "receiver.py", "exec"), program)  # the page's own program
    now = datetime.now(UTC)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(now.timestamp()))}
    headers["webhook-signature"] = Webhook(secret).sign("msg_1", now, BODY)
    client = TestClient(program["app"])
    assert client.post("/waystation", content=BODY, headers=headers).status_code == 204
    assert capsys.readouterr().out == "waystation.invocation.ended meals-1\n"
    with pytest.raises(WebhookVerificationError):
        client.post("/waystation", content=BODY.replace("meals", "bonus"), headers=headers)
