"""Reading files of cases, in any format that is known."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from batchwright.errors import CasesError
from batchwright.replay import batchwright_format, nano_format, vllm_format
from batchwright.replay.case import Case
from batchwright.replay.schema import Line

_FORMATS: tuple[tuple[Callable[[dict[str, Any]], bool], Callable[[Line], Case]], ...] = tuple(
    (f.knows, f.read) for f in (batchwright_format, nano_format, vllm_format)
)


def read_cases(path: str | Path) -> Iterator[Case]:
    """The cases of a file, one by one.

    Args:
        path: JSON lines, gzipped or not (by content, whatever the name).

    Raises:
        CasesError: the file cannot be read, holds no case, or a line is wrong; names file, line and field.
    """
    path = Path(path)
    number = 0
    empty = True
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, 1):
                text = raw.decode("utf-8").strip()
                if text:
                    empty = False
                    yield _read(str(path), number, text)
    except (OSError, EOFError, zlib.error) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CasesError(f"{path}: cannot be read: {what}") from None
    except UnicodeDecodeError as error:
        raise CasesError(f"{path}, line {number}: not UTF-8 text: {error.reason}") from None
    if empty:
        raise CasesError(f"{path}: it holds no cases")


def is_recording(path: str | Path) -> bool:
    """Whether a file begins as a file of cases does, in any format that is known."""
    try:
        with _open(Path(path)) as file:
            data = json.loads(next((line for line in file if line.strip()), b""))
    except (OSError, EOFError, zlib.error, ValueError):
        return False
    return isinstance(data, dict) and any(knows(data) for knows, _ in _FORMATS)


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        is_gzipped = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb")) if is_gzipped else path.open("rb")


def _read(file: str, number: int, text: str) -> Case:
    where = f"{file}, line {number}"
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise CasesError(f"{where}: not JSON: {error.msg} (column {error.colno})") from None
    if not isinstance(data, dict):
        raise CasesError(f"{where}: a case is a JSON object, not {type(data).__name__}")
    for knows, read in _FORMATS:
        if knows(data):
            return read(Line(file, number, text, data))
    raise CasesError(
        f"{where}: no known format; its keys are {', '.join(sorted(data))}. Known are batchwright-1 (written by "
        "`batchwright run --record`) and the cases of nano-vLLM and of vLLM V1"
    )
