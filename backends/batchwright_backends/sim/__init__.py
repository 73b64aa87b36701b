"""A simulator: a cost model on a virtual clock."""
