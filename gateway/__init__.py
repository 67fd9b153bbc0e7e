"""The admission-control gateway: what serves, and the operator's command line."""

__version__ = "0.1.0"
__all__ = ["__version__"]
