"""I-GEN and T-GEN on graphs small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from metatkgr.data.tasks import Queries
from metatkgr.data.visibility import Supports
from metatkgr.errors import SettingsError
from metatkgr.models import create
from metatkgr.models.base import TrainableModel
from metatkgr.models.baselines import gen
from metatkgr.models.baselines.gen import Unseen, first_layer, second_layer

CPU = torch.device("cpu")

# One relation, 0, with the vector (.5, 0); its inverse is 1. Entities 2 and 3 may be new.
TABLES = {
    "entity": torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0], [7.0, 7.0]]),
    "relation": torch.tensor([[0.5, 0.0]]),
}
# [x ‖ h_r] B = (x1 + r1, x2 + r1); relation 0 counts it twice, its inverse once.
FIRST = {
    "first.bases": torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]]),
    "first.coefficients": torch.tensor([[2.0], [1.0]]),
}

#     2 --0--> 0 at step 1
#     2 <--0-- 1 at step 2
ONE_NEW = Supports(np.array([2, 2]), np.array([0, 1]), np.array([0, 1]), np.array([1, 2]))

#     2 --0--> 3 at step 1, in the support of both
TWO_NEW = Supports(np.array([2, 3]), np.array([0, 1]), np.array([3, 2]), np.array([1, 1]))
SECOND = {
    "first.bases": torch.zeros(1, 4, 2),
    "first.coefficients": torch.ones(2, 1),
    "mean.bases": torch.tensor([[[0.1, 0.0], [0.0, 0.1], [0.0, 0.0], [0.0, 0.0]]]),
    "mean.coefficients": torch.ones(2, 1),
    "variance.bases": torch.tensor([[[0.0, 0.0], [0.2, 0.0], [0.0, 0.0], [0.0, 0.0]]]),
    "variance.coefficients": torch.ones(2, 1),
    "gate": torch.tensor([0.5]),
    "bias": torch.tensor([-2.0]),
}


def model(name: str, weights: dict[str, Tensor], **settings: object) -> TrainableModel[object]:
    made = create(name, {"dimension": 2, "bases": 1, **settings})
    assert isinstance(made, TrainableModel)
    made.load_state_dict(TABLES | weights)
    return made


def close(one: Tensor, other: list[float] | list[list[float]] | Tensor) -> None:
    torch.testing.assert_close(one, torch.as_tensor(other), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("moment", "residual", "expected"),
    [
        # Both facts: x_0 - r = (.5, 0) and x_1 + r = (.5, 1), corrected by 2 (1.5, .5) and by
        # (-.5, .5): the means are (.5, .5) and (1.25, .75).
        (3, True, [1.75, 1.25]),
        (3, False, [1.25, 0.75]),
        # The first fact only: (.5, 0) and (3, 1).
        (2, True, [3.5, 1.0]),
        # None: the row of the table.
        (1, True, [5.0, 5.0]),
    ],
)
def test_the_first_layer_averages_what_the_visible_facts_say(
    moment: int, residual: bool, expected: list[float]
) -> None:
    unseen = Unseen(ONE_NEW, entities=4, device=CPU)
    visible = unseen.links.mask & (unseen.links.time < moment)
    close(first_layer(TABLES | FIRST, unseen.links, visible, residual=residual), [expected])


def test_igen_scores_new_entities_by_what_is_visible_to_whom() -> None:
    """Asked at step 2, entity 2 sees both of its facts, as a candidate it has only the first."""
    scores = (
        model("igen", FIRST)
        .adapt(ONE_NEW)
        .score(Queries(np.array([2]), np.array([0]), np.array([2])))
    )
    # The point asked for is (1.75, 1.25) + (.5, 0).
    close(scores, [[-3.125, -5.125, -56.625, -55.625]])  # itself below all others


def test_the_second_layer_reads_unseen_neighbours() -> None:
    weights = TABLES | SECOND
    unseen = Unseen(TWO_NEW, entities=4, device=CPU)
    first = first_layer(weights, unseen.links, unseen.links.mask, residual=True)
    close(first, [[6.5, 7.0], [5.5, 5.0]])  # x_3 - r, x_2 + r
    mean, log_variance = second_layer(
        weights, unseen.links, unseen.links.mask, first, first, unseen.row
    )
    # Entity 2: halfway to φ_3 - r = (5, 5) is (-.75, -1), corrected by .1 (5.5, 5); log σ² is
    # -2, and .2 · 5 more in the first dimension. Entity 3: (.75, 1) and .1 (6.5, 7).
    close(mean, [[6.3, 6.5], [6.9, 6.7]])
    close(log_variance, [[-1.0, -2.0], [-0.6, -2.0]])


@pytest.mark.parametrize("samples", [1, 10])
def test_tgen_averages_the_scores_of_its_samples(samples: int) -> None:
    tgen = model("tgen", SECOND, samples=samples).adapt(TWO_NEW)
    scores = tgen.score(Queries(np.array([2]), np.array([0]), np.array([2])))[0]
    spread = torch.tensor([[-0.5, -1.0], [-0.3, -1.0]]).exp()
    theirs, own = (
        noise * spread
        for noise in (tgen.noise_, tgen.own_noise_)  # type: ignore[attr-defined]
    )
    assert theirs.shape == own.shape == (samples, 2, 2)
    means = torch.tensor([[6.3, 6.5], [6.9, 6.7]])
    expected = torch.zeros(4)
    for sample in range(samples):
        everyone = torch.cat([TABLES["entity"][:2], means + theirs[sample]])
        point = means[0] + own[sample, 0] + TABLES["relation"][0]
        expected -= (point - everyone).square().sum(1) / samples
    # What the asking entity's own noise takes off is the same for all.
    others = [0, 1, 3]
    close(scores[others] - scores[0], expected[others] - expected[0])


def test_tgen_draws_no_more_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's run may ask for any number of samples; its weights do not show it."""
    tgen = model("tgen", SECOND, samples=10)
    monkeypatch.setattr(gen, "_MOST_DRAWN", 10 * tgen.entity.numel() - 1)
    with pytest.raises(SettingsError, match="fewer samples"):
        tgen.adapt(TWO_NEW)
    monkeypatch.setattr(gen, "_MOST_DRAWN", 10 * tgen.entity.numel())
    tgen.adapt(TWO_NEW)


def test_tgen_without_samples_takes_the_expectation() -> None:
    question = Queries(np.array([2]), np.array([0]), np.array([2]))
    exact = model("tgen", SECOND, samples=0).adapt(TWO_NEW).score(question)
    many = model("tgen", SECOND, samples=20000).adapt(TWO_NEW).score(question)
    assert torch.allclose(exact, many, atol=0.05)


def test_no_new_entity_leaves_the_table() -> None:
    nobody = np.zeros(0, np.int64)
    igen = model("igen", FIRST).adapt(Supports(nobody, nobody, nobody, nobody))
    scores = igen.score(Queries(np.array([0]), np.array([0]), np.array([4])))
    close(scores, [[-80.25, -3.25, -37.25, -79.25]])


def test_the_hinge_asks_for_negatives() -> None:
    with pytest.raises(SettingsError, match="negatives"):
        model("igen", FIRST, loss="hinge")
