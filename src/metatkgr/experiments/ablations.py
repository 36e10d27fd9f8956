"""Models with a part left out: which ones, and how to tell them from a model as it is."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["ABLATIONS", "EVIDENCE_PARTS", "VARIANTS", "ablation_of"]

VARIANTS = ("fine-tuning", "static-maml", "no-regulariser")
"""Ablations of MetaTKGR: values of its setting ``variant``."""
EVIDENCE_PARTS = (
    ("without", "contact"),
    ("without", "walks"),
    ("without", "peers"),
    ("without", "frequency"),
    ("without", "age"),
    ("support_share", "0"),
    ("epochs", "0"),
    ("prior", "0"),
    ("members", "1"),
    ("earlier_queries", "0"),
    ("repeats_first", "false"),
)
"""Ablations of the evidence model: a setting, and the value with which a part is missing."""
ABLATIONS = {
    "metatkgr": VARIANTS,
    "evidence": tuple(f"{key}={value}" for key, value in EVIDENCE_PARTS),
}
"""What the ablations of a model are called, in the order of their tables."""


def ablation_of(model: str, settings: Iterable[tuple[str, str]]) -> str | None:
    """What the ablation is called that a model with these settings is; None: it is whole."""
    chosen = dict(settings)
    if model != "evidence":
        return chosen.get("variant")
    found = (f"{key}={value}" for key, value in EVIDENCE_PARTS if chosen.get(key) == value)
    return next(found, None)
