"""The library that BARC programs import: `from common import *`.

Grids are 2-d integer arrays with x as the first index. Written from a description of behaviour, on numpy
alone; apart from the display helpers nothing prints, and nothing recurses without bound or hangs.
"""

# ruff: noqa: F401 (`__all__` is made of what is imported)

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

_made_here = {name for name, value in vars().items() if getattr(value, "__module__", "").startswith(__name__)}
_imported = {"Any", "Callable", "List", "Optional", "Set", "Tuple", "Union", "np", "random", "Symmetry"}
__all__ = sorted(_made_here | _imported)
