"""Learn entity and relation vectors from facts on disk; killed at any moment, it goes on exactly.

Facts are read block by block, in an order drawn for each epoch; of each block only what the
protocol lets a model learn from is seen. One block is learned from in batches, whose rows of the
tables are all that is touched.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from metatkgr.errors import MetaTKGRError
from metatkgr.training.disk_settings import DiskRunSettings
from metatkgr.training.disk_tables import (
    DiskPosition,
    finish,
    load_checkpoint,
    save_checkpoint,
)
from metatkgr.training.trace import Trace
from metatkgr.training.triples_on_disk import DiskTriples, StoredFacts

__all__ = ["Update", "learn_translation"]

Update = Callable[[int, int], object]
"""Is told how much was done since the last call, and how much there is in all."""


def learn_translation(
    folder: Path,
    facts: StoredFacts,
    settings: DiskRunSettings,
    *,
    seed: int,
    most_steps: int = 0,
    validate: Callable[[DiskTriples], float] | None = None,
    progress: Callable[[dict[str, Any]], object] | None = None,
    update: Update | None = None,
) -> None:
    """Learn the tables of a run, from its last checkpoint on.

    Args:
        folder: of the run.
        facts: what may be learned from.
        settings: how.
        seed: of everything drawn.
        most_steps: the epoch in which so many steps are reached is the last; 0: no bound.
        validate: MRR on meta-validation after each epoch; for the trace alone.
        progress: called with each line of the trace.
        update: told of the rows of the facts that were gone through.
    """
    found = load_checkpoint(folder)
    position = DiskPosition() if found is None else found[0]
    # The tables are drawn where there are none yet.
    learning = DiskTriples(facts, folder / "working", settings, seed=seed)
    if found is not None:
        learning.generator.set_state(found[1])
    trace = Trace(folder / "trace.jsonl", keep=position.trace_lines)
    blocks = -(-len(facts) // settings.block)
    total = settings.epochs * len(facts)
    if update:
        done = min(position.block * settings.block, len(facts))
        update(position.epoch * len(facts) + done, total)
    before, begin = position.seconds, time.perf_counter()
    while position.epoch < settings.epochs:
        if most_steps and position.step >= most_steps and position.block == 0:
            break
        order = torch.randperm(blocks, generator=_generator(seed, position.epoch)).tolist()
        while position.block < blocks:
            rows = _block(learning, facts, order[position.block], position)
            position.seconds = before + time.perf_counter() - begin
            if update:
                update(rows, total)
            if position.block < blocks and position.block % settings.checkpoint_blocks == 0:
                save_checkpoint(folder, position, learning.generator)
        if position.facts == 0:
            raise MetaTKGRError("there is no fact that may be learned from")
        line: dict[str, Any] = {
            "loss": position.loss / position.facts,
            "phase": "translation",
            "epoch": position.epoch + 1,
            "epochs": settings.epochs,
            "facts": position.facts,
            "step": position.step,
        }
        if validate:
            line["validation_mrr"] = validate(learning)
        position.seconds = before + time.perf_counter() - begin
        line["seconds"] = line["seconds_phase"] = round(position.seconds, 4)
        trace.write(line)
        position.next_epoch()
        save_checkpoint(folder, position, learning.generator)
        if progress:
            progress(line)
    finish(folder)


def _generator(seed: int, epoch: int) -> torch.Generator:
    """Of the order of an epoch's blocks: known again after a stop in its middle."""
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)


def _block(learning: DiskTriples, facts: StoredFacts, number: int, position: DiskPosition) -> int:
    """Learn from one block of the facts; how many rows it has, visible or not."""
    settings = learning.settings
    low = number * settings.block
    high = min(low + settings.block, len(facts))
    subject, relation, other = (torch.from_numpy(c) for c in facts.read(low, high)[:3])
    order = torch.randperm(len(subject), generator=learning.generator)
    # Of nothing, `split` makes one empty batch.
    for part in torch.split(order, settings.batch_size) if len(order) else ():
        loss = learning.step(subject[part], relation[part], other[part])
        if not math.isfinite(loss):
            raise MetaTKGRError(
                f"the loss became {loss} at step {position.step + 1}; begin anew with a smaller "
                "learning_rate"
            )
        position.loss += loss * len(part)
        position.facts += len(part)
        position.step += 1
    position.block += 1
    return high - low
