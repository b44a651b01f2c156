"""Commands find the server or report that it is missing; `waystation setup` prepares a namespace."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from tests.paths import HISTORIES, ROOT
from tests.programs import command
from waystation.cli import command_context
from waystation.cli.command_context import Exit, to_problem
from waystation.core import errors


@pytest.mark.parametrize(
    "address",
    [
        *("http://localhost:8233", "", " localhost:7233", "temporal.example", "[::1]", ":7233", "::1:7233", "["),
        *("localhost:99999", "localhost:0", "localhost:web"),
    ],
)
async def test_an_invalid_address_is_named_with_examples_of_valid_ones(address: str) -> None:
    """An invalid address is reported as invalid, because starting a server would not help."""
    ran = await command("--address", address, "pending")
    fault = f"The address of Temporal: {address!r} is not a valid HOST:PORT, such as localhost:7233 or [::1]:7233."
    assert (ran.code, fault in ran.err) == (2, True), ran.err


async def test_the_source_of_an_invalid_address_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable, which takes precedence, or the profile of the invalid address."""
    (tmp_path / "temporal.toml").write_text('[profile.default]\naddress = "filed"')
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    monkeypatch.setenv("TEMPORAL_ADDRESS", "exported")
    assert "'exported' in TEMPORAL_ADDRESS is not a valid HOST:PORT" in (await command("pending")).err
    monkeypatch.delenv("TEMPORAL_ADDRESS")
    assert "'filed' in the profile is not a valid HOST:PORT" in (await command("pending")).err


async def test_versions_are_printed() -> None:
    """The versions of Waystation, Temporal's SDK and Python are printed without a server."""
    ran = await command("--version")
    assert (ran.code, ran.err) == (0, "")
    assert re.fullmatch(r"waystation \d+\.\d+\S* \(temporalio 1\.\d+\S*, Python 3\.\d+\S*\)\n", ran.out)


async def test_a_server_that_is_not_temporal_is_reported_as_such() -> None:
    """A server of another kind is reported as such, for example the Web UI."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as page:
        ran = await command("--address", f"127.0.0.1:{page.sockets[0].getsockname()[1]}", "pending")
    assert (ran.code, "no Temporal server listens on the address" in ran.err) == (8, True), ran.err


@pytest.mark.parametrize(
    ("error", "code", "explained"),
    [
        (
            'call error after connection: Status { code: Unauthenticated, message: "No."',
            5,
            "No. Set a valid TEMPORAL_API_KEY",
        ),
        (
            'call error after connection: Status { code: PermissionDenied, message: "No."',
            5,
            "No. Set a valid TEMPORAL_API_KEY",
        ),
        (
            "Custom { kind: InvalidData, error: InvalidCertificate(UnknownIssuer) }",
            8,
            "see TEMPORAL_TLS_SERVER_CA_CERT_PATH",
        ),
        ("call error after connection: tonic::transport::Error(Transport", 8, "requires TLS or a client certificate"),
    ],
)
async def test_a_refused_connection_is_explained(
    error: str, code: int, explained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cause has its own message in plain words: an expired API key is not an unreachable server."""
    monkeypatch.setattr(command_context, "connect", AsyncMock(side_effect=RuntimeError(error)))
    ran = await command("pending")
    assert (ran.code, explained in ran.err) == (code, True), ran.err


async def test_profiles_that_cannot_be_read_are_usage_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing profile and a file that is not TOML are usage errors."""
    ran = await command("--profile", "nope", "pending")
    assert (ran.code, "'nope'" in ran.err) == (2, True)
    (tmp_path / "temporal.toml").write_text("address = [")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    ran = await command("pending")
    assert (ran.code, "TOML" in ran.err) == (2, True)


def test_every_refusal_has_an_exit_code() -> None:
    """Every error class has an exit code."""
    kinds = {kind: kind("no") for kind in errors.AnswerRefused.__subclasses__()}
    codes = {kind.__name__: to_problem(error, "here", None).exit for kind, error in kinds.items()}
    assert codes == {
        "UnknownCall": Exit.UNKNOWN,
        "AlreadyAnswered": Exit.ALREADY_ANSWERED,
        "Expired": Exit.EXPIRED,
        "NotAllowed": Exit.NOT_ALLOWED,
        "DigestMismatch": Exit.NOT_ALLOWED,
        "InvalidAnswer": Exit.USAGE,
    }


async def test_an_argument_that_is_not_text_is_a_usage_error() -> None:
    """An argument with invalid UTF-8 is a usage error."""
    ran = await command("run", "speaker", "caf\udce9")
    assert (ran.code, "UTF-8" in ran.err) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_output_that_cannot_be_written_is_reported() -> None:
    """A full disk is reported in one line, with an exit code other than 0."""
    kept = str(HISTORIES / "one-tool.json")
    program = [sys.executable, "-m", "waystation.cli", "replay", kept, "--json"]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    assert (ran.returncode, ran.stderr.count("\n"), "cannot be written" in ran.stderr) == (1, 1, True)


async def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The message quotes the operating system's reason."""
    kept = str(HISTORIES / "one-tool.json")
    ran = await command("audit", "export", kept, "--output", str(tmp_path))
    assert (ran.code, ran.err) == (1, f"waystation: '{tmp_path}' cannot be used: Is a directory.\n")


@pytest.mark.slow
def test_a_closed_pipe_is_not_reported_as_an_error() -> None:
    """A pipe that is closed early, for example by `| head`, is not an error."""
    kept = str(HISTORIES / "one-tool.json")
    program = [sys.executable, "-m", "waystation.cli", "replay", *[kept] * 5, "--json"]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, pipesize=4096
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()
