"""Attributes that are made when they are first read, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class kept(Generic[T]):  # noqa: N801 - read like the decorator it is
    """``functools.cached_property`` without the lock that it takes in Python 3.11: a step reads a dozen of these."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: object, kind: type | None = None) -> T: ...
    def __get__(self, owner: object | None, kind: type | None = None) -> Self | T:
        if owner is None:
            return self
        value = owner.__dict__[self._name] = self._make(owner)
        return value
