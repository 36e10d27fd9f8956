"""Every choice of MetaTKGR in one place, and the presets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from metatkgr.graph.negatives import KINDS
from metatkgr.models.common.few_shot import LOSSES, REDUCTIONS, RankingLoss, ranking_loss
from metatkgr.models.metatkgr.encoder import EncoderSettings

__all__ = ["PRESETS", "VARIANTS", "MetaTKGRSettings"]

VARIANTS = ("full", "fine-tuning", "static-maml", "no-regulariser")


@dataclass(frozen=True)
class MetaTKGRSettings:
    """Settings of MetaTKGR."""

    dimension: int = 128
    """d, the length of every vector."""
    layers: int = 1
    """L, layers of the encoder."""
    attention: str = "leaky"
    """'printed' (linear: the root's own part cancels) or 'leaky'."""
    message: str = "gate"
    """What a neighbour says: 'printed' (its vector, as in the paper), 'residual' (how far the root
    is from where the neighbour and their relation would have it) or 'gate' (the same, weighted by
    one number instead of a matrix)."""
    self_term: bool = True
    """Whether an entity's own vector is added to what its neighbours say."""
    dropout: float = 0.0
    """Share of a message that is dropped in training."""
    sampler: str = "bfs"
    """'bfs' (the paper's), 'recent' or 'uniform'."""
    budget: int = 16
    """b, neighbours of an entity."""
    window: int = 0
    """Δt in steps: only facts later than t - Δt are neighbours; 0: all."""
    loss: str = "softmax"
    """'hinge' (the paper's) or 'softmax' over the answer and the negatives."""
    margin: float = 0.5
    """γ of the hinge."""
    reduction: str = "mean"
    """'sum' (the paper's) or 'mean' over facts."""
    negatives: int = 32
    """Wrong answers for each query fact."""
    negative_kind: str = "mixed"
    """Where they come from: 'uniform', 'place' (of the relation) or 'mixed'."""
    support_negatives: int = 8
    """Wrong answers for each support fact; any entity, drawn by a fixed rule."""
    own_in_support: bool = True
    """Whether an entity sees all of its support while it is fitted to it."""
    one_shot: bool = False
    """Whether TransE, which initialises the tables, sees one fact of each support (the paper's
    way) or all K."""
    translation_epochs: int = 40
    """Epochs of that stage."""
    translation_steps: int = 5000
    """Steps of that stage, after which the epoch is its last; 0: no bound. A large graph has
    settled after a few epochs, and the vectors of new entities fit their few facts too closely
    after more."""
    translation_rate: float = 0.005
    """Learning rate of that stage."""
    background_epochs: int = 0
    """Epochs of the encoder on the facts of old entities."""
    background_batch: int = 256
    """Facts in a batch of that stage."""
    background_steps: int = 200
    """At most so many batches in an epoch of that stage."""
    background_rate: float = 0.001
    """Learning rate of that stage."""
    learn_tables: bool = False
    """Whether meta-training moves the entity and relation tables too. A table can learn the queries
    of meta-train entities by heart, which helps no new entity; the encoder cannot."""
    epochs: int = 50
    """Epochs of meta-training."""
    batch_size: int = 256
    """Tasks in a batch."""
    queries_per_task: int = 8
    """At most so many queries of a task in a batch, drawn anew each time."""
    inner_rate: float = 0.01
    """η of the inner optimisation."""
    inner_steps: int = 1
    """Gradient steps of the inner optimisation."""
    second_order: bool = True
    """Whether the outer gradient goes through the inner one."""
    outer_rate: float = 0.01
    """β of the outer optimisation."""
    intervals: int = 3
    """M, the intervals of the queries' time span, near to far."""
    delta: float = 0.05
    """δ of the PAC-Bayes bound."""
    sigma: float = 1.0
    """σ of its Gaussians."""
    variant: str = "full"
    """'full', or an ablation: 'fine-tuning' (no meta-training), 'static-maml' (all intervals at
    once, no regulariser), 'no-regulariser'."""
    candidates: str = "shared"
    """Encoding of candidate answers at meta-test: 'shared' by all tasks, or 'exact': with each
    task's own adapted parameters, much slower."""
    answers_itself: bool = False
    """Whether the asking entity may be its own answer, as in the text. It stands nearest to itself
    wherever a relation is short, and no published dataset but WIKI (79 of 662,282 facts) links an
    entity to itself."""
    patience: int = 5
    """Validations without a better MRR before meta-training stops."""
    validate_every: int = 1
    """Epochs between validations."""

    def __post_init__(self) -> None:
        positive = "dimension layers budget negatives support_negatives epochs batch_size intervals"
        positive += " queries_per_task background_batch background_steps validate_every"
        for name in positive.split():
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        unsigned = "window translation_epochs translation_steps background_epochs inner_steps"
        for name in unsigned.split():
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        for name, known in (
            ("variant", VARIANTS),
            ("candidates", ("shared", "exact")),
            ("sampler", ("bfs", "recent", "uniform")),
            ("negative_kind", KINDS),
            ("loss", LOSSES),
            ("reduction", REDUCTIONS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}")
        if not self.margin > 0:
            raise ValueError(f"margin must be above 0, not {self.margin}")
        _ = self.encoder  # which checks what it takes

    @property
    def encoder(self) -> EncoderSettings:
        """The settings of the encoder."""
        return EncoderSettings(
            dimension=self.dimension,
            layers=self.layers,
            attention=self.attention,
            message=self.message,
            self_term=self.self_term,
            dropout=self.dropout,
        )

    @property
    def ranking(self) -> RankingLoss:
        """The loss."""
        return partial(ranking_loss, loss=self.loss, margin=self.margin, reduction=self.reduction)

    @property
    def query_intervals(self) -> int:
        """M, or one for the variant that takes all queries at once."""
        return 1 if self.variant == "static-maml" else self.intervals

    @property
    def time_window(self) -> int | None:
        """Δt, or None for all of the past."""
        return self.window or None


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "attention": "printed",
        "message": "printed",
        "self_term": False,
        "dropout": 0.5,
        "loss": "hinge",
        "margin": 0.5,
        "reduction": "sum",
        "negatives": 1,
        "negative_kind": "uniform",
        "support_negatives": 1,
        "learn_tables": True,
        "one_shot": True,
        "translation_steps": 0,
        "inner_rate": 0.0001,
        "outer_rate": 0.0001,
        "background_epochs": 4,
        "background_rate": 0.0001,
        "batch_size": 20,
        "epochs": 50,
        "answers_itself": True,
    },
}
"""What differs from the defaults, by preset; 'paper' is the text, as close as it can be read."""
