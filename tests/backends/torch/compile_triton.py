"""Compile the Triton kernels for GPUs that need not be here, and print the shared memory that each takes in bytes."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from batchwright_backends.torch.kernels import triton_kernels as kernels
from batchwright_backends.torch.kernels.triton_tiles import MAX_SPLITS, SPLIT_KEYS, STAGES, tile_sizes

INTEGERS = ("block_tables", "starts", "context_lens", "tile_rows", "tile_firsts")
FLOATS = ("sinks", "part_out", "part_max", "part_sum")
POOLS = ("query", "keys", "values", "out")


def compile_for(architecture: int, program: Any, dtype: str, constants: dict[str, Any]) -> int:
    """Bytes of shared memory of the compiled program."""
    kinds = {
        **dict.fromkeys(constants, "constexpr"),
        **dict.fromkeys(INTEGERS, "*i32"),
        **dict.fromkeys(FLOATS, "*fp32"),
        **dict.fromkeys(POOLS, f"*{dtype}"),
        "scaling": "fp32",
        "softcap": "fp32",
    }
    source = ASTSource(
        fn=program,
        signature={name: kinds.get(name, "i32") for name in program.arg_names},
        constexprs={(program.arg_names.index(name),): value for name, value in constants.items()},
        attrs={},
    )
    target = GPUTarget("cuda", architecture, 32)
    compiled = triton.compile(source, target=target, options={"num_stages": STAGES, "enable_fp_fusion": True})
    assert compiled.asm["cubin"]
    return int(compiled.metadata.shared)


def main() -> None:
    """A chunk and a split decode with everything, for Ampere; a plain chunk and DeepSeek's widths, for Hopper."""
    common = {"min_keys": SPLIT_KEYS, "max_splits": MAX_SPLITS}

    def attend(
        architecture: int, dtype: str, widths: tuple[int, int], group: int, is_split: bool, extras: bool
    ) -> None:
        lanes = [1 << (width - 1).bit_length() for width in widths]
        many, one, keys = tile_sizes(group, lanes[0], lanes[1], 4 if dtype == "fp32" else 2)
        constants = {
            "group": group,
            "block_size": 16,
            "key_width": widths[0],
            "key_lanes": lanes[0],
            "value_width": widths[1],
            "value_lanes": lanes[1],
            "tile_queries": one if is_split else many,
            "tile_keys": keys,
            "tile_tokens": 1 if is_split else many // group,
            "has_window": extras,
            "has_softcap": extras,
            "has_sinks": extras,
            "is_split": is_split,
            **common,
        }
        print(compile_for(architecture, kernels.attend_tile, dtype, constants))

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # nothing is taken from an earlier run
        attend(80, "bf16", (128, 128), 2, is_split=False, extras=True)
        attend(80, "bf16", (128, 128), 3, is_split=True, extras=True)
        attend(90, "fp16", (64, 64), 4, is_split=False, extras=False)
        attend(90, "bf16", (192, 128), 1, is_split=True, extras=False)
        keys = {"tile_keys": 64, "value_width": 80, "value_lanes": 128, "has_window": True, "has_sinks": True}
        print(compile_for(80, kernels.join_parts, "bf16", {**keys, **common}))


if __name__ == "__main__":
    main()
