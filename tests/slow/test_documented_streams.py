"""The programs and commands of the page on streams work unchanged with real processes."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from tests.documents import DOCS, blocks, how_to
from tests.paths import HISTORIES, ROOT
from tests.server.cli.shell import Shell
from waystation.cli.demo import WorkerProcess
from waystation.embedded import EmbeddedServer

PAGE = how_to("stream-events")
_, *PROGRAMS = blocks(PAGE, "python")
"""All programs but the first one, which starts an invocation that needs an answer."""
SAID = "[demo model] The weather in London is cloudy, 18 degrees Celsius, with a chance of rain."


@pytest.fixture(scope="module")
async def shell(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shell]:
    """Return a terminal next to a worker with the examples."""
    options = ("--agents", str(ROOT / "examples"), "--model", "demo", "--address", server.address)
    async with WorkerProcess(*options):
        yield Shell.at(tmp_path_factory.mktemp("streams"), server.address)


async def test_the_programs_stream_text(shell: Shell) -> None:
    """The first program prints partial and recorded text; the second reads a file."""
    following, reading = PROGRAMS
    (shell.folder / "following.py").write_text(following)
    (shell.folder / "reading.py").write_text(reading)
    code, out = await shell.run("python following.py")
    assert (code, "True" in out) == (0, True)
    assert [line.split()[0] for line in out.splitlines() if not line.startswith("None")] == ["0", "1", "2", "3"]
    assert SAID in out.splitlines()[-1]
    history = HISTORIES / "one-tool.json"
    code, out = await shell.run(f"python reading.py {history}")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [str(index) for index in range(len(out.splitlines()))]


async def test_the_commands_serve_a_stream(shell: Shell) -> None:
    """The commands work unchanged, apart from the port and the id."""
    [commands] = [block.split("\n", 1)[1] for block in blocks(PAGE, "sh") if "waystation web" in block]
    code, out = await shell.run('waystation run weather_sentiment_agent "In London?" --id streamed --stream')
    assert (code, SAID in out) == (0, True)
    serving, reading = commands.split("&\n")
    again = f"until {reading.strip()} --fail --silent; do sleep 0.2; done; kill %1; wait"
    script = f"{serving} --port 8377 & {again}".replace("8288", "8377").replace("/ID/", "/streamed/")
    async with asyncio.timeout(60):
        code, out = await shell.run(script)
    assert 'data: {"status": "completed"}' in out
    assert SAID in out


def test_the_table_of_paths_equals_that_of_the_application() -> None:
    """The application serves each path of the page."""
    app = "".join(path.read_text() for path in (ROOT / "waystation" / "web").glob("*.py"))
    for path in re.findall(r"^\| `GET ([^`?]+)[^`]*` \|", (DOCS / "reference" / "http.md").read_text(), re.MULTILINE):
        assert f'"{path}"' in app
