"""Folders of runs, checkpoints and the small files beside them: cut, flipped, forged."""

from __future__ import annotations

import json
import random
import shutil
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
    odd_value,
    put_file,
    remove_file,
)
from metatkgr.data.world import simulate
from metatkgr.forecasting.calibration import Calibration
from metatkgr.forecasting.forecaster import Forecaster
from metatkgr.models import create
from metatkgr.models.base import TrainableModel
from metatkgr.training.checkpoint import Position, load_checkpoint, save_checkpoint
from metatkgr.training.estimator import configure
from metatkgr.training.runs import (
    Run,
    load_config,
    load_run,
    save_graph,
    save_manifest,
    save_model,
)

_FILES = ("config.toml", "model.safetensors", "graph.safetensors", "vocabulary.json")


@cache
def _pristine() -> Path:
    """A run of a small model on a small world."""
    folder = scratch() / "pristine"
    facts = simulate(facts=400, seed=1)
    model = create("transe", {"dimension": 4})
    assert isinstance(model, TrainableModel)
    model.build(len(facts.entities), len(facts.relations), torch.Generator().manual_seed(0))
    save_graph(folder, configure(model, facts), facts)
    save_model(folder, model)
    return folder


@cache
def _bytes(name: str) -> bytes:
    return (_pristine() / name).read_bytes()


@cache
def _whole_run() -> Run:
    return load_run(_pristine())


@cache
def _damaged() -> Path:
    folder = scratch() / "damaged"
    shutil.copytree(_pristine(), folder)
    return folder


def _forged(rng: random.Random, name: str) -> bytes:
    """Another content for a file of a run."""
    data = _bytes(name)
    if rng.random() < 0.4:
        return damage_bytes(rng, data)
    if name.endswith(".safetensors"):
        return damage_header(rng, data)
    if name.endswith(".json"):
        if rng.random() < 0.1:
            return rng.choice((b"[" * 100_000, b"9" * 5000, b"{}", b"[]", b"null", b""))
        return json.dumps(damage_value(rng, json.loads(data), rng.choice((1, 1, 3)))).encode()
    lines = data.decode().splitlines()
    at = rng.randrange(len(lines))
    key = lines[at].partition("=")[0]
    value = rng.choice(
        (
            json.dumps(odd_text(rng)),
            json.dumps(rng.choice((0, -1, 10**9, 10**18, 2.5, True, [], [1]))),
            "9" * 5000,
            '"../../x"',
            '"/etc/passwd"',
            "inf",
            "nan",
            "2018-01-01",
            "[" * 3000,
        )
        if rng.random() < 0.9
        else ("{a = 1}",)
    )
    lines[at] = f"{key.strip()} = {value}" if key.strip() else value
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@fuzzer(share=7)
def run_folders(rng: random.Random) -> None:
    """A run with a damaged file: refused with a sentence, or loaded and fit for use."""
    name = rng.choice(_FILES)
    path = _damaged() / name
    try:
        put_file(rng, path, _forged(rng, name))
        if rng.random() < 0.9 and path.is_file():
            save_manifest(_damaged())  # whoever forges a file can write down what it holds
        run = load_run(_damaged())
        facts, model = run.facts, run.model
        assert facts.steps >= 1
        assert int(facts.subject.max()) < len(facts.entities)
        assert int(facts.relation.max()) < len(facts.relations)
        repr(facts)
        facts.describe(len(facts) - 1)
        assert facts.entities.id(facts.entities[0]) == 0
        assert model.weights["entity"].shape == (len(facts.entities), model.settings.dimension)
        assert bool(torch.isfinite(model.weights["entity"]).all())
    finally:
        remove_file(path)
        path.write_bytes(_bytes(name))
        (_damaged() / "MANIFEST").write_bytes(_bytes("MANIFEST"))


@fuzzer(share=4)
def flipped_weights(rng: random.Random) -> None:
    """One bit of the weights' or facts' file is wrong: no run is loaded, unless they are whole."""
    name = rng.choice(("model.safetensors", "graph.safetensors", "MANIFEST"))
    data = bytearray(_bytes(name))
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path = _damaged() / name
    path.write_bytes(data)
    try:
        run, whole = load_run(_damaged()), _whole_run()
        for key, weight in whole.model.weights.items():
            assert torch.equal(run.model.weights[key], weight), "a flipped bit was not noticed"
        for column in ("subject", "relation", "object", "time"):
            assert np.array_equal(getattr(run.facts, column), getattr(whole.facts, column)), column
    finally:
        path.write_bytes(_bytes(name))


@fuzzer(share=3)
def run_configs(rng: random.Random) -> None:
    """``config.toml`` alone: accepted ones have the right types."""
    path = _damaged() / "config.toml"
    path.write_bytes(_forged(rng, "config.toml"))
    try:
        config = load_config(_damaged())
        assert isinstance(config.seed, int)
        assert isinstance(config.model, str)
        assert isinstance(config.settings, dict)
    finally:
        path.write_bytes(_bytes("config.toml"))


@cache
def _checkpoint() -> bytes:
    path = scratch() / "pristine-checkpoint.safetensors"
    weight = torch.nn.Parameter(torch.ones(3, 2))
    optimiser = torch.optim.Adam([weight])
    weight.sum().backward()
    optimiser.step()
    state = {"entity": weight.detach()}
    save_checkpoint(path, Position(epoch=2, step=5), state, state, optimiser, torch.Generator())
    return path.read_bytes()


@fuzzer(share=4)
def checkpoints(rng: random.Random) -> None:
    """A damaged checkpoint is refused; a whole one gives what was saved."""
    data = _checkpoint()
    if rng.random() < 0.95:
        data = damage_header(rng, data) if rng.random() < 0.5 else damage_bytes(rng, data)
    path = scratch() / "checkpoint.safetensors"
    path.write_bytes(data)
    position, weights, best, optimiser, _ = load_checkpoint(path)
    assert data == _checkpoint() or json.loads(json.dumps(vars(position))) == vars(position)
    assert weights.keys() == best.keys() == {"entity"}
    assert torch.equal(weights["entity"], best["entity"])
    assert optimiser.keys() == {0}


@fuzzer(share=3)
def calibrations(rng: random.Random) -> None:
    """``calibration.json``: what is accepted gives probabilities."""
    plain = Calibration(split="meta-validation", ece=0.1, reliability=((0.5, 0.4, 10.0),))
    path = scratch() / "calibration.json"
    plain.save(path)
    data = path.read_bytes()
    if rng.random() < 0.5:
        data = damage_bytes(rng, data)
    else:
        data = json.dumps(damage_value(rng, json.loads(data), 2)).encode()
    path.write_bytes(data)
    calibration = Calibration.load(path)
    facts = simulate(facts=100, seed=1)
    found = Forecaster.of(facts, "paths", calibration=calibration).predict(facts.entities[0])
    assert all(0 <= forecast.probability <= 1 for forecast in found)


@fuzzer(share=1)
def loads_of_anything(rng: random.Random) -> None:
    """Paths that are no runs."""
    value = rng.choice((odd_text(rng), str(odd_value(rng)), str(scratch()), "/dev/null", "/"))
    load_run(value)
