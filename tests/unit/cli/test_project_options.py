"""The programs take their options from the project file, and the page lists its keys."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.documents import DOCS, section
from tests.programs import command
from tests.unit.test_project_file import undisturbed as undisturbed
from waystation.cli import development
from waystation.cli.program import app
from waystation.cli.project_options import list_origins, list_own_options, read_defaults
from waystation.core.errors import InvalidConfiguration
from waystation.project_file import SETTINGS, Project, use_project
from waystation.testing.environment import load_agents
from waystation.worker.main import list_option_keys, parse_options, parse_settings

GROUP = typer.main.get_command(app)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the project file of the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "waystation.toml"


def write(file: Path, text: str) -> None:
    """Write the project file, for tests that are coroutines."""
    file.write_text(text)


def load(name: str) -> Any:
    """Return a command of the program."""
    context = typer.Context(GROUP)
    found = GROUP.get_command(context, name)  # type: ignore[attr-defined]  # it is a group
    assert found is not None
    return found


def read(file: Path, name: str) -> dict[str, Any]:
    """Return the defaults that a project file sets for a command."""
    return read_defaults(typer.Context(GROUP), Project.read(file), name, load(name))


def test_a_worker_has_the_options_of_the_file(project: Path) -> None:
    """An option on the command line overrides the file."""
    project.write_text(
        'agents = ["a", "b"]\n[stores]\nartifacts = "files"\n[worker]\ndrain = 7\nmax_concurrent_activities = 3\n'
        'db = "server.db"\n[telemetry]\nmetrics = 9464\nlog_format = "json"\ntraces = true'
    )
    options = parse_options([], "worker")
    settings = parse_settings(options)
    assert options.agents == [project.parent / "a", project.parent / "b"]
    assert (settings.drain.total_seconds(), settings.concurrent_activities) == (7, 3)
    assert (settings.stores.artifacts, options.db) == (str(project.parent / "files"), project.parent / "server.db")
    assert (options.metrics, options.log_format, options.traces) == (("127.0.0.1", 9464), "json", True)
    assert parse_options(["--drain", "9"], "worker").drain.total_seconds() == 9
    with pytest.raises(SystemExit):
        parse_options(["--project-file", "none"], "worker")  # no agents


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[worker]\ndrian = 1", r"worker: has no key 'drian'; .*\(did you mean 'drain'\?\)"),
        ('[worker]\ndrain = "soon"', "worker.drain: 'soon' is not a number of seconds"),
        ('[worker]\nembedded = "yes"', "worker.embedded: must be true or false"),
        ('[telemetry]\nlog_format = "xml"', "telemetry.log_format: 'xml' is not one of console, json"),
    ],
)
def test_a_worker_does_not_start_with_an_invalid_option(
    project: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    """The error names the file and the key, and the exit code is that of a usage error."""
    project.write_text(text)
    with pytest.raises(SystemExit) as raised:
        parse_options(["--agents", "a"], "worker")
    assert raised.value.code == 2
    assert re.search(problem, capsys.readouterr().err)


def test_an_embedded_server_is_not_asked_for_the_namespace_of_the_file(project: Path) -> None:
    """The file's namespace is on another server."""
    project.write_text('agents = ["a"]\n[server]\naddress = "cloud:7233"\nnamespace = "acme"')
    options = parse_options(["--embedded"], "worker")
    assert (options.address, options.namespace) == (None, "default")


def test_each_option_of_the_worker_has_one_key() -> None:
    """A new option gets a key from its declaration."""
    keys = list_option_keys()
    assert len(keys) == len({*keys.values()})
    assert {key.partition(".")[0] for key in keys} <= {*("agents", "server", "stores", "identity", "notifications")} | {
        *("quotas", "telemetry", "worker")
    }


def test_commands_have_the_options_of_the_file(project: Path) -> None:
    """Stores and agents apply to all commands, and the web server has a table of its own."""
    project.write_text(
        'agents = ["a"]\n[stores]\nmemory = "m.db"\n[web]\nport = 0\nallow_host = ["inbox"]\nallow_any_account = true\n'
        '[dev]\nport = 1\ndb = "dev.db"'
    )
    assert read(project, "web") == {"port": 0, "allow_host": ["inbox"], "allow_any_account": True}
    assert read(project, "dev") == {"port": 1, "db": str(project.parent / "dev.db")}
    assert read(project, "doctor") == {"agents": [str(project.parent / "a")], "memory": str(project.parent / "m.db")}
    assert read(project, "session")["delete"] == {"memory": str(project.parent / "m.db")}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prot = 1", r"web: has no key 'prot'; .*\(did you mean 'port'\?\)"),
        ('port = "x"', "web.port: .*valid integer"),
        ('allow_host = "x"', "web.allow_host: must be a list"),
        ("allow_any_account = 1", "web.allow_any_account: must be true or false"),
    ],
)
def test_a_web_server_does_not_start_with_an_invalid_option(project: Path, text: str, problem: str) -> None:
    """The error names the key in the file, and not the option."""
    project.write_text(f"[web]\n{text}")
    with pytest.raises(InvalidConfiguration, match=problem):
        read(project, "web")


async def test_a_command_names_the_key_of_an_invalid_address(project: Path) -> None:
    """A command reads the file of its folder, and the option overrides it."""
    write(project, '[server]\naddress = "nowhere"')
    assert f"'nowhere' from {project}, key server.address is not" in (await command("pending")).err
    ignored = await command("--project-file", "none", "--address", "nobody", "pending")
    assert "'nobody' is not a valid HOST:PORT" in ignored.err
    write(project, "[server]\nadress = 1")
    refused = await command("pending")
    assert (refused.code, "did you mean 'address'" in refused.err) == (2, True)


def test_doctor_says_where_each_value_comes_from(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option comes before a variable, a variable before the file, and the default last. Secrets are not shown."""
    project.write_text(
        '[server]\nnamespace = "n"\ntask_queue = "q"\napi_key = "env:CLOUD_KEY"\n[stores]\npayloads = "p"\n'
        "[web]\nport = 1"
    )
    monkeypatch.setenv("CLOUD_KEY", "hunter2")
    monkeypatch.setenv("WAYSTATION_STORE", "v")
    origins = {
        key: (value, origin)
        for key, value, origin in list_origins(Project.read(project), {"server.namespace": "given"})
    }
    assert origins["server.namespace"] == ("given", "option --namespace")
    assert origins["stores.payloads"][1] == "environment WAYSTATION_STORE"
    assert origins["server.task_queue"] == ("q", f"{project}, key server.task_queue")
    assert origins["server.api_key"] == ("a secret", f"{project}, key server.api_key")
    assert origins["web.port"] == ("1", f"{project}, key web.port")
    assert origins["quotas"] == ("", "default")


async def test_doctor_verifies_the_tables_of_all_programs(project: Path) -> None:
    """A client verifies only the tables that it reads, so `doctor` finds the rest."""
    write(project, "[worker]\ndrian = 1")
    assert "worker: has no key 'drian'" in (await command("doctor")).err
    write(project, "[web]\nprot = 1")
    assert "web: has no key 'prot'" in (await command("doctor")).err


def test_dev_serves_the_agents_of_the_project(project: Path) -> None:
    """A folder on the command line replaces them, and the folder of the project is watched."""
    project.write_text('agents = ["a", "b"]')
    use_project(Project.read(project))
    folder = project.parent
    assert development._find_folders(None) == ([folder / "a", folder / "b"], folder)
    assert development._find_folders(Path("c")) == ([Path("c")], Path("c"))
    use_project(None)
    assert development._find_folders(None) == ([Path()], Path())


async def test_a_new_project_has_a_file_that_is_valid(project: Path) -> None:
    """Its agents load, it is not overwritten, and each of its settings is a shared one."""
    assert (await command("new", "--project")).code == 0
    created = Project.read(project)
    assert '"env:VARIABLE"' in (project.parent / project.name).read_text()
    assert (project.parent / ".gitignore").read_text() == ".waystation/\n"
    assert (project.parent / "tests" / "test_order_agent.py").exists()
    [root] = load_agents(created).roots.values()
    assert (root.name, root.demo_model is None) == ("order_agent", False)
    with pytest.raises(InvalidConfiguration, match="no project file with the key `agents`"):
        load_agents(None)
    write(project, "not TOML")  # which `new` does not read
    again = await command("new", "other_agent", "--project")
    assert (again.code, "exists" in again.err) == (2, True)


def test_the_page_lists_the_shared_settings_and_the_tables() -> None:
    """The rows of the reference page are those of the table in the code."""
    page = (DOCS / "reference" / "project-file.md").read_text()
    row = re.compile(r"^\| `([^`]+)` \| (?:`([^`]+)`)? ?\| (?:`([^`]+)`)? ?\| (.+) \|$", re.MULTILINE)
    rows = row.findall(section(page, "## Shared settings"))
    assert rows == [(key, one.option, one.variable, one.meaning) for key, one in SETTINGS.items()]
    tables = re.findall(r"^\| `\[(\w+)\]`", page, re.MULTILINE)
    assert tables == ["worker", "telemetry", "web", "codec_server", "dev"]
    assert {"host", "port", "url"} <= {*list_own_options(load("web"))}
