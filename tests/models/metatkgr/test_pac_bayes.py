from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from metatkgr.models.metatkgr.pac_bayes import (
    adaptation_regulariser,
    bound,
    complexity,
    freeze,
    gaussian_kl,
)


def test_the_kl_divergence_equals_the_closed_form_by_hand() -> None:
    parameters = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])}
    prior = {"a": torch.tensor([0.0, 4.0]), "b": torch.tensor([[0.0]])}
    # (1 + 4 + 9) / (2 * 0.25)
    assert float(gaussian_kl(parameters, prior, 0.5)) == pytest.approx(28.0)


def test_the_kl_divergence_equals_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    parameters, prior = (
        {"w": torch.randn(4, 3, generator=generator), "v": torch.randn(5, generator=generator)}
        for _ in range(2)
    )
    expected = sum(
        kl_divergence(
            Independent(Normal(parameters[key].flatten(), 0.3), 1),
            Independent(Normal(prior[key].flatten(), 0.3), 1),
        )
        for key in parameters
    )
    torch.testing.assert_close(gaussian_kl(parameters, prior, 0.3), expected)


def test_the_bound_equals_the_closed_form_by_hand() -> None:
    loss, kl = torch.tensor(0.25), torch.tensor(3.0)
    expected = 0.25 + math.sqrt((3.0 + math.log(50 / 0.1)) / 99)
    assert float(adaptation_regulariser(loss, kl, 50, 0.1)) == pytest.approx(expected)
    assert bound(loss, kl, 50, 0.1) == pytest.approx(expected)
    assert bound(0.25, 3.0, 50, 0.1) == pytest.approx(expected)


def test_the_complexity_shrinks_with_queries_and_grows_with_distance() -> None:
    one = torch.tensor(1.0)
    assert complexity(one, 1000, 0.05) < complexity(one, 10, 0.05) < complexity(5 * one, 10, 0.05)


def test_the_gradient_is_finite_where_nothing_has_moved_yet() -> None:
    parameters = {"w": torch.randn(3, requires_grad=True)}
    for count in (1, 100):
        kl = gaussian_kl(parameters, freeze(parameters), 1.0)
        assert float(kl.detach()) == 0
        (gradient,) = torch.autograd.grad(
            adaptation_regulariser(torch.tensor(0.0), kl, count, 0.05), parameters["w"]
        )
        assert torch.equal(gradient, torch.zeros(3))


def test_the_gradient_of_the_regulariser_passes_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    prior = {"w": torch.randn(3, 2, generator=generator, dtype=torch.float64)}
    start = torch.randn(3, 2, generator=generator, dtype=torch.float64, requires_grad=True)

    def objective(w: torch.Tensor) -> torch.Tensor:
        return adaptation_regulariser(w.sin().sum(), gaussian_kl({"w": w}, prior, 0.7), 12, 0.05)

    assert torch.autograd.gradcheck(objective, (start,))
    assert torch.autograd.gradgradcheck(objective, (start,))


def test_a_frozen_prior_neither_moves_nor_receives_a_gradient() -> None:
    parameters = {"w": torch.ones(2, requires_grad=True)}
    prior = freeze(parameters)
    with torch.no_grad():
        parameters["w"] += 1
    assert torch.equal(prior["w"], torch.ones(2))
    centre = {"w": torch.ones(2, requires_grad=True)}
    gaussian_kl(parameters, centre, 1.0).backward()
    assert centre["w"].grad is None
    torch.testing.assert_close(parameters["w"].grad, torch.ones(2))


def test_values_out_of_range_are_errors_that_name_them() -> None:
    w = {"w": torch.ones(2)}
    with pytest.raises(ValueError, match="0 queries"):
        complexity(torch.tensor(0.0), 0, 0.05)
    for delta in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"delta is {delta}"):
            complexity(torch.tensor(0.0), 5, delta)
    with pytest.raises(ValueError, match="sigma is 0"):
        gaussian_kl(w, w, 0.0)
    with pytest.raises(ValueError, match="'v', 'w'"):
        gaussian_kl(w, {"v": torch.ones(2)}, 1.0)
    with pytest.raises(ValueError, match="no parameters"):
        gaussian_kl({}, {}, 1.0)
