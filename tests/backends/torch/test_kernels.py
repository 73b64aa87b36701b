"""Every attention kernel that this machine can run, as it runs here: on a GPU where there is one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backends.torch.attention_cases import Problem, layer
from batchwright_backends.torch.kernels.choice import KERNELS
from batchwright_backends.torch.kernels.demand import Demand
from batchwright_backends.torch.kernels.kernel import AttentionKernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Long and short decodes, a whole prompt, chunks with something before them.
ROWS = [(1, 300), (20, 3), (1, 5), (17, 0), (1, 256), (2, 270)]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one head each": {"num_heads": 2},
    "three heads each": {"num_heads": 6, "key_width": 128, "value_width": 128},
    "window": {"window": 33},
    "softcap": {"softcap": 2.0},
    "window and softcap": {"window": 300, "softcap": 2.0},
    "sinks": {"sinks": torch.tensor([1.0, -1.0, 0.0, 3.0])},
    "DeepSeek's widths": {"num_heads": 2, "key_width": 192, "value_width": 128},
}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.title)
@pytest.mark.parametrize("name", LAYERS)
def test_it_equals_the_definition(name: str, kernel: type[AttentionKernel]) -> None:
    changes = dict(LAYERS[name])
    if "sinks" in changes:
        changes["sinks"] = changes["sinks"].to(DEVICE)
    reasons = []
    for dtype in DTYPES:
        demand = Demand.of(torch.device(DEVICE), dtype, None, [layer(**changes)], is_named=True)
        if (reason := kernel.refusal(demand)) is not None:
            reasons.append(reason)
            continue
        made = kernel.make(demand)
        problem = Problem(ROWS, layer(**changes), made.default_block_size, dtype, device=DEVICE)
        problem.clear()
        problem.check(made, half_tolerance=1e-2 if dtype == torch.float16 else 5e-2)
    if len(reasons) == len(DTYPES):
        pytest.skip(f"{kernel.title}: {reasons[0]}")
