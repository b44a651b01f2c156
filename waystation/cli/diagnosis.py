"""The checks of `waystation doctor`. Pure: they judge observations that another module has collected."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from waystation.core.contract import SEARCH_ATTRIBUTES
from waystation.core.log import responses
from waystation.presentation import terminal

OLDEST_SERVER = (1, 29)
MIN_RETENTION_S = 86_400.0
"""Shortest time that a namespace should keep the histories of ended invocations."""
SEEN_S = 70.0
"""A worker polls at least once in 60 seconds. One that has not polled for this long has ended, or cannot reach the
server. The server lists it for minutes."""
MAX_SKEW_S = 5.0
"""Largest acceptable difference between the clocks of this machine and the server."""
MAX_BACKLOG_S = 60.0
"""Longest time that a task should wait for a worker."""
STORE_OPTIONS = ("--artifacts", "--memory", "--credentials")
MIN_FREE_BYTES = 1 << 30
"""Least free space of a file system that has a store."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    check: str
    ok: bool
    text: str
    fix: str | None = None
    """The command or setting that corrects the problem. None if there is no problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poller:
    """A worker that polls a task queue."""

    identity: str
    kind: str
    """`workflows` or `activities`."""
    build: str
    """Build ID of the worker. Empty if it is unknown."""
    seen_at: float
    """When the server last received a poll, in seconds since 1970, by the server's clock."""
    deployment: str | None = None
    """Name of the worker's deployment if it uses worker versioning, otherwise None."""

    @property
    def activation(self) -> str:
        """The command that makes the worker's version the current one of its deployment."""
        name = f"--deployment-name {self.deployment} --build-id {self.build}"
        return f"temporal worker deployment set-current-version {name}"

    def is_active(self, now: float) -> bool:
        """Return whether the worker has polled lately. `now` is the time by the server's clock."""
        return now - self.seen_at <= SEEN_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """A file of keys or settings that an environment variable names."""

    check: str
    file: str
    problem: str | None
    """Why the file cannot be used, or None."""
    fix: str
    """The command or step that corrects a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Observations of the server, the workers and this machine."""

    now: float
    """Seconds since 1970, by this machine's clock."""
    address: str
    is_local: bool
    tls: bool
    namespace: str
    task_queue: str
    server_version: str
    version: str
    """The version of Waystation that is installed here."""
    namespace_problem: str | None = None
    retention_s: float | None = None
    search_attributes: Mapping[str, bool]
    """The search attributes that exist, each with whether it has the right type."""
    search_attributes_problem: str | None = None
    """Why it is unknown which search attributes exist, or None."""
    pollers: Sequence[Poller] = ()
    current_deployments: Mapping[str, str | None] | None = None
    """For each kind of work, the deployment version that receives it, or None. None if the server cannot tell."""
    backlogs: Mapping[str, tuple[int, float]]
    """For each kind of work, the number of tasks that wait and the age of the oldest, in seconds."""
    unpolled_queues: Mapping[str, int]
    """Other task queues that no worker polls, each with its number of open invocations."""
    newest_start: float | None = None
    """When the server started the newest invocation, by its clock."""
    clock_ahead_s: float | None = None
    """How far this machine's clock is at least ahead of the server's, negative if it is behind. None if unknown."""
    folder: str
    """The current folder, which contains the stores that are not named."""
    store: str
    store_problem: str | None = None
    store_differences: Sequence[str] = ()
    """How the stores that are named here differ from those that open invocations recorded."""
    free_bytes: int | None = None
    other_stores: Mapping[str, str | None] = field(default_factory=dict)
    """Stores that were named besides the payload store, by option or variable, each with why it cannot be used, or
    None."""
    files: Sequence[SettingsFile] = ()
    """The files and values of keys and settings that the environment names."""
    agents: Mapping[str, str]
    """Problems of the agents that were named, by place."""
    checked_agents: int | None = None
    """Number of agents that were checked, or None if none was named."""
    providers: Sequence[str] = ()
    """Providers of models with credentials in this environment."""
    adk_problem: str | None = None
    extension_problems: Sequence[str] = ()
    """Why extensions of other packages cannot be used."""
    failing_tasks: Sequence[str] = ()
    """IDs of open invocations whose workflow tasks fail."""
    undecrypted: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Task queues with workers that cannot decrypt their input, each with the type of the activity or workflow, and the
    ID of an open invocation that waits for it."""
    held: Sequence[tuple[str, str]] = ()
    """ID of each held invocation, and why it is held."""


def diagnose(seen: Observations) -> Iterator[CheckResult]:
    """Yield the result of each check. If the namespace cannot be used, only the first checks are possible."""
    yield from _check_server(seen)
    if seen.namespace_problem:
        create = f"temporal operator namespace create {seen.namespace}"
        yield CheckResult("namespace", False, f"{seen.namespace}: {seen.namespace_problem}", create)
        return
    if seen.retention_s is not None and seen.retention_s < MIN_RETENTION_S:
        kept = terminal.format_span(seen.retention_s)
        update = f"temporal operator namespace update --retention 7d {seen.namespace}"
        yield CheckResult("namespace", False, f"{seen.namespace} keeps ended invocations only for {kept}", update)
    else:
        yield CheckResult("namespace", True, seen.namespace)
    yield from _check_search_attributes(seen)
    for kind in ("workflows", "activities"):
        yield from _check_workers(seen, kind)
    yield from _check_queues(seen)
    yield from _check_versions(seen)
    yield _check_clock(seen)
    yield from _check_files(seen)
    yield from _check_agents(seen)
    for problem in seen.extension_problems:
        yield CheckResult("extensions", False, problem, "correct the package, or pip uninstall it")
    for id in seen.failing_tasks:
        yield CheckResult("workflow tasks", False, f"they fail in {id}", f"waystation replay {id}")
    for (queue, kind), id in seen.undecrypted.items():
        text = f"the worker of task queue {queue} cannot decrypt the input of {kind}, for which {id} waits"
        yield CheckResult("decryption", False, text, f"give it {responses.DECRYPTION}")
    for id, why in seen.held:
        yield CheckResult("held", False, why, f"waystation retry {id}, or waystation give-up {id}")
    if not seen.held:
        yield CheckResult("held", True, "no invocation is held")


def _check_server(seen: Observations) -> Iterator[CheckResult]:
    text = f"{seen.address}, version {seen.server_version}"
    version = tuple(map(int, re.findall(r"\d+", seen.server_version)[:2]))
    if version and version < OLDEST_SERVER:
        oldest = ".".join(map(str, OLDEST_SERVER))
        yield CheckResult("server", False, f"{text}, is not supported", f"install Temporal {oldest} or later")
    elif not seen.is_local and not seen.tls:
        yield CheckResult("server", False, f"{text}, is reached without TLS", "export TEMPORAL_TLS=true")
    else:
        yield CheckResult("server", True, text)


def _check_search_attributes(seen: Observations) -> Iterator[CheckResult]:
    if seen.search_attributes_problem:
        text = f"unknown, because the server refuses to list and to query them: {seen.search_attributes_problem}"
        yield CheckResult("search attributes", False, text, "give these credentials read access to the namespace")
        return
    missing = [name for name in SEARCH_ATTRIBUTES if name not in seen.search_attributes]
    wrong = [name for name, is_right in seen.search_attributes.items() if not is_right]
    if missing:
        yield CheckResult("search attributes", False, f"missing: {', '.join(missing)}", "waystation setup")
    for name in wrong:
        text = f"{name} must have the type {SEARCH_ATTRIBUTES[name]}"
        remove = f"temporal operator search-attribute remove --name {name}, then waystation setup"
        yield CheckResult("search attributes", False, text, remove)
    if not missing and not wrong:
        yield CheckResult("search attributes", True, "registered")


def _check_workers(seen: Observations, kind: str) -> Iterator[CheckResult]:
    check, only = f"workers for {kind}", "" if kind == "activities" else " --only workflows"
    pollers = [poller for poller in seen.pollers if poller.kind == kind]
    start = f"waystation worker --agents DIR --task-queue {seen.task_queue}"
    count, age_s = seen.backlogs.get(kind, (0, 0.0))
    now = _server_time(seen)
    active = [poller for poller in pollers if poller.is_active(now)]
    if not pollers:
        yield CheckResult(check, False, f"0 polling task queue {seen.task_queue}", start)
    elif not active:
        ago = terminal.format_span(now - max(poller.seen_at for poller in pollers))
        yield CheckResult(check, False, f"the last one polled task queue {seen.task_queue} {ago} ago", start)
    else:
        builds = Counter(poller.build or "unknown build" for poller in active)
        texts = ", ".join(f"{number} with {build}" for build, number in sorted(builds.items()))
        yield CheckResult(check, True, f"{len(active)} polling task queue {seen.task_queue}: {texts}")
    if count and age_s > MAX_BACKLOG_S:
        text = f"{count} tasks wait, the oldest for {terminal.format_span(age_s)}"
        yield CheckResult(f"backlog of {kind}", False, text, f"{start}{only}, on more machines")
    versioned = sorted({poller.deployment for poller in active if poller.deployment})
    if versioned and seen.current_deployments is not None and not seen.current_deployments.get(kind):
        poller = next(poller for poller in active if poller.deployment == versioned[0])
        text = f"deployment {poller.deployment} has no current version, so its workers receive nothing"
        yield CheckResult(check, False, text, poller.activation)


def _server_time(seen: Observations) -> float:
    return seen.now - (seen.clock_ahead_s or 0.0)


def _check_queues(seen: Observations) -> Iterator[CheckResult]:
    for queue, count in seen.unpolled_queues.items():
        text = f"{count} open invocations wait on task queue {queue}, which no worker polls"
        yield CheckResult("task queues", False, text, f"waystation worker --agents DIR --task-queue {queue}")


def _check_versions(seen: Observations) -> Iterator[CheckResult]:
    active = (poller for poller in seen.pollers if poller.is_active(_server_time(seen)))
    builds = {poller.build for poller in active if poller.build and not poller.deployment}
    others = sorted(build for build in builds if build.split(".")[:2] != seen.version.split(".")[:2])
    if others:
        text = f"workers run Waystation {', '.join(others)}, but {seen.version} is installed here"
        yield CheckResult("versions", False, text, f"pip install waystation=={others[-1]}, or upgrade the workers")
    elif seen.adk_problem:
        yield CheckResult("versions", False, seen.adk_problem, "pip install 'waystation[adk]'")
    else:
        yield CheckResult("versions", True, f"waystation {seen.version}")


def _check_clock(seen: Observations) -> CheckResult:
    """Compare the clocks. If the server does not tell its time, only a clock that is slow can be noticed."""
    newest = max((poller.seen_at for poller in seen.pollers), default=0.0)
    behind_s = max(newest, seen.newest_start or 0.0) - seen.now if seen.clock_ahead_s is None else -seen.clock_ahead_s
    if behind_s > MAX_SKEW_S or (seen.clock_ahead_s is not None and -behind_s > MAX_SKEW_S):
        direction = "behind" if behind_s > 0 else "ahead of"
        text = f"this machine is {terminal.format_span(abs(behind_s))} {direction} the server"
        return CheckResult("clock", False, text, "synchronize the clock, for example with: timedatectl set-ntp true")
    return CheckResult("clock", True, "not behind the server" if seen.clock_ahead_s is None else "as the server's")


def _check_files(seen: Observations) -> Iterator[CheckResult]:
    if seen.store_problem:
        fix = "make it usable for this process, or set WAYSTATION_STORE to the workers' store"
        yield CheckResult("store", False, f"{seen.store}: {seen.store_problem}", fix)
    elif seen.free_bytes is not None and seen.free_bytes < MIN_FREE_BYTES:
        free = f"{seen.free_bytes >> 20} MiB"
        yield CheckResult("store", False, f"{seen.store}: only {free} are free", "waystation store prune")
    else:
        yield CheckResult("store", True, seen.store)
    for difference in seen.store_differences:
        fix = "use the workers' folder, or name their stores: --store, --artifacts, --memory and --credentials"
        yield CheckResult("stores of workers", False, difference, fix)
    unnamed = [name for name in STORE_OPTIONS if name not in seen.other_stores]
    if unnamed and not seen.store_differences:
        text = f"compared with those of the workers as in {seen.folder}; name others with {', '.join(unnamed)}"
        yield CheckResult("other stores", True, text)
    for name, problem in seen.other_stores.items():
        fix = f"make it usable for this process, or correct {name}"
        yield CheckResult(f"store {name}", not problem, problem or "usable", fix if problem else None)
    for file in seen.files:
        if file.problem:
            yield CheckResult(file.check, False, file.problem, file.fix)
        else:
            yield CheckResult(file.check, True, file.file)


def _check_agents(seen: Observations) -> Iterator[CheckResult]:
    for place, problem in seen.agents.items():
        yield CheckResult(
            "agents",
            False,
            f"{place}: {problem}",
            "correct the agent or set the key, then run: waystation worker check --agents DIR",
        )
    if seen.checked_agents is not None and not seen.agents:
        yield CheckResult("agents", True, f"{seen.checked_agents} checked, each has a model")
    if seen.checked_agents is None:
        names = ", ".join(seen.providers) or "none"
        yield CheckResult("model keys", True, f"not checked; name the agents with --agents. Set here: {names}")
