"""PATE as a federation: hospitals vote on public inputs, nothing else leaves the house."""

__version__ = "0.1.0"
__all__ = ["__version__"]
