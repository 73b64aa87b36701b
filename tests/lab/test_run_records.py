"""Records of a run: the same each time, and as JSON."""

from __future__ import annotations

import json

import pytest

from batchwright.config import EngineConfig
from batchwright.errors import WorkloadError
from batchwright.lab import Workload, WorkloadRow, load_workload, run_arm
from batchwright.lab.run_record import RunRecord
from lab.machine import MIXED, Machine, config


def test_records_are_the_same_each_time_to_the_byte() -> None:
    load = load_workload(MIXED)
    one = run_arm(EngineConfig(max_num_batched_tokens=256), load)
    two = run_arm(EngineConfig(max_num_batched_tokens=256), load_workload(MIXED))
    assert one.dumps() == two.dumps()
    assert one.virtual_time
    assert one.backend.startswith("sim:")


def test_records_survive_a_file() -> None:
    run = run_arm(config(), load_workload(MIXED), backend=Machine(60), max_steps=80)
    assert RunRecord.from_json(json.loads(run.dumps())) == run


def test_a_file_of_another_version_or_kind_is_refused() -> None:
    run = run_arm(config(), load_workload("synthetic:n=1,prompt=10"), backend=Machine())
    value = json.loads(run.dumps())
    with pytest.raises(WorkloadError, match="record_version is 99; this Batchwright reads 1"):
        RunRecord.from_json(value | {"record_version": 99})
    del value["steps"][0]["end_s"]
    with pytest.raises(WorkloadError, match="not a run record of version 1: KeyError"):
        RunRecord.from_json(value)


REQUEST_FIELDS = """
request_id client_id priority arrival_s first_scheduled_s token_times_s finish_s num_prompt_tokens num_output_tokens
num_cached_tokens num_recomputed_tokens num_preemptions slo status finish_reason error replica
weight slo_class preempted_s resumed_s session_id program_id
"""
STEP_FIELDS = """
index start_s end_s num_prefill_tokens num_decodes num_preempted num_waiting num_running free_blocks replica
batch_size
"""


def test_json_has_the_fields_of_the_schema() -> None:
    run = run_arm(config(), load_workload("synthetic:n=2,prompt=10,output=3"), backend=Machine())
    value = json.loads(run.dumps())
    assert list(value["requests"][0]) == REQUEST_FIELDS.split()
    assert list(value["steps"][0]) == STEP_FIELDS.split()
    assert len(value["requests"][0]["token_times_s"]) == 3


def test_what_records_of_before_lack_has_a_default() -> None:
    record = run_arm(config(), load_workload("synthetic:n=2,prompt=10,output=3"), backend=Machine())
    value = json.loads(record.dumps())
    for name in ("weight", "slo_class", "preempted_s", "resumed_s", "session_id", "program_id"):
        for one in value["requests"]:
            del one[name]
    for one in value["steps"]:
        del one["batch_size"]
    old = RunRecord.from_json(value)
    assert old.requests == record.requests
    assert {s.batch_size for s in old.steps} == {0}


def test_a_record_says_the_weight_of_its_client() -> None:
    rows = tuple(WorkloadRow(0, 9, 2, client_id="a", weight=w) for w in (1.0, 2.5))
    record = run_arm(config(), Workload("w", rows, "w"), backend=Machine())
    assert [r.weight for r in record.requests] == [1.0, 2.5]
