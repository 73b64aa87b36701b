from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from batchwright.batch import Batch
from batchwright.request import Request

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"

# One row of a batch: tokens computed before, tokens in this step, tokens known, output tokens among them, seed.
Row = tuple[int, int, int, int, int]


@pytest.fixture
def make_batch() -> Callable[[list[Row]], Batch]:
    """Batches without an engine: the fields that the core would have written."""

    def make(rows: list[Row]) -> Batch:
        requests = []
        for i, (computed, _, known, output, seed) in enumerate(rows):
            request = Request(f"r{i}", [1] * (known - output))
            request._tokens.extend([1] * output)
            request.num_computed = computed
            request._seed = seed
            requests.append(request)
        return Batch(0, 16, requests, [row[1] for row in rows])

    return make


@pytest.fixture
def kernel_folder() -> Path:
    """Kernel tables of A100, H100 and H200."""
    return _present(SHARED / "kernels")


@pytest.fixture
def rtx4090_folder() -> Path:
    """Kernel times and a recorded run of an RTX 4090."""
    return _present(SHARED / "groundtruth" / "rtx4090")


def _present(folder: Path) -> Path:
    if not folder.is_dir():
        pytest.skip(f"measured kernel times are not here ({folder.name} of the shared data)")
    return folder
