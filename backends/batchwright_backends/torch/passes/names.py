"""What the passes are called."""

from typing import Literal, get_args

Pass = Literal["packed_linears", "fused_layers", "fused_norms"]
PASSES: tuple[Pass, ...] = get_args(Pass)
"""In the order in which they run."""
