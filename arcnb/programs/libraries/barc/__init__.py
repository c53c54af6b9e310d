"""The library that BARC programs import: `from common import *`.

Grids are 2-d integer arrays with x as the first index. Written from a description of behaviour, on numpy
alone; apart from the display helpers nothing prints, and nothing recurses without bound or hangs.
"""

import random
from typing import Any, Callable, List, Optional, Set, Tuple, Union  # noqa: UP035 (programs use these names)

import numpy as np

from arcnb.programs.libraries.barc.colors import Color
from arcnb.programs.libraries.barc.detection import detect_objects
from arcnb.programs.libraries.barc.display import show_colored_grid, visualize
from arcnb.programs.libraries.barc.drawing import (
    blit,
    blit_object,
    blit_sprite,
    draw_line,
    flood_fill,
    scale_pattern,
    scale_sprite,
    translate,
)
from arcnb.programs.libraries.barc.objects import (
    bounding_box,
    bounding_box_mask,
    crop,
    find_connected_components,
    is_contiguous,
    object_colors,
    object_position,
)
from arcnb.programs.libraries.barc.placement import (
    random_free_location_for_object,
    random_free_location_for_sprite,
    randomly_scatter_points,
    randomly_spaced_indices,
)
from arcnb.programs.libraries.barc.sprites import (
    apply_diagonal_symmetry,
    apply_symmetry,
    generate_sprite,
    random_sprite,
)
from arcnb.programs.libraries.barc.symmetry import MirrorSymmetry, Symmetry, TranslationalSymmetry, orbit
from arcnb.programs.libraries.barc.symmetry_detection import (
    detect_mirror_symmetry,
    detect_rotational_symmetry,
    detect_translational_symmetry,
)
from arcnb.programs.libraries.barc.topology import (
    check_between_objects,
    collision,
    contact,
    object_boundary,
    object_interior,
    object_neighbors,
)

__all__ = [
    "Any",
    "Callable",
    "Color",
    "List",
    "MirrorSymmetry",
    "Optional",
    "Set",
    "Symmetry",
    "TranslationalSymmetry",
    "Tuple",
    "Union",
    "apply_diagonal_symmetry",
    "apply_symmetry",
    "blit",
    "blit_object",
    "blit_sprite",
    "bounding_box",
    "bounding_box_mask",
    "check_between_objects",
    "collision",
    "contact",
    "crop",
    "detect_mirror_symmetry",
    "detect_objects",
    "detect_rotational_symmetry",
    "detect_translational_symmetry",
    "draw_line",
    "find_connected_components",
    "flood_fill",
    "generate_sprite",
    "is_contiguous",
    "np",
    "object_boundary",
    "object_colors",
    "object_interior",
    "object_neighbors",
    "object_position",
    "orbit",
    "random",
    "random_free_location_for_object",
    "random_free_location_for_sprite",
    "random_sprite",
    "randomly_scatter_points",
    "randomly_spaced_indices",
    "scale_pattern",
    "scale_sprite",
    "show_colored_grid",
    "translate",
    "visualize",
]
