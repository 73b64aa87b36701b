"""Which kernel ``auto`` takes, over every combination of device, packages, dtype, block size and needs; and why."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator
from itertools import chain, combinations, product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backends.torch.attention_cases import layer
from batchwright.errors import BackendError
from batchwright_backends.torch import plugin
from batchwright_backends.torch.kernels import choice, native, varlen
from batchwright_backends.torch.kernels.demand import Demand
from batchwright_backends.torch.native.build import NotBuilt

PACKAGES = ("flash_attn_interface", "flash_attn", "flash_attn.cute.interface", "triton")
DEVICES: tuple[tuple[str, tuple[int, int] | None], ...] = (
    ("cpu", None),
    ("cuda", None),  # an AMD GPU
    ("cuda", (7, 5)),
    ("cuda", (8, 6)),
    ("cuda", (9, 0)),
    ("cuda", (10, 0)),
    ("cuda", (12, 0)),
)
NEEDS: dict[str, dict[str, Any]] = {
    "window": {"window": 9},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": torch.ones(4)},
    "widths": {"key_width": 192, "value_width": 128},
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK_SIZES = (None, 16, 128, 256)

Install = Callable[..., None]


def built_for(dtype: torch.dtype) -> object:
    """As where a compiler is there."""
    if dtype == torch.float16:
        raise NotBuilt("it knows float32 and bfloat16, not float16")
    return object()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Pretends that these packages are installed, and no others; kernels are not made, but named."""
    monkeypatch.setattr(varlen, "_takes_block_tables", lambda: True)
    monkeypatch.setattr(native, "functions", built_for)
    for kernel in choice.KERNELS:
        fake = SimpleNamespace(name=kernel.name, title=kernel.title)
        monkeypatch.setattr(kernel, "make", lambda demand, fake=fake: fake)

    def installed(*packages: str) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in packages else None)

    return installed


def able(demand: Demand, packages: tuple[str, ...], needs: tuple[str, ...]) -> dict[str, bool]:
    """What the documentation promises, in the order of preference."""
    generation = demand.capability[0] if demand.capability else 0
    half = demand.dtype != torch.float32
    size = demand.block_size
    third, second, fourth, triton = (name in packages for name in PACKAGES)
    plain = half and not {"softcap", "sinks", "widths"} & set(needs)
    return {
        "flash_attn 3": generation == 9 and third and half and "sinks" not in needs,
        "flash_attn 2": generation >= 8
        and second
        and half
        and not {"sinks", "widths"} & set(needs)
        and (size is None or size % 256 == 0),
        "varlen": plain and ((generation == 9 and third) or (generation == 10 and fourth and size in (None, 128))),
        "triton": triton and generation >= 8,
        "native": demand.device == "cpu" and demand.dtype != torch.float16,
        "sdpa": True,
    }


def subsets(names: Any) -> Iterator[tuple[str, ...]]:
    names = tuple(names)
    return chain.from_iterable(combinations(names, n) for n in range(len(names) + 1))


@pytest.mark.parametrize(("device", "capability"), DEVICES)
def test_every_combination(device: str, capability: tuple[int, int] | None, install: Install) -> None:
    for packages in subsets(PACKAGES):
        install(*packages)
        for needs, dtype, block_size in product(subsets(NEEDS), DTYPES, BLOCK_SIZES):
            special = layer(index=1, **{k: v for need in needs for k, v in NEEDS[need].items()})
            demand = Demand(device, capability, dtype, block_size, [layer(), special])
            can = able(demand, packages, needs)
            first = next(title for title, fine in can.items() if fine)
            chosen = choice.decide("auto", demand)
            assert chosen.kernel.title == first, (packages, needs, dtype, block_size)
            assert list(chosen.passed_over) == list(can)[: list(can).index(first)]
            assert all(chosen.passed_over.values())
            for kernel in choice.KERNELS:
                assert (kernel.refusal(demand) is None) == can[kernel.title], (kernel.title, packages, needs)


def test_by_name(install: Install) -> None:
    install("flash_attn_interface", "flash_attn", "triton")
    hopper = Demand("cuda", (9, 0), torch.bfloat16, 256, [layer()])
    for wanted, title in (
        ("auto", "flash_attn 3"),
        ("flash_attn", "flash_attn 3"),
        ("varlen", "varlen"),
        ("triton", "triton"),
        ("sdpa", "sdpa"),
    ):
        chosen = choice.decide(wanted, hopper)
        assert (chosen.kernel.title, chosen.passed_over) == (title, {})
    install("flash_attn", "triton")
    chosen = choice.decide("flash_attn", hopper)
    assert chosen.kernel.title == "flash_attn 2"
    assert str(chosen) == (
        "attention by flash_attn 2 (attention: flash_attn; not flash_attn 3: neither flash_attn_interface "
        "(flash-attention's folder hopper) nor fa3-fwd is installed)"
    )


def test_a_kernel_that_cannot_is_refused_with_reasons_and_choices(install: Install) -> None:
    install("triton")
    ampere = Demand("cuda", (8, 0), torch.float16, 16, [layer(softcap=2.0)])
    with pytest.raises(BackendError) as caught:
        choice.decide("flash_attn", ampere)
    assert str(caught.value) == (
        "backend_options.attention is 'flash_attn', and flash_attn 3 cannot run this model on cuda: it needs an NVIDIA "
        "GPU of compute capability 9.0 (Hopper); flash_attn 2 cannot run this model on cuda: flash-attn 2 is not "
        "installed (pip install 'batchwright[flash-attn]'). Use attention: triton or sdpa, or auto"
    )


def test_a_package_that_cannot_be_loaded_is_passed_over(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("flash_attn", "triton")
    demand = Demand("cuda", (8, 0), torch.float16, 256, [layer()])

    def broken(demand: Demand) -> Any:
        raise ImportError("undefined symbol: _ZN3c10")

    monkeypatch.setattr(choice.FlashAttention2, "make", broken)
    chosen = choice.decide("auto", demand)
    assert chosen.kernel.title == "triton"
    assert chosen.passed_over["flash_attn 2"] == (
        "it is installed, and cannot be loaded (ImportError: undefined symbol: _ZN3c10)"
    )
    with pytest.raises(
        BackendError, match=r"cannot be loaded \(ImportError: undefined .* Use attention: triton or sdpa"
    ):
        choice.decide("flash_attn", demand)


def test_it_is_logged(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install()
    with caplog.at_level(logging.INFO, logger="batchwright_backends.torch.kernels.choice"):
        choice.choose("auto", torch.device("cpu"), torch.float32, None, [layer()])
    assert caplog.messages[0].startswith(
        "attention by native (attention: auto; not flash_attn 3: it needs an NVIDIA GPU"
    )
    assert "; not triton: it needs a GPU)" in caplog.messages[0]


def test_the_listing_names_what_is_installed(install: Install) -> None:
    for packages, text in (
        (["flash_attn", "triton"], "attention by flash_attn or triton or sdpa"),
        (["fa3_fwd_interface"], "attention by flash_attn or sdpa"),
        (["triton"], "attention by triton or sdpa"),
        ([], "attention by sdpa"),
    ):
        install(*packages)
        assert plugin.register_backends()["cuda"].summary.endswith(f"on a GPU, by torch; {text}")


def test_results_say_what_was_chosen(make_backend: Callable[..., Any]) -> None:
    """Unless there was nothing to choose."""
    assert make_backend("llama").notes == ()
    backend = make_backend("llama", attention="sdpa")
    assert backend.notes == ("attention by sdpa (attention: sdpa)",) == (str(backend.choice),)


def test_a_demand_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    hopper = Demand.of(torch.device("cuda"), torch.float16, 16, [])
    assert (hopper.device, hopper.capability, hopper.generation) == ("cuda", (9, 0), 9)
    monkeypatch.setattr(torch.version, "hip", "6.4")  # AMD numbers its GPUs otherwise
    assert Demand.of(torch.device("cuda"), torch.float16, 16, []).generation is None
    assert Demand.of(torch.device("cpu"), torch.float16, 16, []).capability is None
