"""A file of policies that go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.executors.jobs import BAD


@pytest.fixture
def bad(tmp_path: Path) -> str:
    file = tmp_path / "bad.py"
    file.write_text(BAD)
    return str(file)
