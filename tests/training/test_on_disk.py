"""Tables on disk: they grow without being rewritten, and a training learns from its batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from metatkgr.data.large.ingest import ingest
from metatkgr.data.large.store import FactStore
from metatkgr.errors import DataError, SettingsError
from metatkgr.models.translation import relation_vectors
from metatkgr.training.row_table import RowTable
from metatkgr.training.triples_on_disk import DiskTriples, DiskTripleSettings


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FactStore:
    """People and the towns they live in: one town each, told again and again."""
    folder = tmp_path_factory.mktemp("store")
    lines = [f"p{n % 40},lives in,t{n % 40 // 10},{n}" for n in range(2000)]
    (folder / "lives.csv").write_text("\n".join(["s,r,o,t", *lines]) + "\n")
    ingest([folder / "lives.csv"], folder / "facts", rows=700)
    return FactStore(folder / "facts")


def test_a_table_grows_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    table = RowTable.create(path, 5, 3, torch.Generator().manual_seed(0))
    before = table.read(torch.arange(5))
    table.write(torch.tensor([1, 4]), torch.ones(2, 3))
    table.append(torch.full((2, 3), 7.0))
    again = RowTable(path, 3)
    assert len(table) == len(again) == 7
    assert torch.equal(again.read(torch.tensor([0, 2, 3])), before[[0, 2, 3]])
    assert again.read(torch.tensor([1, 4, 5])).tolist() == [[1.0] * 3, [1.0] * 3, [7.0] * 3]
    with pytest.raises(DataError, match="3 numbers"):
        table.append(torch.zeros(2, 4))
    with pytest.raises(DataError, match="rows of 4"):
        RowTable(path, 4)
    with pytest.raises(DataError, match="cannot read"):
        RowTable(tmp_path / "nowhere", 3)


def test_a_step_is_adagrad_on_the_rows_of_its_batch(store: FactStore, tmp_path: Path) -> None:
    settings = DiskTripleSettings(dimension=4, negatives=3, learning_rate=0.5)
    learning = DiskTriples(store, tmp_path, settings, seed=3)
    entity, relation = (t.all().clone() for t in (learning.entity, learning.relation))
    state = learning.generator.get_state()
    subject, kind, other = (torch.tensor(x) for x in ([0, 2], [0, 0], [1, 1]))
    loss = learning.step(subject, kind, other)

    generator = torch.Generator()
    generator.set_state(state)
    rivals = torch.randint(len(store.entities), (3,), generator=generator).tolist()
    e, r = entity.clone().requires_grad_(), relation.clone().requires_grad_()
    losses = []
    for s, d, o in ((0, 0, 1), (2, 0, 1), (1, 1, 0), (1, 1, 2)):
        place = e[s] + relation_vectors(r, torch.tensor(d))
        candidates = [o, *(x for x in rivals if x not in (s, o))]
        scores = -(place - e[candidates]).square().sum(-1)
        losses.append(functional.cross_entropy(scores[None], torch.tensor([0])))
    expected = torch.stack(losses).mean()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for table, start, gradient in zip(
        (learning.entity, learning.relation),
        (entity, relation),
        torch.autograd.grad(expected, (e, r)),
        strict=True,
    ):
        squares = gradient.square().mean(1, keepdim=True)
        moved = start - 0.5 * gradient / (squares + 1e-10).sqrt()
        torch.testing.assert_close(table.all(), moved, rtol=1e-3, atol=1e-5)
        untouched = (gradient == 0).all(1)
        assert torch.equal(table.all()[untouched], start[untouched])


def test_it_learns_and_goes_on_with_what_it_has_learned(store: FactStore, tmp_path: Path) -> None:
    settings = DiskTripleSettings(dimension=16, batch_size=64, negatives=20, block=300)
    first = DiskTriples(store, tmp_path, settings)
    assert sum(len(batch[0]) for batch in first.batches()) == len(store), "every fact once"
    losses = first.fit(3)
    assert losses[-1] < 0.8 * losses[0]
    learned = first.entity.all().clone()
    assert torch.equal(DiskTriples(store, tmp_path, settings).entity.all(), learned)


def test_new_entities_get_rows(store: FactStore, tmp_path: Path) -> None:
    settings = DiskTripleSettings(dimension=8)
    path = tmp_path / "entity.safetensors"
    RowTable.create(path, 10, 8)
    learning = DiskTriples(store, tmp_path, settings)
    assert len(learning.entity) == len(store.entities) == 44
    assert not learning.entity.all()[:10].any(), "rows that were there stay"
    assert np.isfinite(learning.fit(1)).all()


@pytest.mark.parametrize(
    "wrong", [{"dimension": 0}, {"negatives": 0}, {"learning_rate": 0.0}, {"block": -1}]
)
def test_settings_out_of_range_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        DiskTripleSettings(**wrong)  # type: ignore[arg-type]
