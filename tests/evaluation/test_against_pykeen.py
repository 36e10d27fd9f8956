"""Our ranks equal pykeen's realistic ranks on the same scores and the same filter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metatkgr.data.answers import true_answers
from metatkgr.data.tasks import Tasks
from metatkgr.data.visibility import VisibleFacts
from metatkgr.data.world import simulate
from metatkgr.evaluation.ranking import filtered_ranks

pytest.importorskip("pykeen", reason="pykeen is a development extra")


def test_static_ranks_equal_pykeens() -> None:
    from pykeen.evaluation.evaluator import create_sparse_positive_filter_, filter_scores_
    from pykeen.evaluation.ranks import Ranks

    facts = simulate(facts=3000, seed=2)
    tasks = Tasks.build(facts)
    generator = torch.Generator().manual_seed(0)
    # whole numbers, so that ties occur
    shape = (len(tasks.questions), len(facts.entities))
    scores = torch.randint(0, 20, shape, generator=generator).float()
    question = torch.from_numpy(tasks.answers.question)
    answer = torch.from_numpy(tasks.answers.answer)
    ours = filtered_ranks(
        scores, question, answer, [true_answers(VisibleFacts.of(facts), tasks.questions, "static")]
    )

    links = VisibleFacts.of(facts)
    triples = torch.from_numpy(np.stack([links.source, links.relation, links.target], axis=1))
    batch = torch.stack(
        [
            torch.from_numpy(tasks.questions.entity)[question],
            torch.from_numpy(tasks.questions.relation)[question],
            answer,
        ],
        dim=1,
    )
    positives, _ = create_sparse_positive_filter_(batch, torch.unique(triples, dim=0), filter_col=2)
    rows = scores[question]
    true = rows.gather(1, batch[:, 2:3])
    rows = filter_scores_(rows, positives).scatter_(1, batch[:, 2:3], true)
    theirs = Ranks.from_scores(true, rows).realistic
    assert torch.equal(ours[0], theirs.double())
