"""The documentation and the command line name the same commands and options."""

import re

from tests.documents import DOCS, pages, section
from tests.paths import ROOT
from tests.programs import command, run

CLI = (DOCS / "reference" / "cli.md").read_text()
DOCUMENTED = re.findall(r"`([a-z-]+)`", " ".join(re.findall(r"^\| (`.*?) \|", CLI.split("\n## ")[0], re.MULTILINE)))
GROUPS = {
    "audit": ("approvers", "export", "verify"),
    "encryption": ("keys", "delete-keys"),
    "identity": ("init",),
    "policy": ("test",),
    "server": ("stop",),
    "session": ("show", "close", "delete"),
    "store": ("prune",),
}
OTHER_PROGRAMS = {
    *("--build-id", "--deployment-name", "--input", "--name", "--output", "--query", "--reapply-exclude", "--type"),
    *(
        "--workflow-id",
        "--codec-endpoint",
        "--codec-auth",
        "--run-id",
        "--strict",
        "--schedule-id",
        "--pause",
        "--reason",
    ),
    *("--no-deps", "--target", "--target-namespace", "--target-task-queue", "--dynamic-config-value"),
    *("--allow-no-auth", "--database", "--schema-name", "--retention", "--no-build-isolation", "--from"),
    *("--isolated", "--no-project", "--with", "--noconftest", "--timeout", "--upgrade"),
    *("--setups", "--quick", "--pairs", "--peer", "--per-second", "--calls", "--streamed-s", "--waiting"),
    *("--metrics-port", "--search-attribute", "--app-dir", "--constraint"),
    *("--task-timeout", "--cron", "--percentage", "--versioning-override-behavior", "--versioning-override-build-id"),
    *("--versioning-override-deployment-name", "--reuse-values", "--set", "--set-file", "--values"),
    *("--create", "--extract", "--file", "--format", "--dbname", "--no-owner", "--tag", "--build-arg"),
    *("--report-task-queue-stats", "--requirement", "--no-cache-dir", "--detach", "--build", "--system", "--home-dir"),
    *(
        "--directory",
        "--start-delay",
        "--python",
        "--mode",
        "--now",
        "--from-literal",
        "--from-file",
        "--selector",
        "--replicas",
    ),
}
"""Options of the `temporal` CLI and server, pip, uv, chaos, the benchmarks, mypy, Helm, Docker, tar and PostgreSQL."""


async def test_the_page_lists_every_command() -> None:
    """The table of commands matches the help text."""
    help_text = (await command("--help")).out
    commands = re.findall(r"^  ([a-z][a-z-]+) {2,}\S", help_text, re.MULTILINE)
    assert sorted(DOCUMENTED) == sorted(commands)


async def test_every_documented_option_exists() -> None:
    """An option in any page belongs to a command, or to another program."""
    texts = [run("--help").stdout, (await command("--help")).out]
    for name in DOCUMENTED:
        if name != "worker":
            texts.append((await command(name, "--help")).out)
        for part in GROUPS.get(name, ()):
            texts.append((await command(name, part, "--help")).out)
    existing = set(re.findall(r"--[a-z][a-z-]+", re.sub(r"-\n\s+", "-", "\n".join(texts)))) | OTHER_PROGRAMS
    named = {
        (str(page.relative_to(ROOT)), option)
        for page in pages()
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text())
    }
    assert {(page, option) for page, option in named if option not in existing} == set()


async def test_the_page_lists_every_exit_code() -> None:
    """The codes of the page are those of the help text."""
    listed = re.findall(r"^\| (\d+) \|", section(CLI, "## Exit codes"), re.MULTILINE)
    codes = (await command("--help")).out.split("Exit codes:", 1)[1]
    assert listed == re.findall(r"^    (\d+) ", codes, re.MULTILINE)
