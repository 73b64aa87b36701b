"""What every design's answer can do: become a file."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any


class Answer(ABC):
    """What a design found."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """As a JSON object, without the records; the same runs give the same bytes."""

    def write_json(self, path: str | Path) -> None:
        """Write it to a file.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(json.dumps(self.to_json(), allow_nan=False) + "\n", encoding="utf-8")
