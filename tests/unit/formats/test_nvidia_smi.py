from pathlib import Path

from steelrail.formats.nvidia_smi import GpuRow, GpuSample, NvlinkRow, parse_gpus, parse_nvlink, parse_samples

DATA = Path(__file__).parents[2] / "data"


def test_a_query_row_becomes_a_gpu_with_memory_in_bytes() -> None:
    line = "0, NVIDIA H200, GPU-1f, 1654123, 00000000:18:00.0, 580.159.04, 96.00.A5.00.0A, 143771, 700.00, 0\n"
    expected = GpuRow(
        0,
        "NVIDIA H200",
        "GPU-1f",
        "1654123",
        "00000000:18:00.0",
        "580.159.04",
        "96.00.A5.00.0A",
        143771 * 2**20,
        700.0,
        0,
    )
    assert parse_gpus(line) == (expected,)


def test_fields_that_a_virtual_machine_hides_become_none() -> None:
    line = "1, NVIDIA H200, GPU-2a, [N/A], [Not Supported], 580.159.04, , [N/A], [N/A], N/A\n"
    assert parse_gpus(line) == (GpuRow(1, "NVIDIA H200", "GPU-2a", None, None, "580.159.04", None, None, None, None),)


def test_warnings_and_errors_of_the_tool_are_no_gpus() -> None:
    assert parse_gpus("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n\n") == ()


def test_a_training_log_becomes_samples() -> None:
    samples = parse_samples((DATA / "nvidia-smi-query-training.csv").read_text())
    assert len(samples) == 200
    assert samples[0] == GpuSample("2026/11/30 10:56:24.208", 0, 79.18, 345.0, 3201.0, 36.0, 0.0, 0.0, 1)
    assert {sample.index for sample in samples} == {0, 1}
    assert max(sample.power_w or 0.0 for sample in samples) > 600


def test_a_torn_last_sample_is_left_out() -> None:
    text = (DATA / "nvidia-smi-query-training.csv").read_text()
    assert len(parse_samples(text + "2026/11/30 10:59:24.208, 0, 79")) == 200


def test_nvlink_traffic_is_counted_in_bytes_per_link() -> None:
    rows = parse_nvlink((DATA / "nvidia-smi-nvlink-gt-d.txt").read_text())
    assert len(rows) == 36
    assert rows[0] == NvlinkRow(0, 0, None, 25696772 * 1024, 25454249 * 1024)
    assert rows[18].gpu == 1


def test_nvlink_status_gives_speeds_and_ignores_capabilities() -> None:
    rows = parse_nvlink((DATA / "nvidia-smi-nvlink-status-and-caps.txt").read_text())
    assert [(row.gpu, row.link, row.gb_per_s) for row in rows] == [
        (gpu, link, 26.562) for gpu in (0, 1) for link in range(18)
    ]


def test_an_inactive_link_has_no_speed() -> None:
    text = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
    assert [row.gb_per_s for row in parse_nvlink(text)] == [26.562, None]
