"""Weights of evidence fitted on meta-test itself: an upper bound, never a model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metatkgr.evaluation.statistics import HITS, bootstrap_interval
from metatkgr.models.evidence.features import FEATURES
from metatkgr.models.evidence.ranker import Ranker, initial_weights
from metatkgr.models.evidence.settings import EvidenceSettings
from studies.upper_bound.queries import Asked

__all__ = ["MARKS", "fitted_weights", "halves", "judged", "ranks_by", "rule_ranks"]

FloatArray = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

MARKS = (100, 250)
"""Steps of Adam after which a fit is judged; the best of them counts, as suits an upper bound."""
_RATE = 0.01
"""Of Adam; twice that of a training, which has time for more steps."""
_AT_ONCE = 1024


def halves(asked: Asked, rows: Rows, seed: int = 0) -> tuple[Rows, Rows]:
    """Of some questions those of one half of the entities, and those of the other."""
    entities = np.unique(asked.entity[rows])
    chosen = np.random.default_rng(seed).permutation(entities)[: len(entities) // 2]
    first = np.isin(asked.entity[rows], chosen)
    return rows[first], rows[~first]


def fitted_weights(
    asked: Asked,
    rows: Rows,
    relations: int,
    settings: EvidenceSettings,
    *,
    marks: Sequence[int] = MARKS,
    seed: int = 0,
) -> Iterator[tuple[int, Ranker]]:
    """Weights that the questions ``rows`` teach, by the cross-entropy of their answers.

    Only those whose answer is among the candidates: an answer that nothing points at teaches to
    doubt all evidence, and is not found all the same.

    Args:
        asked: questions with their answers.
        rows: those to fit on.
        relations: number of directed relations.
        settings: of the evidence model.
        marks: ascending numbers of steps after which the weights are given.
        seed: of the start and of the order.

    Yields:
        The number of steps, and the ranker by then.
    """
    generator = torch.Generator().manual_seed(seed)
    device = asked.features.device
    ranker = Ranker(initial_weights(settings, relations, generator)).to(device)
    chosen = torch.from_numpy(rows).to(device)
    chosen = chosen[asked.reached[chosen]]
    ranker.mean, ranker.deviation = _moments(asked, chosen)
    optimiser = torch.optim.Adam(ranker.parameters(), _RATE)
    batches = _batches(chosen, settings.batch_size, generator)
    for step in range(1, marks[-1] + 1):
        batch = next(batches)
        scores = ranker.member_logits(asked.features[batch], asked.relation[batch])
        scores = scores.masked_fill(~asked.rivals[batch], torch.finfo(scores.dtype).min / 2)
        # Each question once: what it stands for counts where it is judged.
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


def _moments(asked: Asked, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(F,) mean and deviation of the features of counted candidates."""
    total = torch.zeros(3, len(FEATURES), dtype=torch.float64, device=rows.device)
    for part in torch.split(rows, _AT_ONCE):
        counted = asked.features[part][asked.rivals[part]].double()
        total += torch.stack([torch.ones_like(counted), counted, counted.square()]).sum(1)
    mean = total[1] / total[0]
    deviation = (total[2] / total[0] - mean.square()).clamp(min=0).sqrt()
    return mean.float(), deviation.clamp(min=0.05).float()


@torch.no_grad()
def ranks_by(ranker: Ranker, asked: Asked, rows: Rows, prior: float) -> FloatArray:
    """(n,) rank of each answer; where it is no candidate, the one after all candidates."""
    found = []
    for part in torch.split(torch.from_numpy(rows).to(asked.features.device), _AT_ONCE):
        scores = ranker(asked.features[part], asked.relation[part], prior)
        found.append(_ranks(scores, asked, part))
    return np.concatenate(found) if found else np.zeros(0)


def rule_ranks(asked: Asked, rows: Rows) -> FloatArray:
    """The same by PageRank in the place, as the rule orders novel answers, contacts first."""
    contact, far = FEATURES.index("contact"), FEATURES.index("far_slot")
    found = []
    for part in torch.split(torch.from_numpy(rows).to(asked.features.device), _AT_ONCE):
        features = asked.features[part]
        linked = features[..., contact] > 0
        recent = 1e3 - features[..., FEATURES.index("contact_age")]
        found.append(_ranks(torch.where(linked, recent, features[..., far]), asked, part))
    return np.concatenate(found) if found else np.zeros(0)


def _ranks(scores: Tensor, asked: Asked, rows: Tensor) -> FloatArray:
    counted = asked.rivals[rows].clone()
    counted[:, 0] = False
    mine = scores[:, :1]
    better = ((scores > mine) & counted).sum(1)
    equal = ((scores == mine) & counted).sum(1)
    rank = 1 + better + equal / 2
    rank = torch.where(asked.reached[rows], rank, 1 + counted.sum(1))
    ranks: FloatArray = rank.double().cpu().numpy()
    return ranks


def judged(ranks: FloatArray, asked: Asked, rows: Rows, novel_share: float) -> dict[str, Any]:
    """Metrics of novel answers with 95 % intervals over entities, and of all were repeats perfect.

    Args:
        ranks: (n,) of the questions ``rows``.
        asked: all questions.
        rows: (n,).
        novel_share: of all queries of the split.
    """
    weight = asked.weight[rows]
    _, group = np.unique(asked.entity[rows], return_inverse=True)
    size: FloatArray = np.bincount(group, weights=weight).astype(np.float64)
    values = {"mrr": 1.0 / ranks} | {f"hits@{k}": (ranks <= k).astype(float) for k in HITS}
    found: dict[str, Any] = {"questions": len(rows), "entities": len(size), "novel": {}, "all": {}}
    for name, value in values.items():
        mean = float((value * weight).sum() / weight.sum())
        total: FloatArray = np.bincount(group, weights=value * weight).astype(np.float64)
        low, high = bootstrap_interval(total, size)
        found["novel"][name] = {"value": round(mean, 4), "ci95": [round(low, 4), round(high, 4)]}
        found["all"][name] = round(1 - novel_share + novel_share * mean, 4)
    return found
