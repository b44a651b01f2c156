"""The worker program: its checks, its messages, and how it ends."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.service import RPCError
from temporalio.worker import (
    FixedSizeSlotSupplier,
    PollerBehaviorAutoscaling,
    ResourceBasedSlotConfig,
    ResourceBasedSlotSupplier,
    ResourceBasedTunerConfig,
)

from tests.paths import ROOT
from tests.programs import logged, run, undisturbed
from tests.proxies import forwarding
from tests.server.processes.ledger import Ledger
from tests.server.processes.workers import AGENTS, Place, Process, WorkerProcess, plan
from waystation.agents import Agent
from waystation.client import connect
from waystation.client.agent_client import AgentClient
from waystation.client.connection import is_unreachable
from waystation.core.contract import Stores
from waystation.embedded import USUAL_PORT, EmbeddedServer
from waystation.version import versions
from waystation.worker import announce_agents
from waystation.worker.main import _connect, list_load_options, main, parse_options, parse_settings

AGENT = """
    from typing import Any
    from waystation.agents import Agent
    from waystation.tools import FunctionTool

    def pay(amount: int) -> str:
        '''Pay.'''
        return "paid"

"""
MISTAKES = {
    "bare": "",
    "unimportable": "import no_such_module",
    "leaving": "raise SystemExit(3)",
    "stringly": "root_agent = 'me'",
    "first_twin": "root_agent = Agent(name='twin')",
    "second_twin": "root_agent = Agent(name='twin')",
    "doubled": "root_agent = Agent(name='doubled', tools=[pay, pay])",
    "reserved": "def transfer_to_agent() -> None: ...\nroot_agent = Agent(name='reserved', tools=[transfer_to_agent])",
    "unspeakable": "def tell(person: type[Any]) -> None: ...\nroot_agent = Agent(name='unspeakable', tools=[tell])",
    "hasty": "root_agent = Agent(name='hasty', tools=[FunctionTool(pay, retries=-1)])",
    "both/same": "root_agent = Agent(name='one_of_them')",
}


NEEDY = """
    from waystation import ApprovalPolicy, ApprovalRule

    root_agent = Agent(
        name="clerk",
        tools=[FunctionTool(pay, approval=ApprovalPolicy(approvers=("ann",), notify=("desk",)))],
        approval_rules=[ApprovalRule(ApprovalPolicy(notify=("board", "desk")))],
    )
"""


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package for each mistake, and one without mistakes."""
    folder = tmp_path_factory.mktemp("bad")
    for name, text in {**MISTAKES, "good": "root_agent = Agent(name='good', tools=[pay])"}.items():
        package = folder / name
        package.mkdir(parents=True)
        (package / "agent.py").write_text(dedent(AGENT) + text)
    (folder / "other" / "same").mkdir(parents=True)
    (folder / "other" / "same" / "agent.py").write_text(dedent(AGENT) + "root_agent = Agent(name='other_of_them')")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(scope="module")
def checked(bad: Path) -> subprocess.CompletedProcess[str]:
    """The result of checking all mistakes at once."""
    folders = [str(bad), *(str(bad / name) for name in ("both", "other", "empty", "missing", "hasty/agent.py"))]
    return run("check", "--agents", *folders)


def test_every_mistake_is_reported_at_once(checked: subprocess.CompletedProcess[str]) -> None:
    """One run reports all mistakes, and its exit code stops a deployment."""
    assert checked.returncode == 1
    assert {line["event"] for line in logged(checked)} == {"agent.invalid"}
    assert len(logged(checked)) == 13


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("bare", "Agent 'bare': `agent.py` defines no `root_agent`; assign the agent to that name."),
        (
            "unimportable",
            "Agent 'unimportable': importing it failed at {bad}/unimportable/agent.py:10: ModuleNotFoundError: "
            "No module named 'no_such_module'",
        ),
        ("leaving", "Agent 'leaving': importing it failed at {bad}/leaving/agent.py:10: SystemExit: 3"),
        ("stringly", "Agent 'stringly': `root_agent` is a str; assign the agent to that name."),
        (
            "second_twin",
            "Two agents are named 'twin' ({bad}/first_twin/agent.py, {bad}/second_twin/agent.py); rename one of them.",
        ),
        ("doubled/agent.py", "Agent 'doubled' has two tools named 'pay'; rename one of them."),
        (
            "reserved/agent.py",
            "Tool 'transfer_to_agent': the name is reserved for the framework; rename the function.",
        ),
        ("unspeakable/agent.py", "Tool 'tell': "),
        (
            "hasty",
            "Agent 'hasty': importing it failed at {bad}/hasty/agent.py:10: InvalidTool: Tool 'pay': `retries` is -1; "
            "use a whole number of at least 0.",
        ),
        ("other/same", "Agent 'same': another package named 'same' was imported from {bad}/both/same; rename one."),
        (
            "empty",
            "{bad}/empty: the folder contains no agent package; add one with an `agent.py` that defines `root_agent`.",
        ),
        ("missing", "{bad}/missing: the folder does not exist; use a folder with agent packages."),
        ("hasty/agent.py", "{bad}/hasty/agent.py: it is a file; use a folder with agent packages."),
    ],
)
def test_a_mistake_is_reported_with_its_place_and_remedy(
    bad: Path, checked: subprocess.CompletedProcess[str], place: str, problem: str
) -> None:
    """Each log line has the place and the remedy."""
    [found] = [line["problem"] for line in logged(checked) if line["place"] == str(bad / place)]
    assert found.startswith(problem.format(bad=bad))


def test_agents_without_mistakes_pass() -> None:
    """`check` lists the agents and exits with 0 without a server."""
    done = run("check", "--agents", str(AGENTS))
    [line] = logged(done)
    found = sorted(package.name for package in AGENTS.iterdir() if (package / "agent.py").exists())
    assert (done.returncode, line["event"], line["agents"]) == (0, "agents.valid", found)
    assert found


def test_a_worker_does_not_start_with_mistakes(bad: Path) -> None:
    """A worker with mistakes does not start, and contacts no server."""
    done = run("--agents", str(bad / "bare"), "--address", "127.0.0.1:1")
    assert (done.returncode, [line["event"] for line in logged(done)]) == (1, ["agent.invalid"])


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["check"],
        ["--only", "activities"],
        ["--agents"],
        ["chekc", "--agents", "x"],
        ["--agents", "x", "--drain", "soon"],
        ["--agents", "x", "--drain", "-1"],
        ["--agents", "x", "--wait", "never"],
        ["--agents", "x", "--event-loop-limit", "-1"],
        ["--agents", "x", "--max-rss", "0"],
        ["--agents", "x", "--model-timeout", "0"],
        ["--agents", "x", "--text-interval", "0"],
        ["--agents", "x", "--cancel-within", "0.04"],
        ["--agents", "x", "--workflow-task-limit", "0"],
        ["--agents", "x", "--only", "models"],
        ["--agents", "x", "--model", "gpt"],
        ["--agents", "x", "--deployment-version", "1"],
        ["--agents", "x", "--resource-tuner", "90"],
        ["--agents", "x", "--resource-tuner", "90:101"],
        ["--agents", "x", "--max-concurrent-activities", "0"],
        ["--agents", "x", "--max-cached-workflows", "0"],
        ["--agents", "x", "--only", "activities", "--max-cached-workflows", "9"],
        ["--only", "workflows", "--resource-tuner", "90:80"],
        ["--only", "workflows", "--max-concurrent-activities", "9"],
    ],
)
def test_wrong_options_exit_with_2(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Usage errors have another exit code than mistakes in agents."""
    with pytest.raises(SystemExit) as left:
        main(options)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("usage: worker.py ")


def test_options_decide_how_much_work_a_worker_takes() -> None:
    """The tuner limits only models and tools, up to the number of activities."""
    chosen = ["--max-concurrent-activities", "7", "--resource-tuner", "90:80", "--poller-autoscaling"]
    options = parse_options(["--agents", "x", *chosen, "--max-cached-workflows", "9"], "worker.py")
    load = list_load_options(options, parse_settings(options))
    tuner = load.pop("tuner")
    assert tuner._get_activity_task_slot_supplier() == ResourceBasedSlotSupplier(
        ResourceBasedSlotConfig(maximum_slots=7),
        ResourceBasedTunerConfig(target_memory_usage=0.8, target_cpu_usage=0.9),
    )
    assert tuner._get_local_activity_task_slot_supplier() == FixedSizeSlotSupplier(100)
    pollers = {
        f"{kind}_task_poller_behavior": PollerBehaviorAutoscaling() for kind in ("workflow", "activity", "nexus")
    }
    assert load == {"max_cached_workflows": 9, **pollers}


def test_versions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Waystation's version comes first, and no other option is needed."""
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert (left.value.code, capsys.readouterr().out) == (0, f"{versions()}\n")


def in_terminal(*options: str) -> str:
    """Run `worker.py` in a terminal and return its output."""
    mine, its = pty.openpty()
    with open(mine, "rb", buffering=0) as screen, open(its, "wb", buffering=0) as terminal:
        command = [sys.executable, "worker.py", *options]
        subprocess.run(command, cwd=ROOT, env=undisturbed(), stdout=terminal, stderr=terminal, timeout=60, check=False)
        return screen.read(100_000).decode()


@pytest.mark.slow
def test_logs_are_for_people_in_a_terminal() -> None:
    """A terminal gets colors and columns, and JSON on request."""
    shown = in_terminal("check", "--agents", str(AGENTS))
    assert "agents.valid" in shown
    assert "\x1b[" in shown
    assert "{" not in shown
    asked = in_terminal("check", "--agents", str(AGENTS), "--log-format", "json")
    assert json.loads(asked)["event"] == "agents.valid"


def test_logs_are_for_people_elsewhere_when_asked() -> None:
    """`--log-format console` without a terminal has no colors."""
    done = run("check", "--agents", str(AGENTS), "--log-format", "console")
    assert "agents.valid" in done.stderr
    assert "\x1b[" not in done.stderr


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port where nobody listens, and which the system assigns to no other program."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def test_an_address_without_a_server_is_named_with_the_remedy(closed_port: int) -> None:
    """The log line has the address, the reason and the remedy, and no traceback."""
    done = run("--agents", str(AGENTS), "--wait", "0", TEMPORAL_ADDRESS=f"127.0.0.1:{closed_port}")
    [line] = logged(done)
    assert (done.returncode, line["event"]) == (1, "worker.failed")
    assert line["problem"] == (
        f"Temporal cannot be reached at 127.0.0.1:{closed_port}: Connection refused. "
        "Start a server there, set another address (--address HOST:PORT, TEMPORAL_ADDRESS or a profile), "
        "or start a server with --embedded."
    )


@pytest.mark.slow
async def test_a_worker_waits_for_a_server_that_starts_later(tmp_path: Path) -> None:
    """A waiting worker logs the address and the problem once, and serves as soon as the server responds."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    options = ("--agents", str(AGENTS), "--address", f"127.0.0.1:{port}")
    environment = {"WAYSTATION_TEST_LEDGER": str(tmp_path)}
    async with Process(sys.executable, "worker.py", *options, environment=environment) as worker:
        line = await worker.logged("server.unreachable")
        assert (line["address"], line["problem"]) == (f"127.0.0.1:{port}", "Connection refused")
        async with EmbeddedServer(port=port):
            await worker.logged("worker.ready")
            assert await worker.stop() == 0
    assert len(worker.events("server.unreachable")) == 1


async def test_a_server_that_goes_away_during_a_request_counts_as_unreachable(server: EmbeddedServer) -> None:
    """A worker that is starting then waits, rather than have its operator check the credentials."""
    host, _, port = server.address.rpartition(":")
    is_away = asyncio.Event()

    async def take(data: bytes) -> bytes:
        if is_away.is_set():
            raise ConnectionResetError
        return data

    async with forwarding(partial(asyncio.open_connection, host, int(port)), take) as address:
        client = await connect(address=address)
        is_away.set()
        with pytest.raises(RPCError) as caught:
            await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=client.namespace))
    assert is_unreachable(caught.value)


async def test_a_worker_that_waits_for_a_server_can_be_stopped(closed_port: int) -> None:
    """SIGTERM ends the wait."""
    options = ("--agents", str(AGENTS), "--address", f"127.0.0.1:{closed_port}")
    async with Process(sys.executable, "worker.py", *options) as worker:
        await worker.logged("server.unreachable")
        assert await worker.stop() == 0


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (("worker.py",), 0),
        (("-m", "waystation.worker"), 0),
        (("-m", "waystation", "worker"), 0),
        (("-m", "waystation.worker", "check"), -signal.SIGTERM),  # not a successful check
    ],
    ids=str,
)
async def test_a_worker_that_is_stopped_while_it_loads_agents_has_succeeded(
    tmp_path: Path, program: Sequence[str], code: int
) -> None:
    """A deployment may replace a worker in its first seconds. Nothing has failed then."""
    package = tmp_path / "slow"
    package.mkdir()
    (package / "agent.py").write_text('import signal\nprint(\'{"event": "loading"}\', flush=True)\nsignal.pause()\n')
    async with Process(sys.executable, *program, "--agents", str(tmp_path)) as worker:
        await worker.logged("loading")
        assert await worker.stop() == code


async def test_a_worker_that_is_stopped_while_it_connects_does_not_report_the_server(closed_port: int) -> None:
    """The server may have been stopped at the same time."""
    stop = asyncio.Event()
    stop.set()
    options = parse_options(["--agents", str(AGENTS), "--wait", "0"], "worker.py")
    assert await _connect(options, f"127.0.0.1:{closed_port}", Stores(), stop) is None


def test_a_model_that_is_about_to_be_retired_is_reported(tmp_path: Path) -> None:
    """The warning names the agent, the date and the successor, and the check succeeds."""
    package = tmp_path / "aging"
    package.mkdir()
    (package / "agent.py").write_text(
        "from waystation.agents import Agent\nroot_agent = Agent(name='aging', model='gemini-2.5-flash')\n"
    )
    done = run("check", "--agents", str(tmp_path))
    [problem] = [line["problem"] for line in logged(done) if line["event"] == "model.outdated_or_unknown"]
    assert problem.startswith("Agent 'aging': the model 'gemini-2.5-flash' ")
    assert problem.endswith(" retired on 2026-12-01. Use 'gemini-3.5-flash-lite'.")
    assert done.returncode == 0


def test_blocking_calls_in_coroutines_are_reported() -> None:
    """The warning has the tool, the function and the line. A plain function may block, because it runs in a thread."""
    done = run("check", "--agents", str(AGENTS.parent / "blocking_agents"))
    problems = [line["problem"] for line in logged(done) if line["event"] == "tool.blocking"]
    place = AGENTS.parent / "blocking_agents" / "blocking" / "agent.py"
    assert [problem.partition(" of ")[0] for problem in problems] == ["Tool 'doze'", "Tool 'ignore_signals'"]
    assert f"calls time.sleep() in an `async def` at {place}:" in problems[0]
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TEMPORAL_PROFILE", "nope", "The configuration of Temporal clients: Profile 'nope' not found. Fix TEMPORAL_"),
        ("TEMPORAL_TLS_SERVER_CA_CERT_PATH", "no/such.pem", "no/such.pem: No such file or directory. Fix TEMPORAL_"),
        (
            "TEMPORAL_ADDRESS",
            "http://localhost:8233",
            "'http://localhost:8233' in TEMPORAL_ADDRESS is not a valid HOST:PORT",
        ),
    ],
)
def test_a_wrong_setting_of_the_environment_is_named(variable: str, value: str, said: str) -> None:
    """The message names the setting instead of an unreachable server, and has no traceback."""
    done = run("--agents", str(AGENTS), **{variable: value})
    [line] = logged(done)
    assert (done.returncode, line["event"]) == (1, "worker.failed")
    assert said in line["problem"]
    assert "cannot be reached" not in line["problem"]


async def test_a_server_without_tls_is_reported(server: EmbeddedServer) -> None:
    """A server without TLS is reported, because Temporal's clients use TLS with an API key."""
    done = run("--agents", str(AGENTS), "--address", server.address, TEMPORAL_API_KEY="key")
    [line] = logged(done)
    assert "the server does not speak TLS, which an API key or TEMPORAL_TLS* requires." in line["problem"]


def test_an_embedded_server_cannot_have_an_address() -> None:
    """Clients that use the given address would find no server there."""
    done = run("--agents", str(AGENTS), "--embedded", "--address", "127.0.0.1:17733")
    assert done.returncode == 2
    assert "use either --embedded or --address" in done.stderr


def test_policies_that_this_worker_cannot_keep_are_named(tmp_path: Path) -> None:
    """Calls of such a tool would wait for approvers who cannot prove their identity or who are never notified."""
    (tmp_path / "agents" / "clerk").mkdir(parents=True)
    (tmp_path / "agents" / "clerk" / "agent.py").write_text(dedent(AGENT) + dedent(NEEDY))
    (tmp_path / "channels.toml").write_text("[channels.desk]\nurls = ['json://127.0.0.1:9']\n")
    done = run("check", "--agents", str(tmp_path / "agents"), "--channels", str(tmp_path / "channels.toml"))
    said = [line["problem"] for line in logged(done) if line["event"] == "policy.not_kept"]
    assert done.returncode == 0
    assert [problem.partition(". ")[0] for problem in said] == [
        "The policy of tool 'pay' of agent 'clerk' requires answers with a verified identity, "
        "but this worker cannot verify identities",
        "Approval rule 1 of agent 'clerk' notifies channels that are not configured: board",
    ]


def test_policies_that_need_the_token_of_the_requester_are_named(tmp_path: Path) -> None:
    """Without the token, nobody could approve a call of the tool; the check says how to send it."""
    (tmp_path / "clerk").mkdir()
    strict = NEEDY.replace("ApprovalPolicy(", "ApprovalPolicy(not_requester=True, ", 1)
    (tmp_path / "clerk" / "agent.py").write_text(dedent(AGENT) + dedent(strict))
    done = run("check", "--agents", str(tmp_path))
    [said] = [line["requirement"] for line in logged(done) if line["event"] == "policy.needs_token"]
    assert said.startswith("The policy of tool 'pay' of agent 'clerk' excludes the requester.")
    assert "--token-file FILE" in said


def test_a_traceback_is_legible_in_json() -> None:
    """The JSON contains the traceback, not the address of an object."""
    program = (
        "import logging; from waystation.logs import configure_logs; configure_logs('json')\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.getLogger('x').exception('tool.failed')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    line = json.loads(done.stderr)
    assert line["event"] == "tool.failed"
    assert line["exception"].endswith("ZeroDivisionError: division by zero")
    assert "exc_info" not in line


def test_a_profile_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """A wrong TEMPORAL_PROFILE is reported like a wrong address."""
    done = run("--agents", str(AGENTS), TEMPORAL_PROFILE="nowhere", TEMPORAL_CONFIG_FILE=str(tmp_path / "none.toml"))
    [line] = logged(done)
    assert (done.returncode, line["event"]) == (1, "worker.failed")
    assert "Profile 'nowhere' not found" in line["problem"]


def test_a_namespace_that_does_not_exist_is_named_with_the_remedy(server: EmbeddedServer) -> None:
    """The worker reports it before it is ready."""
    done = run("--agents", str(AGENTS), "--address", server.address, TEMPORAL_NAMESPACE="nowhere")
    [line] = logged(done)
    assert (done.returncode, line["event"]) == (1, "worker.failed")
    assert line["problem"] == (
        "Namespace 'nowhere' not found. Create it with `temporal operator namespace create nowhere`, "
        "or set TEMPORAL_NAMESPACE to an existing one."
    )


@pytest.fixture
def usual_port_taken() -> Iterator[None]:
    """Occupy the port of an embedded server, unless another program does already."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_server(("127.0.0.1", USUAL_PORT)))
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("usual_port_taken")
async def test_an_embedded_server_on_another_port_reports_its_address(tmp_path: Path) -> None:
    """The log has the address, because clients would connect to the program on the usual port."""
    options = ("--agents", str(AGENTS), "--embedded")
    async with WorkerProcess(*options, environment={"WAYSTATION_TEST_LEDGER": str(tmp_path)}) as worker:
        [ready] = worker.events("server.ready")
        assert ready["clients"] == f"TEMPORAL_ADDRESS={ready['address']}"
        assert not ready["address"].endswith(f":{USUAL_PORT}")
        assert ready["data"] == "in memory: it is lost when the worker stops; keep it with --db FILE"
        assert ready["ui"] is None


@pytest.mark.slow
async def test_an_embedded_server_lives_as_long_as_its_worker(tmp_path: Path) -> None:
    """`--embedded` starts a server, with `--ui` also its Web UI, and no process remains."""
    options = ("--agents", str(AGENTS), "--embedded", "--ui", "--db", str(tmp_path / "temporal.db"))
    environment = {"WAYSTATION_TEST_LEDGER": str(tmp_path)}
    async with WorkerProcess(*options, environment=environment) as worker:
        [ready] = worker.events("server.ready")
        assert ready["ui"].startswith("http://127.0.0.1:")
        assert ready["data"] == str(tmp_path / "temporal.db")
        client = await AgentClient.connect(address=ready["address"])
        result = await client.run("planned", plan([("remember", {"word": "x"})]))
        assert list(result.state_delta) == ["x"]
        servers = psutil.Process(worker.pid).children(recursive=True)
        assert [process.name() for process in servers] == ["temporal"]
        assert await worker.stop() == 0
    assert not any(process.is_running() for process in servers)
    assert worker.other == []
    assert worker.life == ["worker.ready", "worker.draining", "worker.stopped"]


@pytest.mark.slow
async def test_a_database_file_in_use_is_reported_without_a_traceback(tmp_path: Path) -> None:
    """Every reason why the embedded server cannot start is reported in one sentence."""
    db_filename = tmp_path / "temporal.db"
    async with EmbeddedServer(db_filename=db_filename) as server:
        options = ("--agents", str(AGENTS), "--embedded", "--db", str(db_filename))
        async with Process(sys.executable, "worker.py", *options) as worker:
            assert await worker.exit_code() == 1
    assert worker.other == []
    assert worker.life == ["worker.failed"]
    assert worker.logs[-1]["problem"] == (
        f"{db_filename} is in use by the server at {server.address}. Connect to that server, or choose another file."
    )


@pytest.mark.slow
async def test_a_worker_serves_soon(server: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The time from process start to the first workflow task is printed, since it depends on the machine."""
    place = Place(address=server.address, task_queue=f"soon-{os.getpid()}", ledger=Ledger(tmp_path))
    client = await place.client()
    await announce_agents(client.temporal, [Agent(name="planned")])
    invocation = await client.start("planned", plan())
    began = time.time()
    async with place.worker():
        ready = time.time() - began
        await invocation.result()
    history = await invocation.history()
    taken = next(
        event.event_time for event in history.events if event.HasField("workflow_task_started_event_attributes")
    )
    polled = taken.ToNanoseconds() / 1e9 - began
    with capsys.disabled():
        print(f"\nworker: ready after {ready:.2f} s, first workflow task after {polled:.2f} s")  # noqa: T201  # a figure
