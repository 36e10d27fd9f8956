"""Where to compute, and how precisely."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from metatkgr.errors import SettingsError

__all__ = ["PRECISIONS", "choose_device", "choose_precision", "fast_products", "precise_to"]

PRECISIONS = ("auto", "float32", "tf32", "bfloat16")


def choose_device(name: str) -> str:
    """The device to compute on; 'auto' is a GPU where there is one."""
    if name == "auto":
        # Of several processes each takes a GPU of its own.
        return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingsError(f"unknown device {name!r}; use cpu, cuda, cuda:N or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"{name!r} was asked for, but this machine has no usable GPU; use cpu")
    if device.type not in ("cpu", "cuda"):
        raise SettingsError(f"device {name!r} is not supported; use cpu, cuda, cuda:N or auto")
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        return f"cuda:{os.environ['LOCAL_RANK']}"
    return str(device)


def choose_precision(name: str, device: torch.device | str = "cpu") -> str:
    """The precision of the losses, 'float32', 'tf32' or 'bfloat16', that is meant by ``name``.

    'auto' is tf32 on a GPU: products with a table of all entities are most of many models' work,
    and there their factors lose digits that no training misses. It is float32 on a CPU.
    """
    if name not in PRECISIONS:
        raise SettingsError(f"precision is one of {', '.join(PRECISIONS)}, not {name!r}")
    if name != "auto":
        return name
    return "tf32" if torch.device(device).type == "cuda" else "float32"


def precise_to(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Within it, matrix products are computed to ``precision``.

    Weights, gradients and the optimiser stay in float32, and so does all scoring for an evaluation:
    a squared distance written as -‖q‖² - ‖c‖² + 2 q·c is a small difference of large numbers.
    """
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


@contextmanager
def fast_products(precision: str, device: torch.device) -> Iterator[None]:
    """With 'tf32', a GPU rounds the factors of matrix products to 11 digits, sums staying exact.

    Unlike ``precise_to``, it is meant for the backward pass too. Nothing changes on a CPU.
    """
    if precision != "tf32" or device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
