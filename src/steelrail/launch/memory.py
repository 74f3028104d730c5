"""Memory that ran out, the host's or the GPU's: whether an error says so, and what to do. Pure, and without torch."""

from __future__ import annotations

import errno

HOST, GPU = "out of memory (host)", "out of memory (GPU)"
DO = {
    HOST: "have fewer ranks a node or nodes with more memory; where ranks train on the CPU, lower "
    "train.micro_batch_sequences or set train.recompute: true",
    GPU: "lower train.micro_batch_sequences, or set train.recompute: true",
}
# torch and NCCL raise most of these as plain errors of their own: only the words tell.
_OF_THE_GPU = ("cuda error: out of memory", "cuda out of memory", "cublas_status_alloc_failed")
_NCCL = ("cuda failure", "out of memory")
_OF_THE_HOST = ("defaultcpuallocator", "cannot allocate memory", "bad_alloc")


def ran_out(error: BaseException | None) -> str | None:
    """Return which memory an error, or what it was raised from, says to have run out: ``HOST``, ``GPU`` or none."""
    while error is not None:
        found = _of_this(error)
        if found is not None:
            return found
        error = error.__cause__
    return None


def _of_this(error: BaseException) -> str | None:
    said = str(error).lower()
    if type(error).__name__ == "OutOfMemoryError" or any(words in said for words in _OF_THE_GPU):
        return GPU
    if all(words in said for words in _NCCL):
        return GPU
    full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if full or isinstance(error, MemoryError):
        return HOST
    return HOST if isinstance(error, RuntimeError) and any(words in said for words in _OF_THE_HOST) else None
