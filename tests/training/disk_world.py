"""A simulated world in a folder of facts, for the tests of trainings on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from metatkgr.data.large.ingest import ingest
from metatkgr.data.large.store import FactStore
from metatkgr.data.world import simulate
from metatkgr.graph.build import build_index
from metatkgr.training.disk_settings import DiskMetaSettings

SMALL_META = DiskMetaSettings(
    dimension=8,
    translation_epochs=2,
    translation_batch=200,
    translation_negatives=20,
    block=900,
    epochs=2,
    batch_size=20,
    negatives=4,
    questions=40,
    moments=3,
    checkpoint_blocks=2,
)
"""A MetaTKGR that is trained in a second."""


def ingested_world(place: Path, facts: int = 3000) -> Path:
    """The folder, with the index of its links."""
    world = simulate(facts=facts, seed=2)
    columns = (world.subject, world.relation, world.object, world.time)
    # A few facts of entities with themselves, which the protocol has rules of its own for.
    rows = [tuple(row) for row in np.stack(columns, axis=1).tolist()]
    own = [(s, r, s, t) for s, r, _, t in rows[::40]]
    lines = [f"e{s},r{r},e{o},{t}" for s, r, o, t in sorted(rows + own, key=lambda row: row[3])]
    (place / "world.csv").write_text("\n".join(["s,r,o,t", *lines]) + "\n")
    ingest([place / "world.csv"], place / "facts")
    store = FactStore(place / "facts")
    sizes = {"entities": len(store.entities), "relations": len(store.relations)}
    build_index(store.folder / "index.safetensors", store.blocks, steps=store.steps, **sizes)
    return store.folder
