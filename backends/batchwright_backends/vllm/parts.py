"""The files of a recording: parts of bounded size, and what of a prompt may stand in them."""

from __future__ import annotations

import gzip
import io
import json
import os
import secrets
import time
from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field

from batchwright.errors import ConfigError
from batchwright.lab.readers.recording import FORMAT, SUFFIX
from batchwright.lab.step_records import FIELDS

SALT = "BATCHWRIGHT_RECORD_SALT"
"""Environment variable with the salt of hashes: for recordings whose hashes are to be comparable."""

_MIB = 2**20


class RecordSettings(BaseModel):
    """Where traffic is recorded."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dir: str = Field(min_length=1, description="The folder; it is made where it is not there.")
    part_mib: float = Field(default=64.0, gt=0, description="MiB of a part, compressed; then the next one begins.")
    max_parts: int | None = Field(
        default=None, ge=1, description="Parts of this server that are kept: the oldest is deleted. None: all."
    )


def salt() -> bytes:
    """What hashes are salted with: at random, and known to nobody, unless the environment gives it.

    Raises:
        ConfigError: that is too short to keep a secret.
    """
    given = os.environ.get(SALT)
    if given is None:
        return secrets.token_bytes(32)
    if len(given) < 16:
        raise ConfigError(f"{SALT} has {len(given)} characters, which can be guessed; give it at least 16")
    return blake2b(given.encode(), digest_size=32).digest()


def block_hashes(token_ids: Sequence[int], size: int, key: bytes) -> list[int]:
    """A number below 2**64 for each block of a prompt; the last one may be shorter.

    Each is the keyed BLAKE2b of its tokens and of the number before it, so equal numbers are equal prompts up to there,
    and whoever has not the key can tell nothing of them.

    Args:
        token_ids: of the prompt.
        size: tokens of a block.
        key: at most 64 bytes.
    """
    packed = memoryview(array("q", token_ids).tobytes())
    step, before, found = 8 * size, b"", []
    for start in range(0, len(packed), step):
        digest = blake2b(before, digest_size=8, key=key)
        digest.update(packed[start : start + step])
        before = digest.digest()
        found.append(int.from_bytes(before, "big"))
    return found


class Parts:
    """Writes lines to files of bounded size, each of which is whole by itself.

    Args:
        settings: where to.
        head: the first line of each, beside its format; ``run`` in it is a name that no other server has.

    Raises:
        OSError: the folder or the first file cannot be written.
    """

    def __init__(self, settings: RecordSettings, head: Mapping[str, Any]) -> None:
        self._settings = settings
        self._folder = Path(settings.dir).expanduser()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}-{head['run']}"
        self._head = {"format": FORMAT, "step_fields": FIELDS, **head}
        self._written: list[Path] = []
        self._number = 0
        self._open()

    @property
    def path(self) -> Path:
        """Of the present part."""
        return self._written[-1]

    def write(self, line: Mapping[str, Any]) -> None:
        """Write one line."""
        self._text.write(json.dumps(line, separators=(",", ":"), allow_nan=False))
        self._text.write("\n")
        self._is_flushed = False

    def flush(self) -> None:
        """What was written is on disk; and begin another part where this one is full."""
        if self._is_flushed:
            return
        self._is_flushed = True
        self._text.flush()
        self._gzip.flush()
        self._file.flush()
        if self._file.tell() >= self._settings.part_mib * _MIB:
            self.close()
            self._open()

    def close(self) -> None:
        """Close the present part."""
        self._text.close()
        self._file.close()

    def _open(self) -> None:
        path = self._folder / f"{self._name}-{self._number:05d}{SUFFIX}"
        self._number += 1
        self._file: BinaryIO = path.open("xb")
        self._gzip = gzip.GzipFile(fileobj=self._file, mode="wb", compresslevel=3)
        self._text = io.TextIOWrapper(self._gzip, encoding="ascii")
        self._written.append(path)
        self.write({**self._head, "part": self._number - 1})
        self.flush()  # so that a folder that is recorded to can be read
        most = self._settings.max_parts
        while most is not None and len(self._written) > most:
            self._written.pop(0).unlink(missing_ok=True)
