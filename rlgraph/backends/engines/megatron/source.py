"""Reads the shape of a model, and where its weights are, before Megatron builds it."""

from __future__ import annotations

from pathlib import Path

from rlgraph.backends.engines.errors import EngineError, MissingHead
from rlgraph.backends.engines.sources import ModelSpec, load
from rlgraph.backends.engines.weights import FolderWeights, ModelWeights, WeightSource
from rlgraph.backends.enginespec.layout_checks import explain_unsupported
from rlgraph.catalog.models.config_shape import shape_of
from rlgraph.catalog.models.configs import find_config
from rlgraph.catalog.models.shape import Shape, UnsupportedModel


def read_model_source(spec: ModelSpec) -> tuple[Shape, WeightSource]:
    """Return the shape and weights of a source. A local folder is read only as far as is needed; what transformers has
    to make or find is made whole."""
    try:
        if isinstance(spec.source, str) and Path(spec.source).is_dir():
            weights = FolderWeights(spec.source)
            if spec.needs_saved_head and not weights.has_head:
                raise MissingHead(spec.kind, spec.source)
            return shape_of(find_config(spec.source) or {}), weights
        model = load(spec).model
        return shape_of(model.config.get_text_config().to_dict()), ModelWeights(model)
    except UnsupportedModel as error:
        raise EngineError(str(explain_unsupported(error, "megatron"))) from error
