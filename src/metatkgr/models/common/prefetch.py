"""What batches need besides the weights, made for many batches at once, and the seeds they draw.

Which neighbours a root has does not depend on what is learned, so the roots of many small batches
can be sampled together. On a GPU that is most of a small step's time: breadth-first search takes up
to b rounds, each of some fifty kernels, whether it serves twenty tasks or a thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

from metatkgr.models.trainable import Part

__all__ = ["Prefetcher", "dropout_generator", "dropout_seed"]

Batch = TypeVar("Batch")
Ready = TypeVar("Ready")


def dropout_seed(generator: torch.Generator) -> int:
    """The seed of a batch's dropout, drawn on the CPU."""
    return int(torch.randint(2**62, (1,), generator=generator))


def dropout_generator(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator on ``device`` whose draws follow from the state of ``generator`` on the CPU."""
    return torch.Generator(device).manual_seed(dropout_seed(generator))


class Prefetcher(Generic[Batch, Ready]):
    """Hands out batches in groups, and makes a group ready when its first batch is asked for.

    What is drawn for a batch is drawn in the order of the batches, so that the outcome does not
    depend on the size of the groups.

    Args:
        make: given some batches, the generator and the part of them that this process computes,
            what each needs.
        size: batches in a group, at least 1.
    """

    def __init__(
        self,
        make: Callable[[Sequence[Batch], torch.Generator, Part], Sequence[Ready]],
        size: int,
    ) -> None:
        self._make, self._size = make, max(size, 1)
        self._group: list[Batch] = []
        self._ready: dict[int, tuple[Part, Ready]] = {}

    def grouped(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        """The batches, one after another; those of a group will be made ready together."""
        for start in range(0, len(batches), self._size):
            self._group, self._ready = list(batches[start : start + self._size]), {}
            yield from self._group
        self._group, self._ready = [], {}

    def ready(self, batch: Batch, generator: torch.Generator, part: Part) -> Ready:
        """What a batch needs; with it, that of those which follow in its group is made.

        A batch is made ready anew each time it is asked for, also one that is of no group.
        """
        # By identity: batches may be tensors, which compare element by element.
        matches = (number for number, other in enumerate(self._group) if other is batch)
        number = next(matches, None)
        if number is None:
            return self._make([batch], generator, part)[0]
        prepared = self._ready.pop(number, None)
        if prepared is not None and prepared[0] == part:
            return prepared[1]
        made = self._make(self._group[number:], generator, part)
        self._ready = {number + i: (part, later) for i, later in enumerate(made) if i}
        return made[0]
