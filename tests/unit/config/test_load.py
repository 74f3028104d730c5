from pathlib import Path

import pytest

from steelrail.config.load import load_run, parse_run
from steelrail.config.schema import Section
from steelrail.errors import ConfigError

DEMO = Path("config/demo.yaml")
NAME_LINE = 3


def demo_with(old: str, new: str) -> str:
    text = DEMO.read_text()
    assert old in text
    return text.replace(old, new)


def message_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_run(text, "x.yaml")
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(Path("config").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_run_file_loads_and_is_named_after_itself(path: Path) -> None:
    assert path.stem == load_run(path).name


@pytest.mark.parametrize("path", sorted(Path("config").glob("llama3-70b-*.yaml")), ids=lambda path: path.stem)
def test_reference_run_files_have_at_most_forty_lines(path: Path) -> None:
    assert 40 >= len(path.read_text().splitlines())


def test_a_misspelt_setting_names_the_nearest_valid_one() -> None:
    message = message_of(demo_with("warmup_steps:", "warm_up_step:"))
    assert "train.optimizer.warm_up_step must be one that exists" in message
    assert "did you mean train.optimizer.warmup_steps?" in message


def test_a_setting_in_the_wrong_section_is_told_where_it_belongs() -> None:
    assert "did you mean train.optimizer.learning_rate?" in message_of(DEMO.read_text() + "learning_rate: 1\n")


def test_every_fault_is_reported_at_once() -> None:
    message = message_of(demo_with("steps: 200", "steps: none").replace("parts: 4", "parts: 0"))
    assert "train.steps" in message and "shards.parts" in message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("partition: gpu", "partition: 'gpu; rm -rf /'"),
        ("partition: gpu", 'partition: "gpu\\nx"'),
        ("name: demo", "name: ../demo"),
        ("steps: 200", "steps: '200'"),
        ("parts: 4", "parts: true"),
        ("bucket: steelrail", "bucket: 'steelrail/../x'"),
        ("{GLOO_SOCKET_IFNAME: eth0}", "{'A=1 B': eth0}"),
        ("{GLOO_SOCKET_IFNAME: eth0}", '{A: "a\\nb"}'),
    ],
)
def test_values_that_could_mean_something_else_are_refused(old: str, new: str) -> None:
    assert "must be" in message_of(demo_with(old, new))


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "PASSWORD"])
def test_a_secret_among_the_recorded_variables_is_refused_and_not_repeated(name: str) -> None:
    message = message_of(demo_with("{GLOO_SOCKET_IFNAME: eth0}", "{" + name + ": canary}"))
    assert f"environment must be without secrets, is with {name}" in message and "canary" not in message


def test_a_variable_that_only_sounds_like_a_secret_is_taken() -> None:
    text = demo_with("{GLOO_SOCKET_IFNAME: eth0}", "{TOKENIZERS_PARALLELISM: x, AWS_WEB_IDENTITY_TOKEN_FILE: /x}")
    assert {"TOKENIZERS_PARALLELISM", "AWS_WEB_IDENTITY_TOKEN_FILE"} == set(parse_run(text, "x").slurm.environment)


def test_plain_http_is_refused_unless_the_run_file_means_it() -> None:
    assert "allow_http" in message_of(demo_with(", allow_http: true", ""))


def test_ranks_must_divide_the_batch() -> None:
    assert "global_batch_sequences must be a multiple" in message_of(
        demo_with("global_batch_sequences: 8", "global_batch_sequences: 9")
    )


def test_the_best_are_kept_only_where_a_heldout_loss_is_measured() -> None:
    kept = ("checkpoints: {every_steps: 25}", "checkpoints: {every_steps: 25, keep_best: 2}")
    assert parse_run(demo_with(*kept), "x").checkpoints.keep_best == 2
    unmeasured = demo_with(*kept).replace("heldout_sequences: 32", "heldout_sequences: 0")
    assert "checkpoints.keep_best must be 0" in message_of(unmeasured)


@pytest.mark.parametrize(
    "text", ["", "- a", "a: [", "a: &a [*a]", "!!python/object/apply:os.system ['true']", "a: 2026-01-01"]
)
def test_what_is_no_run_file_ends_in_a_clear_error(text: str) -> None:
    assert "must be" in message_of(text)


def test_aliases_that_stand_for_more_than_memory_holds_are_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 30)]
    assert "run file must be of at most 100000 values, is of more" in message_of("\n".join(lines))


def test_a_missing_run_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run file must be a file, is missing \(.*nowhere.yaml\)"):
        load_run(tmp_path / "nowhere.yaml")


def test_a_huge_run_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_text("#" * 1_000_001)
    with pytest.raises(ConfigError, match="at most 1000000 bytes"):
        load_run(path)


def test_a_device_without_an_end_is_no_run_file() -> None:
    with pytest.raises(ConfigError, match="run file must be a regular file, is a pipe or device"):
        load_run("/dev/zero")


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan"])
@pytest.mark.parametrize(("setting", "value"), [("learning_rate", "0.003"), ("dim", "128"), ("rope_theta", None)])
def test_a_number_that_is_infinite_or_none_is_refused_wherever_it_stands(
    setting: str, value: str | None, number: str
) -> None:
    text = DEMO.read_text()
    old = f"{setting}: {value}" if value else "model: {"
    assert old in text
    new = f"{setting}: {number}" if value else f"model: {{{setting}: {number}, "
    said = message_of(text.replace(old, new, 1))
    assert f"{setting} must be" in said and number.strip("-.") in said


def test_every_section_refuses_numbers_that_are_none() -> None:
    sections = [Section, *Section.__subclasses__()]
    assert all(section.model_config["allow_inf_nan"] is False for section in sections)


@pytest.mark.parametrize("prefix", ["..", "a/../../other", "a/./b", "../a"])
def test_a_store_prefix_that_walks_is_refused(prefix: str) -> None:
    message = message_of(demo_with("bucket: steelrail", f"bucket: steelrail, prefix: {prefix}"))
    assert f"prefix must be without . and .. as parts, is {prefix}" in message


@pytest.mark.parametrize(("setting", "value"), [("prefix", "/other"), ("name", "/tmp/demo"), ("name", "a..b/../c")])
def test_an_absolute_prefix_or_run_name_is_refused(setting: str, value: str) -> None:
    if setting == "name":
        said = message_of(demo_with("name: demo", f"name: {value}"))
    else:
        said = message_of(demo_with("bucket: steelrail", f"bucket: steelrail, prefix: {value}"))
    assert f"{setting} must be" in said


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('endpoint: "http://10.77.0.254:8333"', "endpoint: http://u:CANARY@127.0.0.1:1/"),
        ('endpoint: "http://10.77.0.254:8333"', "endpoint: u:CANARY@127.0.0.1"),
        ("data/sample.parquet", "s3://key:CANARY@bucket/prefix"),
        ("{GLOO_SOCKET_IFNAME: eth0}", '{HF_TOKEN: "CANARY\\n"}'),
        ("{GLOO_SOCKET_IFNAME: eth0}", "{HTTPS_PROXY: 'http://u:CANARY@proxy'}"),
        ("{GLOO_SOCKET_IFNAME: eth0}", "[HF_TOKEN=CANARY]"),
        ("partition: gpu", 'setup: ["export HF_TOKEN=CANARY\\nx"]\n  partition: gpu'),
    ],
)
def test_no_message_shows_what_can_be_a_secret(old: str, new: str) -> None:
    message = message_of(demo_with(old, new))
    assert "must be" in message and "CANARY" not in message


def test_a_setting_given_twice_is_refused_with_its_lines() -> None:
    last = len(DEMO.read_text().splitlines()) + 1
    said = f"run file's name must be given once, is given on lines {NAME_LINE} and {last} (x.yaml)"
    assert said in message_of(DEMO.read_text() + "name: second\n")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: demo", "name: A B", "setting name must be text of the form ^[a-z0-9][a-z0-9-]{0,39}$, is 'A B'"),
        ("[data/sample.parquet]", "[]", "setting corpus.paths must be a list of 1 or more, is an empty list"),
        ("steps: 200", "steps: 1.5", "setting train.steps must be a whole number, is 1.5"),
        ("steps: 200", "steps:", "setting train.steps must be a whole number, is empty"),
        ("steps: 200", "steps: 0", "setting train.steps must be at least 1, is 0"),
        ("steps: 200", "steps: 2026-01-01", "setting train.steps must be plain text or a number, is a date"),
        ("steps: 200", "2026-01-01: 1", "name of setting train.2026-01-01 must be text"),
    ],
)
def test_a_fault_of_a_value_is_told_in_our_own_words(old: str, new: str, said: str) -> None:
    assert said in message_of(demo_with(old, new))


def test_an_empty_path_is_one_fault() -> None:
    message = message_of(demo_with("[data/sample.parquet]", "['']"))
    assert message.startswith("setting corpus.paths.0 must be text of 1 or more characters, is ''")
    assert 1 == len(message.splitlines())


@pytest.mark.parametrize(("text", "said"), [("", "is empty"), ("- a", "is a list"), ("a b", "is 'a b'")])
def test_a_run_file_without_settings_is_told_what_it_is(text: str, said: str) -> None:
    assert f"run file must be a mapping of settings, {said} (x.yaml)" in message_of(text)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("policy: roll_back, back_steps: 3, leave_out_steps: 5", "leave_out_steps must be at most back_steps + 1 = 4"),
        ("policy: roll_back, leave_out_steps: 2", "leave_out_steps must be at most back_steps + 1 = 1, is 2"),
        ("policy: skip, back_steps: 3", "back_steps and leave_out_steps must be left unset"),
        ("leave_out_steps: 1, back_steps: 1", "back_steps and leave_out_steps must be left unset"),
    ],
)
def test_a_roll_back_that_could_not_leave_out_what_it_says_is_refused(settings: str, said: str) -> None:
    assert said in message_of(demo_with("precision: fp32", f"precision: fp32\n  bad_step: {{{settings}}}"))


def test_a_roll_back_may_leave_out_all_steps_that_it_makes_again() -> None:
    settings = "policy: roll_back, back_steps: 4, leave_out_steps: 5"
    found = parse_run(demo_with("precision: fp32", f"precision: fp32\n  bad_step: {{{settings}}}"), "x.yaml")
    assert found.train.bad_step.leave_out_steps == 5
