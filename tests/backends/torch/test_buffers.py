"""The pinned buffers: what is put arrives, in one copy, and no buffer is filled while it is being read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backends.torch.recording import RecordingDevice
from batchwright_backends.torch.buffers import ALIGNMENT, Staging

DTYPES = ["int32", "int64", "float32", "float64", "bool"]


@given(data=st.data())
def test_what_is_put_arrives(data: st.DataObject) -> None:
    """Any arrays, also more than there is room for, before and after the flush."""
    staging = Staging(RecordingDevice(), num_bytes=data.draw(st.sampled_from([16, 200, 1 << 16])))
    for step in range(data.draw(st.integers(1, 4))):
        staging.begin()
        rng, put = np.random.default_rng(step), []
        for number in range(data.draw(st.integers(0, 6))):
            if number == 3:
                staging.flush()
            shape = data.draw(st.sampled_from([(0,), (1,), (7,), (3, 5), (40, 1)]))
            array = (rng.random(shape) * 100).astype(data.draw(st.sampled_from(DTYPES)))
            put.append((array, staging.put(array)))
        staging.flush()
        for array, tensor in put:
            assert tensor.shape == array.shape and tensor.data_ptr() % ALIGNMENT == 0
            np.testing.assert_array_equal(tensor.numpy(), array)


def test_dtypes_are_widened_and_nothing_else() -> None:
    staging = Staging(RecordingDevice())
    staging.begin()
    wide = staging.put(np.array([1, -2], dtype=np.int32), np.int64)
    staging.flush()
    assert wide.dtype == torch.int64 and wide.tolist() == [1, -2]
    with pytest.raises(TypeError):
        staging.put(np.array([1.5]), np.int64)


def test_one_copy_a_step_and_no_buffer_is_filled_while_it_is_read() -> None:
    device = RecordingDevice()
    staging = Staging(device)
    filled: list[Any] = []
    for step in range(5):
        staging.begin()
        filled.append(device.log[:])
        for _ in range(3):
            staging.put(np.arange(step + 1))
        assert device.count("mark") == step  # nothing is copied before the flush
        staging.flush()
        staging.flush()
        assert device.count("mark") == step + 1
    # Step n uses the buffer of step n - 2, and waits until that was copied; of no later step.
    waits = [[entry[1] for entry in log if entry[0] == "wait"] for log in filled]
    assert waits == [[], [], [0], [0, 1], [0, 1, 2]]


def test_steps_take_turns() -> None:
    staging = Staging(RecordingDevice())
    seen = []
    for _ in range(4):
        staging.begin()
        staging.put(np.arange(3))
        seen.append(id(staging._views[staging._turn]))
        staging.flush()
    assert seen[0] == seen[2] != seen[1] == seen[3]
