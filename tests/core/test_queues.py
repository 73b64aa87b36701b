from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright import Request
from batchwright.queues import QueueView, put_first

requests = [Request(str(i), [1]) for i in range(8)]


@given(st.lists(st.tuples(st.sampled_from(["last", "first", "remove"]), st.integers(0, 7)), max_size=30))
def test_a_view_is_its_queue(todo: list[tuple[str, int]]) -> None:
    queue: OrderedDict[Request, None] = OrderedDict()
    view, model = QueueView(queue), []
    for what, number in todo:
        request = requests[number]
        if what == "remove" and request in model:
            del queue[request]
            model.remove(request)
        elif what == "last" and request not in model:
            queue[request] = None
            model.append(request)
        elif what == "first" and request not in model:
            put_first(queue, request)
            model.insert(0, request)
        assert len(view) == len(model) and bool(view) == bool(model)
        assert list(view) == model and list(reversed(view)) == model[::-1]
        assert [view[i] for i in range(len(model))] == model
        assert [view[-i - 1] for i in range(len(model))] == model[::-1]
        assert view[1:3] == model[1:3] and view[::-2] == model[::-2]
        assert [r in view for r in requests] == [r in model for r in requests]
        for place in (len(model), -len(model) - 1):
            with pytest.raises(IndexError, match=f"place {place} of a queue of {len(model)}"):
                view[place]


def test_a_view_cannot_change_its_queue() -> None:
    view = QueueView({requests[0]: None})
    assert repr(view) == "[0]"
    for method in ("append", "remove", "clear", "pop", "insert"):
        assert not hasattr(view, method)
    with pytest.raises(TypeError):
        view[0] = requests[1]  # type: ignore[index]
