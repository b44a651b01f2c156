# ruff: noqa: T201  (a program that talks to a person)
"""Run pytest on clusters: `python -m verification.cluster [ARGUMENT OF PYTEST]...`.

With `-n N`, N processes have one each.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from tests.store_servers import postgres_server
from tests.tiers import SERVER_ADDRESS, SERVER_HTTP_ADDRESS
from verification.cluster.temporal_cluster import (
    HTTP_PORT,
    Cluster,
    ClusterError,
    build_programs,
    find_postgres,
    running_cluster,
)


async def start_cluster(stack: AsyncExitStack) -> Cluster:
    """Start a cluster, which runs until the stack is closed."""
    programs = build_programs()
    url = stack.enter_context(postgres_server(find_postgres()))
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-"))
    cluster = await stack.enter_async_context(running_cluster(programs, Path(folder), url))
    print(f"Temporal cluster at {cluster.address}, with its logs in {folder}", flush=True)
    return cluster


async def run_tests(processes: int, arguments: list[str]) -> int:
    """Run pytest with the addresses of a cluster for each of its processes, and return its exit code."""
    async with AsyncExitStack() as stack:
        clusters = [await start_cluster(stack) for _ in range(processes)]
        environment = {
            **os.environ,
            SERVER_ADDRESS: " ".join(cluster.address for cluster in clusters),
            SERVER_HTTP_ADDRESS: " ".join(f"{cluster.hosts[0]}:{HTTP_PORT}" for cluster in clusters),
        }
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "pytest", *arguments, env=environment)
        return await process.wait()


def main() -> int:
    """Run pytest on clusters of two server processes on PostgreSQL."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-n", type=int, default=1)
    try:
        return asyncio.run(run_tests(parser.parse_known_args()[0].n, sys.argv[1:]))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
