from pathlib import Path

from steelrail.config import docs


def test_the_settings_table_is_the_schema() -> None:
    assert docs.settings_table() == Path("config/README.md").read_text()


def test_the_json_schema_is_the_schema() -> None:
    assert docs.json_schema() == Path("config/schema.json").read_text()
