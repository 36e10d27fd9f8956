"""Every choice of the evidence model in one place."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EvidenceSettings"]


@dataclass(frozen=True)
class EvidenceSettings:
    """Settings of the evidence model."""

    dimension: int = 128
    """Length of the vectors of the translation evidence; 0: none of it."""
    translation_epochs: int = 40
    """Epochs of TransE on the first fact of each support, from which the weights are learned; and
    again with all K facts, for use."""
    translation_rate: float = 0.005
    """Learning rate of these."""
    hidden: int = 64
    """Width of the part that lets one kind of evidence change the meaning of another; 0: none."""
    repeats_first: bool = True
    """Whether what e has done with r before stands above all else, the latest first; the weights
    then order the rest. Learned weights alone mix them, which meta-validation likes less."""
    recent: int = 32
    """Candidates of a question that were linked to the entity, the latest first."""
    near: int = 96
    """Candidates by PageRank among those that stood in this place; half as many among all."""
    frequent: int = 48
    """Candidates by recent frequency in this place of the relation."""
    similar: int = 64
    """Candidates by translation."""
    train_queries: int = 4000
    """Meta-train queries to learn the weights from, half of them novel where there are enough."""
    earlier_queries: int = 8000
    """The same of entities that emerged late in the background, taken as new; 0: none."""
    support_share: float = 1.0
    """Weight of a support fact (to be foretold from the entity's earlier ones) against that of a
    meta-train query; 0: supports are not learned from."""
    epochs: int = 40
    """Passes over these questions."""
    batch_size: int = 256
    """Questions in a batch."""
    learning_rate: float = 0.01
    """Of Adam, for the weights of evidence."""
    shrinkage: float = 0.01
    """Pull of each relation's own weights towards the weights of all."""
    patience: int = 4
    """Validations without a better MRR before the weights stop being learned; 0: never validate."""
    validate_every: int = 4
    """Epochs between validations."""

    def __post_init__(self) -> None:
        for name in ("recent", "near", "frequent", "train_queries", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in (
            "dimension",
            "hidden",
            "similar",
            "translation_epochs",
            "patience",
            "earlier_queries",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        for name in ("translation_rate", "learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("shrinkage", "support_share"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        if self.validate_every < 1:
            raise ValueError(f"validate_every must be at least 1, not {self.validate_every}")
