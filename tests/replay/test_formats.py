"""What a broken file of cases gets: an error with file, line and field."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from batchwright.errors import CasesError, ConfigError
from batchwright.replay import read_cases, replay

NANO = {
    "id": "tiny",
    "config": {"max_num_seqs": 4, "max_num_batched_tokens": 8, "block_size": 2, "num_blocks": 8, "eos": 9},
    "requests": [
        {"id": 1, "arrival_step": 2, "prompt": [7, 8], "max_tokens": 3, "ignore_eos": False, "outputs": [5, 9]},
        {"id": 0, "arrival_step": 1, "prompt": [4, 5, 6], "max_tokens": 1, "ignore_eos": True, "outputs": [9]},
    ],
    "steps": [
        {"step": 0, "phase": "idle"},
        {
            "step": 1,
            "phase": "prefill",
            "scheduled": [[0, 3, 0]],
            "preempted": [],
            "finished": [0],
            "free_blocks": 8,
            "waiting": [],
            "running": [],
        },
        {
            "step": 2,
            "phase": "prefill",
            "scheduled": [[1, 2, 0]],
            "preempted": [],
            "finished": [],
            "free_blocks": 7,
            "waiting": [],
            "running": [1],
        },
        {
            "step": 3,
            "phase": "decode",
            "scheduled": [[1, 1, 2]],
            "preempted": [],
            "finished": [1],
            "free_blocks": 8,
            "waiting": [],
            "running": [],
        },
        {"step": 4, "phase": "idle"},
    ],
}
VLLM = {
    "id": "tiny",
    "config": {
        "policy": "priority",
        "max_num_seqs": 1,
        "max_num_batched_tokens": 4,
        "block_size": 4,
        "num_blocks": 8,
        "long_prefill_token_threshold": 2,
    },
    "requests": [
        {"id": 0, "arrival_step": 0, "prompt_len": 4, "max_tokens": 1, "priority": 1},
        {"id": 1, "arrival_step": 0, "prompt_len": 3, "max_tokens": 2, "priority": 0},
    ],
    "steps": [
        {
            "step": k,
            "scheduled": scheduled,
            "preempted": [],
            "finished": finished,
            "free_blocks": free,
            "running": running,
            "num_waiting": waiting,
        }
        for k, (scheduled, finished, free, running, waiting) in enumerate(
            [
                ([[1, 2]], [], 7, [1], 1),  # the better priority first, cut to the threshold
                ([[1, 1]], [], 7, [1], 1),
                ([[1, 1]], [1], 8, [], 1),
                ([[0, 4]], [0], 8, [], 0),  # alone: no threshold
            ]
        )
    ],
}


def with_prompts() -> dict:
    data = json.loads(json.dumps(VLLM))
    for request in data["requests"]:
        request["prompt"] = [request["id"] + 1] * request["prompt_len"]
        request["outputs"] = [3] * request["max_tokens"]
    for step, computed in zip(data["steps"], (0, 2, 3, 0), strict=True):
        step["scheduled"][0].append(computed)
    return data


@pytest.fixture
def write(tmp_path):
    def write(*lines, name="cases.jsonl"):
        file = tmp_path / name
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n"
        if name.endswith(".gz"):
            file.write_bytes(gzip.compress(text.encode()))
        else:
            file.write_text(text)
        return file

    return write


@pytest.mark.parametrize("name", ["cases.jsonl", "cases.jsonl.gz"])
def test_both_outer_formats_agree_gzipped_or_not(write, name):
    assert replay(write(NANO, NANO, name=name), "prefill_first").num_steps == 10
    for data in (VLLM, with_prompts()):
        report = replay(write(data, name=name), "vllm_v1")
        assert report.agrees, str(report)
    assert str(report).endswith("all 1 cases agree, 4 steps")


def test_a_gzipped_file_is_known_by_its_content(write):
    file = write(NANO, name="cases.jsonl.gz")
    assert replay(file.rename(file.with_name("cases.jsonl")), "prefill_first").agrees


def test_parameters_in_the_file_give_way_to_those_of_the_caller(write):
    file = write(VLLM)
    assert replay(file, "vllm_v1:scheduling_policy=priority").agrees
    report = replay(file, "vllm_v1:scheduling_policy=fcfs")
    assert report.differences[0].step == 0
    assert report.differences[0].fields == ["scheduled", "running"]


def change(data: dict, path: str, value: object) -> dict:
    data = json.loads(json.dumps(data))
    *parents, last = (int(p) if p.isdigit() else p for p in path.split("."))
    inner = data
    for parent in parents:
        inner = inner[parent]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return data


@pytest.mark.parametrize(
    ("data", "path", "value", "says"),
    [
        (NANO, "config.block_size", 0, "config.block_size is 0: Input should be greater than or equal to 1"),
        (NANO, "config.block_size", ..., "config.block_size is .*: Field required"),
        (NANO, "config.watermark", 1, "config.watermark is 1: Extra inputs are not permitted"),
        (NANO, "requests.1.prompt", [], "requests.1.prompt is .*at least 1 item"),
        (NANO, "requests.0.prompt.1", -3, "requests.0.prompt.1 is -3"),
        (NANO, "requests.0.max_tokens", "3", "requests.0.max_tokens is '3': Input should be a valid integer"),
        (NANO, "requests.1.id", 1, "requests: two have id 1"),
        (NANO, "steps.0.phase", "asleep", "steps.0.phase is 'asleep'"),
        (NANO, "steps.1.scheduled.0", [0, 3], "steps.1.scheduled.0"),
        (VLLM, "config.policy", "lifo", "config.policy is 'lifo'.*'fcfs' or 'priority'"),
        (VLLM, "requests.0.prompt_len", 2.5, "requests.0.prompt_len is 2.5"),
        (VLLM, "requests.1.prompt", [1, 2], "requests.0: its prompt must have prompt_len = 4 token ids"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_line(write, data, path, value, says):
    file = write(data, "", change(data, path, value))
    with pytest.raises(CasesError, match=f"^{re.escape(str(file))}, line 3: {says}"):
        list(read_cases(file))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", r"line 1: not JSON: .*\(column 2\)"),
        ("[1, 2]", "line 1: a case is a JSON object, not list"),
        ({"id": 1, "config": {}}, "line 1: no known format; its keys are config, id"),
        (
            {"format": "batchwright-2"},
            "line 1: format 'batchwright-2' is not known; this version reads 'batchwright-1'",
        ),
        ({"format": "batchwright-1"}, r"line 1: id is .*Field required \(and \d more\)"),
    ],
)
def test_a_line_that_is_no_case(write, line, says):
    with pytest.raises(CasesError, match=says):
        list(read_cases(write(line)))


def test_files_that_cannot_be_read(tmp_path, write):
    with pytest.raises(CasesError, match=r"nowhere.jsonl: cannot be read: No such file"):
        list(read_cases(tmp_path / "nowhere.jsonl"))
    with pytest.raises(CasesError, match="it holds no cases"):
        list(read_cases(write("", "")))
    whole = write(NANO, name="cut.jsonl.gz").read_bytes()
    for cut in (whole[: len(whole) // 2], whole[:30] + b"???" + whole[33:]):
        (tmp_path / "cut.jsonl.gz").write_bytes(cut)
        with pytest.raises(CasesError, match=r"cut.jsonl.gz: cannot be read"):
            list(read_cases(tmp_path / "cut.jsonl.gz"))
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "\xe9"}')
    with pytest.raises(CasesError, match=r"latin.jsonl, line 1: not UTF-8"):
        list(read_cases(tmp_path / "latin.jsonl"))


def test_a_format_without_a_policy_needs_one(write):
    with pytest.raises(ConfigError, match="does not record the policy; give one with --policy"):
        replay(write(NANO))
    with pytest.raises(ConfigError, match="unknown policy 'prefil_first'; did you mean 'prefill_first'"):
        replay(write(NANO), "prefil_first")


def test_a_request_that_is_refused_now_is_a_difference(write):
    report = replay(write(NANO, change(NANO, "config.num_blocks", 1)), "prefill_first")
    assert [d.line for d in report.differences] == [2]
    assert "InfeasibleRequestError" in str(report.differences[0])
    assert report.differences[0].step == 1
