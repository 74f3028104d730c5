"""The command line: one table of verbs. Takes paths, calls a stage's edge or ``launch``, returns the exit code."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from steelrail import chain, log
from steelrail.artifacts.corpus import Listing
from steelrail.artifacts.files import on_results, read_artifact, require_results_place, results_folder
from steelrail.clients.disk import private_folder
from steelrail.config.load import load_run
from steelrail.config.schema import Run
from steelrail.errors import ConfigError, SteelrailError, must

_LOG = log.logger(__name__)
_ABOUT = "Raw text in Parquet and a Slurm cluster of bare GPU nodes in; a trained model and an exact bill out."


class Terminated(KeyboardInterrupt):
    """SIGTERM came: whatever cleans up at Ctrl-C does so now."""


@dataclass(frozen=True)
class Verb:
    """One command: how it is called, what it says of itself, what it does. ``act`` prints its own result."""

    words: str
    about: str
    act: Callable[[Run, argparse.Namespace], None]
    options: tuple[tuple[str, Mapping[str, object]], ...] = ()


def _corpus(run: Run, arguments: argparse.Namespace) -> None:
    from steelrail.corpus import edge

    listing = read_artifact(Path(arguments.listing), Listing) if arguments.listing else edge.list_corpus(run)
    edge.run_stage(run, listing)


def _shards_part(run: Run, arguments: argparse.Namespace) -> None:
    from steelrail.shards import edge

    edge.run_part(run, arguments.part)


def _shards_gather(run: Run, arguments: argparse.Namespace) -> None:
    from steelrail.shards import edge

    edge.gather(run)


def _fabric(run: Run, arguments: argparse.Namespace) -> None:
    from steelrail.launch import edge

    edge.fabric(run, chain.parent())


def _train(run: Run, arguments: argparse.Namespace) -> None:
    from steelrail.launch import edge

    edge.train(run, chain.parent())


def _cost(run: Run, arguments: argparse.Namespace) -> None:
    from steelrail.cost import edge

    edge.run_stage(run)


def _plan(run: Run, arguments: argparse.Namespace) -> None:
    from steelrail.launch import edge

    _say(edge.plan(run))


def _status(run: Run, arguments: argparse.Namespace) -> None:
    from steelrail.launch import status

    now = status.status(run)
    _say(now.json() if arguments.json else now.text())


def _logs(run: Run, arguments: argparse.Namespace) -> None:
    from steelrail.launch import logs

    for line in logs.lines(run, follow=arguments.follow):
        _say(line)


def _stop(run: Run, arguments: argparse.Namespace) -> None:
    from steelrail.launch import stop

    _say(stop.stop(run))


def _checkpoints(run: Run, arguments: argparse.Namespace) -> None:
    from steelrail.launch import checkpoints

    removes = arguments.sweep and not arguments.dry_run
    found = checkpoints.sweep(run) if removes else checkpoints.look(run)
    _say(found.json() if arguments.json else found.text())


_PART = ("--part", {"type": int, "required": True, "help": "number of the part"})
_JSON = ("--json", {"action": "store_true", "help": "for machines"})
_SWEEP = ("--sweep", {"action": "store_true", "help": "remove what is not kept, while no training job lives"})
_DRY_RUN = ("--dry-run", {"action": "store_true", "help": "only show what would go (so it is without --sweep)"})
_LISTING = ("--listing", {"help": "listing made on the head node (else the corpus is listed now)"})

VERBS = (
    Verb("plan", "print memory, time, dollars and the Slurm request, and submit nothing", _plan),
    Verb("corpus", "list and identify the input", _corpus, (_LISTING,)),
    Verb("shards part", "tokenise one part (inside a Slurm job)", _shards_part, (_PART,)),
    Verb("shards gather", "gather the parts into one manifest", _shards_gather),
    Verb("fabric", "check and measure the nodes", _fabric),
    Verb("train", "submit the training job, or attach to it, and wait", _train),
    Verb("cost", "make the bill", _cost),
    Verb("status", "say how the run stands", _status, (_JSON,)),
    Verb(
        "logs",
        "print the newest attempt's log",
        _logs,
        (("--follow", {"action": "store_true", "help": "go on as it grows"}),),
    ),
    Verb("stop", "save, stop, and stay stopped", _stop),
    Verb(
        "checkpoints",
        "list the checkpoints in the store: what is kept, and why; what would go",
        _checkpoints,
        (_SWEEP, _DRY_RUN, _JSON),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or the code of the error's branch (docs/errors.md)."""
    os.umask(0o077)
    parsed = _parser().parse_args(arguments)
    log.configure(logging.INFO)
    with _hearing_term():
        return _act(parsed)


def _act(parsed: argparse.Namespace) -> int:
    try:
        run = load_run(parsed.config)
        require_results_place(run)
        with on_results(results_folder(run)):
            _log_to(parsed.log, run)
            parsed.verb.act(run, parsed)
    except SteelrailError as error:
        _LOG.error("%s", error)
        if parsed.log:
            chain.leave_word(parsed.log, error)
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        how, code = ("ended by SIGTERM", 143) if isinstance(interrupt, Terminated) else ("interrupted", 130)
        _LOG.error("%s; jobs in Slurm go on: steelrail status --config %s", how, parsed.config)
        return code
    except BrokenPipeError:
        return 0
    return 0


@contextmanager
def _hearing_term() -> Iterator[None]:
    """End at SIGTERM as at Ctrl-C, with a message, unless whoever calls us hears it already (or is no main thread)."""
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="steelrail", description=_ABOUT)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    groups: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    for verb in VERBS:
        first, _, second = verb.words.partition(" ")
        if second and first not in groups:
            group = commands.add_parser(first, help=f"{first}: its own commands")
            groups[first] = group.add_subparsers(metavar="COMMAND", required=True)
        command = (groups[first] if second else commands).add_parser(
            second or first, help=verb.about, description=verb.about
        )
        command.add_argument(
            "--config", default=f"config/{chain.RUN_NAME}.yaml", help="run file (default: %(default)s)"
        )
        command.add_argument("--log", help="file that gets every log line too")
        for name, how in verb.options:
            command.add_argument(name, **how)  # type: ignore[arg-type]
        command.set_defaults(verb=verb)
    return parser


def _log_to(path: str | None, run: Run) -> None:
    if not path:
        return
    private_folder(results_folder(run))
    try:
        chain.leave_word(path, None)
        log.also_to(Path(path))
    except OSError as error:
        fault = f"not ({error.strerror})"
        raise ConfigError(must("log file", "one that can be written", fault, path, "name another in --log")) from error


def _say(text: str) -> None:
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
