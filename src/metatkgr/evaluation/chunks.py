"""Work in chunks that become smaller where the memory of a device is too small for them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from metatkgr.errors import MetaTKGRError

__all__ = ["in_chunks"]

_LOG = logging.getLogger(__name__)


def in_chunks(count: int, size: int, work: Callable[[int, int], object]) -> None:
    """Call ``work(begin, end)`` for all of ``range(count)``, ``size`` at a time, in order.

    Where a chunk runs out of a GPU's memory it is halved, with a warning, and done again; later
    chunks keep the smaller size. So ``work`` must leave nothing behind when it raises.

    Raises:
        MetaTKGRError: not even a single one fits.
    """
    begin = 0
    while begin < count:
        end = min(count, begin + size)
        try:
            work(begin, end)
        except torch.OutOfMemoryError as error:
            told = str(error).splitlines()[0] if str(error) else "out of memory"
        else:
            begin = end
            continue
        # Outside the handler: the error holds on to the tensors of the frames it came through.
        if end - begin == 1:
            raise MetaTKGRError(
                f"the device has too little memory for a single question ({told}); choose a "
                "smaller model, or --device cpu"
            )
        size = (end - begin) // 2
        _LOG.warning("out of memory with %d questions at once; going on with %d", end - begin, size)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
