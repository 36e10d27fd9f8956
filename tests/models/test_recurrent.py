"""The gated recurrent unit of RE-NET and RE-GCN is the usual one, on a GPU too."""

from __future__ import annotations

import pytest
import torch

from metatkgr.models.common.recurrent import gru_step

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_a_step_and_its_gradient_are_those_of_torch(device: str) -> None:
    d, rows = 6, 9
    generator = torch.Generator().manual_seed(0)
    cell = torch.nn.GRUCell(d, d, dtype=torch.float64)
    for weight in cell.parameters():
        weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    x, h, wanted = (
        torch.randn(rows, d, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    x.requires_grad_()
    h.requires_grad_()
    expected = cell(x, h)
    gradients = torch.autograd.grad(
        (expected * wanted).sum(), [x, h, cell.weight_hh, cell.bias_hh, cell.bias_ih]
    )

    def there(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(device).requires_grad_()

    mine = [there(t) for t in (x, h, cell.weight_hh.T, cell.bias_hh, cell.bias_ih)]
    inputs = mine[0] @ cell.weight_ih.T.detach().to(device) + mine[4]
    # Two units side by side, as in RE-NET; the second gets nothing from the loss.
    stacked = torch.stack([inputs, inputs]), torch.stack([mine[1], mine[1]])
    moved = gru_step(*stacked, torch.stack([mine[2], mine[2]]), mine[3].view(1, 1, -1))
    assert moved.shape == (2, rows, d)
    torch.testing.assert_close(moved[1].cpu(), expected)
    found = torch.autograd.grad((moved[0] * wanted.to(device)).sum(), mine)
    for got, known in zip(found, gradients, strict=True):
        known = known.T if known.shape == (3 * d, d) else known
        torch.testing.assert_close(got.cpu(), known)
