import os
import sys
import time
from pathlib import Path

import pytest
from submitit import LocalExecutor

from steelrail.clients.slurm import Slurm
from steelrail.config.schema import Container
from steelrail.errors import ConfigError
from steelrail.launch import allocation, container
from steelrail.launch.allocation import SlurmAllocation, srun_argv
from steelrail.launch.container import Credentials
from steelrail.launch.request import show, train_request
from steelrail.launch.submit import for_executor

GOLDEN = Path(__file__).parents[2] / "data" / "launch"
ENV = {"PYTHONPATH": "/shared/results/llama/train/k/code/c", "OMP_NUM_THREADS": "6", "NCCL_DEBUG": "WARN"}
MODULE = ["steelrail.launch.rank", "/shared/results/llama/train/k", "1"]
RANK = ["/home/me/venv/bin/python", "-u", "-m", "steelrail.launch.node", "16", "/shared/log", *MODULE]
HOME = Credentials((Path("/home/me/.aws"), Path("/shared/keys")), ("HOME", "AWS_SHARED_CREDENTIALS_FILE"))
NODES = ("n1", "n2", "n3", "n4")


@pytest.fixture
def boxed(llama, change):
    """The reference job with its ranks in a container."""

    def make(runtime, image, **more):
        run = llama.model_copy(update={"results": "/shared/results", "name": "llama"})
        return change(run, "slurm", container=Container(runtime=runtime, image=image, **more))

    return make


def command(run, credentials=HOME):
    options = container.srun_options(run, ENV, credentials)
    return [
        *srun_argv(run, "15", NODES, "attempt-0001", Path("/shared/log")),
        *options,
        *container.program(run, RANK, credentials),
    ]


def golden(name):
    return (GOLDEN / name).read_text().splitlines()


def test_pyxis_is_told_by_options_of_srun(boxed):
    run = boxed("pyxis", "nvcr.io#nvidia/pytorch:25.10-py3", mounts=("/shared/cache", "/opt/tools:/tools:ro"))
    assert command(run) == golden("srun-pyxis.txt")


def test_apptainer_comes_before_the_rank(boxed):
    run = boxed("apptainer", "/shared/images/steel rail.sif", python="/opt/venv/bin/python")
    assert command(run) == golden("srun-apptainer.txt")


def test_without_a_container_the_command_and_the_environment_are_as_they_were(llama):
    assert container.program(llama, RANK, HOME) == RANK
    assert (container.srun_options(llama, ENV, HOME), container.environment(llama, ENV)) == ([], ENV)


def test_gpus_are_given_to_apptainer_only_where_ranks_compute_on_them(boxed, change):
    run = boxed("apptainer", "i.sif")
    assert "--nv" in container.program(run, RANK, HOME)
    assert "--nv" not in container.program(change(run, "shape", device="cpu"), RANK, HOME)


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer"])
def test_what_we_say_wins_over_the_images_own_environment(boxed, runtime):
    run = boxed(runtime, "image")
    own = {**ENV, "PYTHONNOUSERSITE": "1"}
    said = container.environment(run, ENV)
    assert said.items() >= own.items()
    if runtime == "apptainer":
        assert {name: said[f"APPTAINERENV_{name}"] for name in own} == own
    else:
        named = next(one for one in container.srun_options(run, ENV, HOME) if one.startswith("--container-env="))
        assert set(own) <= set(named.partition("=")[2].split(","))


def test_initial_weights_and_tokenizer_can_only_be_read(boxed):
    argv = container.program(boxed("apptainer", "i.sif"), RANK, Credentials())
    binds = [argv[at + 1] for at, word in enumerate(argv) if word == "--bind"]
    weights = "/shared/models/Meta-Llama-3-70B"
    assert binds == [
        "/shared/results/llama:/shared/results/llama",
        "/mnt/fastssd:/mnt/fastssd",
        f"{weights}/original/tokenizer.model:{weights}/original/tokenizer.model:ro",
        f"{weights}:{weights}:ro",
    ]


@pytest.mark.parametrize("place", ["/data/a,b", "/data/a:b"])
def test_a_path_that_would_be_read_as_two_mounts_is_refused(boxed, place, change):
    run = change(boxed("pyxis", "i"), "node", nvme=place)
    with pytest.raises(ConfigError, match="path that a container mounts must be without , and :"):
        container.srun_options(run, ENV, HOME)


@pytest.mark.parametrize("mount", ["relative", "/a,/b", "/a:/b:rw,x", "/a:b", "/a:/b:ro:ro", "/a\n"])
def test_mounts_that_could_say_something_else_are_no_valid_setting(mount):
    with pytest.raises(ValueError, match="mounts"):
        Container(runtime="pyxis", image="i", mounts=(mount,))


@pytest.mark.parametrize("image", ["", "--fakeroot", " a", "a\nb"])
def test_an_image_that_could_be_an_option_is_no_valid_setting(image):
    with pytest.raises(ValueError, match="image"):
        Container(runtime="apptainer", image=image)


def test_a_container_is_refused_with_the_local_executor(boxed, tmp_path, demo):
    run = boxed("apptainer", "i.sif")
    with pytest.raises(ConfigError, match=r"slurm.container must be left out for a local executor"):
        for_executor(run, LocalExecutor(tmp_path))
    with pytest.raises(ValueError, match="container must be left out with executor: local"):
        type(demo.slurm)(executor="local", container=run.slurm.container)


def test_the_request_says_in_which_container_the_ranks_run(boxed):
    shown = show(train_request(boxed("pyxis", "nvcr.io#x/y"), "0123456789ab", Path("/shared/results/llama"), (), ()))
    assert shown.splitlines()[-1] == "# ranks: in container pyxis nvcr.io#x/y"


def test_credentials_are_mounted_where_they_are_and_only_there(tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / "keys").write_text("")
    env = {"HOME": str(tmp_path), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys"), "AWS_CONFIG_FILE": "/gone"}
    known = allocation._credentials(env)
    assert known.places == (tmp_path / ".aws", tmp_path / "keys")
    assert known.names == ("HOME", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")
    assert allocation._credentials({}) == Credentials()


SAID = {f"{rank}: /an image.sif 6 1" for rank in range(16)}
# Stands for srun and for apptainer: each skips its own options and becomes what follows, as the real ones do.
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=4
exec "$@"
"""
APPTAINER = """#!{python}
import os, sys
words = sys.argv[2:]
while words[0].startswith("--"):
    words = words[1:] if words[0] in ("--nv", "--no-home") else words[2:]
forced = {{name.removeprefix("APPTAINERENV_"): value for name, value in os.environ.items() if "APPTAINERENV_" in name}}
os.execve(words[1], words[1:], {{**os.environ, "OMP_NUM_THREADS": "image", **forced, "IMAGE": words[0]}})
"""


def test_a_rank_really_starts_behind_its_runtime_with_our_environment(boxed, change, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("apptainer", APPTAINER.format(python=sys.executable))):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    run = change(boxed("apptainer", "/an image.sif", python=sys.executable), "node", nvme=str(tmp_path))
    body = "import os; print(os.environ['IMAGE'], os.environ['OMP_NUM_THREADS'], os.environ['PYTHONNOUSERSITE'])"
    (tmp_path / "small_rank.py").write_text(f"def main(argv):\n    {body}\n    return 0\n")
    env = {**ENV, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    place = SlurmAllocation(run, Slurm(), "15", 0, "n1", NODES)
    step = place.start(["small_rank"], NODES, env, "a", tmp_path / "log")
    deadline = time.monotonic() + 60
    while step.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (step.poll(), set((tmp_path / "log.srun").read_text().splitlines())) == (0, SAID)
