"""The version of the distribution, and of the hook contract that plugins are written against."""

__version__ = "0.1.0"

HOOKSPEC_VERSION = 1
"""Raised when a hook changes in a way that existing plugins would notice."""

RECORD_VERSION = 1
"""Schema version of request and step records; written into every file of records."""
