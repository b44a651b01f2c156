"""The package that `npm pack` makes of the TypeScript client of the JSON API."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from uuid import uuid4

from docs.typescript_client import PACKAGE
from tests.agents import Till
from tests.server.conftest import Serve
from tests.server.web.desk import payer
from tests.server.web.sites import TOKEN, site
from tests.server.web.test_typescript_client import EXAMPLE, NODE
from tests.slow.programs.test_other_languages import download, need

QUIET = ("--no-audit", "--no-fund", "--loglevel", "error")
CHECK = ("--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "--types", "node")


def build_project(folder: Path, program: str) -> None:
    """Build the package as its page says, install it into a new project, and check the types of a program there."""
    npm, build, project = need("npm"), folder / "build", folder / "project"
    shutil.copytree(PACKAGE, build, ignore=shutil.ignore_patterns("node_modules", "dist"))
    download(npm, "install", *QUIET, folder=build)
    download(npm, "pack", *QUIET, folder=build)
    project.mkdir()
    (project / "package.json").write_text('{"type": "module"}')
    (project / "program.ts").write_text(program)
    [packed] = build.glob("*.tgz")
    download(npm, "install", *QUIET, str(packed), "typescript@5.9.3", "@types/node@24.0.0", folder=project)
    tsc = project / "node_modules" / "typescript" / "bin" / "tsc"
    checked = subprocess.run(
        [NODE, tsc, *CHECK, "program.ts"], cwd=project, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


async def test_a_new_project_uses_the_packed_client(serve: Serve, tmp_path: Path) -> None:
    """The example of its page starts an agent, approves its call and follows its events."""
    till = Till()
    async with serve(payer(till, {"amount": 5})) as env, site(env.client) as web:
        program = EXAMPLE.replace("http://127.0.0.1:8288", web.url).replace("order-42", uuid4().hex)
        await asyncio.to_thread(build_project, tmp_path, program)
        process = await asyncio.create_subprocess_exec(
            *(NODE, "program.ts"),
            cwd=tmp_path / "project",
            env=os.environ | {"WAYSTATION_WEB_TOKEN": TOKEN},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert (out.decode().splitlines()[-1].split()[0], till.paid) == ("end", [5])
