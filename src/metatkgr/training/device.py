"""Where to compute, and how precisely."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from metatkgr.errors import SettingsError

__all__ = ["PRECISIONS", "choose_device", "choose_precision", "precise_to"]

PRECISIONS = ("auto", "float32", "bfloat16")


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


def choose_precision(name: str) -> str:
    """The precision of the losses, 'float32' or 'bfloat16', that is meant by ``name``.

    'auto' is float32, on a GPU too: small kernels wait for their launch whatever their precision,
    and digits are lost. No measurement on record shows that bfloat16 pays.
    """
    if name not in PRECISIONS:
        raise SettingsError(f"precision is one of {', '.join(PRECISIONS)}, not {name!r}")
    return "float32" if name == "auto" else name


def precise_to(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Within it, matrix products are computed to ``precision``.

    Weights, gradients and the optimiser stay in float32, and so does all scoring for an evaluation:
    a squared distance written as -‖q‖² - ‖c‖² + 2 q·c is a small difference of large numbers.
    """
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
