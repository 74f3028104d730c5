"""The errors a user can meet: one small tree, one exit code per branch.

Every message keeps one grammar: *X must be A, is B (where): do C*. ``must`` builds it.
"""

from __future__ import annotations


class SteelrailError(Exception):
    """Root of the tree. Anything else that reaches ``cli`` is a fault of ours (exit code 1)."""

    exit_code = 1


class ConfigError(SteelrailError):
    """The run file, or the command line, is not valid."""

    exit_code = 2


class InputError(SteelrailError):
    """The corpus, the tokenizer or another input cannot be used as it is."""

    exit_code = 3


class ClusterError(SteelrailError):
    """Slurm is missing, refuses, or cannot give what the run asks for."""

    exit_code = 4


class StoreError(SteelrailError):
    """The object store is away, refuses, or does not keep its word."""

    exit_code = 5


class NodeError(SteelrailError):
    """A node is not fit to run: NVMe, environment, clock, GPU."""

    exit_code = 6


class FullError(NodeError):
    """The file system of the results folder takes no more bytes."""


class FabricError(SteelrailError):
    """The links between the GPUs are not fit to train on."""

    exit_code = 7


class TrainError(SteelrailError):
    """Training ended by its own fault: a rank raised, hung, or made no progress."""

    exit_code = 8


class StoppedError(SteelrailError):
    """The run was ended on purpose: stopped, cancelled, or at its budget."""

    exit_code = 9


class BusyError(SteelrailError):
    """Another process or job already works on this run."""

    exit_code = 10


class CheckpointError(SteelrailError):
    """No checkpoint can be proved, or one could not be written or read."""

    exit_code = 11


class AccountingError(SteelrailError):
    """The bill cannot be made or does not balance."""

    exit_code = 12


def must(what: str, be: str, actual: object, where: object, do: str) -> str:
    """Return a message in the house grammar: *X must be A, is B (where): do C*."""
    return f"{what} must be {be}, is {actual} ({where}): {do}"
