"""The ranks in a container, where the run file names an image: what is said to srun, what comes before them. Pure.

Head and supervisor stay in the bare environment. The image brings Python with the packages; code, configuration and
data come from the host, mounted at the same paths. Nothing else of the user's is there: the Python packages in his
home folder would come before the image's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from steelrail.artifacts.files import results_folder
from steelrail.config.schema import Container, Run
from steelrail.errors import ConfigError, must

_OWN_PACKAGES_ALONE = {"PYTHONNOUSERSITE": "1"}


@dataclass(frozen=True)
class Credentials:
    """Where boto3 finds credentials on this host: files and folders that are there, and variables that say so."""

    places: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()


def srun_options(run: Run, env: Mapping[str, str], credentials: Credentials) -> list[str]:
    """Return what pyxis is told through srun; nothing for another runtime. ``env``: what the ranks get from us."""
    container = run.slurm.container
    if container is None or container.runtime != "pyxis":
        return []
    # Of equal names the image's value would win, so ours are named.
    names = sorted({*env, *_OWN_PACKAGES_ALONE, *credentials.names})
    return [
        f"--container-image={container.image}",
        f"--container-mounts={','.join(_mounts(run, container, credentials))}",
        f"--container-workdir={results_folder(run).absolute()}",
        f"--container-env={','.join(names)}",
        # Files must be the user's inside too, under his own number.
        "--no-container-remap-root",
        "--no-container-mount-home",
    ]


def program(run: Run, argv: Sequence[str], credentials: Credentials) -> list[str]:
    """Return the command of one rank: ``argv``, by the image's Python, and behind apptainer where that is wanted."""
    container = run.slurm.container
    if container is None:
        return list(argv)
    inside = [container.python, *argv[1:]]
    if container.runtime == "pyxis":
        return inside
    gpus = ["--nv"] if run.shape.device == "cuda" else []
    place = ["--no-home", "--pwd", str(results_folder(run).absolute())]
    binds = [part for mount in _mounts(run, container, credentials) for part in ("--bind", mount)]
    return ["apptainer", "exec", *gpus, *place, *binds, container.image, *inside]


def environment(run: Run, env: Mapping[str, str]) -> dict[str, str]:
    """Return what the ranks get from us, said so that an image's own values do not win."""
    container = run.slurm.container
    if container is None:
        return dict(env)
    own = {**env, **_OWN_PACKAGES_ALONE}
    forced = {f"APPTAINERENV_{name}": value for name, value in own.items()} if container.runtime == "apptainer" else {}
    return own | forced


def describe(run: Run) -> str:
    """Return in which container ranks run; empty where they run bare."""
    container = run.slurm.container
    return f"{container.runtime} {container.image}" if container else ""


def _mounts(run: Run, container: Container, credentials: Credentials) -> list[str]:
    """What ranks write (the run's folder, NVMe), what they read, and the run file's own: ``outside:inside[:ro]``."""
    written = [results_folder(run), Path(run.node.nvme)]
    init = [Path(run.train.init_from)] if run.train.init_from else []
    read = [Path(run.shards.tokenizer), *init, *credentials.places]
    own = [f"{_plain(path)}:{_plain(path)}" for path in written]
    own += [f"{_plain(path)}:{_plain(path)}:ro" for path in read]
    return [*dict.fromkeys([*own, *(_whole(mount) for mount in container.mounts)])]


def _whole(mount: str) -> str:
    outside, _, rest = mount.partition(":")
    return f"{outside}:{rest or outside}"


def _plain(path: Path) -> str:
    """Return a path as both runtimes read it; they have no way to quote what separates mounts."""
    text = str(path.absolute())
    if set(text) & {",", ":"}:
        do = "rename it, or run without slurm.container"
        raise ConfigError(must("path that a container mounts", "without , and :", text, "slurm.container", do))
    return text
