"""A simulator: a cost model on a virtual clock."""

SYNTAX = "sim:MODEL@GPU[xTP] or sim:FILE.yaml"
"""How a simulator is named."""
