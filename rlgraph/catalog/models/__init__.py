"""Derives a model's sizes, its parameters and the basis of engines' layouts from its name or `config.json`."""
