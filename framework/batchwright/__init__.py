"""Batchwright: LLM-inference scheduling policies as plugins."""

from batchwright.version import __version__

__all__ = ["__version__"]
