"""`waystation audit`: live and saved histories yield the same audit, and audits can be verified."""

import json
from pathlib import Path

import pytest
from joserfc.jwk import OKPKey

from tests.agents import Till
from tests.fakes.openid import FakeOpenId
from tests.paths import write_secret
from tests.programs import command
from tests.server.approvals.asking import asker, boss, listed, payer
from tests.server.cli.conftest import Command
from tests.server.conftest import Serve
from tests.steps import (
    approve_and_finish,
    force_continue_as_new,
    start_and_wait,
    wait_for_calls,
    wait_for_ignored_answers,
)
from tests.unit.identity.conftest import installed
from waystation.core.approval import ApprovalPolicy
from waystation.tools.function_tool import FunctionTool


async def test_the_audit_of_an_exported_history_equals_that_of_the_live_one(
    serve: Serve, waystation: Command, tmp_path: Path
) -> None:
    """Hazard: no audit. The audit of a saved history is equal byte for byte, and includes refused answers."""
    async with serve(asker()) as env:
        invocation = await start_and_wait(env.client.start("asker", "go"), "fc-1")
        await invocation.handle.signal("answer", {"function_call_id": "fc-9", "action": "approve", "by": "mallory"})
        await wait_for_ignored_answers(invocation, 1)
        await approve_and_finish(invocation, by="dana")
        live = await waystation(env, "audit", "export", invocation.id)
        saved = tmp_path / "history.json"
        saved.write_text((await waystation(env, "history", invocation.id)).out)
        exported = await command("audit", "export", str(saved))
        assert (live.code, exported.code) == (0, 0)
        assert exported.out == live.out
        by_whom = [(each["kind"], each["by"]) for each in live.records if "by" in each]
        assert by_whom == [("ignored", "mallory"), ("answered", "dana"), ("decided", "dana")]


@pytest.mark.slow
async def test_an_audit_covers_all_runs_of_an_invocation(serve: Serve, waystation: Command, tmp_path: Path) -> None:
    """An invocation that was continued as new is audited from its beginning, live and from a file."""
    async with serve(asker(), verify=False) as env:
        handle = await env.client.temporal.start_workflow(
            "AgentInvocation",
            {"agent": "asker", "message": "go", "cut_after": 30},
            id=f"runs-{env.client.task_queue}",
            task_queue=env.client.task_queue,
        )
        invocation = env.client.invocation(handle.id)
        await wait_for_calls(invocation, "fc-1")
        await force_continue_as_new(invocation)
        await approve_and_finish(invocation, by="dana")
        live = await waystation(env, "audit", "export", invocation.id, "--store", str(env.store))
        kinds = [each["kind"] for each in live.records]
        assert (kinds[1], kinds[-2:]) == ("began", ["ended", "end"])
        assert {"requested", "ignored", "decided"} <= set(kinds)
        (tmp_path / "h.json").write_text((await waystation(env, "history", invocation.id)).out)
        assert (await command("audit", "export", str(tmp_path / "h.json"), "--store", str(env.store))).out == live.out


async def test_called_agents_are_in_the_audit_and_missing_ones_are_named(
    serve: Serve, waystation: Command, tmp_path: Path
) -> None:
    """A live audit covers the whole tree; an audit of files covers the given files."""
    till = Till()
    async with serve(boss(payer(till.pay))) as env:
        top = await env.client.start("boss", "go")
        [call] = await listed(env.client, 1, below=top.id)
        await env.client.approvals.approve(call.approval_id, by="dana")
        await top.result()
        live = await waystation(env, "audit", "export", top.id)
        assert live.records[0]["invocations"] == [top.id, f"{top.id}/fc-1"]
        assert [each["kind"] for each in live.records if each.get("invocation") == f"{top.id}/fc-1"] == [
            *("began", "requested", "answered", "decided", "started", "finished", "ended")
        ]
        for number, id in enumerate((top.id, f"{top.id}/fc-1")):
            (tmp_path / f"{number}.json").write_text((await waystation(env, "history", id)).out)
        both = await command("audit", "export", str(tmp_path / "0.json"), str(tmp_path / "1.json"))
        assert both.out == live.out
        alone = await command("audit", "export", str(tmp_path / "0.json"))
        assert alone.records[0]["lacking"] == [f"{top.id}/fc-1"]
        assert f"are missing: {top.id}/fc-1" in alone.err


@pytest.mark.slow
async def test_the_audit_of_a_session_covers_all_of_its_invocations(serve: Serve, waystation: Command) -> None:
    """The audit lists the invocations in the order of their starts."""
    async with serve(asker()) as env:
        session = env.client.session(agent="asker", session_id=env.client.task_queue, user_id="dana")
        await session.send("go")
        await wait_for_calls(session.invocation(1), "fc-1")
        await session.invocation(1).approve(by="dana")
        await session.invocation(1).result()
        await session.say("continue")
        ran = await waystation(env, "audit", "export", session.id)
        assert ran.records[0]["invocations"] == [f"{session.id}/1", f"{session.id}/2"]
        assert [each["invocation"] for each in ran.records if each["kind"] == "decided"] == [f"{session.id}/1"]
        assert [each["kind"] for each in ran.records].count("ended") == 2
        assert ran.records[-1]["closed"] is False
        await session.close()


async def test_an_audit_contains_verified_identities_and_no_tokens(
    serve: Serve, waystation: Command, tmp_path: Path, openid: FakeOpenId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claimed name stays a claim next to the verified identity, the shell's login is left out, and a refused token is
    recorded with the reason and, if it is valid, with its person.
    """
    there = installed(tmp_path / "identity", openid)
    till = Till()
    policy = ApprovalPolicy(approvers=("dana@example.com",))
    paying = payer(till.pay)
    paying.tools = [FunctionTool(till.pay, approval=policy)]
    token, other, expired = openid.token(), openid.token(sub="mallory@example.com"), openid.token(exp=1)
    for name, content in {"token": token, "other": other, "expired": expired}.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("WAYSTATION_CLIENT_IDENTITY", str(there.folder / "clients.toml"))
    async with serve(paying, identity=there.worker) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        id = f"{invocation.id}/fc-1"
        for name in ("other", "expired"):
            assert (await waystation(env, "approve", id, "--token-file", str(tmp_path / name))).code == 5
        assert (await waystation(env, "approve", id, "--by", "x", "--token-file", str(tmp_path / "token"))).code == 0
        await invocation.result()
        ran = await waystation(env, "audit", "export", invocation.id)
    lines = [
        (each["kind"], each.get("verified", {}).get("subject"), each.get("by"))
        for each in ran.records
        if each["kind"] in ("submitted", "ignored", "answered", "decided")
    ]
    assert lines == [
        *(("submitted", None, None), ("ignored", "mallory@example.com", None)),
        *(("submitted", None, None), ("ignored", None, None)),
        *(("submitted", None, "x"), ("answered", "dana@example.com", "x"), ("decided", "dana@example.com", "x")),
    ]
    assert ("expired" in ran.out, till.paid) == (True, [5])
    assert not any(text in ran.out for text in (token, other, expired))


@pytest.mark.slow
async def test_verify_names_the_altered_line_and_compares_with_the_history(
    serve: Serve, waystation: Command, tmp_path: Path
) -> None:
    """The exit code is 0 for an unaltered file, 1 with the altered line, and 2 for an unreadable file."""
    file, key, public = tmp_path / "audit.jsonl", tmp_path / "key", tmp_path / "public"
    pair = OKPKey.generate_key("Ed25519")
    write_secret(key, json.dumps(pair.as_dict(private=True)))
    public.write_text(json.dumps(pair.as_dict(private=False)))
    async with serve(asker()) as env:
        invocation = await start_and_wait(env.client.start("asker", "go"), "fc-1")
        written = await waystation(env, "audit", "export", invocation.id, "-o", str(file), "--key", str(key))
        assert (written.code, "still open, signed" in written.out) == (0, True)
        await approve_and_finish(invocation, by="dana")
        whole = await waystation(
            env, "audit", "verify", str(file), "--against", invocation.id, "--key", str(public), "--json"
        )
        assert whole.code == 0
        [finding] = whole.records
        assert (finding["whole"], finding["signature_verified"], finding["closed"]) == (True, True, False)
        assert finding["newer"] > 0
        assert (await command("audit", "verify", str(file), "--head", finding["head"])).code == 0
        assert (await command("audit", "verify", str(file), "--head", "0" * 64)).code == 1
        forged = file.read_text().replace('"purpose":"x"', '"purpose":"y"')
        (tmp_path / "forged.jsonl").write_text(forged)
        ran = await command("audit", "verify", str(tmp_path / "forged.jsonl"))
        assert (ran.code, "line 3: it was altered" in ran.err) == (1, True)
        ran = await command("audit", "verify", str(tmp_path / "forged.jsonl"), "--json")
        assert (ran.code, ran.records[0]["line"]) == (1, 3)
        assert (await command("audit", "verify", str(tmp_path / "none.jsonl"))).code == 2
        assert (await command("audit", "verify", str(file), "--key", str(file))).code == 2
        assert (await waystation(env, "audit", "export", "no-such")).code == 6


async def test_an_audit_without_arguments_still_compares(serve: Serve, waystation: Command, tmp_path: Path) -> None:
    """An audit with digests instead of arguments is still verified against the invocation."""
    async with serve(asker(purpose="medlar")) as env:
        invocation = await start_and_wait(env.client.start("asker", "go"), "fc-1")
        await approve_and_finish(invocation)
        file = tmp_path / "audit.jsonl"
        await waystation(env, "audit", "export", invocation.id, "--no-arguments", "-o", str(file))
        assert "medlar" not in file.read_text()
        assert (await waystation(env, "audit", "verify", str(file), "--against", invocation.id)).code == 0
