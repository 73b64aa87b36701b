"""What the simulator said of one measured run, in a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import committed
from prediction_errors import Figure, table, worst


@dataclass(frozen=True)
class Prediction:
    """One prediction of a run.

    Attributes:
        name: a word for the column.
        backend: what predicted, as in ``--backend``.
        fitted_on: where each constant is from, in sentences.
        figures: beside the measured ones.
    """

    name: str
    backend: str
    fitted_on: Sequence[str]
    figures: list[Figure]


@dataclass(frozen=True)
class Judgement:
    """One measured run and its predictions.

    Attributes:
        title: what was measured.
        predictions: of it.
        notes: what else a reader should know, in sentences.
    """

    title: str
    predictions: Sequence[Prediction]
    notes: Sequence[str] = field(default_factory=tuple)

    def __str__(self) -> str:
        lines = [self.title]
        for prediction in self.predictions:
            lines.append(f"{prediction.name}:")
            lines += [f"  {said}" for said in prediction.fitted_on]
        lines += ["", table({p.name: p.figures for p in self.predictions})]
        lines += [f"* {note}" for note in self.notes]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "run": self.title,
            "notes": list(self.notes),
            "predictions": [
                {
                    "name": p.name,
                    "fitted_on": list(p.fitted_on),
                    "worst": worst(p.figures).to_json(),
                    "figures": [figure.to_json() for figure in p.figures],
                }
                for p in self.predictions
            ],
        }


def machine() -> dict[str, Any]:
    """What this is running on."""
    return {
        "processor": committed.processor(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def write_judgements(path: Path, judged: Sequence[Judgement]) -> None:
    """Write the figures, and where they were made."""
    text = json.dumps({**machine(), "runs": [one.to_json() for one in judged]}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
