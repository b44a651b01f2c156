"""The project file `waystation.toml`: which one is read, what it may contain, and what overrides it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from waystation import data_converter
from waystation.client import connection_settings
from waystation.client.agent_client import AgentClient
from waystation.configuration import read_configuration
from waystation.core.budget import Quotas
from waystation.core.errors import InvalidConfiguration
from waystation.key_set import EncryptionKeys
from waystation.project_file import SETTINGS, Project, find_setting, load_project, read_quotas, use_project
from waystation.storage import Blobs, find_cipher

Write = Callable[[str], Project]
KEY = "AKIAxV7pQ2mN8sT4uY6wZ1bC3dE5fG7h"


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the developer's own settings, and let no project file outlive a test."""
    for name in (*(setting.variable for setting in SETTINGS.values() if setting.variable), "WAYSTATION_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    yield
    use_project(None)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a project file and read it."""

    def create(text: str) -> Project:
        (tmp_path / "waystation.toml").write_text(text)
        return Project.read(tmp_path / "waystation.toml")

    return create


def test_the_nearest_file_from_the_folder_upward_is_read(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in a folder between the current one and the root is found, unless a nearer one exists."""
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    write('[server]\nnamespace = "outer"')
    monkeypatch.chdir(below)
    assert find_setting("TEMPORAL_NAMESPACE", load_project()) == "outer"
    (tmp_path / "a" / "waystation.toml").write_text('[server]\nnamespace = "inner"')
    assert find_setting("TEMPORAL_NAMESPACE", load_project()) == "inner"
    assert load_project(None) is load_project("none") is None
    monkeypatch.setenv("WAYSTATION_PROJECT", "none")
    assert load_project() is None


@pytest.mark.skipif(os.name != "posix", reason="the owner of a file is known on POSIX only")
def test_a_file_of_another_user_is_refused_unless_it_is_named(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's file in a parent folder such as /tmp cannot redirect a program, but may be trusted by name."""
    write('[server]\naddress = "evil.example:7233"')
    owner = os.stat(tmp_path).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr("waystation.project_file.ROOT", owner + 2)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfiguration, match=rf"another user \(ID {owner}\).*--project-file.*project=None"):
        load_project()
    assert load_project(tmp_path / "waystation.toml") is not None
    monkeypatch.undo()
    (tmp_path / "waystation.toml").chmod(0o666)
    with pytest.raises(InvalidConfiguration, match="can be changed by all users"):
        load_project(tmp_path)


def test_a_link_of_another_user_is_refused(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to a file of this user is still another user's choice."""
    file = write("").file.rename(tmp_path / "own.toml")
    (tmp_path / "waystation.toml").symlink_to(file)
    link, mine = os.lstat(tmp_path / "waystation.toml"), os.stat(file)
    foreign = os.stat_result((*link[:4], mine.st_uid + 1, *link[5:]))
    monkeypatch.setattr(os, "lstat", lambda _: foreign)
    with pytest.raises(InvalidConfiguration, match="belongs to another user"):
        load_project(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_not_a_file_is_an_error(tmp_path: Path, kind: str) -> None:
    """A project whose settings cannot be read is not taken for none, and a pipe does not stop the program."""
    make: dict[str, Callable[[Path], None]] = {
        "folder": Path.mkdir,
        "pipe": os.mkfifo,
        "link": lambda path: path.symlink_to(tmp_path / "gone.toml"),
    }
    make[kind](tmp_path / "waystation.toml")
    with pytest.raises(InvalidConfiguration, match="is not a file"):
        load_project(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[server]\nadress = "a:1"', r"server: has no key 'adress'; .*\(did you mean 'address'\?\)"),
        ('agent = ["a"]', r"has no key 'agent'; .*\(did you mean 'agents'\?\)"),
        ('agents = "a"', "agents: .*list"),
        ("[server]\ntls = 3", "server.tls: "),
    ],
)
def test_an_unknown_key_is_an_error_with_the_nearest_name(write: Write, text: str, problem: str) -> None:
    """A misspelled key does not leave a setting at its default without a word."""
    with pytest.raises(InvalidConfiguration, match=problem):
        write(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f'[server]\naddress = "a:1"\napi_key = "{KEY}"', "server.api_key: line 3"),
        (f'[server]\napi_key = "env:{KEY}"', "server.api_key: line 2"),
        (f'[server]\napi_key = "{KEY * 20}"', "server.api_key: line 2"),  # longer than the name of a file may be
        (f'[server]\napi_key = "~{KEY}"', "server.api_key: line 2"),
        ('[stores]\nmemory = "postgresql://app:hunter2@db/waystation"', "stores.memory: line 2"),
        ('[stores]\nmemory = "postgresql://db/waystation?password=hunter2"', "stores.memory: line 2"),
        ('[stores]\nmemory = "postgresql://db/waystation?user=app&sslpassword=hunter2"', "stores.memory: line 2"),
        ('[stores]\nmemory = "host=db password=hunter2"', "stores.memory: line 2"),
        ('[stores]\npayloads = "s3://store?aws_secret_access_key=hunter2"', "stores.payloads: line 2"),
        ('[identity.workers.completion]\nkey = "hunter2"', "identity.workers.completion.key: line 2"),
        (f'[encryption]\nkeys = "{KEY}"', "encryption.keys: line 2"),
        ('[notifications.channels.desk]\nurls = ["slack://T1/B1/hunter2"]', "notifications.channels.desk.urls: line 2"),
        ('[web]\ntoken = "hunter2"', "web.token: line 2"),
        ('[server]\ntls_client_key = """\n-----BEGIN PRIVATE KEY-----"""', "server.tls_client_key: line"),
    ],
)
def test_a_secret_is_refused_with_the_line_and_the_remedy(write: Write, text: str, key: str) -> None:
    """The error names the key, and not the secret."""
    with pytest.raises(InvalidConfiguration) as raised:
        write(text)
    assert key in str(raised.value)
    assert '"env:NAME"' in str(raised.value)
    assert ("name a file" in str(raised.value)) != ("hunter2@" in text or "=hunter2" in text or "-----" in text)
    assert not any(secret in str(raised.value) for secret in (KEY, "hunter2", "PRIVATE"))


def test_a_reference_is_replaced_when_the_value_is_needed(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret is read from a variable, which stays set, or from a file that only its owner can read."""
    project = write('[server]\naddress = "a:1"\napi_key = "env:CLOUD_KEY"\n[stores]\nmemory = "env:MEMORY_URL"')
    with pytest.raises(InvalidConfiguration, match=r"server.api_key: the variable CLOUD_KEY is not set"):
        connection_settings(project=project)
    monkeypatch.setenv("CLOUD_KEY", KEY)
    monkeypatch.setenv("MEMORY_URL", "postgresql://app:hunter2@db/waystation")
    assert (connection_settings(project=project)["api_key"], os.environ["CLOUD_KEY"]) == (KEY, KEY)
    assert project.get("stores.memory") == "postgresql://app:hunter2@db/waystation"
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o644)
    named = write('[server]\napi_key = "key"')
    with pytest.raises(InvalidConfiguration, match="chmod 600"):
        named.get("server.api_key")


def test_relative_paths_are_relative_to_the_file(write: Write, tmp_path: Path) -> None:
    """Paths are, URLs and names of Python objects are not."""
    project = write(
        'agents = ["a"]\n[stores]\npayloads = "p"\nartifacts = "s3://b/x"\nmemory = "python:m:store"\n'
        '[encryption]\nkeys = "env:KEYS"\nuser_keys = "keys.db"'
    )
    assert project.get("agents") == [str(tmp_path / "a")]
    assert [project.get(f"stores.{name}") for name in ("payloads", "artifacts", "memory")] == [
        *(str(tmp_path / "p"), "s3://b/x", "python:m:store")
    ]
    assert (project.get("encryption.keys"), project.get("encryption.user_keys")) == (
        *("env:KEYS", str(tmp_path / "keys.db")),
    )


def test_an_option_overrides_a_variable_which_overrides_the_file(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same order holds for the server and for the stores."""
    project = write('[server]\naddress = "file:1"\nnamespace = "filed"\n[stores]\npayloads = "p"')
    assert connection_settings(project=project)["target_host"] == "file:1"
    assert Blobs(project=project).files.folder == tmp_path / "p"
    monkeypatch.setenv("TEMPORAL_ADDRESS", "variable:1")
    monkeypatch.setenv("WAYSTATION_STORE", str(tmp_path / "v"))
    settings = connection_settings(project=project)
    assert (settings["target_host"], settings["namespace"]) == ("variable:1", "filed")
    assert Blobs(project=project).files.folder == tmp_path / "v"
    assert connection_settings(address="option:1", project=project)["target_host"] == "option:1"
    assert Blobs(tmp_path / "o", project=project).files.folder == tmp_path / "o"


def test_credentials_go_only_to_the_address_beside_them(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the file's key goes to another address, nor the key of a profile to the file's address."""
    monkeypatch.setenv("CLOUD_KEY", KEY)
    (tmp_path / "temporal.toml").write_text(f'[profile.default]\naddress = "cloud:1"\napi_key = "{KEY}"')
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    project = write('[server]\naddress = "file:1"\napi_key = "env:CLOUD_KEY"\ntls = true')
    other = connection_settings(address="localhost:7233", project=project)
    assert (other["api_key"], other["target_host"]) == (KEY, "localhost:7233")  # the default profile's, as ever
    monkeypatch.delenv("TEMPORAL_CONFIG_FILE")
    assert not {"api_key", "tls"} & {*connection_settings(address="localhost:7233", project=project)}
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))
    plain = write('[server]\naddress = "file:1"')
    assert "api_key" not in connection_settings(project=plain)
    assert connection_settings(profile="default", project=plain)["target_host"] == "cloud:1"


def test_an_invalid_address_names_its_key(write: Write) -> None:
    """The message of an error has the file and the key of the value."""
    project = write('[server]\naddress = "nowhere"')
    with pytest.raises(InvalidConfiguration, match=r"'nowhere' from \S+/waystation.toml, key server.address is not"):
        connection_settings(project=project)


def test_a_message_names_the_keys_of_the_values_in_it(write: Write) -> None:
    """A name such as `default` counts only in quotes, because it may occur by chance."""
    project = write('[server]\naddress = "here:1"\nnamespace = "default"')
    assert project.explain("here:1 is not reached, namespace default") == (
        f" (here:1 is from {project.file}, key server.address)"
    )
    assert "key server.namespace" in project.explain("Namespace 'default' not found")
    assert project.explain("Cannot reach here:12 or there.here:1") == ""


def test_a_table_of_the_file_replaces_a_file_of_its_own(write: Write, tmp_path: Path) -> None:
    """Quotas can be in the project file or in a file that it names."""
    use_project(write('[[quotas.limits]]\nmodel = "*"\ntokens_per_minute = 5'))
    inline = read_quotas(None)
    (tmp_path / "quotas.toml").write_text(
        f'store = "{tmp_path}/.waystation/quotas.db"\n[[limits]]\nmodel = "*"\ntokens_per_minute = 5'
    )
    use_project(write('quotas = "quotas.toml"'))
    assert inline == read_quotas(None) == read_configuration(tmp_path / "quotas.toml", Quotas)
    use_project(write("[quotas]\nmodel = 1"))
    with pytest.raises(InvalidConfiguration, match=r"waystation.toml#quotas, model: "):
        read_quotas(None)


def test_a_program_of_another_author_is_not_affected(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings are those of the environment, unless a program of Waystation reads the file or a client asks for it."""
    EncryptionKeys.generate().create(tmp_path / "keys.json")
    project = write('[encryption]\nkeys = "keys.json"\n[stores]\npayloads = "p"')
    monkeypatch.chdir(tmp_path)
    assert (find_setting("WAYSTATION_STORE"), find_cipher()) == (None, None)
    assert find_cipher(project) is not None
    assert data_converter().payload_codec is not None
    assert data_converter(project=None).payload_codec is None
    assert find_cipher() is None


async def test_what_a_client_of_a_project_stores_is_encrypted(write: Write, tmp_path: Path) -> None:
    """The store of a client uses the keys of its project, though no variable names them."""
    EncryptionKeys.generate().create(tmp_path / "keys.json")
    blobs = Blobs(project=write('[encryption]\nkeys = "keys.json"\n[stores]\npayloads = "p"'))
    digest = await blobs.put(b"salary")
    [stored] = [file.read_bytes() for file in (tmp_path / "p").rglob("*") if file.is_file()]
    assert b"salary" not in stored
    assert await blobs.get(digest) == b"salary"


async def test_connecting_reads_the_file_unless_the_program_refuses(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`AgentClient.connect` takes the address from the file, and `project=None` ignores it."""
    project = write('[server]\naddress = "nowhere"')
    monkeypatch.chdir(project.file.parent)
    with pytest.raises(InvalidConfiguration, match=r"waystation.toml, key server.address"):
        await AgentClient.connect()
    with pytest.raises(RuntimeError):
        await AgentClient.connect(address="127.0.0.1:1", project=None)


async def test_a_client_opens_the_artifact_store_of_the_project(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions save their files there. Without any, the error names the setting."""

    async def connect(**_: object) -> None:
        """Return no Temporal client, which opening a store does not need."""

    monkeypatch.setattr("waystation.client.agent_client.connect", connect)
    project = write('[stores]\nartifacts = "files"')
    opened: Any = await (await AgentClient.connect(project=project.file)).open_artifacts()
    assert opened.folder == tmp_path / "files"
    given: Any = await (await AgentClient.connect(project=project.file, artifacts=tmp_path / "given")).open_artifacts()
    assert given.folder == tmp_path / "given"
    with pytest.raises(InvalidConfiguration, match=r"stores.artifacts.*artifacts="):
        await (await AgentClient.connect(project=None)).open_artifacts()


async def test_a_key_file_that_is_missing_is_reported_with_its_key(write: Write) -> None:
    """The error of a reader is completed with where the value comes from."""
    project = write('[encryption]\nkeys = "missing.json"')
    with pytest.raises(InvalidConfiguration, match=r"missing.json is from \S+waystation.toml, key encryption.keys"):
        await AgentClient.connect(project=project.file)
