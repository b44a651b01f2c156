"""Build and start the container image without a container engine, on Linux as root.

The base image is this machine's file system: each stage of the container file is an overlay above it. The instructions
run as written. Only those that the container file uses are known.
"""

import ctypes
import hashlib
import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.paths import ROOT

CONTAINERFILE = ROOT / "deploy" / "Containerfile"
MEMORY = "/dev/shm"
"""The folder of a file system in memory."""
HOST_PATH = f"{Path(sys.executable).resolve().parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED = ("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
"""Prefixes of environment variables that pip needs to reach its registry."""
_PR_SET_NO_NEW_PRIVS = 38


@dataclass
class Stage:
    """A stage of a container file, and the values that its start requires."""

    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def last(self, keyword: str) -> str:
        """Return the arguments of the last instruction with this keyword."""
        return next(text for key, text in reversed(self.instructions) if key == keyword)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that ENV sets."""
        variables = {"PATH": HOST_PATH}
        for key, text in self.instructions:
            if key == "ENV":
                for name, value in (pair.split("=", 1) for pair in shlex.split(text)):
                    variables[name] = value.replace("$PATH", variables["PATH"])
        return variables


def read_stages() -> list[Stage]:
    """Return the stages of the container file."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if line and not line.lstrip().startswith("#")]
    stages: list[Stage] = []
    for instruction in "\n".join(lines).replace("\\\n", " ").splitlines():
        keyword, text = instruction.split(maxsplit=1)
        if keyword == "FROM":
            stages.append(Stage(text.split(" AS ")[-1]))
        elif stages:
            stages[-1].instructions.append((keyword, text))
    return stages


def find_obstacle() -> str | None:
    """Return why this machine cannot run the image, or None."""
    if sys.platform != "linux":
        return "overlay file systems exist only on Linux"
    if os.geteuid() != 0:
        return "only root can mount overlay file systems and change the user"
    probe = "mkdir -p u w m && mount -t overlay overlay -o lowerdir=/,upperdir=u,workdir=w m && chroot m true"
    command = ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs tmpfs /mnt && cd /mnt && {probe}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() or None


def build(folder: Path) -> None:
    """Write the files that the image adds to its base to `folder`/layer. Run this in a separate mount namespace.

    `folder` must be in `MEMORY`, because an overlay must not be above a part of its base.
    """
    base, scratch = _write_base(folder), folder / "scratch"
    roots: dict[str, Path] = {}
    upper = scratch
    for stage in read_stages():
        upper = scratch / "upper" / stage.name
        work = scratch / "work" / stage.name
        for path in (upper, work):
            path.mkdir(parents=True)
        roots[stage.name] = root = scratch / "roots" / stage.name
        _overlay(root, f"lowerdir={base}:/,upperdir={upper},workdir={work}")
        for keyword, text in stage.instructions:
            if keyword == "COPY":
                _copy(text, root, roots)
            elif keyword == "RUN":
                passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
                command = ["chroot", str(root), "sh", "-ec", text]
                subprocess.run(command, env={"HOME": "/root", **passed, **stage.environment}, check=True)
    for mount_point in ("tmp", "dev", "proc", "root"):
        shutil.rmtree(upper / mount_point, ignore_errors=True)
    upper.rename(folder / "layer")


def _write_base(folder: Path) -> Path:
    """Return a layer that lets other users than root start a Python in root's folder."""
    (folder / "base" / "root").mkdir(parents=True)
    return folder / "base"


def _mount(kind: str, target: Path, options: str = "") -> None:
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", kind, kind, *(("-o", options) if options else ()), str(target)], check=True)


def _overlay(root: Path, options: str) -> None:
    _mount("overlay", root, options)
    _mount("tmpfs", root / "tmp", "mode=1777")
    subprocess.run(["mount", "--rbind", "/dev", str(root / "dev")], check=True)
    subprocess.run(["mount", "--bind", "/proc", str(root / "proc")], check=True)


def _copy(text: str, root: Path, roots: Mapping[str, Path]) -> None:
    *words, target = shlex.split(text)
    origin = ROOT
    if words[0].startswith("--from="):
        origin = roots[words.pop(0).removeprefix("--from=")]
    for word in words:
        source, destination = origin / word.lstrip("/"), root / target.lstrip("/")
        if source.is_dir():
            # Keep symbolic links, as an engine does.
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, destination, symlinks=True, ignore=ignored if origin == ROOT else None)
        else:
            destination.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, destination)


def digest(layer: Path) -> dict[str, str]:
    """Return the mode and the content of each file of a layer by its path."""
    return {str(path.relative_to(layer)): _describe(path) for path in sorted(layer.rglob("*"))}


def _describe(path: Path) -> str:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"link {path.readlink()}"
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid} {content}"


def start(folder: Path, arguments: Sequence[str], environment: Mapping[str, str], volumes: Mapping[str, str]) -> None:
    """Replace this process by a container with the read-only image and its user, in a separate mount namespace.

    Args:
        folder: The folder that `build` wrote.
        arguments: Appended to the entry point.
        environment: Added to the variables of the image.
        volumes: Folders of this machine by the paths where the container sees them.
    """
    image = read_stages()[-1]
    user, group = (int(number) for number in image.last("USER").split(":"))
    root, mount_points = folder / f"root-{os.getpid()}", folder / f"mount-points-{os.getpid()}"
    for target in ("/tmp", *volumes):
        (mount_points / target.lstrip("/")).mkdir(parents=True)
    _overlay(root, f"lowerdir={mount_points}:{folder / 'layer'}:{folder / 'base'}:/")
    for target, source in volumes.items():
        subprocess.run(["mount", "--bind", source, str(root / target.lstrip("/"))], check=True)
    os.chroot(root)
    os.chdir(image.last("WORKDIR"))
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    assert ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    variables = {**image.environment, **environment}
    os.environ["PATH"] = variables["PATH"]
    os.execvpe((command := [*json.loads(image.last("ENTRYPOINT")), *arguments])[0], command, variables)


def container(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str], volumes: Mapping[str, str]
) -> list[str]:
    """Return the command that starts a container. Its process ID is that of the started program."""
    program = (
        "import json, sys; from pathlib import Path; from verification.deploy.container_image import start; "
        "folder, *rest = json.loads(sys.argv[1]); start(Path(folder), *rest)"
    )
    details = json.dumps([str(folder), [*arguments], {**environment}, {**volumes}])
    return [shutil.which("unshare") or "unshare", "--mount", sys.executable, "-c", program, details]


def allowed_sources() -> Iterator[str]:
    """Yield the patterns of the files that an engine receives."""
    for line in CONTAINERFILE.with_name("Containerfile.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            yield line[1:]


if __name__ == "__main__":
    build(Path(sys.argv[1]))
