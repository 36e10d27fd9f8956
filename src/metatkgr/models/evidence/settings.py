"""Every choice of the evidence model in one place."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KINDS", "EvidenceSettings"]


KINDS = ("contact", "walks", "peers", "frequency", "age")
"""Kinds of evidence that can be left out."""


@dataclass(frozen=True)
class EvidenceSettings:
    """Settings of the evidence model."""

    dimension: int = 0
    """Length of the vectors of the translation evidence; 0: none of it."""
    translation_epochs: int = 40
    """Epochs of TransE on the first fact of each support, from which the weights are learned; and
    again with all K facts, for use."""
    translation_steps: int = 5000
    """Steps of that stage, after which the epoch is its last; 0: no bound. A large graph has
    settled after a few epochs, and the vectors of new entities fit their few facts too closely
    after more."""
    translation_rate: float = 0.005
    """Learning rate of these."""
    hidden: int = 64
    """Width of the part that lets one kind of evidence change the meaning of another; 0: none."""
    members: int = 3
    """Sets of weights, learned side by side from different starts; their scores are averaged."""
    prior: float = 0.15
    """Weight of the logarithm of PageRank that is added to what was learned: a product of two
    opinions."""
    without: str = ""
    """Kinds of evidence to leave out, with commas between them: contact, walks, peers, frequency,
    age."""
    repeats_first: bool = True
    """Whether what e has done with r before stands above all else, the latest first; the weights
    then order the rest, and are learned from novel answers only. Learned weights alone mix them,
    which meta-validation likes less."""
    recent: int = 32
    """Candidates of a question that were linked to the entity, the latest first."""
    near: int = 160
    """Candidates by PageRank among those that stood in this place; half as many among all."""
    frequent: int = 64
    """Candidates by recent frequency in this place of the relation."""
    similar: int = 64
    """Candidates by translation."""
    branches: int = 24
    """Links that a walk to peers may follow at each place, those that began last."""
    train_queries: int = 4000
    """Meta-train queries to learn the weights from, at most three of one link; where repeats are
    not first, half of them novel."""
    earlier_queries: int = 4000
    """The same of entities that emerged late in the background, taken as new; 0: none."""
    support_queries: int = 1500
    """Support facts to be foretold, of each split and each place in a support."""
    support_share: float = 1.0
    """Weight of a support fact (to be foretold from the entity's earlier ones) against that of a
    meta-train query; 0: supports are not learned from."""
    missed_share: float = 0.0
    """Weight of a question whose answer nothing points at (it is put among the candidates all the
    same) against that of others; 0: they are not learned from. They teach to doubt all evidence."""
    epochs: int = 16
    """Passes over these questions; 0: the weights stay what they start with, near the rules."""
    batch_size: int = 256
    """Questions in a batch."""
    learning_rate: float = 0.005
    """Of Adam, for the weights of evidence."""
    shrinkage: float = 0.03
    """Pull of each relation's own weights towards the weights of all."""
    decay: float = 1e-3
    """Pull of the shared and the hidden weights towards zero."""
    patience: int = 0
    """Validations without a better MRR before the weights stop being learned; 0: never validate."""
    validate_every: int = 4
    """Epochs between validations."""

    def __post_init__(self) -> None:
        positive = ("recent", "near", "frequent", "train_queries", "batch_size", "members")
        for name in (*positive, "support_queries", "branches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in (
            "dimension",
            "hidden",
            "similar",
            "translation_epochs",
            "translation_steps",
            "patience",
            "earlier_queries",
            "epochs",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        for name in ("translation_rate", "learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in (
            "shrinkage",
            "support_share",
            "missed_share",
            "prior",
            "decay",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        unknown = sorted(self.left_out - set(KINDS))
        if unknown:
            raise ValueError(f"without names {', '.join(unknown)}; choose from {', '.join(KINDS)}")
        if self.validate_every < 1:
            raise ValueError(f"validate_every must be at least 1, not {self.validate_every}")

    @property
    def left_out(self) -> set[str]:
        """Kinds of evidence to leave out."""
        return {name.strip() for name in self.without.split(",") if name.strip()}
