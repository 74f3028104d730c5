"""How a client of the S3 store is made: credentials from boto3's chain, portable settings, no retries of its own."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from steelrail.clients import store_transfer
from steelrail.clients.store_faults import CREDENTIAL_ERRORS, explain, no_credentials, unfit_settings
from steelrail.clients.store_requests import ANSWERED
from steelrail.config import schema
from steelrail.errors import StoreError

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest
    from mypy_boto3_s3 import S3Client

_UNSIGNED = Config(s3={"payload_signing_enabled": False})


class PartSigning:
    """Whether the parts of an upload are signed with the SHA-256 of their bytes, most of an upload's CPU time.

    Inside TLS they are not: a body has its CRC32. Over http they are until the server has answered one with its CRC32:
    it compares that, as SeaweedFS does. One that knows no CRC32, as Ceph, compares the SHA-256 and goes on getting it.
    """

    def __init__(self) -> None:
        self.heeded = False

    def hear(self, parsed: Mapping[str, Any], **_: Any) -> None:
        """Take note of an answer to a part: botocore's ``after-call`` event."""
        self.heeded = self.heeded or "ChecksumCRC32" in parsed

    def choose(self, request: AWSRequest, **_: Any) -> None:
        """Leave the SHA-256 out where it is not needed: botocore's ``before-sign`` event."""
        if self.heeded:
            request.context["client_config"] = request.context["client_config"].merge(_UNSIGNED)


class Connection:
    """Credentials, found at once, and a client of them, made when first wanted (it takes half a second of CPU).

    ``generation`` grows when the credentials are read again and are others than before.
    """

    def __init__(self, config: schema.Store, where: str) -> None:
        self._config, self._where, self._lock = config, where, threading.Lock()
        self._session = _session(config, where)
        self._client: S3Client | None = None
        self._parts = PartSigning()
        self.generation = 0

    @property
    def client(self) -> S3Client:
        """The client."""
        with self._lock:
            if self._client is None:
                with _of_settings(self._config, self._where):
                    self._client = _client(self._session, self._config, self._parts)
            return self._client

    def renew(self) -> None:
        """Read the credentials again. Raises ``StoreError`` when there are none any more."""
        session = _session(self._config, self._where)
        with self._lock:
            self.generation += _keys(session) != _keys(self._session)
            self._session, self._client = session, None


def _session(config: schema.Store, where: str) -> boto3.Session:
    with _of_settings(config, where):
        session = boto3.Session(profile_name=config.profile, region_name=config.region)
        if session.get_credentials() is None:
            raise StoreError(no_credentials(where, "none"))
        return session


@contextlib.contextmanager
def _of_settings(config: schema.Store, where: str) -> Iterator[None]:
    """Turn what boto3 says of settings of which it makes no session or client into ``StoreError``."""
    try:
        yield
    except CREDENTIAL_ERRORS as error:
        raise StoreError(explain(error, where, 0.0)) from error
    except ClientError as error:  # of a role that the credentials stand for
        raise StoreError(explain(error, where, 0.0)) from None
    except (BotoCoreError, ValueError, OSError) as error:
        ours = {"store.profile": config.profile or "", "store.endpoint": config.endpoint or ""}
        theirs = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        raise StoreError(unfit_settings(error, where, {**ours, **theirs})) from error


def _keys(session: boto3.Session) -> object:
    """Return the keys of a session, to be compared and nothing else."""
    found = session.get_credentials()
    return found and found.get_frozen_credentials()


def _client(session: boto3.Session, config: schema.Store, parts: PartSigning) -> S3Client:
    """Return a client that repeats nothing itself and asks for no optional checksums."""
    options = Config(
        connect_timeout=config.timeout_seconds,
        read_timeout=config.timeout_seconds,
        retries={"total_max_attempts": 1},
        max_pool_connections=4 * store_transfer.THREADS,
        s3={
            "addressing_style": "path" if config.endpoint else "auto",
            # See PartSigning.
            "payload_signing_enabled": (config.endpoint or "").startswith("http://"),
        },
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client = session.client("s3", endpoint_url=config.endpoint, config=options)
    client.meta.events.register("response-received.s3", ANSWERED.heard)
    client.meta.events.register("after-call.s3.UploadPart", parts.hear)
    client.meta.events.register("before-sign.s3.UploadPart", parts.choose)
    return client
