"""Showing a run: on a screen by keys, or line by line."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.text import Text

from batchwright.cli.output import make_console, say
from batchwright.cli.play_screen import Screen
from batchwright.cli.play_session import Frame, Playback
from batchwright.cli.play_view import body, head
from batchwright.errors import BatchwrightError, ConfigError, did_you_mean

_KEYS = "n next  b back  j jump  s swap policy  e end  ↑↓ scroll  q quit  ? help"
_HELP = """\
n, right, space, enter   the next step
b, left, backspace       one step back; after a swap: undo it
j, or digits             jump to a step by its number
s                        another policy decides from the next step on: NAME, NAME:param=value,... or path.py:Class
home, e                  the first step, the last step
up, down, page up/down   scroll
q, Ctrl-D                quit"""
_COMMANDS = ("next", "back", "jump", "swap", "start", "end", "help", "quit")
_NOTHING = "nothing ran: every request was refused"


def run_lines(playback: Playback, start: int) -> None:
    """Print the first step, then obey the lines of standard input, if it is no terminal, to its end.

    Raises:
        BatchwrightError: a line is no command, or a policy that it names cannot be had.
    """
    console = make_console()
    said = playback.jump(start)
    _print(console, playback.frame, said)
    if sys.stdin.isatty() and not sys.stdout.isatty():
        return  # nobody sees what would be asked
    while True:
        if sys.stdin.isatty():
            sys.stdout.write("> ")
            sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            return
        command = line.split("#")[0].strip()
        if not command and not sys.stdin.isatty():
            continue
        try:
            answer = _obey(playback, command or "next")
        except BatchwrightError as error:
            if not sys.stdin.isatty():
                raise
            answer = str(error)
        if answer is None:
            return
        console.print()
        _print(console, playback.frame, answer)


def _obey(playback: Playback, line: str) -> str | None:
    """Do what a line says; returns what is to be said of it, or None to quit."""
    word, _, rest = line.partition(" ")
    rest = rest.strip()
    if word.isascii() and word.isdigit():
        word, rest = "jump", word
    commands = [name for name in _COMMANDS if name == word] or [n for n in _COMMANDS if len(word) == 1 and n[0] == word]
    match commands[0] if commands else "":
        case "next":
            return playback.next()
        case "back":
            return playback.back()
        case "start":
            return playback.jump(0)
        case "end":
            return playback.end()
        case "jump":
            return playback.jump(_number(rest))
        case "swap":
            if not rest:
                raise ConfigError("swap to what? write it as swap stall_free:chunk_size=64")
            return playback.swap(rest)
        case "help":
            return "commands: next (or n), back (b), jump N (or N), swap POLICY, start, end (e), quit (q)"
        case "quit":
            return None
    raise ConfigError(f"there is no command {line!r}; {did_you_mean(word, _COMMANDS)}")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"jump to which step? {text!r} is no number from 0")
    return int(text)


def _print(console: Console, frame: Frame | None, said: str) -> None:
    if said:
        say(console, said)
    if frame is None:
        say(console, _NOTHING)
        return
    for part in (head(frame, console), body(frame.step, console)):
        for line in _lines(console, part, console.width):
            console.out(line.rstrip() if not console.is_terminal else line, highlight=False)


def _lines(console: Console, part: RenderableType, width: int) -> list[str]:
    """What a part looks like, line by line."""
    with console.capture() as capture:
        console.print(part, width=width)
    return capture.get().splitlines()


def run_screen(playback: Playback, start: int) -> None:
    """Show steps on a screen of their own until somebody quits."""
    _Show(playback, playback.jump(start)).run()


class _Show:
    def __init__(self, playback: Playback, message: str) -> None:
        self._playback = playback
        self._message = message
        self._top = 0  # first line of the body that is seen
        self._asking: tuple[str, str] | None = None  # what is asked, and what was typed so far
        self._is_help = False
        self._height = 1  # of the part of the body that is seen
        self._is_moving = False
        self._screen = Screen(self.draw)

    def run(self) -> None:
        with self._screen:
            while True:
                self.draw()
                if not self._press(self._screen.key()):
                    return

    def draw(self) -> None:
        """Draw the whole screen at its present size."""
        if self._is_moving:
            return  # it is drawn when it has arrived
        console = make_console()
        width, height = console.size
        frame = self._playback.frame
        top: list[str] = []
        rest: list[str] = []
        if self._is_help:
            rest = _lines(console, Text(_HELP), width)
        elif frame is None:
            rest = [_NOTHING]
        else:
            top = _lines(console, head(frame, console), width)[: max(1, height - 5)]
            rest = _lines(console, body(frame.step, console), width)
        self._height = max(1, height - len(top) - 2)
        self._top = max(0, min(self._top, len(rest) - self._height))
        seen = rest[self._top : self._top + self._height]
        foot = self._foot(console, width, len(rest))
        seen += [""] * (self._height - len(seen))
        self._screen.draw([*top, *seen, *foot][:height])

    def _foot(self, console: Console, width: int, num_lines: int) -> list[str]:
        if self._asking is not None:
            question, typed = self._asking
            line = Text(f"{question}: {typed}_", style="bold")
            line = line[-width:] if len(line) > width else line
        elif self._message:
            line = Text(self._message, style="bold")
        elif num_lines > self._height:
            last = min(num_lines, self._top + self._height)
            line = Text(f"lines {self._top + 1} to {last} of {num_lines}; up and down for the others", style="dim")
        else:
            line = Text()
        keys = _KEYS if not console.options.ascii_only else _KEYS.replace("↑↓", "up/down")
        lines = []
        for text in (line, Text(keys, style="dim")):
            text.truncate(width, overflow="ellipsis")
            lines += _lines(console, text, width) or [""]
        return lines

    # Keys ---------------------------------------------------------------------------------------------------

    def _press(self, key: str) -> bool:
        """Returns whether to go on."""
        if self._asking is not None:
            self._type(key)
            return True
        playback = self._playback
        self._message = ""
        if self._is_help:
            self._is_help = False
            return key not in ("q", "ctrl-d")
        match key:
            case "q" | "ctrl-d":
                return False
            case "n" | "right" | "space" | "enter":
                self._go(playback.next)
            case "b" | "left" | "backspace":
                self._go(playback.back)
            case "home":
                self._go(lambda: playback.jump(0))
            case "e" | "end":
                self._go(playback.end)
            case "j":
                self._asking = ("jump to step", "")
            case "s":
                self._asking = ("from here on decides", "")
            case "up" | "down":
                self._top += 1 if key == "down" else -1
            case "page up" | "page down":
                self._top += self._height if key == "page down" else -self._height
            case "?" | "h":
                self._is_help = True
            case _ if key.isascii() and key.isdigit():
                self._asking = ("jump to step", key)
        return True

    def _go(self, move: Callable[[], str | None]) -> None:
        self._is_moving = True
        try:
            self._message = move() or ""
        except BatchwrightError as error:
            self._message = " ".join(str(error).split())
        finally:
            self._is_moving = False
        self._top = 0

    def _type(self, key: str) -> None:
        assert self._asking is not None
        question, typed = self._asking
        match key:
            case "enter":
                self._asking = None
                if typed.strip():
                    command = "jump" if question.startswith("jump") else "swap"
                    self._go(lambda: _obey(self._playback, f"{command} {typed.strip()}"))
                return
            case "escape" | "ctrl-d":
                self._asking = None
                return
            case "backspace":
                typed = typed[:-1]
            case "ctrl-u":
                typed = ""
            case "space":
                typed += " "
            case _ if len(key) == 1 and key.isprintable():
                typed += key
        self._asking = (question, typed)
