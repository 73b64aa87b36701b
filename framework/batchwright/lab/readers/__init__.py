"""Readers of trace files, one format a module; a file's format is found by its first line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from batchwright.errors import WorkloadError
from batchwright.lab.readers.azure import AZURE
from batchwright.lab.readers.jsonl import JSONL
from batchwright.lab.readers.mooncake import MOONCAKE
from batchwright.lab.readers.reader import Reader
from batchwright.lab.row import WorkloadRow

READERS: Mapping[str, Reader] = {"azure": AZURE, "mooncake": MOONCAKE, "jsonl": JSONL}
"""The built-in formats, in the order in which they are tried."""

__all__ = ["READERS", "Reader", "read_file"]


def read_file(path: Path, readers: Mapping[str, Reader] = READERS) -> Iterator[WorkloadRow]:
    """The rows of a trace file, in the order of the file, as they are asked for.

    Args:
        path: of the file.
        readers: formats by name; the first that understands the first line reads the file.

    Raises:
        WorkloadError: the file is absent, empty, not text, in no known format, or has a broken row.
    """
    try:
        # utf-8-sig: spreadsheets put a byte order mark in front of CSV files.
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = enumerate(file, start=1)
            first = next(((n, line) for n, line in lines if line.strip()), None)
            if first is None:
                raise WorkloadError(f"{path} is empty; {_understood(readers)}")
            for reader in readers.values():
                if reader.understands(first[1]):
                    num = 0
                    for row in reader.read(path, first, lines):
                        num += 1
                        yield row
                    if not num:
                        raise WorkloadError(f"{path} has a header and no rows: there is nothing to run")
                    break
            else:
                found = first[1].strip()
                shown = found if len(found) <= 60 else found[:60] + "…"
                raise WorkloadError(
                    f"{path}, line {first[0]} is {shown!r}, which is no known format; {_understood(readers)}"
                )
    except UnicodeDecodeError:
        raise WorkloadError(f"{path} is not a text file; {_understood(readers)}") from None
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}; {_understood(readers)}") from None


def _understood(readers: Mapping[str, Reader]) -> str:
    formats = "; ".join(reader.description for reader in readers.values())
    return f"a workload is one of: {formats}; synthetic:rate=4,n=100,prompt=512,output=128"
