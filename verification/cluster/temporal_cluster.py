"""A Temporal cluster on this machine: two server processes, PostgreSQL, and a load balancer for the frontends.

Unlike the development server, the processes find each other through the database, share four history shards between
them, and use the server's default settings.
"""

import asyncio
import itertools
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from tests.documents import blocks, how_to, section
from tests.paths import ROOT
from tests.proxies import forwarding
from waystation.client import SEARCH_ATTRIBUTE_TYPES, add_search_attributes, wait_until_accepted
from waystation.embedded import bind_to_this_process

VERSION = "v1.32.0"
"""The version of the server in the development server, so that tests compare set-ups rather than versions."""
PROGRAMS = ROOT / ".temporal" / VERSION
"""The folder of the programs, which have the names of their Go packages: `server` and `sql`."""
PAGE = how_to("run-a-temporal-cluster")
"""The commands and settings of the cluster are those of the documentation."""
PROCESSES = 2
PORT, HTTP_PORT = 7233, 7243
"""The ports of each frontend."""
DEBIAN_POSTGRES, DEBIAN_EXTENSIONS = Path("/usr/lib/postgresql"), Path("/usr/share/postgresql")
"""The package of PostgreSQL for Python lacks the extension btree_gin."""
BUILD_LIMIT_S, START_LIMIT_S = 1200.0, 60.0
POLL_S = 0.2


class ClusterError(Exception):
    """The cluster could not be built or started."""


def build_programs() -> Path:
    """Return the folder of the server and its schema tool, which are built unless they exist.

    Raises:
        ClusterError: Go is not installed, or the build failed.
    """
    if all((PROGRAMS / name).exists() for name in ("server", "sql")):
        return PROGRAMS
    go = shutil.which("go")
    if go is None:
        raise ClusterError("Program `go` not found on the PATH. Install Go 1.26.8 or later to build Temporal's server.")
    packages = [f"go.temporal.io/server/cmd/{name}@{VERSION}" for name in ("server", "tools/sql")]
    environment = {**os.environ, "GOBIN": str(PROGRAMS)}
    command = ["nice", "-n", "15", go, "install", *packages]
    try:
        done = subprocess.run(command, env=environment, check=False, timeout=BUILD_LIMIT_S)
    except subprocess.TimeoutExpired:
        minutes = f"{BUILD_LIMIT_S / 60:g} minutes"
        raise ClusterError(f"The build took more than {minutes}. Run it again: Go keeps what it has built.") from None
    if done.returncode:
        raise ClusterError(f"`go install {' '.join(packages)}` failed with exit code {done.returncode}.")
    return PROGRAMS


def find_postgres() -> Path:
    """Return the folder of the programs of a PostgreSQL with the extension that Temporal's schema uses.

    Raises:
        ClusterError: None is installed.
    """
    for programs in sorted(DEBIAN_POSTGRES.glob("*/bin"), reverse=True):
        if (DEBIAN_EXTENSIONS / programs.parent.name / "extension" / "btree_gin.control").exists():
            return programs
    raise ClusterError("PostgreSQL with the extension btree_gin not found. Debian: apt-get install postgresql")


class Cluster:
    """Server processes that share a database, set up as documented.

    Args:
        programs: The folder that `build_programs` returns.
        folder: Where dynamic configuration and logs are written.
        postgres_url: The URL of a PostgreSQL server without the databases of another cluster.
    """

    address: str
    """The address of the load balancer, which clients use."""

    def __init__(self, programs: Path, folder: Path, postgres_url: str) -> None:
        self._programs, self._folder, self._postgres = programs, folder, urlsplit(postgres_url)
        # On Linux, all of 127.0.0.0/8 is this machine, so each process has the usual ports at an address of its own.
        network = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}"
        self.hosts = [f"{network}.{number}" for number in range(1, PROCESSES + 1)]
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    def create_databases(self) -> None:
        """Create the databases with the schema that this version of the server needs."""
        url = self._postgres
        login = {"SQL_HOST": url.hostname, "SQL_PORT": url.port, "SQL_USER": url.username, "SQL_PASSWORD": url.password}
        environment = {**os.environ, "SQL_PLUGIN": "postgres12", **{name: str(value) for name, value in login.items()}}
        commands = blocks(section(PAGE, "## Create the databases"), "sh")[0].splitlines()[1:]
        for _, *arguments in map(str.split, commands):
            command = [str(self._programs / "sql"), *arguments]
            done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
            if done.returncode:
                raise ClusterError(
                    f"The schema tool failed ({' '.join(arguments)}):\n{(done.stdout + done.stderr)[-500:]}"
                )

    async def start_server(self, host: str) -> None:
        """Start the server process with this IP address, and wait until its frontend responds.

        Raises:
            ClusterError: The process ended, or did not respond in time.
        """
        log = self._folder / f"{host}.log"
        command = bind_to_this_process([str(self._programs / "server"), "--allow-no-auth", "start"])
        with log.open("ab") as output:
            server = subprocess.Popen(  # noqa: ASYNC220 - takes milliseconds
                command, env={**os.environ, **self._settings(host)}, stdout=output, stderr=output
            )
        self._servers[host] = server
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            with suppress(RPCError, RuntimeError):  # a failed connection is a RuntimeError
                client = await Client.connect(f"{host}:{PORT}")
                if await client.service_client.check_health():
                    return
            if server.poll() is not None or time.monotonic() > deadline:
                raise ClusterError(f"The server at {host} does not respond:\n{log.read_text()[-3000:]}")
            await asyncio.sleep(POLL_S)

    def end_server(self, host: str, by: signal.Signals) -> None:
        """Send a signal to the server process with this IP address, and wait until it has ended."""
        server = self._servers.pop(host)
        server.send_signal(by)
        server.wait()

    def kill_server(self, host: str) -> None:
        """Kill the server process with this IP address."""
        self.end_server(host, signal.SIGKILL)

    def kill_servers(self) -> None:
        """Kill all server processes."""
        for host in list(self._servers):
            self.kill_server(host)

    def _settings(self, host: str) -> Mapping[str, str]:
        """Return the environment variables of one server process."""
        dynamic_config = self._folder / "dynamic_config.yaml"
        dynamic_config.write_text(blocks(PAGE, "yaml")[0])
        return {
            **dict(line.split("=", 1) for line in blocks(PAGE, "ini")[0].splitlines()),
            "POSTGRES_SEEDS": str(self._postgres.hostname),
            "DB_PORT": str(self._postgres.port),
            "POSTGRES_USER": str(self._postgres.username),
            "POSTGRES_PWD": str(self._postgres.password),
            "BIND_ON_IP": host,
            "TEMPORAL_BROADCAST_ADDRESS": host,
            "DYNAMIC_CONFIG_FILE_PATH": str(dynamic_config),
        }


@asynccontextmanager
async def running_cluster(programs: Path, folder: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    """Run a cluster with the namespace `default`, which has Waystation's search attributes."""
    cluster = Cluster(programs, folder, postgres_url)
    cluster.create_databases()
    try:
        for host in cluster.hosts:
            await cluster.start_server(host)
        async with balance_load(cluster.hosts) as cluster.address:
            await create_namespace(cluster.address, "default")
            yield cluster
    finally:
        cluster.kill_servers()


async def create_namespace(address: str, name: str) -> None:
    """Create a namespace with Waystation's search attributes, and wait until all processes accept them."""
    client = await Client.connect(address, namespace=name)
    retention = Duration(seconds=3 * 24 * 3600)
    request = RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=retention)
    await client.workflow_service.register_namespace(request)
    await create_search_attributes(client)
    # The load balancer connects each client to the next process.
    for client in [await Client.connect(address, namespace=name) for _ in range(PROCESSES)]:
        if not await wait_until_accepted(client, SEARCH_ATTRIBUTE_TYPES):
            raise ClusterError(f"The search attributes of the namespace {name} cannot be used.")


async def create_search_attributes(client: Client) -> None:
    """Create Waystation's search attributes, once the server process knows the new namespace."""
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            return await add_search_attributes(client, SEARCH_ATTRIBUTE_TYPES)
        except RPCError as error:
            if time.monotonic() > deadline:
                raise ClusterError(f"The namespace {client.namespace} cannot be used: {error}") from None
        await asyncio.sleep(POLL_S)


@asynccontextmanager
async def balance_load(hosts: Sequence[str]) -> AsyncIterator[str]:
    """Distribute connections over hosts in turn, and skip hosts that refuse them. Yield the address to use."""
    turns = itertools.count()

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        first = next(turns) % len(hosts)
        for host in (*hosts[first:], *hosts[:first]):
            with suppress(OSError):
                return await asyncio.open_connection(host, PORT)
        raise ConnectionRefusedError(f"None of {hosts} accepts connections.")

    async with forwarding(connect) as address:
        yield address
