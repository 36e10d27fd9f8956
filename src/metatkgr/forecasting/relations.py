r"""What an entity does next, before asking with whom: a probability for each directed relation.

.. math:: P(r \mid e, t) = \frac{\sum_{i: r_i = r} 2^{-(t - t_i)/h} + a\, P(r)}
                               {\sum_i 2^{-(t - t_i)/h} + a}

over the visible facts i of e: what it did lately counts most (half as much after h steps), and the
share P(r) of each relation among all facts before t stands in for what is not known yet. Each
relation counts once for either side. a = 1; h is a twentieth of the time the graph has lasted by t.
An entity's own first facts, visible at any time, count as if they had just happened.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metatkgr.forecasting.graph import Snapshot

__all__ = ["next_relations"]

_PRIOR = 1.0
_LIFE = 20


def next_relations(
    snapshot: Snapshot, entity: int, step: int, shots: int = 0
) -> npt.NDArray[np.float64]:
    """(2R,) probability that the next fact of ``entity`` has each directed relation; sums to 1.

    Args:
        snapshot: the facts.
        entity: who is asked about.
        step: when.
        shots: so many first facts of the entity are visible at any time.
    """
    counts = snapshot.relation_counts(step).astype(float) + 1
    share = np.concatenate([counts, counts]) / (2 * counts.sum())
    relation, _, time = snapshot.links(entity)
    visible = (time < step) | (np.arange(len(time)) < shots)
    age = np.maximum(step - time[visible], 0)
    half = max(step / _LIFE, 1.0)
    own = np.bincount(relation[visible], weights=0.5 ** (age / half), minlength=len(share))
    return np.asarray((own + _PRIOR * share) / (own.sum() + _PRIOR))
