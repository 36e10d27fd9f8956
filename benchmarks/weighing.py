"""How fast the weights of evidence are learned: what counts for nothing is left out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.base import Measurement, Workload, benchmark, best_time
from metatkgr.models.evidence.features import FEATURES
from metatkgr.models.evidence.ranker import Ranker, initial_weights
from metatkgr.models.evidence.settings import EvidenceSettings
from metatkgr.models.evidence.training import Examples, answer_loss

__all__ = ["weighing"]

_RELATIONS, _CANDIDATES, _COUNTING = 48, 400, 0.7
"""As on WIKI: 70 % of the candidates count, and 70 % of the questions have weight."""


@benchmark("weigh")
def weighing(work: Workload) -> list[Measurement]:
    """One step of learning the weights of evidence, against one that computes padding too."""
    generator = torch.Generator().manual_seed(0)
    settings = EvidenceSettings(hidden=4) if work.quick else EvidenceSettings()
    weights = initial_weights(settings, _RELATIONS, generator)
    weights["outer"].normal_(generator=generator)
    ranker = Ranker(weights)
    queries = 16 if work.quick else settings.batch_size
    examples = _random_examples(queries, generator)

    def step(loss: Callable[[Ranker, Examples], Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(ranker, examples), list(ranker.parameters()))

    fast, ours = best_time(lambda: step(answer_loss), 1 + work.repeats)
    slow, padded = best_time(lambda: step(_padded_loss), 1 + work.repeats)
    for gradient, reference in zip(ours, padded, strict=True):
        if not torch.allclose(gradient, reference, rtol=1e-3, atol=1e-5):
            raise AssertionError("the step and the one with padding disagree")
    rows = int(examples.mask[examples.weight > 0].sum())
    least = 6 * rows * settings.members * settings.hidden * len(FEATURES)
    note = (
        f"{queries} questions, {_CANDIDATES} candidates, {len(FEATURES)} features, "
        f"{settings.members} members with {settings.hidden} hidden; gradients equal; floor: "
        f"{least / 1e9:.1f} billion operations"
    )
    against = "the same with all candidates"
    return [Measurement("a step of weighing evidence", "s", fast, slow, against, note)]


def _random_examples(queries: int, generator: torch.Generator) -> Examples:
    shape = (queries, _CANDIDATES)
    mask = torch.rand(shape, generator=generator) < _COUNTING
    mask[:, 0] = True
    return Examples(
        torch.randn(*shape, len(FEATURES), generator=generator),
        mask,
        torch.randint(_RELATIONS, (queries,), generator=generator),
        (torch.rand(queries, generator=generator) < _COUNTING).float(),
    )


def _padded_loss(ranker: Ranker, examples: Examples) -> Tensor:
    scores = ranker.member_logits(examples.features, examples.relation)
    scores = scores.masked_fill(~examples.mask, torch.finfo(scores.dtype).min / 2)
    each = -torch.log_softmax(scores, 2)[..., 0].sum(0)
    return (each * examples.weight).sum() / examples.weight.sum().clamp(min=1e-6)
