"""What a recording of traffic says of a request is checked, field by field."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from batchwright.errors import WorkloadError
from batchwright.lab import load_workload
from batchwright.lab.readers.recording import FORMAT, SUFFIX, RecordedRequest, RecordedTraffic

HEAD = {"format": FORMAT, "start_unix_ns": 1, "prefix_block_size": 4}
LEAST = {"number": 1, "arrival_ns": 5, "num_prompt_tokens": 9, "num_output_tokens": 2, "status": "finished"}
WHOLE = LEAST | {
    "max_tokens": 8,
    "prefix_ids": [2**64 - 1, 7],
    "finish_reason": "stop",
    "first_scheduled_ns": 6,
    "finish_ns": 30,
    "token_gaps_ns": [10, 12],
    "num_cached_tokens": 4,
    "num_recomputed_tokens": 3,
    "num_preemptions": 1,
    "preempted_ns": [20],
    "resumed_ns": [21],
    "client_id": "alice",
    "priority": -3,
    "weight": 2.5,
    "slo_class": "gold",
    "slo": [1.5, None],
    "deadline_s": 4.0,
    "predicted_output_tokens": 5,
    "session_id": "a1",
    "program_id": "b2",
}
NAMES = [f.name for f in fields(RecordedRequest)]


def written(folder: Path, request: dict[str, Any]) -> Path:
    lines = "\n".join(map(json.dumps, (HEAD, {"request": request})))
    (folder / f"part{SUFFIX}").write_bytes(gzip.compress(lines.encode()))
    return folder


def test_every_field_is_read(tmp_path: Path) -> None:
    assert set(NAMES) == set(WHOLE)
    [(_, _, found)] = RecordedTraffic(written(tmp_path, {**WHOLE, "of_a_later_release": 1})).requests()
    assert found.to_json() == WHOLE
    [row] = load_workload(tmp_path).held()
    assert (row.client_id, row.weight, row.num_output_tokens, row.prefix_ids) == ("alice", 2.5, 2, (2**64 - 1, 7))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in NAMES
        for value in ({}, -1.5, [[]], True)
        if (name, value) != ("deadline_s", -1.5)  # it may have passed before the request came
    ],
)
def test_what_a_field_cannot_be_is_said_with_its_place(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(WorkloadError, match=rf"part\{SUFFIX}, line 2 \(row 1\): {name}.*; expected "):
        load_workload(written(tmp_path, {**WHOLE, name: value}))


def test_a_status_is_one_of_those_of_records(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="status is 'done'; expected one of finished, refused, aborted, failed"):
        load_workload(written(tmp_path, {**LEAST, "status": "done"}))


def test_a_number_in_quotes_is_a_number(tmp_path: Path) -> None:
    """As in every other format."""
    [row] = load_workload(written(tmp_path, {**LEAST, "num_prompt_tokens": "9", "arrival_ns": "5"})).held()
    assert row.num_prompt_tokens == 9
