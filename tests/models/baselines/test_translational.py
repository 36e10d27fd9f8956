"""TransE, TransR and RotatE score as pykeen's do on the same weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import metatkgr as mt
from metatkgr.data.problem import Problem
from metatkgr.data.tasks import Queries
from metatkgr.errors import SettingsError
from metatkgr.models import create
from metatkgr.models.base import TrainableModel
from metatkgr.models.common.translation import TranslationModel, TranslationStart, TripleSettings

ENTITIES, RELATIONS, DIMENSION = 23, 4, 6
NAMES = ["transe", "transr", "rotate"]


def made(name: str) -> TranslationModel[TripleSettings]:
    """A model with random weights, the projections too."""
    generator = torch.Generator().manual_seed(7)
    model = create(name, {"dimension": DIMENSION})
    assert isinstance(model, TranslationModel)
    model.build(ENTITIES, RELATIONS, generator)
    state = model.state_dict()
    if name == "transr":
        state["matrix"] = state["matrix"] + torch.randn(state["matrix"].shape, generator=generator)
    model.load_state_dict(state)
    return model


def questions(relations: int = RELATIONS) -> Queries:
    """Every entity with every relation, forwards only or both ways."""
    entity, relation = np.divmod(np.arange(ENTITIES * relations), relations)
    return Queries(entity, relation, np.zeros_like(entity))


def pykeens(name: str, weights: dict[str, torch.Tensor], asked: Queries) -> torch.Tensor:
    """-d² of every candidate, from pykeen's -d (TransE, RotatE) or -d² (TransR)."""
    modules = pytest.importorskip("pykeen.nn.modules", reason="pykeen is a development extra")
    relation = torch.from_numpy(asked.relation)
    head = weights["entity"][torch.from_numpy(asked.entity)].unsqueeze(1)
    tail = weights["entity"].unsqueeze(0)
    if name == "transe":
        vector = weights["relation"][relation].unsqueeze(1)
        scores = modules.TransEInteraction(p=2)(head, vector, tail)
    elif name == "transr":
        vector = weights["relation"][relation].unsqueeze(1)
        matrix = weights["matrix"][relation].unsqueeze(1)
        # pykeen shortens projections to a length of 1 unless it is told otherwise
        free = modules.TransRInteraction(p=2, max_projection_norm=1e6)
        return torch.as_tensor(free(head, (vector, matrix), tail))
    else:
        angle = weights["angle"][relation].unsqueeze(1)
        turn = torch.polar(torch.ones_like(angle), angle)
        scores = modules.RotatEInteraction()(as_complex(head), turn, as_complex(tail))
    return -torch.as_tensor(scores).square()


def as_complex(vector: torch.Tensor) -> torch.Tensor:
    return torch.complex(*vector.chunk(2, -1))


@pytest.mark.parametrize("name", NAMES)
def test_scores_equal_pykeens(name: str) -> None:
    model, asked = made(name), questions()
    theirs = pykeens(name, model.state_dict(), asked)
    source, relation = torch.from_numpy(asked.entity), torch.from_numpy(asked.relation)
    ours = model.candidates(source, relation, None)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    # A model answers with these, but never with the asking entity itself.
    scores = model.score(asked)
    assert (scores.argmin(1) == source).all()
    others = torch.arange(ENTITIES) != source.unsqueeze(1)
    torch.testing.assert_close(scores[others], theirs[others], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_a_triple_scores_the_same_from_both_ends_and_with_all_candidates(name: str) -> None:
    model, asked = made(name), questions(2 * RELATIONS)
    source, relation = torch.from_numpy(asked.entity), torch.from_numpy(asked.relation)
    whole = model.candidates(source, relation, None)
    scores = whole.view(ENTITIES, 2 * RELATIONS, ENTITIES)
    backwards = scores[:, RELATIONS:].permute(2, 1, 0)
    torch.testing.assert_close(scores[:, :RELATIONS], backwards, rtol=1e-4, atol=1e-4)

    target = torch.arange(len(asked)) % ENTITIES
    one = model.pairs(source, relation, target)
    every = whole.gather(1, target.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(one, every, rtol=1e-4, atol=1e-4)
    some = model.candidates(source, relation, torch.tensor([3, 5]))
    torch.testing.assert_close(some, whole[:, [3, 5]], rtol=1e-4, atol=1e-4)


def test_transr_starts_as_transe() -> None:
    generator = torch.Generator().manual_seed(0)
    transr, transe = create("transr", {"dimension": 6}), create("transe", {"dimension": 6})
    assert isinstance(transr, TrainableModel)
    assert isinstance(transe, TrainableModel)
    transr.build(ENTITIES, RELATIONS, generator)
    transe.load_state_dict({key: transr.state_dict()[key] for key in ("entity", "relation")})
    torch.testing.assert_close(transr.score(questions()), transe.score(questions()))


def test_a_rotation_keeps_lengths() -> None:
    model = made("rotate")
    row = torch.arange(ENTITIES)
    point = model.points(row, row % RELATIONS)
    torch.testing.assert_close(point.norm(dim=1), model.weights["entity"].norm(dim=1))


def test_rotate_wants_an_even_dimension() -> None:
    with pytest.raises(SettingsError, match="even"):
        create("rotate", {"dimension": 7})


def test_a_start_ends_with_the_epoch_that_reaches_its_last_step() -> None:
    problem = Problem.of(mt.load("world:2000"))
    sizes = {"entity": 500, "relation": 10}
    tables = {name: torch.nn.Parameter(torch.zeros(n, 4)) for name, n in sizes.items()}
    how = TripleSettings(dimension=4, epochs=40, batch_size=64)
    of_an_epoch = -(-len(TranslationStart(tables, problem.known, how).triples) // 64)
    for most, epochs in ((0, 40), (3 * of_an_epoch - 1, 3), (3 * of_an_epoch + 1, 4), (1, 1)):
        assert TranslationStart(tables, problem.known, how, most).epochs == epochs
