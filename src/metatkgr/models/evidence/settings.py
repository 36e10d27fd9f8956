"""The settings of the evidence model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from metatkgr.errors import SettingsError
from metatkgr.graph.pagerank import THRESHOLD
from metatkgr.models.common.translation import StartSettings
from metatkgr.models.evidence.features import KINDS
from metatkgr.settings import Amount, Count, Range, Rate, Sample, Weight

__all__ = ["EvidenceSettings"]


@dataclass(frozen=True)
class EvidenceSettings(StartSettings):
    """Settings of the evidence model.

    TransE is learned from the first fact of each support, from which the weights of evidence are
    learned; and again with all K facts, for use.
    """

    start: str = "pretrained"
    """Where the weights start: 'pretrained', those of the package, learned on other graphs; 'none',
    about the order of the rules; or a file of ``metatkgr pretrain``."""
    dimension: Amount = 0
    """Length of the vectors of the translation evidence; 0: none of it."""
    hidden: Amount = 64
    """Width of the part that lets one kind of evidence change the meaning of another; 0: none."""
    members: Count = 3
    """Ensemble size: sets of weights, learned side by side from different starts; their logits are
    averaged."""
    prior: Weight = 0.15
    """Weight of the logarithm of PageRank that is added to what was learned: a product of two
    experts."""
    without: str = ""
    """Kinds of evidence to leave out, with commas between them: contact, walks, peers, frequency,
    age."""
    repeats_first: bool = True
    """Whether what e has done with r before stands above all else, the latest first; the weights
    then order the rest, and are learned from novel answers only. Learned weights alone mix them,
    which does less well on meta-validation."""
    recent: Sample = 32
    """Candidates of a query that were linked to the entity, the latest first."""
    near: Sample = 160
    """Candidates by PageRank among those that filled this slot; half as many among all."""
    frequent: Sample = 64
    """Candidates by recent frequency in this slot of the relation."""
    threshold: Annotated[float, Range(above=0, below=1)] = THRESHOLD
    """Walkers of PageRank stop where they would reach each neighbour with a smaller share."""
    branches: Sample = 24
    """Links that a walk to peers may follow from each entity, those that began last."""
    train_queries: Count = 4000
    """Meta-train queries to learn the weights from, at most three of one link; where repeats are
    not first, half of them novel."""
    earlier_queries: Amount = 4000
    """The same of entities that emerged late in the background, taken as new; 0: none."""
    support_queries: Count = 1500
    """Support facts to be foretold, of each split and each ordinal in a support."""
    support_share: Weight = 1.0
    """Weight of a support fact (to be foretold from the entity's earlier ones) against that of a
    meta-train query; 0: supports are not learned from."""
    missed_share: Weight = 0.0
    """Weight of a query whose gold answer is outside the candidate set (it is put into it all the
    same) against that of others; 0: they are not learned from. They teach to doubt all evidence."""
    epochs: Amount = 16
    """Passes over these examples; 0: the weights stay what they start with, near the rules."""
    batch_size: Count = 256
    """Queries in a batch."""
    learning_rate: Rate = 0.005
    """Of Adam, for the weights of evidence."""
    shrinkage: Weight = 0.03
    """Pull of each relation's own weights towards the weights of all."""
    decay: Weight = 1e-3
    """Pull of the shared and the hidden weights towards zero."""
    patience: Amount = 0
    """Validations without a better MRR before the weights stop being learned; 0: never validate."""
    validate_every: Count = 4
    """Epochs between validations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = sorted(self.left_out - set(KINDS))
        if unknown:
            raise SettingsError(
                f"without names {', '.join(unknown)}; choose from {', '.join(KINDS)}"
            )

    @property
    def left_out(self) -> set[str]:
        """Kinds of evidence to leave out."""
        return {name.strip() for name in self.without.split(",") if name.strip()}
