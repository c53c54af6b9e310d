from . import palettes as palettes
