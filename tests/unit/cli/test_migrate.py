"""The command `waystation migrate` changes the imports of ADK programs, and lists what it cannot change."""

import re
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.programs import command
from waystation.adk_imports import ImportChange, NotParsable, migrate

PROGRAMS = sorted((ROOT / "tests" / "slow" / "programs" / "adk").glob("*.py"))


def findings_of(source: str, kind: str) -> list[tuple[int, str]]:
    """Return the findings of a kind, as pairs of line and text."""
    return [(finding.line, finding.text) for finding in migrate(source.encode())[1] if finding.kind == kind]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_an_adk_program_becomes_a_waystation_program(program: Path) -> None:
    """A migrated ADK program equals the Waystation program byte for byte, and no work is left."""
    expected = program.read_bytes()
    written_for_adk = re.sub(rb"^from waystation", b"from google.adk", expected, flags=re.MULTILINE)
    migrated, findings = migrate(written_for_adk)
    assert migrated == expected
    assert {finding.kind for finding in findings} <= {"changed", "differs"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import google.adk as adk, os", "import waystation as adk, os"),
        ("import google.adk\nr = google.adk.Runner", "import waystation\nr = waystation.Runner"),
        (
            "import google.adk.agents\na = google.adk.agents.Agent(name='a')",
            "import waystation.agents\na = waystation.agents.Agent(name='a')",
        ),
        ("from google import adk", "import waystation as adk"),
        ("from google import adk as a, genai  # x", "from google import genai\nimport waystation as a  # x"),
        ("from google.adk.agents import Agent as A", "from waystation.agents import Agent as A"),
        ("from google.adk import agents", "from waystation import agents"),
        ("from google.adk.tools import *", "from waystation.tools import *"),
        ("if True:\n    from google.adk import Agent", "if True:\n    from waystation import Agent"),
        ("try: from google.adk import Agent\nexcept ImportError: pass", None),
        ("x = 1; from google.adk import Agent; y = 2", "x = 1; from waystation import Agent; y = 2"),
        ("from google.adk.events import ( # a\n  # b\n  Event, # c\n)", None),
        ("from google.adk.events import \\\n    Event", "from waystation.events import \\\n    Event"),
    ],
)
def test_every_form_of_import_is_changed(before: str, after: str | None) -> None:
    """Aliases, modules, stars, blocks and comments keep their form."""
    assert migrate(before.encode())[0].decode() == (after or before.replace("google.adk", "waystation"))


def test_import_for_type_checkers_is_changed() -> None:
    """An import below TYPE_CHECKING is an import like any other."""
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from google.adk.agents import Agent\n"
    assert migrate(source.encode())[0].decode() == source.replace("google.adk", "waystation")


def test_a_name_of_another_module_is_imported_from_it() -> None:
    """The import uses the nearest package above the module that has the name."""
    source = b"from google.adk.sessions.in_memory_session_service import State"
    assert migrate(source)[0] == b"from waystation.sessions import State"


def test_other_names_of_google_adk_are_imported_through_waystation() -> None:
    """Names that google-adk provides need the extra, and names that behave differently are listed with the reason."""
    source = (
        "from google.adk.examples import Example\nfrom google.adk.agents import RunConfig\nimport google.adk.skills"
    )
    assert migrate(source.encode())[0].decode() == source.replace("google.adk", "waystation")
    assert findings_of(source, "differs") == [
        (1, "google.adk.examples.Example is google-adk's own. Install it with: pip install 'waystation[adk]'"),
        (2, "google.adk.agents.RunConfig: has three fields."),
        (3, "google.adk.skills is google-adk's own. Install it with: pip install 'waystation[adk]'"),
    ]
    assert findings_of(source, "missing") == []


def test_missing_name_is_listed_and_its_import_is_kept() -> None:
    """The names that exist move to Waystation, and each import keeps its comments."""
    source = b"""# agents
from google.adk.agents import (
    Agent,  # the agent
    LiveRequestQueue,  # the queue
)
"""
    migrated, findings = migrate(source)
    assert (
        migrated
        == b"""# agents
from waystation.agents import (
    Agent,  # the agent
)
from google.adk.agents import (
    LiveRequestQueue,  # the queue
)
"""
    )
    assert findings == [
        ImportChange(2, "changed", "from waystation.agents import Agent"),
        ImportChange(
            4,
            "missing",
            "Waystation does not have google.adk.agents.LiveRequestQueue. Waystation lacks ADK's live audio and video. "
            "Live audio and video cannot be recorded. Use text, files and streamed text.",
        ),
    ]


@pytest.mark.parametrize(
    "source",
    [
        "from google.adk.nowhere import x",
        "from google.adk.nowhere import *",
        "import google.adk.nowhere",
        "import google.adk\ngoogle.adk.nowhere.x()",
        "import google.adk as adk\nadk.nowhere.x()",
        "from google.adk import agents\nagents.Nowhere()",
    ],
)
def test_name_that_does_not_exist_is_listed_however_it_is_used(source: str) -> None:
    """The list contains names that do not exist, whether imported or dotted, with the line that uses them."""
    assert [line for line, _ in findings_of(source, "missing")] == [len(source.splitlines())]


def test_unsupported_argument_is_listed_with_the_remedy_of_the_class() -> None:
    """The reason comes from the class that refuses the argument, so the list cannot become outdated."""
    source = "from google.adk.agents import Agent as A\nA(name='a',\n  mode='task',\n  model=m, state_schema=s)"
    assert [line for line, _ in findings_of(source, "unsupported")] == [3, 4]
    assert findings_of(source, "unsupported")[1][1] == (
        "LlmAgent(state_schema=…): `state_schema` is not supported. State must be JSON; it has no schema."
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("from google.adk.runners import Runner\nRunner(node=n)", "workflow nodes"),
        ("from google.adk.runners import Runner\nRunner(other=n)", "no such argument"),
        ("from google.adk.agents import RunConfig\nRunConfig(max_llm_calls=0)", "would not allow any model calls"),
        ("from google.adk.plugins import BasePlugin\nclass P(BasePlugin):\n def on_event_callback(s): 0", "recorded"),
        ("import google.adk\nrunner.run_live()", "Live audio"),
    ],
)
def test_use_that_does_not_work_is_listed(source: str, text: str) -> None:
    """Arguments, overridden methods and called methods that are refused at run time are found in the source."""
    assert [text in message for _, message in findings_of(source, "unsupported")] == [True]


def test_supported_arguments_are_not_listed() -> None:
    """An argument that exists is not listed, with a literal value or another one."""
    source = "from google.adk.agents import Agent\nAgent(name='a', model=m, tools=[f], instruction='x', mode='chat')"
    assert findings_of(source, "unsupported") == []


def test_text_that_names_a_module_is_listed() -> None:
    """Names in strings, such as those of `mock.patch`, are not changed."""
    source = "import google.adk\npatch('google.adk.runners.Runner')\nprint('uses google.adk')"
    assert [line for line, _ in findings_of(source, "differs")] == [2]


@pytest.mark.parametrize(
    "source",
    [
        b"import google.adk\ndef (",
        b"import google.adk\n'\xff'",
        b"# coding: nowhere\nimport google.adk",
        b"import google.adk\n\0",
        b"import google.adk\nx = " + b"(" * 5_000 + b")" * 5_000,
        b"import google.adk\nx = 1" + b"+1" * 5_000,
    ],
    ids=["syntax", "bytes", "encoding", "null", "parentheses", "sum"],
)
def test_source_that_is_not_python_is_refused(source: bytes) -> None:
    """A file that cannot be parsed is a clear error instead of a crash."""
    with pytest.raises(NotParsable):
        migrate(source)


@pytest.mark.parametrize(
    "source",
    [
        b"\xef\xbb\xbfimport google.adk\r\nx = 1\r\n",
        "# coding: latin-1\nimport google.adk\nx = 'é'".encode("latin-1"),
        b"import google.adk\nif x:\n\ty()",
    ],
    ids=["mark and line ends", "encoding", "tabs and no line end"],
)
def test_encoding_and_line_ends_are_kept(source: bytes) -> None:
    """Only the bytes of the import change."""
    assert migrate(source)[0] == source.replace(b"google.adk", b"waystation")


@pytest.mark.parametrize("source", [b"", b"x = (", b"from google.genai import types\n# adk", b"import os\n"])
def test_file_without_adk_is_not_touched(source: bytes) -> None:
    """A file that does not use ADK stays unchanged, even if it is not valid Python."""
    assert migrate(source) == (source, [])


async def test_command_changes_nothing_without_write(tmp_path: Path) -> None:
    """The command lists its changes with file and line, and succeeds if nothing is left to do."""
    file = tmp_path / "agent.py"
    file.write_text("import os\nfrom google.adk.agents import Agent\n")
    ran = await command("migrate", str(tmp_path))
    assert (ran.code, ran.out) == (0, f"{file}:2: changed: from waystation.agents import Agent\n")
    assert "google.adk" in file.read_text()


async def test_command_writes_files_of_a_folder(tmp_path: Path) -> None:
    """With --write, files in subfolders are changed, but not those of a virtual environment or a hidden folder."""
    folders = ("agents", ".git", "venv", "site-packages")
    for folder in folders:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("import google.adk\n")
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    ran = await command("migrate", str(tmp_path), "--write")
    assert (ran.code, ran.err) == (0, "Changed files: 1. Places to change by hand: 0.\n")
    assert {folder: "waystation" in (tmp_path / folder / "a.py").read_text() for folder in folders} == {
        "agents": True,
        ".git": False,
        "venv": False,
        "site-packages": False,
    }
    assert (await command("migrate", str(tmp_path))).out == ""


async def test_file_that_cannot_be_changed_does_not_stop_the_command(tmp_path: Path) -> None:
    """Other files are changed, and the command fails and names the file."""
    (tmp_path / "a.py").write_bytes(b"import google.adk\n'\xff'")
    (tmp_path / "b.py").symlink_to(tmp_path / "nowhere")
    (tmp_path / "c.py").write_text("import google.adk\n")
    ran = await command("migrate", str(tmp_path), "--write", "--json")
    assert ran.code == 1
    assert [(Path(record["file"]).name, record["kind"]) for record in ran.records] == [
        ("a.py", "skipped"),
        ("b.py", "skipped"),
        ("c.py", "changed"),
    ]
    assert (tmp_path / "c.py").read_text() == "import waystation\n"


async def test_path_must_exist(tmp_path: Path) -> None:
    """A path that does not exist is a usage error."""
    ran = await command("migrate", str(tmp_path / "nowhere"))
    assert (ran.code, "does not exist" in ran.err) == (2, True)
