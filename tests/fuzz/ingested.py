"""Folders that ``data ingest`` has written and ``--append`` has grown: cut, flipped, forged."""

from __future__ import annotations

import json
import random
import shutil
import struct
from functools import cache
from pathlib import Path

import numpy as np
import torch

from fuzz.fuzzing import fuzzer, scratch
from fuzz.mutation import (
    damage_bytes,
    damage_header,
    damage_value,
    odd_text,
    put_file,
    remove_file,
)
from metatkgr.data import sources
from metatkgr.data.folder import FactFolder
from metatkgr.data.ingest import append, ingest
from metatkgr.data.statistics import DatasetStatistics
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import Supports, VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.errors import UnknownNameError
from metatkgr.evaluation.evaluator import evaluate
from metatkgr.graph.index import TemporalIndex
from metatkgr.graph.sampler import BreadthFirstSampler
from metatkgr.models import create

__all__ = ["KINDS", "damaged_folder", "forged_file", "whole_folder"]

KINDS = ("plain", "layered", "moved")
"""As ``ingest`` writes it; grown behind its end; with columns written anew."""
_ODD_NUMBERS = (0, -1, 1, 7, 255, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))


@cache
def whole_folder(kind: str) -> Path:
    """A small folder of facts with its index."""
    place = scratch() / "ingested" / kind
    place.mkdir(parents=True)
    world = simulate(facts=400, seed=1)
    columns = (world.subject, world.relation, world.object, world.time)
    rows = np.stack(columns, axis=1).tolist()
    lines = [f"e{s},r{r},e{o},{2 * t}" for s, r, o, t in rows]

    def written(name: str, *some: str) -> Path:
        path = place / f"{name}.csv"
        path.write_text("\n".join(["s,r,o,t", *some]) + "\n")
        return path

    whole = kind == "plain"
    ingest([written("first", *(lines if whole else lines[:380]))], place / "facts")
    last = 2 * int(world.time[-1])
    if not whole:
        later = [*lines[380:], f"new,also,e0,{last}"]
        append([written("later", *later)], place / "facts")
        more = f"new,again,newer,{last + 2 if kind == 'layered' else 1}"
        append([written("more", more)], place / "facts")
    return place / "facts"


@cache
def _content(kind: str) -> dict[str, bytes]:
    """The files of a folder that its manifest speaks of."""
    found = whole_folder(kind)
    return {path.name: path.read_bytes() for path in sorted(found.iterdir())}


@cache
def damaged_folder(kind: str) -> Path:
    """A copy of a whole folder, whose files are to be damaged and put right again."""
    folder = scratch() / "ingested" / f"{kind}-damaged"
    shutil.copytree(whole_folder(kind), folder)
    return folder


def forged_file(rng: random.Random, name: str, data: bytes) -> bytes:
    """Another content for a file of a folder of facts."""
    draw = rng.random()
    if name.endswith(".json"):
        if draw < 0.2:
            return damage_bytes(rng, data)
        if draw < 0.25:
            return rng.choice((b"[" * 100_000, b"9" * 5000, b"{}", b"[]", b"null", b""))
        return json.dumps(damage_value(rng, json.loads(data), rng.choice((1, 1, 2)))).encode()
    if draw < 0.15:
        return damage_bytes(rng, data)
    if draw < 0.5:
        return damage_header(rng, data)
    body = 8 + struct.unpack("<Q", data[:8])[0]
    if draw < 0.65 or len(data) - body < 8:
        return data[:body] + damage_bytes(rng, data[body:])
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3))):
        at = body + 8 * rng.randrange((len(data) - body) // 8)
        changed[at : at + 8] = struct.pack("<q", rng.choice(_ODD_NUMBERS))
    return bytes(changed)


@fuzzer(share=2.6)
def ingested_folders(rng: random.Random) -> None:
    """A folder with a damaged file: refused with a sentence, or opened and fit for use."""
    kind = rng.choice(KINDS)
    folder, names = damaged_folder(kind), sorted(_content(kind))
    draw = rng.random()
    if draw < 0.5:
        names = [name for name in names if name.startswith("index" if draw < 0.25 else "dataset")]
    name = rng.choice(names)
    path = folder / name
    try:
        put_file(rng, path, forged_file(rng, name, _content(kind)[name]))
        _use(rng, folder, rng.choice((2, 3) if name.startswith("index") else (0, 1, 2, 3)))
    finally:
        remove_file(path)
        path.write_bytes(_content(kind)[name])


def _use(rng: random.Random, folder: Path, use: int) -> None:
    """What commands do with a folder; one of them, since each reads other files."""
    store = FactFolder(folder)
    assert len(store) >= 1
    if use == 0:
        facts = sources.load(str(folder))
        DatasetStatistics.of(facts).to_json()
        repr(facts)
        facts.describe(len(facts) - 1)
        evaluation = evaluate(create("recurrency"), Tasks.build(facts, shots=1).sample(40))
        assert all(bool((ranks >= 1).all()) for ranks in evaluation.ranks.values())
    elif use == 1:
        for names in (store.entities, store.relations):
            number = rng.randrange(len(names))
            name = names[number]
            try:
                assert names.id(name) == number
            except UnknownNameError:
                names.id(names[0])  # of a flipped bit nobody can tell what it was
            names.__contains__(odd_text(rng))
    elif use == 2:
        links = store.links()
        assert links is None or links.entities <= len(store.entities)
        assert links is None or links.relations <= 2 * len(store.relations)
    elif use == 3:
        nobody = Supports(*(np.zeros(0, np.int64) for _ in range(4)))
        roots = torch.arange(min(40, len(store.entities)))
        store.check()
        sampler = BreadthFirstSampler(
            TemporalIndex.of(VisibleFacts.of(store.facts())), nobody, budget=4
        )
        around = sampler.sample(roots, torch.full_like(roots, store.steps))
        assert around.mask.any()
