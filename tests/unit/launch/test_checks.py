import numpy as np
import pytest
from safetensors.numpy import save_file

from steelrail.config.load import load_run
from steelrail.errors import ClusterError, ConfigError, InputError
from steelrail.formats.sinfo import parse_nodes
from steelrail.launch.checks import check_init, check_memory, check_partition
from steelrail.train.names import to_hugging_face
from steelrail.train.shapes import parameter_shapes

FOUR = "".join(f"node{number}|idle|4|gpu:h100:16\n" for number in range(1, 5))


def check(run, text):
    return check_partition(run, parse_nodes(text), ("gpu", "cpu"))


def test_a_partition_that_can_give_the_shape_has_no_complaint(demo):
    assert check(demo, FOUR) == []


def test_a_partition_that_does_not_exist_is_answered_with_those_that_do(demo):
    with pytest.raises(ClusterError, match=r"is gpu \(slurm.partition\): set slurm.partition to one of gpu, cpu"):
        check(demo, "")


def test_a_shape_that_the_partition_can_never_give_is_refused_with_its_offer(demo):
    text = FOUR.replace(":16", ":8").replace("node4", "node3")
    with pytest.raises(ClusterError, match=r"able to give 4 nodes with 16 gpu.*is 3 nodes with 8 gpu and 4 CPUs"):
        check(demo, text)


def test_too_few_cpus_are_refused(demo, change):
    with pytest.raises(ClusterError, match="and 16 CPUs each"):
        check(change(demo, "slurm", cpus_per_rank=8), FOUR)


def test_nodes_that_are_never_to_be_used_do_not_count(demo, change):
    with pytest.raises(ClusterError, match="is 3 nodes"):
        check(change(demo, "slurm", exclude=("node2",)), FOUR)


def test_nodes_that_are_down_now_are_a_warning(demo):
    (warning,) = check(demo, FOUR.replace("node3|idle", "node3|down*"))
    assert warning == "3 of 4 nodes are up in partition gpu; the job waits for more (node3)"


def test_a_typed_resource_counts_only_gpus_of_that_type(demo, change):
    assert check(change(demo, "slurm", gres="gpu:h100"), FOUR) == []
    with pytest.raises(ClusterError):
        check(change(demo, "slurm", gres="gpu:a100"), FOUR)


@pytest.mark.parametrize("shape", ["4x16", "4x8", "8x8"])
def test_the_reference_jobs_fit_their_gpus(shape):
    assert [] == check_memory(load_run(f"config/llama3-70b-{shape}.yaml"))


def test_a_model_that_cannot_fit_is_refused_with_what_would_help():
    run = load_run("config/llama3-70b-4x16.yaml")
    greedy = run.model_copy(update={"train": run.train.model_copy(update={"recompute": False})})
    with pytest.raises(ConfigError, match=r"train\.recompute: true"):
        check_memory(greedy)


def test_random_weights_need_no_check(demo):
    assert check_init(demo) == []


def test_initial_weights_are_held_against_the_model(demo, change, tmp_path):
    shapes = parameter_shapes(demo.train.model)
    whole = {to_hugging_face(name): np.zeros(shape, np.float16) for name, shape in shapes.items()}
    save_file(whole, tmp_path / "model.safetensors")
    run = change(demo, "train", init_from=str(tmp_path))
    assert check_init(run) == []
    wider = run.train.model.model_copy(update={"ffn_dim": 512})
    with pytest.raises(InputError, match=r"gate_proj.weight must be of shape \(512, 128\), is \(384, 128\)"):
        check_init(change(run, "train", model=wider))


def test_weights_that_this_machine_does_not_see_are_said(demo, change, tmp_path):
    (said,) = check_init(change(demo, "train", init_from=str(tmp_path / "elsewhere")))
    assert said.startswith("train.init_from must be a folder here, is missing")
