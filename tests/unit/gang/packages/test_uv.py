"""Settings of pip that are passed to uv."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.gang.packages import uv


def test_uv_asks_the_index_that_is_set_for_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://reader:s3cret@pypi.example.org/simple\n"
        "extra-index-url = https://more.example.org/simple\n[list]\nformat = columns\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    found = uv.of_pip()
    assert found["UV_DEFAULT_INDEX"] == "https://reader:s3cret@pypi.example.org/simple"
    assert "more.example.org" not in str(found)
