"""Traffic on disk: what stands there, what does not, and the workload that the lab reads of it. Needs no vLLM."""

from __future__ import annotations

import gzip
import json
import logging
import os
import random
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchwright import ConfigError, EngineConfig, Request, SamplingParams, WorkloadError
from batchwright.lab import load_workload, run_arm
from batchwright.lab.readers.recording import SUFFIX, RecordedTraffic
from batchwright.request import SLO
from batchwright_backends.vllm.attaching import attach
from batchwright_backends.vllm.parts import SALT, RecordSettings, block_hashes
from batchwright_backends.vllm.recording import Recording

SIZE = 4
MS = 1_000_000


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class OneByOne:
    """Runs one request at a time, its prompt in one step, then a token a step; in the form of vLLM's schedulers."""

    def __init__(self, clock: Clock) -> None:
        self.waiting: list[Any] = []
        self.clock = clock
        self.num_left: dict[str, int] = {}
        self.requests: dict[str, Any] = {}
        self.is_new = True
        self.was_shut = False
        self.raises = False

    def add_request(self, request: Any) -> None:
        if self.raises:
            raise ValueError("no room")
        self.waiting.append(request)
        self.requests[request.request_id] = request
        self.num_left[request.request_id] = request.length

    def schedule(self) -> Any:
        self.clock.now_ns += MS
        one = self.waiting[0]
        num = one.num_prompt_tokens if self.is_new else 1
        new = [SimpleNamespace(req_id=one.request_id, num_computed_tokens=0)] if self.is_new else []
        cached = SimpleNamespace(resumed_req_ids=set(), req_ids=[], num_computed_tokens=[])
        return SimpleNamespace(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            num_scheduled_tokens={one.request_id: num},
            preempted_req_ids=None,
        )

    def update_from_output(self, told: Any, output: Any) -> dict[int, Any]:
        one = self.waiting[0]
        self.is_new = False
        self.num_left[one.request_id] -= 1
        over = not self.num_left[one.request_id]
        if over:
            del self.waiting[0]
            self.is_new = True
        told_of = SimpleNamespace(
            request_id=one.request_id, new_token_ids=[7], finish_reason=one.reason if over else None
        )
        return {0: SimpleNamespace(outputs=[told_of])}

    def finish_requests(self, names: Any, status: Any) -> list[Any]:
        gone = [one for one in self.waiting if names is None or one.request_id in names]
        self.waiting = [one for one in self.waiting if one not in gone]
        return gone

    def get_request_counts(self) -> tuple[int, int]:
        return (1, len(self.waiting) - 1) if self.waiting else (0, 0)

    def get_kv_cache_usage(self) -> float:
        return 0.25

    def shutdown(self) -> None:
        self.was_shut = True


class Server:
    """A scheduler with a recording attached."""

    def __init__(self, folder: Path, said: dict[str, Request] | None = None, **settings: Any) -> None:
        self.clock = Clock()
        self.core = OneByOne(self.clock)
        record = RecordSettings(dir=str(folder), **settings)
        self.recording = Recording(record, {"policy": "p"}, 40, SIZE, lambda r: (said or {}).get(r.request_id))
        self.recording.start_ns = 0
        attach(self.core, self.recording, self.clock)

    def add(self, name: str, prompt: Sequence[int], length: int, reason: str = "length", max_tokens: int = 99) -> Any:
        request = SimpleNamespace(
            request_id=name,
            prompt_token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            sampling_params=SimpleNamespace(max_tokens=max_tokens),
            priority=0,
            output_token_ids=[],
            length=length,
            reason=reason,
        )
        self.core.add_request(request)
        return request

    def step(self) -> None:
        told = self.core.schedule()
        self.clock.now_ns += 9 * MS
        self.core.update_from_output(told, None)

    def finish(self) -> None:
        while self.core.waiting:
            self.step()
        self.core.shutdown()


def lines(folder: Path) -> Iterator[dict[str, Any]]:
    for part in sorted(folder.glob(f"*{SUFFIX}")):
        with gzip.open(part, "rt") as file:
            yield from map(json.loads, file)


def test_what_was_asked_and_what_became_of_it(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.add("secret-id", range(10), 3)
    server.clock.now_ns = 5 * MS
    server.add("b", [*range(8), 50], 1, max_tokens=1)
    server.finish()
    assert server.core.was_shut
    head, *rest = lines(tmp_path)
    assert (head["format"], head["policy"], head["prefix_block_size"]) == ("batchwright-traffic-1", "p", SIZE)
    first, second = (line["request"] for line in rest if "request" in line)
    assert {name: first[name] for name in first if name != "prefix_ids"} == {
        "number": 1,
        "arrival_ns": 0,
        "num_prompt_tokens": 10,
        "num_output_tokens": 3,
        "max_tokens": 99,
        "status": "finished",
        "finish_reason": "length",
        "first_scheduled_ns": 5 * MS,
        "finish_ns": 35 * MS,
        "token_gaps_ns": [15 * MS, 10 * MS, 10 * MS],
    }
    assert len(first["prefix_ids"]) == len(second["prefix_ids"]) == 3
    assert first["prefix_ids"][:2] == second["prefix_ids"][:2] and first["prefix_ids"][2] != second["prefix_ids"][2]
    (steps,) = (line["steps"] for line in rest if "steps" in line)
    names = head["step_fields"]
    table = [dict(zip(names, steps[i : i + len(names)], strict=True)) for i in range(0, len(steps), len(names))]
    assert [(s["num_prefill_tokens"], s["num_decodes"]) for s in table] == [(10, 0), (0, 1), (0, 1), (9, 0)]
    assert [(s["start_ns"], s["end_ns"]) for s in table[:2]] == [(5 * MS, 15 * MS), (15 * MS, 25 * MS)]
    assert {s["free_blocks"] for s in table} == {30} and table[0]["num_waiting"] == 1


def test_neither_text_nor_tokens_nor_ids_are_there(tmp_path: Path) -> None:
    """Only lengths and hashes; the same prompt in another recording has other hashes."""
    prompt = [31_337, 31_338, 31_339, 31_340, 31_341]
    said = Request("secret-id", prompt, SamplingParams(max_tokens=3), session_id="secret-session", client_id="acme")
    for folder in (tmp_path / "a", tmp_path / "b"):
        server = Server(folder, {"secret-id": said})
        server.add("secret-id", prompt, 2)
        server.finish()
    found = [next(line["request"] for line in lines(tmp_path / f) if "request" in line) for f in "ab"]
    text = json.dumps(found)
    assert "secret" not in text and not any(str(token) in text for token in prompt)
    assert found[0]["prefix_ids"] != found[1]["prefix_ids"] and found[0]["session_id"] != found[1]["session_id"]
    assert found[0]["client_id"] == "acme"


def test_recordings_with_one_salt_can_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SALT, "sixteen-or-more-characters")
    for folder in "ab":
        server = Server(tmp_path / folder)
        server.add("x", range(9), 1)
        server.finish()
    one, other = (next(line["request"] for line in lines(tmp_path / f) if "request" in line) for f in "ab")
    assert one["prefix_ids"] == other["prefix_ids"]
    monkeypatch.setenv(SALT, "short")
    with pytest.raises(ConfigError, match="at least 16"):
        Server(tmp_path / "c")


def test_the_lab_reads_it_as_a_workload(tmp_path: Path) -> None:
    """Arrivals, lengths, declared limits, who asked, and prefixes that are shared."""
    said = {
        "a": Request(
            "a",
            [1],
            SamplingParams(max_tokens=5),
            client_id="acme",
            weight=2.0,
            slo=SLO(ttft_s=0.5),
            extra={"slo_class": "chat"},
            deadline_s=3.0,
            predicted_output_tokens=4,
        )
    }
    server = Server(tmp_path, said)
    server.clock.now_ns = 500 * MS
    server.add("a", range(12), 2, max_tokens=5)
    server.clock.now_ns = 700 * MS
    server.add("b", [*range(8), 90, 91, 92], 3, "stop")
    server.finish()
    workload = load_workload(tmp_path)
    a, b = workload.held()
    assert (a.arrival_ns, b.arrival_ns) == (0, 200 * MS)
    assert (a.num_prompt_tokens, a.num_output_tokens, a.max_tokens) == (12, 2, 5)
    assert (a.client_id, a.weight, a.slo, a.slo_class) == ("acme", 2.0, SLO(ttft_s=0.5), "chat")
    assert (a.deadline_s, a.predicted_output_tokens) == (3.0, 4)
    assert a.prefix_block_size == SIZE and a.prefix_ids[:2] == b.prefix_ids[:2] and a.prefix_ids[2] != b.prefix_ids[2]
    assert workload.notes == ()
    part = next(tmp_path.glob(f"*{SUFFIX}"))
    assert load_workload(part).hash == workload.hash
    record = run_arm(EngineConfig(policy="vllm_v1", block_size=SIZE, num_blocks=50), workload)
    assert [r.num_output_tokens for r in record.requests] == [2, 3]
    assert record.requests[1].num_cached_tokens == 8


def test_who_left_who_failed_and_who_is_still_there(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.add("ran", range(5), 9)
    server.step()
    server.step()
    server.core.finish_requests("ran", SimpleNamespace(name="FINISHED_ABORTED"))
    server.core.is_new = True
    server.add("waited", range(5), 9)
    server.clock.now_ns += 30 * MS
    server.core.finish_requests(iter(["waited", "unknown"]), SimpleNamespace(name="FINISHED_ABORTED"))
    server.add("failed", range(5), 1, "error")
    server.step()
    server.add("stays", range(5), 9)
    server.step()
    server.core.raises = True
    with pytest.raises(ValueError, match="no room"):
        server.add("never", range(5), 1)
    server.core.shutdown()
    workload = load_workload(tmp_path)
    ran, waited = workload.held()
    assert (ran.num_output_tokens, ran.abort_after_s) == (2, None)
    assert (waited.num_output_tokens, waited.abort_after_s) == (99, 0.03)
    assert sorted(workload.notes) == [
        f"{tmp_path.name}: 1 requests had not ended: left out",
        f"{tmp_path.name}: 1 requests were refused or failed: left out",
    ]


def test_parts_are_of_bounded_size_and_whole_by_themselves(tmp_path: Path) -> None:
    server = Server(tmp_path, part_mib=0.002, max_parts=3)
    rng = random.Random(0)
    for i in range(60):
        server.add(f"r{i}", [rng.randrange(1000) for _ in range(200)], 2)
        server.step()
        server.step()
        server.recording._write()
    server.finish()
    parts = sorted(tmp_path.glob(f"*{SUFFIX}"))
    assert len(parts) == 3 and all(part.stat().st_size < 8000 for part in parts)
    assert sum(len(load_workload(part)) for part in parts[:-1]) <= len(load_workload(tmp_path)) < 60


def test_a_part_that_was_cut_off_gives_what_it_has(tmp_path: Path) -> None:
    """A server that was killed loses a second at most; what is on disk can be read."""
    server = Server(tmp_path)
    for i in range(3):
        server.add(f"r{i}", range(9), 1)
        server.step()
    server.recording._write()
    (part,) = tmp_path.glob(f"*{SUFFIX}")
    content = part.read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / part.name).write_bytes(content)
    server.finish()
    workload = load_workload(copy)
    assert len(workload) == 3
    assert workload.notes == (f"copy: {part.name} was not closed: its last seconds may be missing",)


def test_a_fault_ends_the_recording_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(tmp_path)
    server.add("a", range(5), 3)
    server.recording.step = None  # type: ignore[assignment, method-assign]
    with caplog.at_level(logging.ERROR, "vllm.batchwright"):
        server.finish()
    assert "vLLM goes on without it" in caplog.text
    assert not server.core.waiting


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)

    def full(line: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(server.recording._parts, "write", full)
    server.add("a", range(5), 1)
    server.step()
    with caplog.at_level(logging.ERROR, "vllm.batchwright"):
        server.recording._write()
    assert "No space left" in caplog.text and server.recording.is_closed
    server.add("b", range(5), 2)
    server.finish()
    assert not server.recording._waiting


def test_a_slow_disk_costs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright_backends.vllm.recording._MOST_WAITING", 2)
    server = Server(tmp_path)
    with server.recording._writing:  # as long as the disk takes
        for i in range(5):
            server.add(f"r{i}", range(5), 1)
            server.step()
        assert len(server.recording._waiting) == 2
    server.finish()
    workload = load_workload(tmp_path)
    assert len(workload) == 2
    assert workload.notes == (f"{tmp_path.name}: 3 further requests were not recorded: the disk was too slow",)


def test_long_prompts_that_wait_for_a_slow_disk_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright_backends.vllm.recording._MOST_TOKENS", 200)
    server = Server(tmp_path)
    for _ in range(2):  # what was written makes room
        with server.recording._writing:
            for i in range(3):
                server.add(f"r{i}", range(90), 1)
                server.step()
        server.recording._write()
    server.finish()
    assert len(load_workload(tmp_path)) == 4


def test_a_request_that_cannot_be_written_is_left_out_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever one client says, the others are recorded."""
    said = Request("a", [1], SamplingParams(max_tokens=3))
    said.session_id = 5  # type: ignore[assignment]
    server = Server(tmp_path, {"a": said})
    for name in ("a", "b"):
        server.add(name, range(5), 1)
    with caplog.at_level(logging.ERROR, "vllm.batchwright"):
        server.finish()
    assert "request 'a'" in caplog.text
    assert len(load_workload(tmp_path)) == 1
    note = f"{tmp_path.name}: 1 further requests were not recorded: what was said of them could not be written"
    assert load_workload(tmp_path).notes == (note,)


def test_steps_are_on_disk_each_second(tmp_path: Path) -> None:
    """A server that is killed loses no more, however slow its steps are."""
    server = Server(tmp_path)
    server.add("a", range(5), 9)
    server.step()
    server.recording._write()
    (part,) = tmp_path.glob(f"*{SUFFIX}")
    assert b'"steps"' in zlib.decompressobj(31).decompress(part.read_bytes())
    server.finish()


def test_steps_that_a_slow_disk_has_no_room_for_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchwright_backends.vllm.recording._MOST_WAITING", 4)
    server = Server(tmp_path)
    with server.recording._writing:
        server.add("a", range(5), 9)
        for _ in range(9):
            server.step()
    server.finish()
    assert {"steps_dropped": 5} in list(lines(tmp_path))


def test_a_server_shuts_down_though_its_disk_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchwright_backends.vllm.recording._PATIENCE_S", 0.05)
    server = Server(tmp_path)
    server.add("a", range(5), 1)
    go_on = threading.Event()
    monkeypatch.setattr(server.recording._parts, "write", lambda line: go_on.wait(60))
    server.step()
    thread = threading.Thread(target=server.recording._write)
    server.recording._thread = thread
    thread.start()
    with caplog.at_level(logging.ERROR, "vllm.batchwright"):
        server.finish()
    go_on.set()
    thread.join()
    server.recording._parts.close()
    assert server.core.was_shut and "does not answer" in caplog.text


def test_files_are_closed_after_a_fault(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.add("a", range(5), 3)
    server.recording.step = None  # type: ignore[assignment, method-assign]
    server.finish()
    assert server.recording._parts._file.closed


def test_a_disk_that_is_full_at_the_end_stops_no_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path)

    def full() -> None:
        raise OSError(28, "No space left on device")

    close = server.recording._parts.close
    monkeypatch.setattr(server.recording._parts, "close", full)
    with caplog.at_level(logging.ERROR, "vllm.batchwright"):
        server.finish()
    assert server.core.was_shut and "No space left" in caplog.text
    close()


class Tokens:
    """A tokenizer of one character a token; ids from 1,000 on are unknown to it."""

    longest = 0

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        self.longest = max(self.longest, len(token_ids))
        return "".join(map(chr, token_ids))


@pytest.mark.parametrize(
    ("output", "ended"),
    [("so END", "stop"), ("END" + "x" * 60, "stop"), ("END" + "x" * 500, "abort"), ("\U0001f600 so", "abort")],
)
def test_who_ends_by_a_string_is_told_from_its_last_tokens(tmp_path: Path, output: str, ended: str) -> None:
    """The whole text is never decoded, and a tokenizer that fails ends nothing."""
    server = Server(tmp_path)
    tokenizer = Tokens()
    server.core.structured_output_manager = SimpleNamespace(tokenizer=tokenizer)  # type: ignore[attr-defined]
    request = server.add("a", range(5), 9)
    request.sampling_params = SimpleNamespace(max_tokens=9, stop="END", skip_special_tokens=True)
    request.output_token_ids = [-1 if ord(c) > 999 else ord(c) for c in output]
    server.step()
    server.core.finish_requests("a", SimpleNamespace(name="FINISHED_ABORTED"))
    server.core.shutdown()
    (found,) = (line["request"] for line in lines(tmp_path) if "request" in line)
    assert found["finish_reason"] == ended and tokenizer.longest <= 67


def test_a_folder_that_cannot_be_written_to_is_said_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"record: cannot write to .*file"):
        Server(tmp_path / "file")


def test_hashes_follow_all_that_stands_before() -> None:
    key = b"k" * 32
    one, other = block_hashes(range(10), 4, key), block_hashes([9, *range(1, 10)], 4, key)
    assert len(one) == 3 and not set(one) & set(other)
    assert block_hashes(range(8), 4, key) == one[:2]
    assert block_hashes(range(10), 4, b"l" * 32) != one
    assert block_hashes((), 4, key) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no request that could be offered"),
        ("nonsense\n", "line 1 (row 0): not JSON"),
        ("[]\n", "a JSON list; expected one JSON object"),
        ('{"format": "other"}\n', "format is 'other'; expected the head of a recording of traffic"),
        ('HEAD\n{"request": 3}\n', "line 2 (row 1): request is 3; expected an object"),
        ('HEAD\n{"request": {"number": 1}}\n', "there is no arrival_ns"),
        (
            'HEAD\n{"request": {"number": 1, "arrival_ns": 0, "num_prompt_tokens": 4, "num_output_tokens": 1, '
            '"status": "finished", "prefix_ids": [-1]}}\n',
            "prefix_ids holds -1",
        ),
        (
            'HEAD\n{"request": {"number": 1, "arrival_ns": 0, "num_prompt_tokens": 4, "num_output_tokens": 1, '
            '"max_tokens": 3, "status": "finished", "weight": -1}}\n',
            "weight is -1; expected a finite number above 0",
        ),
    ],
)
def test_what_is_wrong_with_a_recording_is_said_with_its_place(tmp_path: Path, content: str, said: str) -> None:
    head = '{"format": "batchwright-traffic-1", "start_unix_ns": 1, "prefix_block_size": 4}'
    path = tmp_path / f"x{SUFFIX}"
    path.write_bytes(gzip.compress(content.replace("HEAD", head).encode()))
    with pytest.raises(WorkloadError) as caught:
        load_workload(tmp_path)
    assert said in str(caught.value) and str(tmp_path) in str(caught.value)


def test_broken_rows_can_be_passed_over(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.add("a", range(5), 1)
    server.finish()
    (part,) = tmp_path.glob(f"*{SUFFIX}")
    text = gzip.decompress(part.read_bytes()).decode()
    part.write_bytes(gzip.compress((text + '{"request": {"number": 1}}\n').encode()))
    with pytest.raises(WorkloadError, match="there is no arrival_ns"):
        load_workload(tmp_path)
    workload = load_workload(tmp_path, skip_bad_rows=True)
    assert len(workload) == 1 and "1 broken rows were skipped" in workload.notes[0]


def test_a_folder_without_a_recording_is_no_workload(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="is a folder without a recording of traffic"):
        load_workload(tmp_path)
    (tmp_path / f"x{SUFFIX}").write_bytes(b"not gzip")
    with pytest.raises(WorkloadError, match="cannot read"):
        load_workload(tmp_path)


def test_several_servers_may_record_to_one_folder(tmp_path: Path) -> None:
    """Their requests come together as they did."""
    for delay in (0, 5):
        server = Server(tmp_path)
        server.recording._parts._head["start_unix_ns"] += delay * 10**9
        server.recording._parts.close()
        os.unlink(server.recording._parts.path)
        server.recording._parts._name = f"server-{delay}"
        server.recording._parts._open()
        server.add("a", range(5), 1)
        server.finish()
    gap = load_workload(tmp_path).held()[1].arrival_ns
    assert 5 * 10**9 <= gap < 6 * 10**9


def test_servers_in_containers_may_start_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the same process id in its own."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setattr(time, "strftime", lambda *args: "20260101T000000Z")
    servers = [Server(tmp_path) for _ in range(2)]
    for server in servers:
        server.add("a", range(5), 1)
        server.finish()
    assert len(load_workload(tmp_path)) == 2


def test_records_of_requests_can_be_had(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.add("a", range(5), 3)
    server.finish()
    ((head, _, request),) = RecordedTraffic(tmp_path).requests()
    record = request.record()
    assert record.token_times_ns.tolist() == [10 * MS, 20 * MS, 30 * MS]
    assert (record.status, record.finish_ns, record.num_output_tokens) == ("finished", 30 * MS, 3)
    assert head["policy"] == "p"
