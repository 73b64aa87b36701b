"""Measured kernel times, as others publish them, in the rows that the cost model predicts.

Two schemas are known. A folder of ``*_gemm_*.csv`` (``m,n,k,latency``), ``*_context_attention_*.csv`` and
``*_generation_attention_*.csv`` (``batch_size,isl,step,latency``), milliseconds a layer, all of one GPU. And a
folder of ``dense.csv`` (``layer,tokens,time_us``), ``attention.csv``
(``prefill_chunk,kv_prefill,n_decode,kv_decode,time_us``) and ``per_sequence.csv`` (``layer,sequences,time_us``).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from batchwright.errors import ConfigError
from batchwright_backends.sim.load import AttentionLoad
from batchwright_backends.sim.shape import ModelShape


@dataclass(frozen=True, slots=True)
class MatmulRow:
    """One ``[m, k] x [k, n]``; ``time_s`` in seconds, here and below."""

    m: int
    n: int
    k: int
    time_s: float


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """Attention of one layer: ``num_chunks`` rows of ``chunk`` tokens behind ``prefix`` ones, and decodes."""

    num_chunks: int
    chunk: int
    prefix: int
    num_decodes: int
    decode_context: int
    time_s: float

    @property
    def num_rows(self) -> int:
        """Requests in the batch."""
        return self.num_chunks + self.num_decodes

    @property
    def num_tokens(self) -> int:
        """Tokens in the batch."""
        return self.num_chunks * self.chunk + self.num_decodes

    @property
    def kv_tokens(self) -> int:
        """Tokens of K and V that are read."""
        return self.num_chunks * (self.prefix + self.chunk) + self.num_decodes * self.decode_context

    @property
    def regime(self) -> str:
        """``context``, ``generation`` or ``mixed``."""
        return "generation" if not self.num_chunks else "mixed" if self.num_decodes else "context"

    def load(self, tile: float) -> AttentionLoad:
        """The sums that the cost model takes."""
        chunk_kv = self.num_chunks * (self.prefix + self.chunk)
        area = self.num_chunks * max(self.chunk, tile) * (self.prefix + (self.chunk + 1) / 2)
        longest = max(
            self.prefix + self.chunk if self.num_chunks else 0, self.decode_context if self.num_decodes else 0
        )
        return AttentionLoad(self.kv_tokens, longest, area, chunk_kv)


@dataclass(frozen=True, slots=True)
class CountRow:
    """Something that depends on a count alone: element-wise work on tokens, sampling of rows."""

    count: int
    time_s: float


RowT = TypeVar("RowT", MatmulRow, AttentionRow, CountRow)


@dataclass
class KernelTables:
    """All rows of one GPU, sorted by key; a list may be empty.

    Attributes:
        matmul: dense layers and the language-model head.
        attention: all regimes.
        elementwise: of one layer, by tokens.
        sampling: of a step, by rows that sample.
    """

    matmul: list[MatmulRow] = field(default_factory=list)
    attention: list[AttentionRow] = field(default_factory=list)
    elementwise: list[CountRow] = field(default_factory=list)
    sampling: list[CountRow] = field(default_factory=list)

    def regime(self, name: str) -> list[AttentionRow]:
        """Rows of one attention regime."""
        return [row for row in self.attention if row.regime == name]


def split_rows(rows: Sequence[RowT]) -> tuple[list[RowT], list[RowT]]:
    """Rows to fit on, and every fifth row to judge by."""
    held_out = list(rows[4::5])
    return [row for i, row in enumerate(rows) if i % 5 != 4], held_out


def read_tables(folder: Path, shape: ModelShape, prefix: str = "") -> KernelTables:
    """Read the tables of a folder, in whichever schema they are.

    Args:
        folder: where the files are.
        shape: the model whose layers ``dense.csv`` names.
        prefix: with which the wanted file names begin, such as ``h100_``.

    Raises:
        ConfigError: no table there, tables of several GPUs, or a row that cannot be read.
    """
    tables = KernelTables()
    found = sorted(folder.glob(f"{prefix}*.csv"))
    _check_one_gpu(folder, found)
    for file in found:
        name = file.name
        if name == "dense.csv":
            _read_dense(file, shape, tables)
        elif name == "attention.csv":
            tables.attention += _rows_of_mixed(file)
        elif name == "per_sequence.csv":
            _read_per_sequence(file, shape, tables)
        elif "_gemm_" in name:
            tables.matmul += [MatmulRow(int(m), int(n), int(k), t / 1e3) for m, n, k, t in _numbers(file, _GEMM)]
        elif "_context_attention_" in name or "_generation_attention_" in name:
            for b, isl, step, t in _numbers(file, _BATCHED):
                tables.attention.append(_batched(int(b), int(isl), int(step), t / 1e3))
    if not (tables.matmul or tables.attention):
        under = f" under a name that begins with {prefix!r}" if prefix else ""
        raise ConfigError(f"no kernel table lies in {str(folder)!r}{under}; expected {FILES}")
    tables.matmul.sort(key=lambda r: (r.m, r.n, r.k))
    tables.attention.sort(key=lambda r: (r.num_chunks, r.chunk, r.prefix, r.num_decodes, r.decode_context))
    return tables


_KINDS = ("_gemm_", "_context_attention_", "_generation_attention_")


def _check_one_gpu(folder: Path, files: Sequence[Path]) -> None:
    for kind in _KINDS:
        alike = [file.name for file in files if kind in file.name]
        if len(alike) > 1:
            raise ConfigError(
                f"{str(folder)!r} holds several tables of a kind ({', '.join(alike)}): those of one GPU are fitted, "
                "named by --files PREFIX"
            )


FILES = (
    "*_gemm_*.csv, *_context_attention_*.csv and *_generation_attention_*.csv, or dense.csv, attention.csv and "
    "per_sequence.csv"
)
"""Names of the tables of one GPU, in the two schemas."""
_GEMM = ("m", "n", "k", "latency")
_BATCHED = ("batch_size", "isl", "step", "latency")


def _batched(batch_size: int, isl: int, step: int, time_s: float) -> AttentionRow:
    """``isl`` tokens a row behind ``step`` ones; a row of one token is a decode, whatever table it stands in."""
    if isl == 1:
        return AttentionRow(0, 0, 0, batch_size, step + 1, time_s)
    return AttentionRow(batch_size, isl, step, 0, 0, time_s)


def _rows_of_mixed(file: Path) -> Iterable[AttentionRow]:
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    for chunk, prefix, decodes, context, t in _numbers(file, columns):
        if chunk or decodes:
            counts = (1 if chunk else 0, int(chunk), int(prefix) if chunk else 0)
            yield AttentionRow(*counts, int(decodes), int(context) if decodes else 0, t / 1e6)


def _read_dense(file: Path, shape: ModelShape, tables: KernelTables) -> None:
    h, d = shape.hidden_size, shape.head_dim
    q_width, kv_width = shape.num_attention_heads * d, shape.num_key_value_heads * d
    sizes = {
        "qkv_proj": (q_width + 2 * kv_width, h),
        "o_proj": (h, q_width),
        "gate_up_proj": (2 * shape.intermediate_size, h),
        "down_proj": (h, shape.intermediate_size),
    }
    # Two norms a layer; the embedding and the last norm run once a step and are left out.
    parts = {"layernorm": 2.0, "rotary_emb": 1.0, "act_fn": 1.0}
    elementwise: dict[int, float] = {}
    for layer, tokens, t in _labelled(file, "layer", ("tokens", "time_us")):
        if layer in sizes:
            tables.matmul.append(MatmulRow(int(tokens), *sizes[layer], t / 1e6))
        elif layer in parts:
            elementwise[int(tokens)] = elementwise.get(int(tokens), 0.0) + parts[layer] * t / 1e6
    tables.elementwise += [CountRow(n, t) for n, t in sorted(elementwise.items())]


def _read_per_sequence(file: Path, shape: ModelShape, tables: KernelTables) -> None:
    for layer, sequences, t in _labelled(file, "layer", ("sequences", "time_us")):
        if layer == "lm_head":
            tables.matmul.append(MatmulRow(int(sequences), shape.vocab_size, shape.hidden_size, t / 1e6))
        elif layer == "sampler":
            tables.sampling.append(CountRow(int(sequences), t / 1e6))


def _numbers(file: Path, columns: Sequence[str]) -> Iterable[list[float]]:
    for _, numbers in _records(file, None, columns):
        yield numbers


def _labelled(file: Path, label: str, columns: Sequence[str]) -> Iterable[tuple[str, float, float]]:
    for name, (count, time) in _records(file, label, columns):
        yield name, count, time


def _records(file: Path, label: str | None, columns: Sequence[str]) -> Iterable[tuple[str, list[float]]]:
    """Label and numbers of each row; the last column is a time above 0, the others are counts.

    Raises:
        ConfigError: a column is missing, or a value is none of these (file, line, what was expected).
    """
    wanted = [*([label] if label else []), *columns]
    expected = f"expected the columns {','.join(wanted)}"
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            for column in wanted:
                if column not in (reader.fieldnames or ()):
                    raise ConfigError(f"{str(file)!r}, line 1: there is no column {column!r}; {expected}")
            for record in reader:
                where = f"{str(file)!r}, line {reader.line_num}"
                numbers = [_count(record[column], f"{where}: {column}") for column in columns[:-1]]
                numbers.append(_time(record[columns[-1]], f"{where}: {columns[-1]}"))
                yield (record[label] or "") if label else "", numbers
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{str(file)!r} is no CSV file: {error}; {expected}") from None


def _count(text: str | None, where: str) -> float:
    value = _number(text)
    if value is None or value < 0 or value != int(value):
        raise ConfigError(f"{where} should be a whole number of at least 0 and is {text!r}")
    return value


def _time(text: str | None, where: str) -> float:
    value = _number(text)
    if value is None or value <= 0:
        raise ConfigError(f"{where} should be a time above 0 and is {text!r}")
    return value


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
