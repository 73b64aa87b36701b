"""The parts of a recording: bounded, whole by themselves, and what is wrong with one. Needs no vLLM."""

from __future__ import annotations

import gzip
import os
import random
import time
from pathlib import Path

import pytest

from backends.vllm.recorded import Server
from batchwright import WorkloadError
from batchwright.lab import load_workload
from batchwright.lab.readers.recording import SUFFIX


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
