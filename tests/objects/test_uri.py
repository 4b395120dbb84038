"""Which URIs and options open a store, and what the others are told."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

import pytest

from logstore.errors import InvalidOptionError, InvalidURIError
from logstore.objects import RetryingObjectStore, open_object_store
from logstore.objects.file import FileObjectStore
from logstore.objects.memory import MemoryObjectStore
from logstore.objects.s3 import S3ObjectStore
from logstore.testing.servers import s3_client

ENDPOINT = "http://127.0.0.1:9"


def test_each_scheme_opens_its_store_behind_retries(tmp_path: Path) -> None:
    kinds = {
        "memory://uri-test": MemoryObjectStore,
        f"file://{tmp_path}/store": FileObjectStore,
        f"s3://bucket/a/b?endpoint_url={ENDPOINT}&region=eu-north-1": S3ObjectStore,
    }
    for uri, kind in kinds.items():
        store = open_object_store(uri)
        assert isinstance(store, RetryingObjectStore)
        assert isinstance(store.inner, kind)
        assert store.uri == uri
        assert store.scheme == uri.partition(":")[0]
        store.close()


def test_paths_are_percent_decoded(tmp_path: Path) -> None:
    odd = tmp_path / "a b%2F#?é"
    store = open_object_store(f"file://{quote(str(odd))}/")
    store.put_if_absent("key", b"1")
    assert (odd / "key").read_bytes() == b"1"
    assert open_object_store(store.uri).get("key").data == b"1"


def test_localhost_is_this_machine(tmp_path: Path) -> None:
    assert open_object_store(f"file://localhost{tmp_path}").uri == f"file://{tmp_path}"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "store",
        "/var/store",
        "gs://bucket/prefix",
        "http://host/dir",
        "file:relative",
        "file:/dir",
        "file://",
        "file:///",
        "file://relative/dir",
        "file:///dir?x=1",
        "file:///dir#part",
        "file:///a%00b",
        "file:///a%FF",
        "memory://",
        "memory://name?x=1",
        "s3://",
        "s3:///prefix",
        "s3://b/prefix",
        "s3://bu_cket!/prefix",
        "s3://bucket/a//b",
        "s3://bucket/a/../b",
        "s3://bucket/./b",
        "s3://bucket/a#b",
        "s3://bucket/a?endpoint=x",
        "s3://bucket/a?region",
        "s3://bucket/a?region=",
        "s3://bucket/a?region=x&region=y",
        "s3://[bucket/a",
    ],
)
def test_any_other_uri_is_refused_with_what_was_expected(uri: str) -> None:
    with pytest.raises(InvalidURIError, match="expected"):
        open_object_store(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:secret@bucket/prefix",
        "file://key:secret@localhost/dir",
        "s3://bucket/prefix?secret_key=secret",
        "s3://bucket/prefix?endpoint_url=http://key:secret@host",
    ],
)
def test_a_secret_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises((InvalidURIError, InvalidOptionError), match="expected") as caught:
        open_object_store(uri)
    assert "secret@" not in str(caught.value)
    assert "=secret" not in str(caught.value)


def test_options_may_stand_in_the_query_or_beside_it() -> None:
    uri = f"s3://bucket/prefix?endpoint_url={ENDPOINT}&region=eu-north-1"
    beside = open_object_store("s3://bucket/prefix", endpoint_url=ENDPOINT, region="eu-north-1")
    both = open_object_store(uri, region="eu-north-1", endpoint_url=None)
    assert beside.uri == both.uri == uri
    beside.close()
    both.close()


def test_a_ready_client_is_an_option() -> None:
    client = s3_client(ENDPOINT)
    assert open_object_store("s3://bucket", client=client).uri == "s3://bucket"
    with pytest.raises(InvalidOptionError, match="one or the other"):
        open_object_store("s3://bucket", client=client, region="eu-north-1")
    with pytest.raises(InvalidOptionError, match="leave one out"):
        open_object_store("s3://bucket?region=eu-north-1", client=client)
    client.close()


def test_contradicting_options_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="leave one out"):
        open_object_store("s3://bucket?region=eu-north-1", region="us-east-1")


@pytest.mark.parametrize("endpoint", ["localhost:9", "ftp://host", "http://", "http://host?a=b"])
def test_an_endpoint_has_to_be_a_servers_url(endpoint: str) -> None:
    with pytest.raises(InvalidOptionError, match="expected http"):
        open_object_store("s3://bucket", endpoint_url=endpoint)


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match=r"colour.*expected only endpoint_url"):
        open_object_store("s3://bucket", colour="red")  # type: ignore[call-arg]
    with pytest.raises(InvalidOptionError, match="expected no options"):
        open_object_store(f"file://{tmp_path}", region="eu-north-1")
    with pytest.raises(InvalidOptionError, match="expected no options"):
        open_object_store("memory://name", endpoint_url=ENDPOINT)


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    for path in ("file", "file/below"):
        with pytest.raises(InvalidURIError, match="expected a directory"):
            open_object_store(f"file://{tmp_path}/{path}")


def test_a_directory_that_may_not_be_made_or_read_is_denied() -> None:
    code = (
        "import os, sys\n"
        "from logstore.errors import AccessDeniedError\n"
        "from logstore.objects.file import FileObjectStore\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        FileObjectStore(path)\n"
        "    except AccessDeniedError:\n"
        "        continue\n"
        "    sys.exit(f'{path} was opened')\n"
    )
    with tempfile.TemporaryDirectory() as name:
        closed = Path(name, "closed")
        closed.mkdir(mode=0)
        Path(name).chmod(0o755)
        command = [sys.executable, "-c", code, str(closed), str(closed / "new")]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_file_scheme_does_not_import_boto3() -> None:
    code = (
        "import sys; from logstore.objects import open_object_store; "
        "open_object_store('memory://x'); sys.exit('boto3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
