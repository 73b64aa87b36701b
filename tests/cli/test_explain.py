"""``batchwright run --explain`` and ``batchwright explain``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from .conftest import TIGHT, Cli

Write = Callable[[str, str], Path]
SMALL_POOL = ("--set", "num_blocks=40", "--set", "max_num_batched_tokens=256")


@pytest.fixture
def why(cli: Cli) -> Path:
    """A run in which somebody waits, is cut, and is evicted."""
    answer = cli("run", "stall_free:chunk_size=128", "--workload", TIGHT, *SMALL_POOL, "--explain", "why.jsonl")
    assert answer.code == 0 and "Finished" in answer.out
    return Path("why.jsonl")


def steps_of(out: str) -> list[tuple[int, int]]:
    """First and last step of each row."""
    found = re.findall(r"^(\d+)(?:-(\d+))? ", out, re.M)
    return [(int(first), int(last or first)) for first, last in found]


def test_one_request_step_by_step(cli: Cli, why: Path) -> None:
    answer = cli("explain", why, "r000003")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0] == "r000003 under stall_free on sim:llama-3.1-8b@h100:"
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    flat = " ".join(answer.out.split())
    for part in (
        "arrives with 117 prompt tokens",
        "waits: not offered room; admission of stall_free ended",
        "of 117 pending tokens; cut by chunking of stall_free",
        "evicted for r000001, which lacked blocks: preemption of stall_free named it",
        "decode, 1 token each; offered by stall_free",
        "ends: its true length in the workload reached",
    ):
        assert part in flat
    rows = steps_of(answer.out)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(rows)), "steps are missing"


def test_watching_changes_no_figure(cli: Cli, why: Path) -> None:
    cli("run", "stall_free:chunk_size=128", "--workload", TIGHT, *SMALL_POOL, "--json", "plain.json")
    args = ("--explain", "again.jsonl.gz", "--record", "decisions.jsonl", "--json", "watched.json")
    assert cli("run", "stall_free:chunk_size=128", "--workload", TIGHT, *SMALL_POOL, *args).code == 0
    plain, watched = (json.loads(Path(name).read_text())["runs"][0] for name in ("plain.json", "watched.json"))
    assert plain["batches"] == watched["batches"] and plain["steps"] == watched["steps"]
    assert cli("replay", "decisions.jsonl", "-q").code == 0
    assert cli("explain", "again.jsonl.gz", "r000003").out == cli("explain", why, "r000003").out


def test_every_request_of_the_run_has_a_story(cli: Cli, why: Path) -> None:
    for number in range(12):
        answer = cli("explain", why, f"r{number:06d}", "--json", "story.json", "-q")
        assert answer.code == 0 and not answer.out
        story = json.loads(Path("story.json").read_text())
        steps = [c for c in story["chapters"] if c["first"] is not None]
        assert story["chapters"][0]["text"].startswith("arrives")
        assert story["chapters"][-1]["text"].startswith("ends")
        for chapter in steps:
            assert len(chapter["reasons"]) == chapter["last"] - chapter["first"] + 1


def test_an_unknown_request(cli: Cli, why: Path) -> None:
    answer = cli("explain", why, "r00003")
    assert answer.code == 2
    assert "has no request 'r00003'; did you mean 'r000003'" in answer.error
    assert "there are 12: r000000," in cli("explain", why, "alpha").error


def test_a_file_of_another_kind(cli: Cli, write: Write) -> None:
    write("trace.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n")
    answer = cli("explain", "trace.csv", "r000000")
    assert answer.code == 2
    assert "trace.csv, line 1: not JSON lines" in answer.error and "batchwright run --explain FILE" in answer.error
    assert cli("explain", "nothing.jsonl", "r000000").code == 2


def test_a_file_that_cannot_be_written(cli: Cli) -> None:
    answer = cli("run", "stall_free", "--explain", "no/folder/why.jsonl")
    assert answer.code == 2 and answer.error.startswith("--explain no/folder/why.jsonl: there is no folder")


def test_who_decided_in_a_composite(cli: Cli, write: Write) -> None:
    write(
        "mixed.yaml", "policy: {admission: vllm_v1, chunking: {use: stall_free, chunk_size: 64}, preemption: cheapest}"
    )
    cli("run", "mixed.yaml", "--workload", TIGHT, *SMALL_POOL, "--explain", "why.jsonl", "-q")
    seen = "".join(cli("explain", "why.jsonl", f"r{n:06d}").out for n in range(12))
    flat = " ".join(seen.split())
    assert "cut by chunking of stall_free" in flat
    assert "preemption of cheapest named it" in flat
    assert "offered by vllm_v1" in flat
