"""The last committed figures of a benchmark, and what has changed since.

Machines differ and are shared, so only ratios are compared: of the medians of one interleaved run.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
WORSE = 1.25
"""A ratio that grew by more is pointed out."""


def read(name: str) -> dict[str, dict[str, float]]:
    """Row to ``ours/peer`` to ratio, as committed; empty where nothing is."""
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        return {}
    rows: dict[str, dict[str, float]] = {row["row"]: row["ratios"] for row in json.loads(path.read_text())["rows"]}
    return rows


def write(path: Path, figures: list[dict[str, Any]], rounds: int) -> None:
    """Write figures with what they were measured on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    where = {"python": sys.version.split()[0], "machine": platform.machine(), "processor": processor()}
    short = [
        {**f, **{key: {name: float(f"{value:.4g}") for name, value in f[key].items()} for key in ("medians", "ratios")}}
        for f in figures
    ]
    text = json.dumps({**where, "rounds": rounds, "rows": short}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def processor() -> str:
    """The model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def changes(row: str, ratios: dict[str, float], committed: dict[str, dict[str, float]]) -> list[str]:
    """Sentences on ratios of this row that became worse."""
    old = committed.get(row, {})
    return [
        f"{row}: {pair} is {ratio:.3f}, and was {old[pair]:.3f}"
        for pair, ratio in ratios.items()
        if pair in old and ratio > WORSE * old[pair]
    ]
