"""``batchwright`` as a process: exit codes, pipes, Ctrl-C, terminals."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import SMALL

COMMAND = [sys.executable, "-m", "batchwright"]
LONG = "synthetic:rate=40,n=20000,prompt=200,output=200"
"""A workload that runs for minutes."""


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *args], capture_output=True, text=True, timeout=120)


def test_exit_codes_reach_the_shell() -> None:
    fine = run("diff", "prefill_first", "prefill_first", "--workload", SMALL)
    assert (fine.returncode, fine.stderr) == (0, "")
    assert run("diff", "prefill_first", "stall_free:chunk_size=16", "--workload", SMALL).returncode == 1
    wrong = run("run", "prefil_first")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: unknown policy 'prefil_first'; did you mean 'prefill_first'?\n"


def test_the_simulator_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from batchwright.cli.app import app\n"
        f"try:\n    app(['run', 'prefill_first', '--workload', {SMALL!r}])\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "print(sorted({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "args", [["config", "schema"], ["policies"], ["ab", "--help"], ["ab", "vllm_v1", "stall_free", "--workload", SMALL]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(args: list[str], unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        command = [*COMMAND, *args]
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, text=True, timeout=120, env=environment)
    assert done.stderr == ""


def test_ctrl_c_prints_what_there_is(tmp_path: Path) -> None:
    json_file = tmp_path / "out.json"
    marker = tmp_path / "begun"
    policy = tmp_path / "tell.py"
    policy.write_text(
        "from pathlib import Path\n"
        "from batchwright import hookimpl\n"
        "from batchwright_policies.prefill_first import PrefillFirst\n\n"
        "class Tell(PrefillFirst):\n"
        "    @hookimpl\n"
        "    def step_started(self, step):\n"
        "        if step.index >= 50:\n"
        f"            Path({str(marker)!r}).touch()\n"
    )
    args = ["ab", f"{policy}:Tell", "stall_free", "--workload", LONG, "--json", str(json_file)]
    with subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err == ""
    assert "interrupted" in out and "Finished" in out and "fault" not in out
    assert json_file.exists()


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo terminals here")
def test_progress_is_shown_on_a_terminal_only() -> None:
    master, slave = os.openpty()
    args = ["run", "prefill_first", "--workload", "synthetic:rate=100,n=300,prompt=200,output=50"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen([*COMMAND, *args], stdout=subprocess.PIPE, stderr=slave, env=environment) as process:
        os.close(slave)
        shown = b""
        while select.select([master], [], [], 60)[0]:
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        out = process.stdout.read() if process.stdout is not None else b""
        assert process.wait() == 0
    os.close(master)
    assert b"prefill_first" in shown and b"300" in shown
    assert b"\x1b" not in out and b"Mean TTFT (ms)" in out
