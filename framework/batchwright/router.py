"""The base class of routers: who says which replica of a fleet takes a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from batchwright.params import Parametrized


class Router(Parametrized):
    """Chooses the replica of each request: the hook ``routing(fleet, request)``, as a method marked with ``@hookimpl``.

    One object serves one fleet, so it may keep state in ``self``. It may have observer hooks beside: they are told of
    every replica's requests and steps.

    Attributes:
        Params: a pydantic model of the parameters; subclass :class:`batchwright.Params`.
        params: this object's parameters.
    """

    _kind: ClassVar[str] = "router"

    def describe(self, name: str) -> Mapping[str, Any]:
        """Name and parameters, as plain data."""
        return {"use": name, **self.params.model_dump()}


def is_router_class(value: object) -> bool:
    """Whether it is a class of routers (and not an object of one)."""
    return isinstance(value, type) and issubclass(value, Router)
