"""What benchmarks have committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def results(name: str) -> Any:
    """What a benchmark has committed."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
