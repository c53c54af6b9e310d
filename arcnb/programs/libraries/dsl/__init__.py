"""A grid DSL for programs: `from dsl import *` gives every name below.

Grids are 2-D numpy integer arrays (rows, columns) of colors 0..9; color 0 is the background unless a
function is told otherwise. Every function is pure: it returns a new grid and leaves its arguments alone.
Positions are (row, column) from the top left; drawing outside a grid is clipped. Wrong arguments raise
`DslError`, a ValueError, with the value in its message.
"""

# ruff: noqa: F401 (`__all__` is made of what is imported)

from .colors import (
    color_count,
    color_mask,
    colors,
    fill_mask,
    keep_color,
    least_color,
    map_colors,
    mode_color,
    recolor,
    remove_color,
    set_color,
    swap_colors,
)
from .drawing import (
    draw_border,
    draw_horizontal_line,
    draw_line,
    draw_object,
    draw_pixel,
    draw_ray,
    draw_rectangle,
    draw_vertical_line,
    erase_object,
    overlay,
)
from .filling import connect_pixels, fill_enclosed, flood_fill, outline
from .grids import (
    DslError,
    bottom_half,
    create_grid,
    crop,
    crop_to_content,
    downscale,
    flip_horizontal,
    flip_vertical,
    left_half,
    pad,
    right_half,
    rotate_180,
    rotate_clockwise,
    rotate_counterclockwise,
    stack_horizontal,
    stack_vertical,
    tile,
    top_half,
    transpose,
    trim,
    upscale,
)
from .motion import gravity, shift, shift_wrap, slide_object
from .objects import (
    Object,
    crop_object,
    enclosed_areas,
    find_objects,
    largest_object,
    smallest_object,
    sort_objects,
    touches_border,
)
from .partitions import split_columns, split_grid, split_rows
from .symmetry import (
    complete_symmetry,
    complete_tiling,
    is_symmetric_horizontal,
    is_symmetric_vertical,
    mirror_horizontal,
    mirror_vertical,
)

_made_here = {name for name, value in vars().items() if getattr(value, "__module__", "").startswith(__name__)}
__all__ = sorted(_made_here)
