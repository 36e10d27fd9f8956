"""The settings of MetaTKGR, and the presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from metatkgr.errors import SettingsError
from metatkgr.models.common.few_shot import FewShotSettings, LossKind, Reduction
from metatkgr.settings import Amount, Count, Dropout, Range, Rate, Sample, Weight

__all__ = ["PRESETS", "MetaTKGRSettings"]


@dataclass(frozen=True)
class MetaTKGRSettings(FewShotSettings):
    """Settings of MetaTKGR."""

    newcomers: Literal["rows", "adapted"] = "rows"
    """What speaks for an entity that is not of the background: 'rows' (a vector from TransE on its
    supports, adapted with the encoder by the inner loop) or 'adapted' (nothing but its links, by an
    inner loop whose every step is learned; see ``newcomers.py``). The settings from ``layers`` to
    ``sampler`` are of the encoder of 'rows'."""
    meta_train_known: bool = False
    """Whether TransE sees all facts of the meta-train entities, as in the paper, or their supports
    alone, which leaves them as new as the entities to come."""
    layers: Annotated[int, Range(1, 4)] = 1
    """L, layers of the encoder."""
    attention: Literal["printed", "leaky"] = "leaky"
    """'printed' (linear: the root's own part cancels) or 'leaky'."""
    message: Literal["printed", "residual", "gate"] = "gate"
    """What a neighbour says: 'printed' (its vector, as in the paper), 'residual' (how far the root
    is from where the neighbour and their relation would have it) or 'gate' (the same, weighted by
    one number instead of a matrix)."""
    self_term: bool = True
    """Whether an entity's own vector is added to what its neighbours say."""
    dropout: Dropout = 0.0
    """Share of a message that is dropped in training."""
    sampler: Literal["bfs", "recent", "uniform"] = "bfs"
    """'bfs' (the paper's), 'recent' or 'uniform'."""
    budget: Annotated[int, Range(1, 256)] = 16
    """b, neighbours of an entity; b^L of them are looked at, at most 65,536."""
    window: Annotated[int, Range(0, 2**31)] = 0
    """Δt in steps: only facts later than t - Δt are neighbours; 0: all."""
    loss: LossKind = "softmax"
    """'hinge' (the paper's) or 'softmax' over the answer and the negatives."""
    margin: Rate = 0.5
    """γ of the hinge."""
    reduction: Reduction = "mean"
    """'sum' (the paper's) or 'mean' over facts."""
    negatives: Count = 32
    """Wrong answers for each query fact."""
    support_negatives: Sample = 8
    """Wrong answers for each support fact; any entity, drawn by a fixed rule. 'adapted' takes the
    same for all facts of a time."""
    own_in_support: bool = True
    """Whether an entity sees all of its support while it is fitted to it."""
    background_epochs: Amount = 0
    """Epochs of the encoder on the facts of old entities."""
    background_batch: Count = 256
    """Facts in a batch of that stage."""
    background_steps: Count = 200
    """At most so many batches in an epoch of that stage."""
    background_rate: Rate = 0.001
    """Learning rate of that stage."""
    epochs: Count = 50
    """Epochs of meta-training."""
    batch_size: Count = 256
    """Tasks in a batch; of 'adapted', queries."""
    queries_per_task: Count = 8
    """At most so many queries of a task in a batch, drawn anew each time."""
    inner_rate: Weight = 0.01
    """η of the inner optimisation; 'adapted' learns it, of each step."""
    inner_steps: Annotated[int, Range(0, 100)] = 1
    """Gradient steps of the inner optimisation."""
    rounds: Annotated[int, Range(1, 16)] = 2
    """How often 'adapted' passes vectors on between entities that have no row."""
    hops: Annotated[int, Range(0, 8)] = 0
    """How far 'adapted' walks along links to reach candidates (``links.py``); 0: not at all."""
    pool: Annotated[int, Range(1, 512)] = 64
    """Among how many links of an entity its walks choose, those that began last."""
    walkers: Annotated[int, Range(1, 512)] = 64
    """b of the walks: how many states of a query they go on from."""
    novel_weight: Weight = 3.0
    """Weight of a novel answer in the outer loss of 'adapted'; that of a repeat is 1."""
    second_order: bool = True
    """Whether the outer gradient goes through the inner one."""
    outer_rate: Rate = 0.01
    """β of the outer optimisation."""
    intervals: Count = 3
    """M, the intervals of the queries' time span, near to far."""
    near: Literal["calendar", "age", "autoregressive"] = "calendar"
    """What 'adapted' cuts into intervals: the calendar; the time since an entity's last support
    fact; or the calendar, where an interval sees what happened until it begins."""
    delta: Annotated[float, Range(above=0, below=1)] = 0.05
    """δ of the PAC-Bayes bound."""
    sigma: Rate = 1.0
    """σ of its Gaussians."""
    variant: Literal["full", "fine-tuning", "static-maml", "no-regulariser"] = "full"
    """'full', or an ablation: 'fine-tuning' (no meta-training), 'static-maml' (all intervals at
    once, no regulariser), 'no-regulariser'."""
    candidates: Literal["shared", "exact"] = "shared"
    """Encoding of candidate answers at meta-test: 'shared' by all tasks, or 'exact': with each
    task's own adapted parameters, much slower."""
    answers_itself: bool = False
    """Whether the query entity may be its own answer, as in the text. It stands nearest to itself
    wherever a relation is short, and no published dataset but WIKI (79 of 662,282 facts) links an
    entity to itself."""
    patience: Amount = 5
    """Validations without a better MRR before meta-training stops."""
    validate_every: Count = 1
    """Epochs between validations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget**self.layers > 2**16:
            raise SettingsError(
                f"budget^layers must be at most 65,536, not {self.budget}^{self.layers}"
            )


_PAPER: dict[str, Any] = {
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
    "meta_train_known": True,
    "translation_steps": 0,
    "inner_rate": 0.0001,
    "outer_rate": 0.0001,
    "background_epochs": 4,
    "background_rate": 0.0001,
    "batch_size": 20,
    "epochs": 50,
    "answers_itself": True,
}
PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "adapted": {
        "newcomers": "adapted",
        "inner_steps": 8,
        "own_in_support": False,
        "support_negatives": 128,
        "batch_size": 300,
        "outer_rate": 0.1,
        "epochs": 6,
        "patience": 2,
    },
    "walks": {
        "newcomers": "adapted",
        "inner_steps": 0,
        "own_in_support": False,
        "support_negatives": 128,
        "batch_size": 300,
        "outer_rate": 0.03,
        "epochs": 3,
        "patience": 2,
        "hops": 3,
    },
    "paper": _PAPER,
    "paper:WIKI": _PAPER | {"margin": 0.4, "inner_rate": 0.00005},
}
"""What differs from the defaults, by preset; 'paper' is the text, as close as it can be read. On
the dataset after a colon a training takes that preset in place of the general one."""
