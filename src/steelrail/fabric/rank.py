"""One rank of the fabric job: ``main`` of a process forked by ``launch.node``, given the folder of one try. An edge.

Reads ``run.json``, measures with all other ranks, and on rank 0 writes ``report.json`` last. The folder tells the rest:
where a rank is (``doing-rank-N.json``), why it failed (``error-rank-N.json``), and the stacks of its threads, on
SIGQUIT and once most of its try's time is gone (``stacks-rank-N.txt``).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from pathlib import Path

from steelrail import log
from steelrail.artifacts.files import write_artifact
from steelrail.clients.ranks import RankPlace, master, rank_place
from steelrail.config.schema import Run
from steelrail.errors import FabricError, SteelrailError, must
from steelrail.fabric.facts import AbsentError, RankError
from steelrail.fabric.folder import JobFolder
from steelrail.fabric.progress import Progress
from steelrail.fabric.tries import stacks_seconds

_log = log.logger(__name__)
# Brings torch: loaded once a node, before the ranks are forked.
PRELOAD = ("steelrail.fabric.rank_measure",)


def main(argv: list[str]) -> int:
    """Run one rank and return its exit code: 0 when it measured, whatever the verdict; else that of the error."""
    log.configure()
    folder, place = JobFolder(Path(argv[1])), rank_place()
    progress = Progress(place, folder.doing(place.rank))
    try:
        _take_part(folder, place, progress)
    except SteelrailError as error:
        return _give_up(error, error.exit_code, folder, progress)
    except Exception as error:  # noqa: BLE001  (the last place where this process can say what happened)
        return _give_up(error, FabricError.exit_code, folder, progress)
    progress.begin("done")
    return 0


def leave(code: int) -> None:
    """End this process at once: Python's own ending waits for threads of gloo, NCCL and the store, perhaps for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def read_run(path: Path) -> Run:
    """Return the resolved configuration that ``launch`` wrote. Raises ``FabricError`` when it is not there."""
    try:
        return Run.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        fault = " ".join(str(error).split())[:200]
        raise FabricError(must("run.json", "a resolved run", f"not ({fault})", path, "submit the job anew")) from error


def _take_part(folder: JobFolder, place: RankPlace, progress: Progress) -> None:
    progress.begin("start")
    run = read_run(folder.run_file)
    _keep_stacks(folder.stacks(place.rank), stacks_seconds(run))
    with progress.part("imports"):
        from steelrail.fabric.rank_measure import measure  # brings torch: seconds, so only once stacks can be had

    measure(run, place, master(), folder, progress)


def _keep_stacks(path: Path, seconds: float) -> None:
    """Have the stacks of all threads written to ``path`` on SIGQUIT and after ``seconds``.

    Both work without the interpreter: a main thread that never comes back from a library is no hindrance.
    """
    faulthandler.enable()
    file = path.open("a", encoding="utf-8")
    faulthandler.register(signal.SIGQUIT, file, all_threads=True)
    faulthandler.dump_traceback_later(seconds, file=file)


def _give_up(error: Exception, exit_code: int, folder: JobFolder, progress: Progress) -> int:
    place = progress.place
    _log.exception("rank %d on %s failed (%s)", place.rank, place.host, progress.doing)
    fault = RankError(
        rank=place.rank,
        host=place.host,
        kind=type(error).__name__,
        message=" ".join(str(error).split())[:2000],
        doing=progress.doing,
        again=isinstance(error, AbsentError) or not isinstance(error, SteelrailError),
    )
    write_artifact(folder.error(place.rank), fault)
    return exit_code


if __name__ == "__main__":
    leave(main(sys.argv))
