"""Task generators of the DSL, a family per module; importing this package fills `rules.GENERATORS`."""

from arcnb.synth.generators import (
    color,
    composed,
    counting,
    cropping,
    drawing,
    filling,
    geometry,
    lines,
    masks,
    motion,
    objects,
    partitions,
    patterns,
    scaling,
    sorting,
    symmetry,
)

__all__ = [
    "color",
    "composed",
    "counting",
    "cropping",
    "drawing",
    "filling",
    "geometry",
    "lines",
    "masks",
    "motion",
    "objects",
    "partitions",
    "patterns",
    "scaling",
    "sorting",
    "symmetry",
]
