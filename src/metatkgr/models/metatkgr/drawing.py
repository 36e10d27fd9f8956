"""What the stages of a training draw: neighbours around their roots, and dropout."""

from __future__ import annotations

import zlib

import torch

from metatkgr.data.visibility import Supports
from metatkgr.graph.index import GraphIndex
from metatkgr.graph.sampler import Sampler, create_sampler
from metatkgr.models.metatkgr.settings import MetaTKGRSettings

__all__ = ["batches_together", "dropout_generator", "dropout_seed", "follow", "sampler_for"]

_NEIGHBOURS_TOGETHER = 1 << 20
"""Slots for neighbours that are filled for several batches at once."""


def dropout_seed(generator: torch.Generator) -> int:
    """The seed of a batch's dropout, drawn on the CPU."""
    return int(torch.randint(2**62, (1,), generator=generator))


def dropout_generator(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator on ``device`` whose draws follow from the state of ``generator`` on the CPU."""
    return torch.Generator(device).manual_seed(dropout_seed(generator))


def batches_together(settings: MetaTKGRSettings, roots: int) -> int:
    """How many batches of so many roots are sampled together; bounds memory."""
    neighbours: int = roots * settings.budget**settings.layers
    return _NEIGHBOURS_TOGETHER // neighbours


def sampler_for(index: GraphIndex, supports: Supports, settings: MetaTKGRSettings) -> Sampler:
    """The neighbour sampler that the settings ask for."""
    return create_sampler(
        settings.sampler,
        index,
        supports,
        budget=settings.budget,
        window=settings.time_window,
        generator=torch.Generator(index.device).manual_seed(0),
    )


def follow(sampler: Sampler, generator: torch.Generator) -> None:
    """What a sampler draws in an epoch follows from where the epoch began, also after a stop."""
    if sampler.generator is not None:
        state = generator.get_state().numpy().tobytes()
        sampler.generator.manual_seed(zlib.crc32(state))
