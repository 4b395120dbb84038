"""How logstore talks to S3: the client's settings, and one client a process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from logstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class ClientSource:
    """Gives each process a client of its own.

    Connections must not be shared with a forked child, so a child makes a new client at
    its first request. A client that the user supplied is used as it is, everywhere.

    Args:
        given: the user's client, or None to make one from the other arguments.
        endpoint_url: the server's URL; None for AWS, or what the AWS environment says.
        region: the region to sign for; None for what the AWS environment says.
        config: the user's botocore settings; they win over logstore's.

    Raises:
        InvalidOptionError: no client can be made of these.
    """

    def __init__(
        self,
        given: S3Client | None,
        *,
        endpoint_url: str | None,
        region: str | None,
        config: Config | None,
    ) -> None:
        self._given = given
        self._endpoint_url = endpoint_url
        self._region = region
        self._config = config
        self._made = (os.getpid(), given or self._make())

    def get(self) -> S3Client:
        """The client of the calling process."""
        if self._given is not None:
            return self._given
        pid, client = self._made
        if pid != os.getpid():
            client = self._make()
            self._made = (os.getpid(), client)
        return client

    def close(self) -> None:
        """Close the connections of a client that was made here."""
        if self._given is None:
            self._made[1].close()

    def _make(self) -> S3Client:
        try:
            # A session of its own: boto3's default session is not safe under threads.
            return boto3.session.Session().client(
                "s3",
                endpoint_url=self._endpoint_url,
                region_name=self._region,
                config=client_config(self._endpoint_url, self._config),
            )
        except (BotoCoreError, ValueError) as error:
            raise InvalidOptionError(
                f"no S3 client can be made with endpoint_url={self._endpoint_url!r} and "
                f"region={self._region!r}: {error}; mend these options or the AWS configuration"
            ) from error


def client_config(endpoint_url: str | None, user: Config | None) -> Config:
    """The botocore settings for a store.

    botocore's own retries are off, because a repeated conditional write has to be seen
    as one; checksums that not every S3-compatible store understands are off too (objects
    carry their own); and with an endpoint the bucket goes into the path.

    Args:
        endpoint_url: the endpoint given by option, if any.
        user: settings that win over these.
    """
    custom = endpoint_url or any(os.environ.get(name) for name in _ENDPOINT_VARIABLES)
    addressing = {"addressing_style": "path"} if custom else {}
    own = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=10,
        read_timeout=30,
        max_pool_connections=32,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    # Merging would replace the user's S3 settings as a whole.
    chosen: Any = {**addressing, **(getattr(user, "s3", None) or {})}
    merged = own.merge(user) if user else own
    return merged.merge(Config(s3=chosen))
