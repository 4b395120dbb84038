"""A PostgreSQL of our own: a new cluster in a directory, reached through a socket in it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def find_binaries() -> Path | None:
    """The directory of PostgreSQL's programs; distributions keep them off the PATH."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return versions[-1].parent if versions else None


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """Run a server until the end of the block.

    It keeps its defaults but for durability, which would only slow down filling it.

    Args:
        folder: an empty directory whose path is short: a socket goes there.

    Yields:
        Its connection string.

    Raises:
        SystemExit: PostgreSQL is not installed.
    """
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL is not installed: apt-get install postgresql")
    as_user = _unprivileged(folder)
    data = folder / "data"

    def run(program: str, *arguments: str) -> None:
        command: Sequence[str] = [*as_user, str(binaries / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)

    run("initdb", "-D", str(data), "-U", "bench", "--auth=trust", "--no-sync")
    options = f"-c listen_addresses='' -c fsync=off -k {folder}"
    run("pg_ctl", "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
    try:
        yield f"host={folder} user=bench dbname=postgres"
    finally:
        run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")


def _unprivileged(folder: Path) -> list[str]:
    """PostgreSQL refuses to run as root: the prefix that makes it somebody else's."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["runuser", "-u", "postgres", "--"]
