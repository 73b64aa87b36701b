"""``batchwright play`` on a terminal: a pseudo-terminal of a given size, keys, and what is to be seen then."""

from __future__ import annotations

import os
import re
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .conftest import TIGHT

pty = pytest.importorskip("pty", reason="pseudo-terminals are a thing of Unix")
fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")

ARGS = (TIGHT, "--policy", "stall_free:chunk_size=128", "--set", "num_blocks=40", "--set", "max_num_batched_tokens=256")
PATIENCE_S = 30.0
"""Only a hung program takes so long."""


class Terminal:
    """A program on a terminal.

    Attributes:
        lines: what is to be seen, row by row, without styles.
        written: bytes that came since the last key.
    """

    def __init__(self, args: tuple[object, ...], rows: int, columns: int, **environment: str) -> None:
        self.pid, self._fd = pty.fork()
        if not self.pid:
            # Not ``execv``: readline, which pytest imports, writes COLUMNS behind Python's back.
            known = {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1", **environment}
            os.execve(sys.executable, [sys.executable, "-m", "batchwright", "play", *map(str, args)], known)
        self.lines: list[str] = []
        self.written = b""
        self.raw = b""
        self.resize(rows, columns)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        self.written = b""
        os.write(self._fd, keys.encode())

    def until(self, is_there: str | Callable[[], bool]) -> None:
        """Wait until a text, or something else, is to be seen."""
        test = is_there if callable(is_there) else lambda: any(is_there in line for line in self.lines)
        end = time.monotonic() + PATIENCE_S
        while not test():
            assert time.monotonic() < end, f"never came to {is_there!r}; there is {self.lines}"
            if select.select([self._fd], [], [], 0.05)[0]:
                self._read()

    def _read(self) -> None:
        try:
            got = os.read(self._fd, 65536)
        except OSError:  # the program has ended
            got = b""
        if not got:
            raise EOFError(self.raw[-300:])
        self.written += got
        self.raw += got
        self._show(self.raw.decode("utf-8", "replace"))  # all of it: what came may end in the middle of a row

    def _show(self, text: str) -> None:
        """As a terminal does, as far as the program goes: rows by number, clearing, and nothing else."""
        self.lines = []
        for code, row, line in re.findall(r"\x1b\[(2J|(\d+);1H((?:(?!\x1b\[\d+;1H|\x1b\[2J).)*))", text, re.S):
            if code == "2J":
                self.lines = []
                continue
            self.lines += [""] * (int(row) - len(self.lines))
            if line.startswith("\x1b[J"):
                del self.lines[int(row) - 1 :]
            else:
                self.lines[int(row) - 1] = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)

    def ends(self) -> int:
        """Wait for the program's end; its exit code."""
        with suppress(EOFError):
            self.until(lambda: False)
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal() -> Iterator[Open]:
    """Start the program on a terminal of a size."""
    made: list[Terminal] = []

    def start(*args: object, rows: int = 24, columns: int = 80, **environment: str) -> Terminal:
        made.append(Terminal(args or ARGS, rows, columns, **environment))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_keys(terminal: Open) -> None:
    here = terminal()
    here.until("step 0 ")
    for keys, seen in (
        ("n", "step 1 "),
        ("\x1b[C", "step 2 "),
        ("b", "step 1 "),
        ("2", "jump to step: 2_"),
        ("0\r", "step 20 "),
        ("s", "from here on decides: _"),
        ("vlm_v1\r", "unknown policy 'vlm_v1'; did you mean 'vllm_v1'?"),
        ("svllmX\x7f_v1\r", "then vllm_v1"),
        (" ", "step 21 "),
        ("b", "then vllm_v1"),
        ("b", "undone: vllm_v1 does not decide from here on"),
        ("?", "another policy decides from the next step on"),
        ("?", "step 20 "),
        ("j12\x1b", "step 20 "),
        ("e", "the run ends with step"),
        ("\x1b[H", "step 0 "),
        ("\x7f", "this is the first step"),
    ):
        here.press(keys)
        here.until(seen)
    here.press("q")
    assert here.ends() == 0
    assert here.raw.endswith(b"\x1b[?25h\x1b[?1049l"), "the terminal is not as it was"
    assert here.raw.startswith(b"\x1b[?1049h\x1b[?25l")


@pytest.mark.parametrize(("rows", "columns"), [(24, 80), (50, 80), (40, 120), (10, 60)])
def test_it_fits(terminal: Open, rows: int, columns: int) -> None:
    here = terminal(*ARGS, "--step", 20, rows=rows, columns=columns)
    here.until("step 20 ")
    here.until(lambda: len(here.lines) == rows)
    assert all(len(line) <= columns for line in here.lines)
    assert here.lines[-1].startswith("n next  b back")
    shown = any("pool" in line for line in here.lines)
    assert shown == (rows >= 40)
    if not shown:
        assert re.match(r"lines 1 to \d+ of \d+; up and down for the others", here.lines[-2])
        here.press("\x1b[6~" * 9)
        here.until("free, and cached")
        here.press("\x1b[5~" * 9)
        here.until("lines 1 to ")


def test_a_change_of_size(terminal: Open) -> None:
    here = terminal(*ARGS, "--step", 20)
    here.until("step 20 ")
    here.until(lambda: len(here.lines) == 24)
    here.resize(40, 120)
    here.until(lambda: len(here.lines) == 40 and any("pool" in line for line in here.lines))
    here.resize(12, 70)
    here.until(lambda: len(here.lines) == 12 and here.lines[-1].startswith("n next"))
    assert all(len(line) <= 70 for line in here.lines)


def test_what_did_not_change_is_not_written_again(terminal: Open) -> None:
    here = terminal(*ARGS, "--step", 20)
    here.until(lambda: len(here.lines) == 24)
    whole = len(here.written)
    here.press("\x1b[A")  # it is at the top already
    here.press("5")
    here.until("jump to step: 5_")
    assert len(here.written) < 100 < whole
    assert b"\x1b[2J" not in here.written


def test_ctrl_c_and_ctrl_d(terminal: Open) -> None:
    here = terminal()
    here.until("step 0 ")
    here.press("\x03")
    assert here.ends() == 130
    assert here.raw.endswith(b"\x1b[?25h\x1b[?1049l")
    here = terminal()
    here.until("step 0 ")
    here.press("\x04")
    assert here.ends() == 0
    assert b"Traceback" not in here.raw


def test_no_colour(terminal: Open) -> None:
    here = terminal(*ARGS, "--step", 20)
    here.until("evicted r000003")
    colour = re.compile(rb"\x1b\[(?:\d+;)*3[0-7]m")
    assert colour.search(here.raw)
    plain = terminal(*ARGS, "--step", 20, NO_COLOR="1")
    plain.until("evicted r000003")
    plain.until(lambda: len(plain.lines) == 24)
    here.until(lambda: len(here.lines) == 24)
    assert not colour.search(plain.raw)
    assert plain.lines == here.lines


def test_a_plain_terminal_takes_lines(terminal: Open) -> None:
    here = terminal(*ARGS, TERM="dumb")
    here.until(lambda: here.raw.endswith(b"> "))
    here.press("nxt\n")
    here.until(lambda: b"there is no command 'nxt'; did you mean 'next'?" in here.raw and here.raw.endswith(b"> "))
    here.press("\n")
    here.until(lambda: b"step 1 " in here.raw and here.raw.endswith(b"> "))
    assert b"\x1b[?1049h" not in here.raw
    here.press("q\n")
    assert here.ends() == 0


def test_fifty_who_wait_and_long_ids(terminal: Open, tmp_path: Path) -> None:
    from batchwright import Engine, EngineConfig, Request, SamplingParams
    from batchwright.replay import DecisionRecorder

    config = {"num_blocks": 20, "block_size": 4, "max_num_batched_tokens": 32, "policy": "prefill_first"}
    engine = Engine(EngineConfig.parse(config))
    path = tmp_path / "long.jsonl"
    with engine, DecisionRecorder(path, engine.scheduler):
        for i in range(54):
            name = f"customer/session-{'x' * 30}-{i:03d}"
            engine.add_request(Request(name, [1 + i] * 20, SamplingParams(max_tokens=4)))
        while engine.has_unfinished():
            engine.step()
    here = terminal(path, "--step", 3, rows=44, columns=80)
    here.until("step 3 ")
    here.until(lambda: len(here.lines) >= 30)
    assert all(len(line) <= 80 for line in here.lines)
    assert any(re.match(r"customer/s…x+-003 +waiting +20 ", line) for line in here.lines)
    assert any(re.search(r"\.\.\. \d\d more", line) for line in here.lines)
