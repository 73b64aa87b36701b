"""Strict mode: what hooks are shown is behind glass, and who tries to write to it is told so.

In fast mode a policy gets the core's own objects and is trusted. Here each hook of a policy, and of a plugin that
decides beside it, gets read-only images of the step, its queues and its requests: equal to them, with the same hash,
and with public attributes only. Answers are taken back to the objects themselves. Observers of plugins that decide
nothing get the objects, since they belong to whoever runs the experiment. It keeps honest policies from mistakes; it is
no sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, NoReturn

from pydantic import ValidationError

from batchwright.backend import StepResult
from batchwright.errors import PolicyError, Written
from batchwright.limits import Limits
from batchwright.params import Parametrized
from batchwright.request import Request
from batchwright.step import Step

_END = object()
_own = object.__getattribute__


class _Image:
    """A read-only image of an object."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return _own(self, name)
        glass, real = _own(self, "_glass"), _own(self, "_real")
        if name.startswith("_"):
            glass.refuse(f"reached for {_own(self, '_called')}.{name}, which is private to the core")
        return glass.show(getattr(real, name), f"{_own(self, '_called')}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        _own(self, "_glass").refuse(f"set {_own(self, '_called')}.{name} to {value!r}")

    def __delattr__(self, name: str) -> None:
        _own(self, "_glass").refuse(f"deleted {_own(self, '_called')}.{name}")

    def __hash__(self) -> int:
        return hash(_own(self, "_real"))

    def __eq__(self, other: object) -> bool:
        return bool(_own(self, "_real") == _bare(other))

    def __repr__(self) -> str:
        return repr(_own(self, "_real"))


class _RequestImage(_Image, Request):
    __slots__ = ("_called", "_glass", "_real")


class _StepImage(_Image, Step):
    __slots__ = ("_called", "_glass", "_real")


class _LimitsImage(_Image, Limits):
    __slots__ = ("_called", "_glass", "_real")


class _ResultImage(_Image, StepResult):
    __slots__ = ("_called", "_glass", "_real")


class _SequenceImage(_Image, Sequence[Any]):
    """A queue, a list or a view of one, as it is at each look."""

    __slots__ = ("_called", "_glass", "_real")

    def _show(self, value: Any) -> Any:
        return _own(self, "_glass").show(value, f"{_own(self, '_called')}[...]")

    def __len__(self) -> int:
        return len(_own(self, "_real"))

    def __bool__(self) -> bool:
        return bool(_own(self, "_real"))

    def __iter__(self) -> Iterator[Any]:
        show = _own(self, "_show")
        return (show(value) for value in _own(self, "_real"))

    def __reversed__(self) -> Iterator[Any]:
        show = _own(self, "_show")
        return (show(value) for value in reversed(_own(self, "_real")))

    def __contains__(self, value: object) -> bool:
        return _bare(value) in _own(self, "_real")

    def __getitem__(self, place: Any) -> Any:
        found, show = _own(self, "_real")[place], _own(self, "_show")
        return [show(value) for value in found] if isinstance(place, slice) else show(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(_own(self, "_real")) == [_bare(value) for value in other]

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Iterable[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Any]) -> list[Any]:
        return [*other, *self]

    def __setitem__(self, place: Any, value: Any) -> None:
        _own(self, "_glass").refuse(f"wrote to {_own(self, '_called')}[{place!r}]")

    def __delitem__(self, place: Any) -> None:
        _own(self, "_glass").refuse(f"deleted {_own(self, '_called')}[{place!r}]")

    def __iadd__(self, other: object) -> Any:
        _own(self, "_glass").refuse(f"extended {_own(self, '_called')}")


class _MappingImage(_Image, Mapping[Any, Any]):
    __slots__ = ("_called", "_glass", "_real")

    def __len__(self) -> int:
        return len(_own(self, "_real"))

    def __iter__(self) -> Iterator[Any]:
        return iter(_own(self, "_real"))

    def __getitem__(self, key: Any) -> Any:
        return _own(self, "_glass").show(_own(self, "_real")[key], f"{_own(self, '_called')}[{key!r}]")

    def __eq__(self, other: object) -> bool:
        return bool(_own(self, "_real") == _bare(other))

    __hash__ = None  # type: ignore[assignment]

    def __setitem__(self, key: Any, value: Any) -> None:
        _own(self, "_glass").refuse(f"wrote to {_own(self, '_called')}[{key!r}]")

    def __delitem__(self, key: Any) -> None:
        _own(self, "_glass").refuse(f"deleted {_own(self, '_called')}[{key!r}]")


_WRITES = {"append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"}
_WRITES |= {"add", "discard", "update", "setdefault", "popitem"}
_IMAGES: tuple[tuple[type, type[_Image], str | None], ...] = (
    (Step, _StepImage, "step"),
    (Request, _RequestImage, None),
    (Limits, _LimitsImage, "step.limits"),
    (StepResult, _ResultImage, "result"),
    (Mapping, _MappingImage, None),
)


def _bare(value: Any) -> Any:
    """The object behind an image; anything else as it is."""
    return _own(value, "_real") if isinstance(value, _Image) else value


class Glass:
    """Shows the core's objects to hooks, and takes their answers back."""

    def __init__(self, policies: Mapping[str, Parametrized], note: Callable[[PolicyError], None]) -> None:
        """Takes policies whose parameters are watched, by name, and whom to tell of what an observer tried."""
        self._note = note
        self._attempt: Written | None = None
        self._requests: dict[Request, _Image] = {}  # one image each, so that ``is`` works
        self._most = 64
        self._others: dict[int, tuple[Any, _Image]] = {}  # of the present step
        self._step: Step | None = None
        self._params = [(n, p, p.params, p.params.model_copy(deep=True)) for n, p in policies.items()]

    def refuse(self, what: str) -> NoReturn:
        """Note an attempt, so that it counts even if the hook catches what is raised."""
        self._attempt = self._attempt or Written(what)
        raise Written(what)

    def show(self, value: Any, called: str = "it") -> Any:
        """An image of a value; numbers, strings and what cannot be written to as they are."""
        if value is None or isinstance(value, (int, float, str, _Image)):
            return value
        if isinstance(value, Request):
            image = self._requests.get(value)
            if image is None:
                image = self._requests[value] = self._image(_RequestImage, value, f"request {value.request_id!r}")
            return image
        if isinstance(value, Step) and value is not self._step:
            self._turn_to(value)
        known = self._others.get(id(value))
        if known is not None:
            return known[1]
        for base, kind, name in _IMAGES:
            if isinstance(value, base):
                return self._keep(value, self._image(kind, value, name or called))
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return self._keep(value, self._image(_SequenceImage, value, called))
        if callable(value) and hasattr(value, "__self__"):  # a method of the real object
            return self._method(value, called)
        return value

    @staticmethod
    def bare(value: Any) -> Any:
        """An answer as the core wants it."""
        if isinstance(value, (list, tuple)):
            return [_bare(one) for one in value]
        return _bare(value)

    def _image(self, kind: type[Any], real: Any, called: str) -> _Image:
        image: _Image = object.__new__(kind)
        for name, value in (("_real", real), ("_glass", self), ("_called", called)):
            object.__setattr__(image, name, value)
        return image

    def _keep(self, value: Any, image: _Image) -> _Image:
        self._others[id(value)] = (value, image)  # the value is kept, so that its id stays its own
        return image

    def _turn_to(self, step: Step) -> None:
        self._step = step
        self._others.clear()
        if len(self._requests) > self._most:
            self._requests = {r: image for r, image in self._requests.items() if not r.is_finished}
            self._most = 2 * len(self._requests) + 64

    def _method(self, method: Callable[..., Any], called: str) -> Callable[..., Any]:
        @wraps(method)
        def through(*args: Any, **options: Any) -> Any:
            if method.__name__ in _WRITES and not isinstance(method.__self__, (Step, Request)):  # type: ignore[attr-defined]
                self.refuse(f"called {called}()")
            return self.show(method(*map(_bare, args), **{k: _bare(v) for k, v in options.items()}), called)

        return through

    # Hooks ------------------------------------------------------------------------------------------------------

    def decision(self, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A decision hook behind glass."""

        @wraps(call)
        def decide(*args: Any) -> Any:
            answer = self._run(call, *map(self.show, args))
            if hook == "admission":
                return self._offers(answer) if hasattr(answer, "__iter__") else answer
            return _bare(answer)

        return decide

    def observer(self, hook: str, plugin: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """An observer behind glass; its fault is noted as any observer's, and told beside."""

        @wraps(call)
        def told(*args: Any) -> None:
            try:
                self._run(call, *map(self.show, args))
            except Written as error:
                step = self._step.index if self._step is not None else 0
                self._note(PolicyError(str(error), plugin=plugin, hook=hook, step=step, rule="write", value=error.what))
                raise

        return told

    def _offers(self, answer: Any) -> Iterator[Any]:
        if isinstance(answer, _SequenceImage):
            yield _bare(answer)
            return
        iterator = self._run(iter, answer)
        try:
            while (offer := self._run(next, iterator, _END)) is not _END:
                is_plain = isinstance(offer, (_Image, list, tuple)) or not hasattr(offer, "__iter__")
                yield self.bare(offer) if is_plain else self._offers(offer)
        finally:
            if hasattr(iterator, "close"):
                self._run(iterator.close)

    def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        self._attempt = None
        try:
            answer = call(*args)
        except Exception as error:
            raise (self._attempt or _frozen(error) or error) from error.__cause__
        self._check_params()
        if self._attempt is not None:  # the hook caught it
            raise self._attempt
        return answer

    def _check_params(self) -> None:
        for name, policy, params, before in self._params:
            if policy.params is not params or params != before:
                policy.params = params.__class__.model_validate(before.model_dump())
                self._params = [(n, p, p.params, b) for n, p, _, b in self._params]
                raise Written(f"changed the parameters of {name!r}")


def _frozen(error: Exception) -> Written | None:
    """Whether it is pydantic's answer to a write to parameters."""
    if isinstance(error, ValidationError):
        for e in error.errors():
            if e["type"] == "frozen_instance":
                return Written(f"set params.{e['loc'][0]} to {e['input']!r}")
    return None
