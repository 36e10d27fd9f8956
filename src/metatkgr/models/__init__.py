"""Models; importing this package registers all of them."""

from metatkgr.models import oracle as _oracle
from metatkgr.models import rules as _rules
from metatkgr.models.base import Model, available, create, register
from metatkgr.models.baselines import gen as _gen
from metatkgr.models.baselines import lan as _lan
from metatkgr.models.baselines import metadygnn as _metadygnn
from metatkgr.models.baselines import regcn as _regcn
from metatkgr.models.baselines import renet as _renet
from metatkgr.models.baselines import rotate as _rotate
from metatkgr.models.baselines import transe as _transe
from metatkgr.models.baselines import transr as _transr
from metatkgr.models.evidence import model as _evidence
from metatkgr.models.metatkgr import model as _metatkgr

__all__ = ["DEFAULT_MODEL", "Model", "available", "create", "register"]

DEFAULT_MODEL = "paths"
"""The model of the product where none is named."""
_ = (
    _evidence,
    _gen,
    _lan,
    _metadygnn,
    _metatkgr,
    _oracle,
    _regcn,
    _renet,
    _rotate,
    _transe,
    _transr,
    _rules,
)
