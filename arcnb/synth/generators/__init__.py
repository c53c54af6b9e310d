"""Task generators of the DSL, a family per module; importing this package fills `rules.GENERATORS`."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
