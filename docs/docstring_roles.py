"""Docstrings name objects as Sphinx does; Markdown shows such a role as it stands, so it becomes plain code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`([^`]+)`")


def _plain(match: re.Match[str]) -> str:
    """``~a.b.C`` as ``C``, ``a.b.C`` as it is."""
    name = match[1]
    return f"`{name.rpartition('.')[2] if name.startswith('~') else name}`"


class DocstringRoles(griffe.Extension):
    """Rewrites the docstring of every object that is loaded."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each object."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(_plain, obj.docstring.value)
