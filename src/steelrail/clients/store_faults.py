"""What an S3 error means: worth repeating, absent, beaten by another writer, or final. Pure.

Only error codes and HTTP statuses enter messages, never the server's own text, so that no secret can travel in them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from steelrail.config.schema import SECRET_NAME
from steelrail.errors import StoreError, must

TRANSIENT_CODES = frozenset(
    (
        "SlowDown",
        "ServiceUnavailable",
        "InternalError",
        "RequestTimeout",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "IncompleteBody",
        "BadDigest",
        "XAmzContentSHA256Mismatch",
        "OperationAborted",
        "ConditionalRequestConflict",
    )
)
EXPIRED_CODES = frozenset(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"))
# The answer to a HEAD has no body, and botocore puts the status in the code's place: it may be expiry too.
WORDLESS_CODES = frozenset(("400", "403"))
FULL_CODES = frozenset(("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507"))
CLOCK_CODES = frozenset(("RequestTimeTooSkewed",))
CREDENTIAL_ERRORS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)
# What a call to S3 can raise for reasons outside our own code.
ERRORS = (BotoCoreError, ClientError, ResponseParserError, HTTPError, OSError)
TRANSIENT_ERRORS = (
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    boto.ResponseStreamingError,
    ResponseParserError,
    HTTPError,
    OSError,
)


class Fault(Enum):
    """How an error is answered."""

    TRANSIENT = "repeat"
    MISSING = "no such object"
    EXISTS = "another writer was first"
    EXPIRED = "read the credentials again, once"
    DENIED = "read the credentials again, once, and repeat if they are others"
    FINAL = "give up"


class MissingObjectError(StoreError):
    """There is no object of this key."""


class TruncatedError(OSError):
    """A body was shorter than its length says."""


class ChangedError(OSError):
    """An object was replaced while it was read."""


def judge(error: Exception) -> Fault:
    """Return how ``error`` is answered."""
    if isinstance(error, ClientError):
        return judge_code(code_of(error), status_of(error))
    if isinstance(error, ChangedError):
        return Fault.FINAL
    return Fault.TRANSIENT if isinstance(error, TRANSIENT_ERRORS) else Fault.FINAL


def judge_code(code: str, status: int) -> Fault:
    """Return how a server's answer is answered."""
    if code in ("NoSuchKey", "404", "NotFound"):
        return Fault.MISSING
    if code in ("PreconditionFailed", "412"):
        return Fault.EXISTS
    if code in EXPIRED_CODES or code in WORDLESS_CODES:
        return Fault.EXPIRED
    if code in FULL_CODES or status == 507 or code in CLOCK_CODES:
        return Fault.FINAL
    if status in (401, 403) and code not in TRANSIENT_CODES:
        return Fault.DENIED
    # 501 says that the server lacks the call, for ever.
    return (
        Fault.TRANSIENT
        if code in TRANSIENT_CODES or status == 429 or (status >= 500 and status != 501)
        else Fault.FINAL
    )


def cause(error: Exception) -> Exception | None:
    """Return ``error`` as a cause that may be shown: none for a server's answer, whose text is not ours to trust."""
    return None if isinstance(error, ClientError) else error


def code_of(error: ClientError) -> str:
    """Return the server's error code."""
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def status_of(error: ClientError) -> int:
    """Return the HTTP status."""
    meta: Any = error.response.get("ResponseMetadata", {})
    return int(meta.get("HTTPStatusCode", 0))


def explain(error: Exception, where: str, seconds: float) -> str:
    """Return one message that names what is missing. ``seconds``: for how long the call was repeated."""
    if isinstance(error, CREDENTIAL_ERRORS):
        return no_credentials(where, type(error).__name__)
    if isinstance(error, ClientError):
        return _explain_answer(code_of(error), status_of(error), where, seconds)
    if isinstance(error, ChangedError):
        return must(
            "object", "left alone while it is read", "replaced", where, "rerun, with nothing else writing there"
        )
    if judge(error) is Fault.TRANSIENT:
        fault = f"not reachable for {seconds:.0f} s ({type(error).__name__})"
        return must("store", "reachable", fault, where, "check store.endpoint, the network, and that the server runs")
    return must("store call", "possible", type(error).__name__, where, "check the store section of the run file")


def no_credentials(where: str, kind: str) -> str:
    """Return the message for credentials that cannot be found or read."""
    do = "put them into ~/.aws/credentials (mode 0600), set store.profile, or give the nodes a role"
    return must("store credentials", "found by boto3's chain", f"not found ({kind})", where, do)


def unfit_settings(error: Exception, where: str, settings: Mapping[str, str]) -> str:
    """Return the message for AWS settings of which boto3 makes no client.

    ``settings``: values by name, of which those that ``error`` speaks of are named; no value is shown but a file's.
    """
    fault = f"not ({type(error).__name__})"
    names = [name for name, value in settings.items() if value and not SECRET_NAME.search(name) and _says(error, value)]
    if isinstance(error, boto.ConfigParseError):
        place = ", ".join((str(error.kwargs["path"]), *names))
        return must("AWS settings file", "one that boto3 can read", fault, place, f"mend it, for {where}")
    if isinstance(error, boto.ProfileNotFound):
        do = f"correct it there, or add the profile, for {where}"
        place = ", ".join(names) or "AWS config file"
        return must("profile", "in the AWS credentials or config file", fault, place, do)
    place = ", ".join(names) or "AWS_... variables, ~/.aws/config"
    return must("setting of AWS", "one that boto3 takes", fault, place, f"correct it there, for {where}")


def _says(error: Exception, value: str) -> bool:
    return re.search(rf"(?<![\w./-]){re.escape(value)}(?![\w/-])", str(error)) is not None


def _explain_answer(code: str, status: int, where: str, seconds: float) -> str:
    answer = f"{code}, HTTP {status}"
    if code in EXPIRED_CODES:
        return must("store credentials", "valid", f"expired ({answer})", where, "renew them and run again")
    if code == "NoSuchBucket":
        return must("bucket", "there", f"missing ({answer})", where, "create it, or correct store.bucket")
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthFailure"):
        return must(
            "store credentials",
            "known to the store",
            f"refused ({answer})",
            where,
            "check ~/.aws/credentials or store.profile",
        )
    if code in CLOCK_CODES:
        return must(
            "this host's clock", "right", f"too far off for the store ({answer})", where, "start NTP on this host"
        )
    if code in FULL_CODES or status == 507:
        return must(
            "store", "able to take more bytes", f"full ({answer})", where, "free space there or raise the quota"
        )
    if status in (401, 403) or code in WORDLESS_CODES:
        return must(
            "access",
            "allowed",
            f"denied or expired ({answer})" if code in WORDLESS_CODES else f"denied ({answer})",
            where,
            "check ~/.aws/credentials or store.profile, and that these keys may read, write, list and delete there",
        )
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "301") or status in (301, 307):
        return must("store.region", "the bucket's", f"another ({answer})", where, "correct store.region")
    if judge_code(code, status) is Fault.TRANSIENT:
        return must(
            "store", "ready", f"failing for {seconds:.0f} s ({answer})", where, "look at the server, then run again"
        )
    return must("store call", "accepted", f"refused ({answer})", where, "check the store section of the run file")
