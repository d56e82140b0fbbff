"""Training and scoring with Megatron-core: tensor, pipeline and data parallel."""
