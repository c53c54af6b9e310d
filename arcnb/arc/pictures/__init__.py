"""Grids, tasks and predictions as pictures.

The names that notebooks may import stand in `__init__.pyi`; they are loaded when first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
