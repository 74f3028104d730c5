from steelrail.formats.nvidia_smi import GpuRow, parse_gpus


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
