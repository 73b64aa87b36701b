"""Trace files: what is read from them, and what a broken row is told."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from batchwright.errors import WorkloadError
from batchwright.lab import load_workload
from batchwright.lab.readers.reader import Reader, csv_rows
from batchwright.lab.row import WorkloadRow
from batchwright.request import SLO

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
TRACES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"


@pytest.fixture
def write(tmp_path: Path):
    def make(text: str, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return make


def trace(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"needs {name} of the shared data, which is not part of the project")
    return path


def rows(*values: object) -> str:
    return "".join(json.dumps(v) + "\n" for v in values)


def test_azure_keeps_the_seven_decimals_of_its_times(write) -> None:
    path = write(AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n")
    assert load_workload(path).rows == (WorkloadRow(0, 374, 44), WorkloadRow(4_314_579_000, 396, 109))


def test_azure_times_may_have_a_zone_and_cross_midnight(write) -> None:
    path = write(
        AZURE + "2024-05-10 23:59:59.5+00:00,1,2\n\n2024-05-11 00:00:00.25Z,3,4\n2024-05-11 01:00:01+01:00,5,6\n"
    )
    assert [r.arrival_ns for r in load_workload(path).rows] == [0, 750_000_000, 1_500_000_000]


def test_rows_are_sorted_by_arrival_and_ties_keep_the_order_of_the_file(write) -> None:
    path = write(AZURE + "2023-11-16 10:00:02,1,1\n2023-11-16 10:00:01,2,1\n2023-11-16 10:00:02,3,1\n")
    assert [(r.arrival_ns, r.num_prompt_tokens) for r in load_workload(path).rows] == [
        (0, 2),
        (1_000_000_000, 1),
        (1_000_000_000, 3),
    ]


def test_a_byte_order_mark_and_other_columns_do_no_harm(write) -> None:
    path = write("\ufeffid,TIMESTAMP,ContextTokens,GeneratedTokens\r\nx,2023-11-16 10:00:00,7,8\r\n")
    assert load_workload(path).rows == (WorkloadRow(0, 7, 8),)


def test_mooncake(write) -> None:
    path = write(rows({"timestamp": 1500, "input_length": 1025, "output_length": 3, "hash_ids": [0, 7, 9]}))
    assert load_workload(path).rows == (
        WorkloadRow(1_500_000_000, 1025, 3, prefix_ids=(0, 7, 9), prefix_block_size=512),
    )


def test_plain_jsonl_with_every_field(write) -> None:
    every = {
        "arrival_s": 0.25,
        "num_prompt_tokens": 100,
        "num_output_tokens": 20,
        "max_tokens": 64,
        "prefix_ids": [1, 2],
        "prefix_block_size": 16,
        "priority": -1,
        "client_id": 7,
        "weight": 2,
        "deadline_s": 3.5,
        "slo": {"ttft_s": 1, "tpot_s": None},
        "predicted_output_tokens": 0,
        "session_id": "s",
        "program_id": "p",
    }
    path = write(rows(every, {"arrival_s": 1, "num_prompt_tokens": 1, "num_output_tokens": 1, "slo": None}))
    assert load_workload(path).rows == (
        WorkloadRow(
            250_000_000,
            100,
            20,
            max_tokens=64,
            prefix_ids=(1, 2),
            prefix_block_size=16,
            priority=-1,
            client_id="7",
            weight=2.0,
            deadline_s=3.5,
            slo=SLO(1.0, None),
            predicted_output_tokens=0,
            session_id="s",
            program_id="p",
        ),
        WorkloadRow(1_000_000_000, 1, 1),
    )


GOOD = {"arrival_s": 0, "num_prompt_tokens": 1, "num_output_tokens": 1}
MOON = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [0]}


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        (AZURE + "2023-11-16 10:00:00,1,1\nyesterday,1,1\n", "TIMESTAMP is 'yesterday'", "a time such as"),
        (AZURE + "2023-11-16 10:00:00,1,1\n2023-13-16 10:00:00,1,1\n", "TIMESTAMP is '2023-13-16", "a time such as"),
        (AZURE + "2023-11-16 10:00:00,1,1\n2023-11-16 10:00:00,many,1\n", "ContextTokens is 'many'", "at least 1"),
        (AZURE + "2023-11-16 10:00:00,1,1\n2023-11-16 10:00:00,1,0\n", "GeneratedTokens is '0'", "at least 1"),
        (AZURE + "2023-11-16 10:00:00,1,1\n2023-11-16 10:00:00,1\n", "2 fields", "3: TIMESTAMP,"),
        (rows(GOOD) + "\n", None, None),
        (rows(GOOD) + "{oops\n", "not JSON", "one JSON object a line"),
        (rows(GOOD, [1]), "a JSON list", "one JSON object a line"),
        (rows(GOOD, {"arrival_s": 1, "num_prompt_tokens": 1}), "there is no num_output_tokens", "at least 1"),
        (rows(GOOD, {**GOOD, "num_prompt_tokens": 1.5}), "num_prompt_tokens is 1.5", "a whole number"),
        (rows(GOOD, {**GOOD, "num_prompt_tokens": True}), "num_prompt_tokens is True", "a whole number"),
        (rows(GOOD, {**GOOD, "arrival_s": -1}), "arrival_s is -1", "at least 0"),
        (rows(GOOD, {**GOOD, "arrival_s": "now"}), "arrival_s is 'now'", "a finite number"),
        (rows(GOOD, {**GOOD, "arrival_s": float("nan")}), "arrival_s is nan", "a finite number"),
        (rows(GOOD, {**GOOD, "max_tokens": 0}), "max_tokens is 0", "at least 1"),
        (rows(GOOD, {**GOOD, "weight": 0}), "weight is 0", "above 0"),
        (rows(GOOD, {**GOOD, "priority": "high"}), "priority is 'high'", "lower goes first"),
        (rows(GOOD, {**GOOD, "client_id": ""}), "client_id is ''", "a non-empty string"),
        (rows(GOOD, {**GOOD, "slo": 1.5}), "slo is 1.5", 'an object such as {"ttft_s": 1.0'),
        (rows(GOOD, {**GOOD, "slo": {"ttft": 1}}), "slo has no objective 'ttft' (did you mean 'ttft_s'?)", "ttft_s"),
        (rows(GOOD, {**GOOD, "slo": {"tpot_s": 1, "tpto_s": 1}}), "'tpto_s' (did you mean 'tpot_s'", "in seconds"),
        (rows(GOOD, {**GOOD, "slo": {"e2el": 1}}), "slo has no objective 'e2el' (choices: tpot_s, ttft_s)", "tpot_s"),
        (rows(GOOD, {**GOOD, "slo": {"ttft_s": 0}}), "slo.ttft_s is 0", "above 0"),
        (rows(GOOD, {**GOOD, "prefix_ids": [1]}), "there is no prefix_block_size", "at least 1"),
        (rows(GOOD, {**GOOD, "prefix_ids": [-1], "prefix_block_size": 4}), "prefix_ids holds -1", "at least 0"),
        (rows(GOOD, {**GOOD, "max_token": 5}), "unknown field 'max_token' (did you mean 'max_tokens'?)", "known"),
        (rows(MOON, {**MOON, "timestamp": "0"}), "timestamp is '0'", "a finite number"),
        (rows(MOON, {**MOON, "hash_ids": [0, 1]}), "hash_ids has 2 ids for an input_length of 512", "at most 1"),
        (rows(MOON, {k: v for k, v in MOON.items() if k != "hash_ids"}), "there is no hash_ids", "a list"),
    ],
)
def test_a_broken_row_is_told_where_it_is_and_what_was_expected(write, text, found, expected) -> None:
    path = write(text)
    if found is None:
        assert len(load_workload(path)) == 1
        return
    with pytest.raises(WorkloadError) as error:
        load_workload(path)
    message = str(error.value)
    line, row = (3, 2) if text.startswith("TIME") else (2, 2)
    assert message.startswith(f"{path}, line {line} (row {row}): ")
    assert found in message
    assert expected in message.partition("; expected ")[2]


def test_a_pointer_of_git_lfs_is_told_from_a_trace(write) -> None:
    path = write("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(
        WorkloadError, match=r"is a pointer of Git LFS, and not the trace: fetch that with git lfs pull"
    ):
        load_workload(path)


def test_line_and_row_part_at_empty_lines(write) -> None:
    path = write(rows(GOOD) + "\n\n" + rows({**GOOD, "arrival_s": None}))
    with pytest.raises(WorkloadError, match=r"line 4 \(row 2\): arrival_s is None; expected a finite number"):
        load_workload(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b,c\n1,2,3\n", "line 1 is 'a,b,c', which is no known format"),
        ("\n \n", "is empty"),
        ('{"text": "hello"}\n', "no known format"),
        ("x" * 1000, "…'"),
    ],
)
def test_an_unknown_file_is_told_what_is_understood(write, text, says) -> None:
    with pytest.raises(WorkloadError) as error:
        load_workload(write(text))
    message = str(error.value)
    assert says in message
    for known in (
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "hash_ids",
        "arrival_s",
        "recorded inside vLLM",
        "synthetic:",
    ):
        assert known in message
    assert len(message) < 900


def test_absent_binary_and_row_less_files(write, tmp_path) -> None:
    with pytest.raises(WorkloadError, match=r"cannot read .*nowhere\.csv: No such file"):
        load_workload(tmp_path / "nowhere.csv")
    (tmp_path / "traces.csv").touch()
    with pytest.raises(
        WorkloadError, match=r"cannot read .*trace\.csv: No such file or directory; did you mean 'traces\.csv'\?$"
    ):
        load_workload(tmp_path / "trace.csv")
    with pytest.raises(WorkloadError, match="is a folder without a recording of traffic"):
        load_workload(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(WorkloadError, match="is not a text file"):
        load_workload(tmp_path / "binary")
    with pytest.raises(WorkloadError, match="has a header and no rows"):
        load_workload(write(AZURE))


def test_names_that_no_file_can_have_are_said_to_be_none() -> None:
    """A specification with a slip in its first word, say."""
    with pytest.raises(WorkloadError, match=r"cannot read .*: File name too long; a workload is one of"):
        load_workload("syntetic:rate=4,n=100,prompt=lognormal(128,0.6),output=uniform(4,12)," * 5)


def test_a_folder_that_cannot_be_read_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(WorkloadError, match=r"cannot read .*: No such file or directory; a workload is one of"):
        load_workload(tmp_path / "trace.csv")


def test_a_further_reader_is_asked_first(write) -> None:
    mine = Reader(
        "mine", lambda line: line.startswith("arrivals"), lambda path, first, lines: iter([WorkloadRow(1, 2, 3)])
    )
    assert load_workload(write("arrivals\n"), readers={"mine": mine}).rows == (WorkloadRow(1, 2, 3),)


def test_speedup_divides_arrivals_only(write) -> None:
    path = write(rows({**GOOD, "arrival_s": 3, "deadline_s": 5}, {**GOOD, "arrival_s": 9}))
    fast = load_workload(path, speedup=3)
    assert [r.arrival_ns for r in fast.rows] == [1_000_000_000, 3_000_000_000]
    assert fast.rows[0].deadline_s == 5
    assert fast.speedup == 3
    assert fast.span_s == 3


@pytest.mark.parametrize("speedup", [0, -1, float("inf"), float("nan")])
def test_speedup_out_of_range(write, speedup) -> None:
    with pytest.raises(WorkloadError, match="speedup must be a finite number above 0"):
        load_workload(write(rows(GOOD)), speedup=speedup)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_limit_out_of_range(write, limit) -> None:
    with pytest.raises(WorkloadError, match="limit must be a whole number of at least 1"):
        load_workload(write(rows(GOOD)), limit=limit)


def test_limit_takes_the_first(write) -> None:
    path = write(rows(*({**GOOD, "arrival_s": i} for i in range(5))))
    assert len(load_workload(path, limit=2)) == 2
    assert len(load_workload(path, limit=9)) == 5


def test_slo_goes_to_rows_without_one(write) -> None:
    path = write(rows(GOOD, {**GOOD, "slo": {"tpot_s": 0.1}}))
    slos = [r.slo for r in load_workload(path, slo=SLO(ttft_s=2)).rows]
    assert slos == [SLO(ttft_s=2), SLO(tpot_s=0.1)]


def test_hash_follows_every_field_and_nothing_else(write) -> None:
    base = load_workload(write(rows(GOOD, GOOD)))
    assert load_workload(write(rows(GOOD, GOOD), "another_name")).hash == base.hash
    for change in (
        {"arrival_s": 1},
        {"num_output_tokens": 2},
        {"client_id": "c"},
        {"slo": {"ttft_s": 1}},
        {"priority": 1},
    ):
        assert load_workload(write(rows(GOOD, {**GOOD, **change}))).hash != base.hash


@pytest.mark.parametrize(
    ("name", "num", "span_s", "num_prompt", "num_output"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19366, 3501.7, 22_361_870, 4_088_665),
        ("AzureLLMInferenceTrace_code.csv", 8819, 3435.9, 18_059_974, 245_896),
        ("mooncake_conversation_trace.jsonl", 12031, 3537.0, 144_793_823, 4_122_048),
    ],
)
def test_the_real_traces_are_read_whole(name, num, span_s, num_prompt, num_output) -> None:
    workload = load_workload(trace(name))
    assert len(workload) == num
    assert workload.span_s == pytest.approx(span_s, abs=0.1)
    assert sum(r.num_prompt_tokens for r in workload.rows) == num_prompt
    assert sum(r.num_output_tokens for r in workload.rows) == num_output


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        ("1,2,3\r\n", ["1", "2", "3"]),
        (" 1,, 3", [" 1", "", " 3"]),
        ('"1,5",2,"say ""so"""\n', ["1,5", "2", 'say "so"']),
        ("1,2,", ["1", "2", ""]),
    ],
)
def test_cells_are_those_of_csv(line: str, cells: list[str]) -> None:
    seen: list[dict[str, str]] = []

    def make(fields: Any) -> WorkloadRow:
        seen.append(dict(fields.values))
        return WorkloadRow(0, 1, 1)

    list(csv_rows(Path("t"), (1, "a,b,c\n"), iter([(2, line)]), make))
    assert [*seen[0].values()] == cells


def test_a_row_at_another_time_is_otherwise_the_same() -> None:
    row = WorkloadRow(
        5, 3, 2, prefix_ids=(1,), prefix_block_size=2, priority=4, slo=SLO(1.0), place="here", after=("x",)
    )
    moved = row.at(9)
    assert moved == dataclasses.replace(row, arrival_ns=9) and (moved.place, row.arrival_ns) == ("here", 5)
    with pytest.raises(WorkloadError, match="arrival_ns must be at least 0, not -1"):
        row.at(-1)
