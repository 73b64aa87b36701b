"""Recordings on disks that are slow, full, broken or hang: the server goes on. Needs no vLLM."""

from __future__ import annotations

import logging
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest

from backends.vllm.recorded import Server, lines
from batchwright import ConfigError
from batchwright.lab import load_workload
from batchwright.lab.readers.recording import SUFFIX


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


def test_a_folder_that_cannot_be_written_to_is_said_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"record: cannot write to .*file"):
        Server(tmp_path / "file")
