"""The engine that trains and scores with Megatron-core: tensor, pipeline and data parallel."""
