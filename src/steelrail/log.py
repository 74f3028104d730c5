"""Logging: one sentence per event with values and units, plain lines with a time in UTC."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"


def logger(name: str) -> logging.Logger:
    """Return the logger of one module; ``name`` is the module's ``__name__``."""
    return logging.getLogger(name)


def configure(level: int = logging.INFO) -> None:
    """Send every log line to standard error. Called once by each process's entry point."""
    root = logging.getLogger()
    root.handlers[:] = [_formatted(logging.StreamHandler(sys.stderr))]
    root.setLevel(level)
    logging.getLogger("botocore").setLevel(logging.WARNING)
    logging.getLogger("boto3").setLevel(logging.WARNING)


def also_to(path: Path) -> None:
    """Append every log line to ``path`` too, after a line that marks the start."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logging.getLogger().addHandler(_formatted(_File(path, encoding="utf-8")))


class _File(logging.FileHandler):
    """A log file that is left, with one word of it, when it takes no more; logging's own way is a trace a line."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Say on standard error that no more lines go to the file, and why."""
        logging.getLogger().removeHandler(self)
        logger(__name__).error("%s takes no more lines: %s", self.baseFilename, sys.exc_info()[1])


def _formatted(handler: logging.Handler) -> logging.Handler:
    formatter = logging.Formatter(_FORMAT, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    return handler
