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

_RELATIONS, _FEWEST, _MOST = 48, 60, 340
"""As on WIKI: relations, and how many candidates a question has."""


@benchmark("weigh")
def weighing(work: Workload) -> list[Measurement]:
    """One step of learning the weights of evidence, against one that computes padding too."""
    generator = torch.Generator().manual_seed(0)
    settings = EvidenceSettings(hidden=4, start="none") if work.quick else EvidenceSettings()
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
    rows = len(examples.features)
    least = 6 * rows * settings.members * settings.hidden * len(FEATURES)
    note = (
        f"{queries} questions, {_FEWEST} to {_MOST} candidates, {len(FEATURES)} features, "
        f"{settings.members} members with {settings.hidden} hidden; gradients equal; floor: "
        f"{least / 1e9:.1f} billion operations"
    )
    against = "the same with lists of equal length"
    return [Measurement("a step of weighing evidence", "s", fast, slow, against, note)]


def _random_examples(queries: int, generator: torch.Generator) -> Examples:
    """Lists of candidates of very different length, as real ones are."""
    size = torch.randint(_FEWEST, _MOST + 1, (queries,), generator=generator)
    start = torch.cat([size.new_zeros(1), size.cumsum(0)])
    return Examples(
        torch.randn(int(start[-1]), len(FEATURES), generator=generator),
        start,
        torch.randint(_FEWEST, (queries,), generator=generator),
        torch.randint(_RELATIONS, (queries,), generator=generator),
        torch.rand(queries, generator=generator),
    )


def _padded_loss(ranker: Ranker, examples: Examples) -> Tensor:
    queries, place = len(examples.relation), torch.arange(_MOST)
    there = place < examples.start.diff().unsqueeze(1)
    features = torch.zeros(queries, _MOST, len(FEATURES))
    features[there] = examples.features
    relation = examples.relation.repeat_interleave(_MOST)
    scores = ranker.member_logits(features.flatten(0, 1), relation).view(-1, queries, _MOST)
    scores = scores.masked_fill(~there, torch.finfo(scores.dtype).min / 2)
    answer = examples.answer.expand(len(scores), -1).unsqueeze(2)
    each = -torch.log_softmax(scores, 2).gather(2, answer).squeeze(2).sum(0)
    return (each * examples.weight).sum() / examples.weight.sum()
