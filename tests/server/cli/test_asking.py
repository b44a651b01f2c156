"""The interactive forms of the answering commands show the call and ask for missing fields, on a server."""

import asyncio
import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from tests.agents import Till
from tests.paths import ROOT
from tests.server.approvals.asking import asker, payer
from tests.server.conftest import Serve, empty_server
from tests.steps import start_and_wait, wait_for_calls, wait_until


async def typed(
    folder: Path, address: str, *arguments: str, lines: dict[str, str], ahead: str = "", interrupted_at: str = ""
) -> tuple[int, str]:
    """Run a command in a terminal, and type each line when its prompt appears. Return the exit code and the output.

    `ahead` is typed before the command starts; at the prompt `interrupted_at` it receives the signal of Ctrl-C. The
    editor is a program that writes other arguments.
    """
    editor = folder / "editor"
    editor.write_text('#!/bin/sh\necho \'{"amount": 1}\' > "$1"\n')
    editor.chmod(0o755)
    parent, child = pty.openpty()
    os.write(parent, ahead.encode())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "waystation.cli", "--address", address, *arguments),
        stdin=child,
        stdout=child,
        stderr=child,
        cwd=folder,
        env={**os.environ, "EDITOR": str(editor), "VISUAL": "", "PYTHONPATH": str(ROOT), "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(child)
    screen, left = b"", dict(lines)
    while True:
        try:
            screen += await asyncio.to_thread(os.read, parent, 65_536)
        except OSError:  # the program has ended
            break
        if interrupted_at and interrupted_at.encode() in screen:
            interrupted_at = ""
            process.send_signal(signal.SIGINT)
        for prompt in [prompt for prompt in left if prompt.encode() in screen]:
            os.write(parent, f"{left.pop(prompt)}\n".encode())
    os.close(parent)
    return await process.wait(), screen.decode()


async def test_in_a_terminal_a_call_is_chosen_displayed_and_approved(serve: Serve, tmp_path: Path) -> None:
    """The real command in a real terminal lets the person choose a call without an ID."""
    till = Till()
    # Calls of other tests, if they still wait, would be listed on pages.
    async with empty_server() as server, serve(payer(till.pay), asker(), server=server) as env:
        paid, question = await env.client.start("payer", "go"), await env.client.start("asker", "go")
        await wait_for_calls(paid, "fc-1")
        await wait_for_calls(question, "fc-1")

        async def listed() -> list[str]:
            listed_ids = [each.invocation_id for each in await env.client.approvals.pending()]
            return listed_ids if len(listed_ids) == 2 else []

        which = str((await wait_until(listed, "both calls")).index(paid.id) + 1)
        lines = {"Which call": which, "Comment (optional)": "fine", "Send 'approve'?": "y"}
        code, screen = await typed(tmp_path, env.server.address, "approve", lines=lines)
        assert code == 0, screen
        assert "digest" in screen
        await paid.result()
        answer = (await paid.log()).state.calls["fc-1"].answer
        assert answer is not None
        assert (answer.comment, bool(answer.digest), till.paid) == ("fine", True, [5])
        code, screen = await typed(tmp_path, env.server.address, "approve", question.id, lines={})
        assert (code, "approved ask" in screen) == (0, True)
        await question.result()


@pytest.mark.slow
@pytest.mark.parametrize("question", ["Comment (optional)", "Send 'edit'?"])
async def test_an_interrupted_command_sends_nothing(serve: Serve, tmp_path: Path, question: str) -> None:
    """The command stops at once, even if the person keeps typing."""
    async with serve(payer(Till().pay), verify=False) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        lines = {"Comment (optional)": "fine", "Send 'edit'?": "y"}
        call = f"{invocation.id}/fc-1"
        code, screen = await typed(tmp_path, env.server.address, "edit", call, lines=lines, interrupted_at=question)
        assert (code, "Interrupted. Nothing was sent." in screen) == (130, True), screen
        assert (await invocation.log()).state.calls["fc-1"].answer is None
        await invocation.handle.terminate()


@pytest.mark.slow
async def test_input_before_a_question_does_not_answer_it(serve: Serve, tmp_path: Path) -> None:
    """Input that was typed before the question does not answer it."""
    async with serve(payer(Till().pay), verify=False) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        lines = {"Comment (optional)": "", "Send 'edit'?": "n"}
        call = f"{invocation.id}/fc-1"
        code, screen = await typed(tmp_path, env.server.address, "edit", call, lines=lines, ahead="fine\ny\ny\n")
        assert code != 0, screen
        assert (await invocation.log()).state.calls["fc-1"].answer is None
        await invocation.handle.terminate()


@pytest.mark.slow
async def test_in_a_terminal_arguments_are_edited_in_the_users_editor(serve: Serve, tmp_path: Path) -> None:
    """The tool runs with the edited arguments after the person confirms the diff."""
    till = Till()
    async with serve(payer(till.pay)) as env:
        invocation = await start_and_wait(env.client.start("payer", "go"), "fc-1")
        lines = {"Comment (optional)": "less", "Send 'edit'?": "y"}
        code, screen = await typed(tmp_path, env.server.address, "edit", f"{invocation.id}/fc-1", lines=lines)
        assert (code, '+  "amount": 1' in screen) == (0, True), screen
        await invocation.result()
        assert till.paid == [1]
