"""The story of one request, as a file of reasons tells it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from batchwright import (
    BatchwrightError,
    CasesError,
    Engine,
    EngineConfig,
    Policy,
    Request,
    SamplingParams,
    Scheduler,
    UnknownRequestError,
    hookimpl,
)
from batchwright.trace import ReasonRecorder, read_story


def write(path: Path, policy: str = "stall_free", **settings: object) -> Engine:
    values = {"num_blocks": 12, "block_size": 4, "max_num_batched_tokens": 16, "policy": policy, **settings}
    engine = Engine(EngineConfig.parse(values))
    with engine, ReasonRecorder(path, engine.scheduler, arm="mine", backend="sim") as recorder:
        for i in range(5):
            tokens = [1, 2, 3, 4] * 3 + [i] * (i + 1)
            engine.add_request(Request(f"r{i}", tokens, SamplingParams(max_tokens=8)))
        with pytest.raises(BatchwrightError):
            engine.add_request(Request("long", [1] * 60, SamplingParams(max_tokens=8)))
        while engine.has_unfinished():
            engine.step()
            if engine.scheduler.step.index == 6:
                engine.abort("r4")
        recorder.close()
    return engine


def told(path: Path, name: str) -> list[tuple[int | None, int | None, str]]:
    return [(c.first, c.last, c.text) for c in read_story(path, name).chapters]


def test_a_story(tmp_path: Path) -> None:
    path = tmp_path / "why.jsonl"
    write(path)
    story = read_story(path, "r2")
    assert (story.arm, story.backend, story.policy["use"]) == ("mine", "sim", "stall_free")
    assert told(path, "r2") == [
        (None, None, "arrives with 15 prompt tokens, for at most 8 more"),
        (0, 0, "waits: not offered room; admission of stall_free ended after r1, which ran"),
        (1, 1, "runs: 3 tokens, all that was pending beside 12 cached; offered by stall_free"),
        (2, 6, "runs: decode, 1 token each; offered by stall_free"),
        (7, 7, "evicted, as it lacked blocks itself: preemption of stall_free named it"),
        (8, 8, "runs: 9 tokens, all that was pending beside 12 cached; offered by stall_free"),
        (9, 9, "runs: decode, 1 token; repeated: stall_free is stationary, and was not asked again"),
        (None, None, "ends: max_tokens reached"),
    ]
    assert told(path, "r4")[-2:] == [
        (5, 6, "waits: not offered room; admission of stall_free ended after r3, which found no room"),
        (None, None, "is aborted"),
    ]
    ((first, _, text),) = told(path, "long")
    assert first is None and text.startswith("is refused: request 'long'")


def test_gzipped_or_not_is_the_same(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    write(tmp_path / "b.jsonl.gz")
    assert gzip.decompress((tmp_path / "b.jsonl.gz").read_bytes()) == (tmp_path / "a.jsonl").read_bytes()
    assert told(tmp_path / "a.jsonl", "r3") == told(tmp_path / "b.jsonl.gz", "r3")


def test_like_steps_are_folded_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "why.jsonl"
    engine = Engine(EngineConfig.parse({"num_blocks": 8, "block_size": 4, "policy": "prefill_first"}))
    with engine, ReasonRecorder(path, engine.scheduler):
        engine.add_request(Request("a", [1] * 6, SamplingParams(max_tokens=20)))
        engine.add_request(Request("b", [2] * 30, SamplingParams(max_tokens=2)))
        while engine.has_unfinished():
            engine.step()
    a = told(path, "a")
    assert (1, 19, "runs: decode, 1 token each; offered by prefill_first") in a
    expected = "waits: it needed 8 blocks, 2 to 6 free; preemption of prefill_first evicted nobody for it"
    assert (0, 19, expected) in told(path, "b")


def test_a_step_of_the_same_decodes_is_a_short_line(tmp_path: Path) -> None:
    path = tmp_path / "why.jsonl"
    engine = Engine(EngineConfig.parse({"policy": "prefill_first"}))
    with engine, ReasonRecorder(path, engine.scheduler):
        for i in range(200):
            engine.add_request(Request(f"r{i}", [i, 1, 2], SamplingParams(max_tokens=50)))
        while engine.has_unfinished():
            engine.step()
    steps = [line for line in path.read_text().splitlines() if line.startswith('{"step"')]
    assert len(steps) == 50
    assert max(len(line) for line in steps[5:-1]) < 100


def test_an_id_may_come_again(tmp_path: Path) -> None:
    path = tmp_path / "why.jsonl"
    engine = Engine(EngineConfig.parse({"policy": "prefill_first"}))
    with engine, ReasonRecorder(path, engine.scheduler):
        for _ in range(2):
            engine.add_request(Request("a", [1, 2, 3], SamplingParams(max_tokens=2)))
            while engine.has_unfinished():
                engine.step()
    texts = [text for _, _, text in told(path, "a")]
    assert [t.split()[0] for t in texts] == ["arrives", "runs:", "runs:", "ends:"] * 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("r22", "did you mean 'r2'"),
        ("0000003", "did you mean 'r3'?"),
        ("nobody", "there are 6: r0, r1, r2, r3, r4 ... long"),
    ],
)
def test_who_there_is(tmp_path: Path, name: str, hint: str) -> None:
    path = tmp_path / "why.jsonl"
    write(path)
    with pytest.raises(UnknownRequestError) as error:
        read_story(path, name)
    assert f"has no request {name!r}; " in str(error.value) and hint in str(error.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it does not say its format"),
        ("[1]\n", "line 1: not JSON lines: a line is a JSON object"),
        ("hello\n", "line 1: not JSON lines"),
        (
            '{"format":"batchwright-reasons-9"}\n',
            "its format is 'batchwright-reasons-9'; expected batchwright-reasons-1",
        ),
        ('{"format":"batchwright-reasons-1"}\n{"mood":1}\n', "line 2: ValueError: its keys are mood"),
        ('{"format":"batchwright-reasons-1"}\n{"step":0,"others":{"kind":"?"}}\n', "line 2: ValueError: kind is '?'"),
        ('{"format":"batchwright-reasons-1"}\n{"arrived":"a"}\n', "line 2: KeyError: 'before_step'"),
        ('{"format":"batchwright-reasons-1"}\n{"step"', "line 2: not JSON lines"),
    ],
)
def test_what_is_no_such_file(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "why.jsonl"
    path.write_text(text)
    with pytest.raises(CasesError) as error:
        read_story(path, "a")
    assert complaint in str(error.value) and str(path) in str(error.value)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(CasesError, match="cannot be read: No such file"):
        read_story(tmp_path / "nothing", "a")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b'{"format":"batchwright-reasons-1"}\n' * 99)[:60])
    with pytest.raises(CasesError, match="cannot be read"):
        read_story(tmp_path / "cut.gz", "a")
    (tmp_path / "bytes").write_bytes(b'{"format":"batchwright-reasons-1"}\n\xff\xfe')
    with pytest.raises(CasesError, match="not JSON lines"):
        read_story(tmp_path / "bytes", "a")
    engine = Engine()
    with engine, pytest.raises(FileNotFoundError):
        ReasonRecorder(tmp_path / "no" / "folder", engine.scheduler)


def test_it_begins_with_a_fresh_scheduler_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    engine = write(tmp_path / "why.jsonl")
    assert "add" not in vars(engine.scheduler)
    with pytest.raises(BatchwrightError, match="from the start"):
        ReasonRecorder(tmp_path / "again.jsonl", engine.scheduler)
    assert not (tmp_path / "again.jsonl").exists()
    assert all(json.loads(line) for line in (tmp_path / "why.jsonl").read_text().splitlines())


def test_who_is_aborted_while_a_step_is_executed_ran_in_it(tmp_path: Path) -> None:
    path = tmp_path / "why.jsonl"
    scheduler = Scheduler("prefill_first", num_blocks=8, block_size=4)
    with ReasonRecorder(path, scheduler):
        for name in "ab":
            scheduler.add(Request(name, [1] * 6, SamplingParams(max_tokens=4)))
        batch = scheduler.schedule(0)
        scheduler.abort("a")
        scheduler.update(batch, [1, 1], 1)
        scheduler.update(scheduler.schedule(1), [1], 2)
    assert [text.split()[0] for _, _, text in told(path, "a")] == ["arrives", "runs:", "is"]
    assert told(path, "a")[1][:2] == (0, 0)


def test_residents_pause_and_others_wait_and_chunks_are_folded_but_for_the_first(tmp_path: Path) -> None:
    path = tmp_path / "why.jsonl"
    config = {"num_blocks": 40, "block_size": 4, "policy": "prefill_first", "max_num_batched_tokens": 8}
    engine = Engine(EngineConfig.parse(config))
    with engine, ReasonRecorder(path, engine.scheduler):
        engine.add_request(Request("a", [1] * 6, SamplingParams(max_tokens=4)))
        engine.add_request(Request("b", [1, 1, 1, 1, *range(30)], SamplingParams(max_tokens=2)))
        while engine.has_unfinished():
            engine.step()
    pauses = [text for _, _, text in told(path, "a") if text.startswith("pauses: ")]
    assert pauses == ["pauses: not offered room; admission of prefill_first ended after b, which ran"]
    chunks = [(first, last, text) for first, last, text in told(path, "b") if "pending tokens" in text]
    rest = "all that was left of the budget"
    assert chunks == [
        (0, 0, "waits: chunking of prefill_first gave it 0 of 34 pending tokens, with 2 left in the budget"),
        (1, 1, f"runs: 8 of 30 pending tokens, {rest} beside 4 cached; cut by chunking of prefill_first"),
        (2, 3, f"runs: 8 of 14 to 22 pending tokens in each step, {rest}; cut by chunking of prefill_first"),
    ]


def test_a_fallback_stands_in_the_file(tmp_path: Path) -> None:
    class Wrong(Policy):
        @hookimpl
        def admission(self, step):
            return []

    path = tmp_path / "why.jsonl"
    scheduler = Scheduler(Wrong(), num_blocks=8, block_size=4, on_policy_error="fallback")
    with ReasonRecorder(path, scheduler):
        scheduler.add(Request("a", [1] * 6, SamplingParams(max_tokens=4)))
        scheduler.update(scheduler.schedule(0), [1], 1)
    (step,) = [line for line in map(json.loads, path.read_text().splitlines()) if "step" in line]
    assert step["how"] == "fallback" and "rule 'progress'" in step["error"]
    assert told(path, "a")[1][2] == "runs: 6 tokens, all that was pending; offered by fallback"
