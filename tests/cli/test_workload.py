"""``batchwright workload``, and the options of a workload on other commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchwright.cli.app import app
from batchwright.lab import load_workload

from .conftest import Cli

Write = Callable[[str, str], Path]
CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2024-05-10 00:00:{i:02d},{40 + 10 * i},{5 + i}\n" for i in range(12)
)
SMALL = ("--backend", "sim:llama-3.1-8b@h100")


def test_inspect_shows_what_a_workload_is_like(cli: Cli, write: Write) -> None:
    write("t.csv", CSV)
    answer = cli("workload", "inspect", "t.csv", "--rule", "num_prompt_tokens>100: client_id=big", "--json", "i.json")
    assert answer.code == 0, answer.error
    found = json.loads(Path("i.json").read_text())
    assert (found["num_requests"], found["span_s"], found["clients"]) == (12, 11.0, {"big": 5})
    assert found["prompts"] == {
        "total": 1140, "mean": 95.0, "low": 40, "p50": 95.0, "p90": 139.0, "p99": 148.9, "high": 150,
    }  # fmt: skip
    for words in (
        "12 requests over 11.0 s",
        "1.09 a second",
        "variation of the gaps 0.00",
        "0.0% of prompt tokens",
        "clients: big 5",
        "up to 128",
    ):
        assert words in answer.out
    heights = [set(line[11:]) for line in answer.out.splitlines() if re.match(r"^ +[\d.]+ [ ▁-█]+$", line)]
    assert heights and any("█" in marks for marks in heights)
    assert all(line == line.rstrip() for line in answer.out.splitlines())


def test_inspect_of_sessions_and_of_texts(cli: Cli, write: Write) -> None:
    answer = cli("workload", "inspect", "synthetic:rate=2,n=5,turns=3,think=1", "--rule", "*: abort_after_s=3")
    for words in ("sessions", "wait for others", "10 requests", "may be aborted", "turns"):
        assert words in answer.out
    write("p.jsonl", '{"prompt": "hello", "num_output_tokens": 3}\n')
    assert "unknown: prompts are text" in cli("workload", "inspect", "p.jsonl").out


def test_other_workloads_are_made_of_one(cli: Cli, write: Write) -> None:
    write("t.csv", CSV)
    answer = cli("workload", "convert", "t.csv", "--to", "c.jsonl", "--speedup", "2", "--rule", "*: priority=3")
    assert answer.code == 0 and answer.out.startswith("12 requests over 5.5 s, hash ")
    converted = load_workload("c.jsonl")
    assert converted.hash in answer.out and {r.priority for r in converted.rows} == {3}
    assert cli("workload", "slice", "t.csv", "--window", "2:5", "--to", "s.jsonl").code == 0
    assert [r.num_prompt_tokens for r in load_workload("s.jsonl").rows] == [60, 70, 80]
    assert cli("workload", "slice", "t.csv", "--skip", "3", "--limit", "2", "--to", "s.jsonl").code == 0
    assert [(r.arrival_ns, r.num_prompt_tokens) for r in load_workload("s.jsonl").rows] == [(0, 70), (10**9, 80)]
    assert cli("workload", "merge", "t.csv", "synthetic:n=4,client=b", "--to", "m.jsonl").code == 0
    assert len(load_workload("m.jsonl")) == 16
    assert cli("workload", "resample", "t.csv", "--seed", "3", "--to", "r.jsonl").code == 0
    assert len(load_workload("r.jsonl")) == 12 and load_workload("r.jsonl").hash != converted.hash


def test_skipped_rows_are_told_of(cli: Cli, write: Write) -> None:
    write("t.csv", CSV + "never,1,2\n")
    answer = cli("workload", "convert", "t.csv", "--to", "c.jsonl")
    assert answer.code == 2 and "t.csv, line 14 (row 13): TIMESTAMP is 'never'" in answer.error
    answer = cli("workload", "convert", "t.csv", "--to", "c.jsonl", "--skip-bad-rows")
    assert answer.code == 0 and "t.csv: 1 broken row was skipped: t.csv, line 14" in answer.err
    answer = cli("run", "vllm_v1", *SMALL, "--workload", "t.csv", "--skip-bad-rows", "--limit", "4")
    assert answer.code == 0 and "1 broken row was skipped" in " ".join(answer.out.split())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--window", "5"], "a window is FROM:UNTIL"),
        (["--window", "x:3"], "a window is FROM:UNTIL"),
        (["--window", "900:"], "nobody of workload"),
        (["--skip", "99"], "skip 99 leaves none"),
        (["--rate", "2", "--speedup", "2"], "--rate and --speedup both stretch arrival times"),
        (["--rate", "0"], "rate must be a finite number above 0"),
        (["--wait-turns", "long"], "--wait-turns is 'long'; expected seconds of at least 0, or trace"),
        (["--arrivals", "rate=0"], "rate of arrivals is '0'"),
        (["--rule", "*: priority=x"], "priority is 'x'"),
        (["--chars-per-token", "0"], "chars_per_token must be a finite number above 0"),
        (["--concurrency", "0"], "concurrency must be a whole number of at least 1"),
        (["--think", "1"], "give --concurrency as well"),
        (["--concurrency", "2", "--think", "-1"], "think_s must be a finite number of at least 0"),
        (["--too-long", "cut"], "too_long is 'cut'; expected one of refuse, clip, drop"),
    ],
)
def test_options_out_of_their_range(cli: Cli, write: Write, args: list[str], words: str) -> None:
    write("t.csv", CSV)
    answer = cli("run", "vllm_v1", *SMALL, "--workload", "t.csv", *args)
    assert answer.code == 2 and words in answer.error


def test_a_closed_loop_of_sessions_under_ab_run_diff_and_play(cli: Cli) -> None:
    spec = (
        "synthetic:n=6,turns=uniform(1,3),think=0.2,prompt=60,output=uniform(5,30) + synthetic:n=4,prompt=50,client=b"
    )
    options = [
        "--workload",
        spec,
        "--concurrency",
        "3",
        "--think",
        "0.1",
        "--rule",
        "client_id=b: abort_after_tokens=4",
    ]
    answer = cli("ab", "vllm_v1", "stall_free", *SMALL, *options, "--json", "out.json")
    assert answer.code == 0, answer.error
    runs = json.loads(Path("out.json").read_text())["runs"]
    steps = runs[0]["steps"]
    for run in runs:
        assert run["workload"]["arrivals"] == "closed" and run["workload"]["concurrency"] == 3
        aborted = [r for r in run["requests"] if r["status"] == "aborted"]
        assert [r["num_output_tokens"] for r in aborted] == [4] * 4
        assert {r["client_id"] for r in aborted} == {"b"}
    answer = cli("diff", "vllm_v1", "vllm_v1", *SMALL, *options)
    assert answer.code == 0 and answer.out.startswith("no difference in ")
    assert int(answer.out.split()[3]) == len(steps)
    assert cli("diff", "vllm_v1", "static_batch", *SMALL, *options).code in (0, 1)


def test_play_goes_through_rows_that_wait() -> None:
    spec = "synthetic:n=2,turns=2,think=1,prompt=20,output=3"
    found = CliRunner().invoke(app, ["play", spec, *SMALL], prog_name="batchwright", input="end\nquit\n")
    assert found.exit_code == 0 and "r000003" in found.stdout


def test_too_long_prompts_are_counted_in_the_report(cli: Cli, write: Write) -> None:
    write("t.csv", CSV)
    for how, words in (("clip", "were cut"), ("drop", "were left out")):
        answer = cli("run", "vllm_v1", *SMALL, "--workload", "t.csv", "--set", "max_model_len=100", "--too-long", how)
        assert answer.code == 0, answer.error
        said = f"6 of 12 prompts left no room for an output in 100 tokens and {words} (the longest has 150)"
        assert said in " ".join(answer.out.split())
