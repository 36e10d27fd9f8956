"""Weights of evidence fitted on meta-test itself: an upper bound, never a model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.evaluation.ranking import HITS, bootstrap_interval
from metatkgr.models.evidence.features import FEATURES
from metatkgr.models.evidence.ranker import Ranker, initial_weights
from metatkgr.models.evidence.settings import EvidenceSettings
from studies.upper_bound.queries import NovelEvidence

__all__ = ["MARKS", "fitted_weights", "halves", "judged", "ranks_by", "rule_ranks"]

FloatArray = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

MARKS = (100, 250)
"""Steps of Adam after which a fit is judged; the best of them counts, as suits an upper bound."""
_RATE = 0.01
"""Of Adam; twice that of a training, which has time for more steps."""
_AT_ONCE = 1024


def halves(evidence: NovelEvidence, rows: Rows, seed: int = 0) -> tuple[Rows, Rows]:
    """Of some queries those of one half of the entities, and those of the other."""
    entities = np.unique(evidence.entity[rows])
    chosen = np.random.default_rng(seed).permutation(entities)[: len(entities) // 2]
    first = np.isin(evidence.entity[rows], chosen)
    return rows[first], rows[~first]


def fitted_weights(
    evidence: NovelEvidence,
    rows: Rows,
    relations: int,
    settings: EvidenceSettings,
    *,
    marks: Sequence[int] = MARKS,
    seed: int = 0,
) -> Iterator[tuple[int, Ranker]]:
    """Weights learned from the queries ``rows``, by the cross-entropy of their answers.

    Only those whose answer is among the candidates: a gold answer outside the candidate set teaches
    to doubt all evidence, and gets no better rank all the same.

    Args:
        evidence: of queries and their answers.
        rows: those to fit on.
        relations: number of directed relations.
        settings: of the evidence model.
        marks: ascending numbers of steps after which the weights are given.
        seed: of the start and of the order.

    Yields:
        The number of steps, and the ranker by then.
    """
    generator = torch.Generator().manual_seed(seed)
    device = evidence.features.device
    ranker = Ranker(initial_weights(settings, relations, generator)).to(device)
    chosen = torch.from_numpy(rows).to(device)
    chosen = chosen[evidence.reached[chosen]]
    ranker.mean, ranker.deviation = _moments(evidence, chosen)
    optimiser = torch.optim.Adam(ranker.parameters(), _RATE)
    batches = _batches(chosen, settings.batch_size, generator)
    for step in range(1, marks[-1] + 1):
        batch = next(batches)
        features = evidence.features[batch]
        relation = evidence.relation[batch].repeat_interleave(features.shape[1])
        scores = ranker.member_logits(features.flatten(0, 1), relation)
        scores = scores.view(-1, *features.shape[:2])
        scores = scores.masked_fill(~evidence.mask[batch], torch.finfo(scores.dtype).min / 2)
        # Each query once: what it stands for counts where it is judged.
        loss = -torch.log_softmax(scores, 2)[..., 0].sum(0).mean()
        optimiser.zero_grad()
        (loss + ranker.penalty(settings)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step in marks:
            yield step, copy.deepcopy(ranker)


def _batches(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches without end, each pass in another order."""
    while True:
        order = torch.randperm(len(rows), generator=generator).to(rows.device)
        yield from torch.split(rows[order], size)


def _moments(evidence: NovelEvidence, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(F,) mean and deviation of the features of counted candidates."""
    total = torch.zeros(3, len(FEATURES), dtype=torch.float64, device=rows.device)
    for part in torch.split(rows, _AT_ONCE):
        counted = evidence.features[part][evidence.mask[part]].double()
        total += torch.stack([torch.ones_like(counted), counted, counted.square()]).sum(1)
    mean = total[1] / total[0]
    deviation = (total[2] / total[0] - mean.square()).clamp(min=0).sqrt()
    return mean.float(), deviation.clamp(min=0.05).float()


@torch.no_grad()
def ranks_by(ranker: Ranker, evidence: NovelEvidence, rows: Rows, prior: float) -> FloatArray:
    """(n,) rank of each answer; where it is no candidate, the one after all candidates."""
    ranks = []
    for part in torch.split(torch.from_numpy(rows).to(evidence.features.device), _AT_ONCE):
        features = evidence.features[part]
        relation = evidence.relation[part].repeat_interleave(features.shape[1])
        scores = ranker(features.flatten(0, 1), relation, prior).view(features.shape[:2])
        ranks.append(_ranks(scores, evidence, part))
    return np.concatenate(ranks) if ranks else np.zeros(0)


def rule_ranks(evidence: NovelEvidence, rows: Rows) -> FloatArray:
    """The same by PageRank in the slot, as the rule orders novel answers, contacts first."""
    contact, far = FEATURES.index("contact"), FEATURES.index("far_slot")
    ranks = []
    for part in torch.split(torch.from_numpy(rows).to(evidence.features.device), _AT_ONCE):
        features = evidence.features[part]
        linked = features[..., contact] > 0
        recent = 1e3 - features[..., FEATURES.index("contact_age")]
        ranks.append(_ranks(torch.where(linked, recent, features[..., far]), evidence, part))
    return np.concatenate(ranks) if ranks else np.zeros(0)


def _ranks(scores: Tensor, evidence: NovelEvidence, rows: Tensor) -> FloatArray:
    counted = evidence.mask[rows].clone()
    counted[:, 0] = False
    own = scores[:, :1]
    better = ((scores > own) & counted).sum(1)
    equal = ((scores == own) & counted).sum(1)
    rank = 1 + better + equal / 2
    rank = torch.where(evidence.reached[rows], rank, 1 + counted.sum(1))
    ranks: FloatArray = rank.double().cpu().numpy()
    return ranks


def judged(
    ranks: FloatArray, evidence: NovelEvidence, rows: Rows, novel_share: float
) -> dict[str, Any]:
    """Metrics of novel answers with 95 % intervals over entities, and of all were repeats perfect.

    Args:
        ranks: (n,) of the queries ``rows``.
        evidence: of all queries.
        rows: (n,).
        novel_share: of all queries of the split.
    """
    weight = evidence.weight[rows]
    _, group = np.unique(evidence.entity[rows], return_inverse=True)
    size: FloatArray = np.bincount(group, weights=weight).astype(np.float64)
    values = {"mrr": 1.0 / ranks} | {f"hits@{k}": (ranks <= k).astype(float) for k in HITS}
    sizes = {"questions": len(rows), "entities": len(size)}
    metrics: dict[str, Any] = {"novel": {}, "all": {}}
    for name, value in values.items():
        mean = float((value * weight).sum() / weight.sum())
        total: FloatArray = np.bincount(group, weights=value * weight).astype(np.float64)
        low, high = bootstrap_interval(total, size)
        metrics["novel"][name] = {"value": round(mean, 4), "ci95": [round(low, 4), round(high, 4)]}
        metrics["all"][name] = round(1 - novel_share + novel_share * mean, 4)
    return sizes | metrics
