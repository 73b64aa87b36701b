"""What the requests of a run put out, as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from batchwright.hookspecs import hookimpl

if TYPE_CHECKING:
    from batchwright.engine import Engine
    from batchwright.lab.run_record import RunRecord
    from batchwright.request import Request


class Outputs:
    """Keeps the requests of one run, so that what they put out can be written down. Made on a fresh engine."""

    name = "outputs"

    def __init__(self, path: Path, engine: Engine) -> None:
        """Takes where to write to, and the engine of the run."""
        self._path = path
        self._tokenizer = engine.backend.tokenizer
        self._requests: dict[str, Request] = {}
        engine.scheduler.register(self)

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """It was taken; its tokens are read when the run is over, so that no step waits for them."""
        self._requests[request.request_id] = request

    def write(self, run: RunRecord) -> None:
        """Write a JSON object a line for each request, in the order of the record, refused ones among them.

        Args:
            run: what became of the requests.

        Raises:
            OSError: the file cannot be written.
        """
        with self._path.open("w", encoding="utf-8") as file:
            for record in run.requests:
                request = self._requests.get(record.request_id)
                token_ids = request.output_token_ids[:] if request is not None else []
                line = {
                    "request_id": record.request_id,
                    "status": record.status,
                    "finish_reason": record.finish_reason,
                    "text": self._tokenizer.decode(token_ids) if self._tokenizer is not None else None,
                    "token_ids": token_ids,
                    "error": record.error,
                }
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
