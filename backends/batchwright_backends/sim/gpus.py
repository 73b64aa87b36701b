"""GPUs as the cost model sees them: constants of its terms, fitted or guessed from a datasheet."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

import yaml
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from batchwright.errors import ConfigError, did_you_mean
from batchwright_backends.sim.checked import Checked, check

Share = Annotated[float, Field(ge=0, le=1)]


class Fitted(Checked):
    """Constants of one term, and where they are from.

    Attributes:
        source: the table they were fitted on, or the reason to assume them.
        residual: error of the term on rows that the fit did not see.
        date: of the fit.
    """

    source: str = ""
    residual: str = ""
    date: str = ""


class Gemm(Fitted):
    """A dense layer, or the language-model head: ``floor_s + [C^power + M^power]^(1/power)``.

    ``C``, its arithmetic, runs in waves of one tile a multiprocessor, at ``flops`` when all work, with ``wave_s`` to
    begin and end each. A tile of a x b has ``1 + edge (1/a + 1/b)`` times its share of the work. The empty part of a
    last wave is paid to the share ``tail``. ``M`` is ``bytes/bandwidth``, times ``1 + read_tail * e`` where the tiles
    of one row of them fill more than a wave, and ``1 + read_idle * e`` where they do not, with e the empty part of
    their waves over the rest. The quickest of a set of tiles and of splits of k is taken. On a device without
    ``num_sms``, ``C`` is ``F/flops`` and ``M`` is ``bytes/bandwidth``.
    """

    flops: PositiveFloat
    bandwidth: PositiveFloat
    power: PositiveFloat
    floor_s: NonNegativeFloat
    wave_s: NonNegativeFloat = 0.0
    edge: NonNegativeFloat = 0.0
    tail: Share = 0.0
    read_tail: Share = 0.0
    read_idle: Share = 0.0


class DecodeAttention(Fitted):
    """Attention of a batch in which every row has one token.

    ``[work^power + (floor_s + key_s * longest)^power]^(1/power)`` a layer, where work is
    ``[(KV bytes/bandwidth)^row_power + (head_row_s * rows * KV heads)^row_power]^(1/row_power)``, and what is lost as
    rows end at different times: ``r (1 - exp(-work/r))`` with ``r = ramp_s * rows/(rows + ramp_rows)``.
    """

    bandwidth: PositiveFloat
    head_row_s: NonNegativeFloat
    row_power: PositiveFloat
    floor_s: NonNegativeFloat
    key_s: NonNegativeFloat
    power: PositiveFloat
    ramp_s: NonNegativeFloat = 0.0
    ramp_rows: NonNegativeFloat = 0.0


class ChunkAttention(Fitted):
    """Attention of a batch with chunks of prompts in it, decodes beside them or not.

    ``[work^power + (floor_s + key_s * longest)^power]^(1/power)`` a layer, where work is
    ``F/flops + IO/io_bandwidth + KV bytes/decode bandwidth + head_row_s * rows * KV heads``. A row pays at least
    ``tile`` query tokens: a kernel computes whole tiles, so a decode costs more beside chunks than among decodes.
    """

    flops: PositiveFloat
    io_bandwidth: PositiveFloat
    head_row_s: NonNegativeFloat
    floor_s: NonNegativeFloat
    key_s: NonNegativeFloat
    power: PositiveFloat
    tile: PositiveInt


class Elementwise(Fitted):
    """Norms, rotary embedding, activation: ``sqrt(layer_floor_s^2 + (bytes/bandwidth)^2)`` a layer."""

    layer_floor_s: NonNegativeFloat
    bandwidth: PositiveFloat


class Sampling(Fitted):
    """Choice of tokens from logits: ``[floor_s^power + (logits/logits_per_s)^power]^(1/power)`` a step."""

    floor_s: NonNegativeFloat
    logits_per_s: PositiveFloat
    power: PositiveFloat


class AllReduce(Fitted):
    """Sum over tensor-parallel GPUs: ``latency_s + 2 (n-1)/n * bytes/bandwidth``."""

    latency_s: NonNegativeFloat
    bandwidth: PositiveFloat


class Host(Fitted):
    """Time in which the GPU waits for the host: ``step_s + request_s * rows``."""

    step_s: NonNegativeFloat
    request_s: NonNegativeFloat


class Gpu(Checked):
    """A GPU.

    Attributes:
        name: as it is written after the ``@``.
        title: its name in full.
        uncalibrated: constants of dense layers or attention are datasheet figures times generic efficiencies.
        memory_bytes: device memory, as the driver reports it.
        peak_flops: dense bf16 (fp16 where there is no bf16) operations a second, by its datasheet.
        peak_bandwidth: bytes a second of its memory, by its datasheet.
        num_sms: its multiprocessors; None: a device without them, or whose number is not known.
        source: of the figures above.
    """

    name: str
    title: str
    uncalibrated: bool
    memory_bytes: PositiveInt
    peak_flops: PositiveFloat
    peak_bandwidth: PositiveFloat
    num_sms: PositiveInt | None = None
    source: str = ""
    gemm: Gemm
    decode_attention: DecodeAttention
    chunk_attention: ChunkAttention
    elementwise: Elementwise
    sampling: Sampling
    all_reduce: AllReduce
    host: Host


TERMS = ("gemm", "decode_attention", "chunk_attention", "elementwise", "sampling", "all_reduce", "host")
KERNEL_TERMS = ("gemm", "decode_attention", "chunk_attention")
"""Terms of the cost model; and those without whose fit a GPU is uncalibrated."""
_ALIASES = {"a100-80gb": "a100", "a100-sxm": "a100", "h100-sxm": "h100", "h200-sxm": "h200", "4090": "rtx4090"}


def _read(name: str) -> dict[str, Any]:
    return deepcopy(_parsed(name))


@cache
def _parsed(name: str) -> dict[str, Any]:
    """Parsed once a process: an experiment makes hundreds of simulators, and parsing was a third of making one."""
    text = files("batchwright_backends.sim").joinpath("data", name).read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    """Known GPUs by name: those with fitted terms, and those of which the datasheet is all that we have."""
    folder = files("batchwright_backends.sim").joinpath("data", "gpus")
    fitted = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    entries = [_read(f"gpus/{name}") for name in fitted]
    sheets = [{"name": name, **values} for name, values in _read("datasheets.yaml").items()]
    return {entry["name"]: entry for entry in [*entries, *sheets]}


def gpu_names() -> list[str]:
    """Names of the catalogue, in order."""
    return sorted(_catalogue())


def has_gpu(name: str) -> bool:
    """Whether the catalogue has it."""
    return _key(name) in _catalogue()


def _key(name: str) -> str:
    key = name.lower().replace("_", "-").removeprefix("nvidia-")
    plain = key.replace("-", "")
    return _ALIASES.get(key) or (plain if plain in _catalogue() else key)


def find_gpu(name: str) -> Gpu:
    """A GPU of the catalogue.

    Raises:
        ConfigError: there is none of that name (nearest names given).
    """
    return make_gpu({"base": name}, f"GPU {name!r}")


def make_gpu(values: Mapping[str, Any], where: str) -> Gpu:
    """A GPU from a mapping, as a ``sim:FILE`` gives it.

    Args:
        values: fields of :class:`Gpu`. ``base`` names a GPU of the catalogue, whose values hold where none is
            given, down to single constants. Terms that are in neither are guessed from ``peak_flops`` and
            ``peak_bandwidth``.
        where: what the mapping is, for messages.

    Raises:
        ConfigError: an unknown base or key, or a value out of range.
    """
    given = dict(values)
    base = given.pop("base", None)
    if base is not None:
        entry = _catalogue().get(_key(str(base)))
        if entry is None:
            near = did_you_mean(_key(str(base)), _catalogue())
            raise ConfigError(
                f"the simulator knows no GPU {base!r} ({near}); describe another one in a YAML file and run sim:FILE"
            )
        given = _overlay(entry, given)
    if not all(term in given for term in TERMS):
        given = _overlay(_from_datasheet(given, where), given)
    return check(Gpu, given, where)


def _overlay(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the values of ``top``; mappings in both are joined."""
    joined = dict(base)
    for key, value in top.items():
        below = joined.get(key)
        nested = isinstance(value, Mapping) and isinstance(below, Mapping)
        joined[key] = _overlay(below, value) if nested and isinstance(below, Mapping) else value
    return joined


def _from_datasheet(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """All terms, guessed: shares of the datasheet's figures, and floors, as the fitted GPUs have them on average."""
    generic = _read("generic.yaml")
    try:
        flops, bandwidth = float(given["peak_flops"]), float(given["peak_bandwidth"])
    except KeyError as missing:
        raise ConfigError(f"{where}: {missing.args[0]!r} is missing; give it, or a base to start from") from None
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: peak_flops and peak_bandwidth must be numbers") from None
    per_flops, per_bandwidth = generic.pop("shares_of_peak_flops"), generic.pop("shares_of_peak_bandwidth")
    for peak, shares in ((flops, per_flops), (bandwidth, per_bandwidth)):
        for term, constants in shares.items():
            generic[term] |= {constant: share * peak for constant, share in constants.items()}
    return {
        **generic,
        "name": "unnamed",
        "title": given.get("name", "a GPU of a file"),
        "uncalibrated": any(term not in given for term in KERNEL_TERMS),
    }
