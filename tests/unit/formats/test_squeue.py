from steelrail.formats.squeue import Identity, QueueRow, parse_identity, parse_jobs, parse_steps

TEXT = """\
30|COMPLETED|None|steelrail-lh-train|steelrail run=lh stage=train key=b7030811542e folder=2cff8093
37|PENDING|Resources|steelrail-lh2-train|a|b
23|FAILED|NonZeroExitCode|capture|(null)
"""


def test_each_line_is_a_job_and_a_comment_may_hold_the_separator():
    rows = parse_jobs(TEXT)
    assert rows[1] == QueueRow("37", "PENDING", "Resources", "steelrail-lh2-train", "a|b")
    assert [row.job_id for row in rows] == ["30", "37", "23"]


def test_our_comment_says_run_stage_key_and_folder():
    assert parse_identity(parse_jobs(TEXT)[0].comment) == Identity("lh", "train", "b7030811542e", "2cff8093")


def test_a_foreign_comment_is_not_ours():
    assert parse_identity("run=lh stage=train key=1") is None
    assert parse_identity("steelrail run=lh") is None
    assert parse_identity("(null)") is None


def test_steps_are_found_by_name():
    assert parse_steps("15.0|attempt-0003\n15.batch|batch\n") == {"attempt-0003": "15.0", "batch": "15.batch"}
