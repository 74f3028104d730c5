from pathlib import Path

from steelrail.artifacts.corpus import CorpusManifest, CorpusObject, RowGroup
from steelrail.artifacts.files import Provenance, write_artifact
from steelrail.config.load import load_run
from steelrail.launch.stages import finished_stages, first_open


def corpus() -> CorpusManifest:
    made = Provenance(
        stage="corpus", key="k", command=(), started=0, ended=1, host="h", user="u", commit=None, dirty=False,
        versions={}, inputs={}, config_digest="c",
    )  # fmt: skip
    one = CorpusObject(
        uri="a.parquet", size_bytes=2_000_000, digest="d", rows=1200, row_groups=(RowGroup(rows=1200, size_bytes=9),)
    )
    return CorpusManifest(
        run="demo", key="k", text_column="text", objects=(one,), num_rows=1200, size_bytes=2_000_000,
        content_digest="c", provenance=made,
    )  # fmt: skip


def test_only_stages_whose_artifact_is_there_and_whole_are_finished(tmp_path: Path) -> None:
    run = load_run("config/demo.yaml").model_copy(update={"results": str(tmp_path)})
    assert {} == finished_stages(run)
    write_artifact(tmp_path / "demo/corpus/manifest.json", corpus())
    (tmp_path / "demo/cost").mkdir()
    (tmp_path / "demo/cost/summary.json").write_text("{")
    assert {"corpus": "1 object, 1,200 rows, 2.00 MB"} == finished_stages(run)


def test_a_run_trained_without_the_fabric_stage_does_not_wait_for_it() -> None:
    assert first_open({}) == "corpus"
    assert first_open({"corpus": "", "shards": ""}) == "fabric"
    assert first_open({"corpus": "", "shards": "", "train": ""}) == "cost"
    assert first_open({"corpus": "", "shards": "", "train": "", "cost": ""}) == "done"
