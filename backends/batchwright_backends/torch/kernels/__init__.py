"""Attention kernels: attend through block tables, K and V being in their slots already.

A kernel is one file with one class (``kernel.py`` says what it has to do); ``choice.py`` picks one by device, dtype
and what the model needs.
"""
