"""Traces of others, in small files of their formats; rows that are left out, and rows that are skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchwright import EngineConfig
from batchwright.errors import WorkloadError
from batchwright.lab import Workload, WorkloadRow, by_length, load_workload, run_arm, waiting_turns
from batchwright.lab.inspection import inspect
from batchwright.lab.links import arranged
from batchwright.lab.readers import LeftOut, Reader
from batchwright.lab.readers.jsonl import write_jsonl
from fake_backend import FakeBackend, FakeChatTokenizer
from lab.test_readers import trace

S = 1_000_000_000
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def lines(*values: object) -> str:
    return "".join(json.dumps(v) + "\n" for v in values)


# BurstGPT --------------------------------------------------------------------------------------------------------


def test_burstgpt_leaves_failures_out_and_counts_them(tmp_path: Path) -> None:
    text = (
        BURST
        + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,0,0,0,API log\n118,GPT-4,417,276,693,Conversation log\n"
    )
    load = load_workload(written(tmp_path / "b.csv", text))
    assert load.rows == (
        WorkloadRow(0, 472, 18, slo_class="ChatGPT"),
        WorkloadRow(113 * S, 417, 276, slo_class="GPT-4"),
    )
    assert load.notes == ("b.csv: 1 row got no response (Response tokens is 0: failures): left out",)
    record = run_arm(EngineConfig(), load, backend=FakeBackend(), declared="exact")
    assert load.notes[0] in record.notes


def test_burstgpt_with_sessions(tmp_path: Path) -> None:
    text = (
        BURST_3 + "19440110.0,u1,43,GPT-4,906,446,1352,Conversation log\n"
        "19440161.0,,2,ChatGPT,36,29,65,API log\n19440200.5,u1,3,GPT-4,1400,12,1412,Conversation log\n"
    )
    path = written(tmp_path / "b.csv", text)
    rows = load_workload(path).rows
    assert [(r.arrival_ns, r.session_id) for r in rows] == [(0, "u1"), (51 * S, None), (90_500_000_000, "u1")]
    assert tuple(load_workload(path, lazy=True).rows) == rows
    with pytest.raises(WorkloadError, match=r"line 3 \(row 2\): Request tokens is 'x'; expected a whole number"):
        load_workload(written(path, text.replace(",36,", ",x,")))
    with pytest.raises(WorkloadError, match=r"line 3 \(row 2\): Timestamp is 'noon'; expected a finite number"):
        load_workload(written(path, text.replace("19440161.0", "noon")))


# Bailian ---------------------------------------------------------------------------------------------------------


def chat(chat_id: int, parent: int, when: float, *ids: int, length: int | None = None) -> dict[str, Any]:
    return {
        "chat_id": chat_id,
        "parent_chat_id": parent,
        "timestamp": when,
        "input_length": length or 16 * len(ids),
        "output_length": 7,
        "type": "text",
        "turn": 1 if parent < 0 else 2,
        "hash_ids": list(ids),
    }


def test_bailian_blocks_are_of_16_tokens_and_chats_are_sessions(tmp_path: Path) -> None:
    text = lines(
        chat(1, -1, 0.5, 10, 11),
        chat(2, -1, 0.75, 20),
        chat(3, 1, 61.114, 10, 11, 12, length=40),
        chat(4, 3, 70, 10, 11, 12, 13),
        chat(9, 8, 80, 30),
    )
    rows = load_workload(written(tmp_path / "q.jsonl", text)).rows
    assert [r.session_id for r in rows] == ["1", "2", "1", "1", "8"]  # of the last the beginning is not in the file
    assert rows[2] == WorkloadRow(
        61_114_000_000,
        40,
        7,
        prefix_ids=(10, 11, 12),
        prefix_block_size=16,
        session_id="1",
        slo_class="text",
    )
    found = inspect(load_workload(tmp_path / "q.jsonl"))
    assert found.num_sessions == 3 and found.classes == {"text": 5}
    hits = 32 + 40  # of 3 what 1 had; of 4 what 3 had, 40 tokens
    assert found.prefix_reuse == pytest.approx(hits / sum(r.num_prompt_tokens or 0 for r in rows))
    with pytest.raises(WorkloadError, match="hash_ids has 2 ids for an input_length of 16; expected at most 1"):
        load_workload(written(tmp_path / "x.jsonl", lines(chat(1, -1, 0, 1, 2, length=16))))


def test_turns_that_wait(tmp_path: Path) -> None:
    text = lines(chat(1, -1, 0.5, 10), chat(2, -1, 0.75, 20), chat(3, 1, 10.5, 10, 11), chat(4, 3, 30, 10, 11, 12))
    load = load_workload(written(tmp_path / "q.jsonl", text))
    for think, waits in ((None, [10.0, 19.5]), (2.0, [2.0, 2.0])):
        rows = waiting_turns(load, think).rows
        turns = [r for r in rows if r.session_id == "1"]
        assert [r.think_s for r in turns[1:]] == waits
        assert [r.after for r in turns] == [(), (turns[0].row_id,), (turns[1].row_id,)]
        assert turns[0].arrival_ns == S // 2
    record = run_arm(EngineConfig(), waiting_turns(load, 0.25), backend=FakeBackend(), declared="exact")
    first, third = record.requests[0], record.requests[2]
    assert first.finish_ns is not None and third.arrival_ns == first.finish_ns + S // 4


# ShareGPT --------------------------------------------------------------------------------------------------------

TALKS: list[dict[str, Any]] = [
    {
        "id": "a",
        "conversations": [
            {"from": "system", "value": "Be short."},
            {"from": "human", "value": "Name a river."},
            {"from": "gpt", "value": "The Rhine"},
            {"from": "human", "value": "Another!"},
            {"from": "gpt", "value": "Elbe"},
        ],
    },
    {
        "id": "b",
        "conversations": [{"from": "gpt", "value": "I begin."}, {"from": "human", "value": "No answer"}],
    },
    {"id": "c", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
]


@pytest.mark.parametrize("text", [json.dumps(TALKS), json.dumps(TALKS, indent=1), lines(*TALKS)])
def test_sharegpt_turns_are_requests_that_wait_for_each_other(tmp_path: Path, text: str) -> None:
    load = load_workload(written(tmp_path / "s.json", text))
    by_id = {r.row_id: r for r in load.rows}
    assert list(by_id) == ["1.0", "3.0", "1.1"]
    assert by_id["1.1"].after == ("1.0",) and by_id["1.1"].session_id == "a" and by_id["1.1"].answer == "Elbe"
    assert by_id["1.1"].prompt == {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Name a river."},
            {"role": "assistant", "content": "The Rhine"},
            {"role": "user", "content": "Another!"},
        ]
    }
    assert load.notes == ("s.json: 1 row had no turn of a user that is answered: left out",)


def test_sharegpt_with_a_tokenizer_and_by_length(tmp_path: Path) -> None:
    load = load_workload(written(tmp_path / "s.json", json.dumps(TALKS)))
    backend = FakeBackend(tokenizer=FakeChatTokenizer(), vocab_size=2000)
    record = run_arm(EngineConfig(), load, backend=backend)
    assert [r.num_output_tokens for r in record.requests] == [len("The Rhine"), len("Hello"), len("Elbe")]
    with pytest.raises(WorkloadError, match=r"line 1 .*has no tokenizer"):
        run_arm(EngineConfig(), load, backend=FakeBackend())
    made = by_length(load, 4)
    one, hi, two = made.rows
    assert (one.num_prompt_tokens, one.num_output_tokens) == (3 + 4, 3)  # 9 and 13 characters, and 9
    assert two.prefix_ids[:2] == one.prefix_ids and two.prefix_lengths == (3, 4, 3, 2)
    assert set(hi.prefix_ids).isdisjoint(two.prefix_ids)
    assert made.notes[-1] == "3 prompts are texts, and were taken for made-up tokens, one for 4 characters"
    record = run_arm(EngineConfig(), made, backend=FakeBackend(), declared="exact")
    assert {r.status for r in record.requests} == {"finished"} and made.notes[-1] in record.notes
    assert by_length(made, 4) is made


@pytest.mark.parametrize(
    ("talk", "words"),
    [
        ([1], "a JSON list"),
        ({"id": "a"}, "there is no conversations"),
        ({"conversations": {}}, "conversations is {}"),
        ({"conversations": [{"from": "human"}]}, "a turn is {'from': 'human'}"),
        ({"conversations": [{"from": "robot", "value": "x"}]}, "a turn is from 'robot'; expected one of human"),
    ],
)
def test_a_broken_conversation_says_where(tmp_path: Path, talk: Any, words: str) -> None:
    path = written(tmp_path / "s.json", json.dumps([TALKS[0], talk]))
    with pytest.raises(WorkloadError) as caught:
        load_workload(path)
    assert str(caught.value).startswith(f"{path}, line 1 (row 2): ") and words in str(caught.value)
    kept = load_workload(path, skip_bad_rows=True)
    assert len(kept) == 2 and "s.json: 1 broken row was skipped: " in kept.notes[0]


def test_a_list_that_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path / "s.json", json.dumps(TALKS, indent=1)[:-30])
    with pytest.raises(WorkloadError, match=r"s\.json, line \d+: not JSON .*expected a list of conversations"):
        load_workload(path)


def test_texts_without_a_length(tmp_path: Path) -> None:
    load = load_workload(written(tmp_path / "p.jsonl", lines({"prompt": "abcdefgh", "answer": "xyz"}, {"prompt": "a"})))
    with pytest.raises(WorkloadError, match=r"line 2 .*give the row num_output_tokens or an answer"):
        by_length(load, 4)
    assert by_length(load.first(1), 3).rows[0].num_prompt_tokens == 3
    for chars in (0, -1, float("nan"), float("inf")):
        with pytest.raises(WorkloadError, match="chars_per_token must be a finite number above 0"):
            by_length(load, chars)


# Azure 2024 ------------------------------------------------------------------------------------------------------


def test_azure_of_2024_has_zones_and_times_without_a_fraction(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01+00:00,2399,6\n"
    )
    path = written(tmp_path / "a.csv", text)
    assert [r.arrival_ns for r in load_workload(path).rows] == [0, 990_070_000]
    assert tuple(load_workload(path, lazy=True).rows) == load_workload(path).rows
    unordered = written(path, text + "2024-05-09 23:59:59+00:00,1,1\n")
    assert load_workload(unordered).rows[0].num_prompt_tokens == 1
    with pytest.raises(WorkloadError, match="must be in order of arrival"):
        load_workload(unordered, lazy=True)


# Broken rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "num", "bad"),
    [
        (BURST + "5,G,10,2,12,x\nsix,G,10,2,12,x\n7,G,10\n8,G,10,2,12,x\n", 2, 2),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,1,2\nnever,1,2\n", 1, 1),
        (lines({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": []}) + "{\n[]\n", 1, 2),
        (lines({"arrival_s": 0, "num_prompt_tokens": 5, "num_output_tokens": 1}, {"arrival_s": -1}), 1, 1),
        (lines(chat(1, -1, 0, 1), {"chat_id": 3}), 1, 1),
    ],
)
def test_broken_rows_are_skipped_and_counted(tmp_path: Path, text: str, num: int, bad: int) -> None:
    path = written(tmp_path / "t", text)
    with pytest.raises(WorkloadError, match=r"t, line \d+ \(row \d+\): .*; expected "):
        load_workload(path)
    load = load_workload(path, skip_bad_rows=True)
    assert len(load) == num
    assert load.notes[0].startswith(f"t: {bad} broken {'row was' if bad == 1 else 'rows were'} skipped: {path}, line ")
    record = run_arm(EngineConfig(), load, backend=FakeBackend(), declared="exact")
    assert record.notes[0] == load.notes[0]


def test_a_file_of_nothing_but_broken_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "t", BURST + "5,G,10,0,10,x\nsix,G,10,2,12,x\n")
    with pytest.raises(WorkloadError, match=r"has no request that could be offered: .*left out; .*was skipped"):
        load_workload(path, skip_bad_rows=True)


def test_a_reader_of_a_plugin_may_leave_rows_out_and_go_on_behind_broken_ones(tmp_path: Path) -> None:
    def read(path: Path, first: Any, lines: Any) -> Any:
        for _, line in lines:
            text = line.strip()
            if text == "-":
                yield LeftOut("are dashes")
            elif text.isdigit():
                yield WorkloadRow(50 * S - int(text) * S, 3, 2)
            else:
                yield WorkloadError(f"{text!r}; expected a number")

    mine = Reader("mine", lambda line: line.startswith("mine"), read, from_earliest=True)
    path = written(tmp_path / "m", "mine\n3\n-\nx\n7\n-\n")
    with pytest.raises(WorkloadError, match=r"^'x'; expected a number$"):
        load_workload(path, readers={"mine": mine})
    load = load_workload(path, readers={"mine": mine}, skip_bad_rows=True)
    assert [r.arrival_ns // S for r in load.rows] == [0, 4]
    assert load.notes == (
        "m: 2 rows are dashes: left out",
        "m: 1 broken row was skipped: 'x'; expected a number",
    )


# Plain JSONL -----------------------------------------------------------------------------------------------------

GOOD = {"arrival_s": 0, "num_prompt_tokens": 40, "num_output_tokens": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"after": []}, "after is []; expected the id of a row"),
        ({"after": [""]}, "after holds ''"),
        ({"after": True}, "after is True"),
        ({"think_s": -1}, "think_s is -1; expected a finite number of at least 0"),
        ({"abort_after_s": 0}, "abort_after_s is 0; expected a finite number above 0"),
        ({"abort_after_tokens": 0}, "abort_after_tokens is 0; expected a whole number of at least 1"),
        ({"answer": "yes"}, "answer without a prompt"),
        ({"prefix_ids": [1], "prefix_lengths": [2, 3]}, "prefix_lengths has 2 numbers for 1 prefix_ids"),
        ({"prefix_ids": [1], "prefix_lengths": [0]}, "prefix_lengths must be at least 1"),
        ({"prefix_ids": [1], "prefix_lengths": [2], "prefix_block_size": 2}, "one of them"),
        ({"slo_class": ""}, "slo_class is ''"),
        ({"id": ""}, "id is ''"),
    ],
)
def test_new_fields_out_of_their_range(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = written(tmp_path / "t.jsonl", lines(GOOD, {**GOOD, **change}))
    with pytest.raises(WorkloadError) as caught:
        load_workload(path)
    assert str(caught.value).startswith(f"{path}, line 2 (row 2): ") and words in str(caught.value)


def test_what_is_written_reads_as_equal_rows(tmp_path: Path) -> None:
    rows: list[WorkloadRow] = [
        WorkloadRow(
            1_234_567_891,
            40,
            3,
            max_tokens=9,
            prefix_ids=(0, 3),
            prefix_lengths=(7, 9),
            priority=-2,
            client_id="c",
            weight=0.5,
            deadline_s=3.25,
            predicted_output_tokens=0,
            session_id="s",
            program_id="p",
            row_id="x",
            slo_class="k",
            abort_after_s=2.5,
            abort_after_tokens=3,
        ),
        WorkloadRow(2 * S, 40, 3, prefix_ids=(5,), prefix_block_size=16, after=("x",), think_s=0.125),
        WorkloadRow(2 * S, None, None, prompt="text ä", answer="yes"),
        WorkloadRow(2 * S, None, 4, prompt=[1, 2, 3]),
        WorkloadRow(2 * S, None, 4, prompt={"messages": [{"role": "user", "content": "hi"}], "tools": []}),
    ]
    load = Workload("w", arranged(rows), "w")
    write_jsonl(tmp_path / "w.jsonl", load.held())
    again = load_workload(tmp_path / "w.jsonl")
    assert again.rows == load.rows and again.hash == load.hash
    with pytest.raises(WorkloadError, match="cannot write"):
        write_jsonl(tmp_path / "no" / "w.jsonl", rows)


# The real ones ---------------------------------------------------------------------------------------------------


def test_prefix_reuse_of_the_mooncake_trace_is_what_its_hashes_say() -> None:
    found = inspect(load_workload(trace("mooncake_conversation_trace.jsonl")))
    assert found.prefix_reuse == pytest.approx(0.374, abs=0.0005)
    assert found.block_reuse == pytest.approx(0.366, abs=0.0005)
    assert found.rate == pytest.approx(3.40, abs=0.01) and found.num_sessions == 0
    assert sum(found.arrivals_in_parts) == 12031
