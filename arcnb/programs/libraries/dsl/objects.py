"""Objects: connected groups of cells, with properties to choose them by and methods that move them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from .grids import DslError, Grid, crop

_SIDE_NEIGHBOURS = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]])
_ALL_NEIGHBOURS = np.ones((3, 3), dtype=int)


@dataclass(frozen=True, eq=False)
class Object:
    """A group of cells cut out of a grid.

    row, column: top left corner of its bounding box. grid: the bounding box, background where the object
    has no cell. mask: boolean, same shape, true where it has one. background: the color outside it.
    """

    row: int
    column: int
    grid: Grid
    mask: np.ndarray
    background: int = 0

    @property
    def position(self) -> tuple[int, int]:
        """(row, column) of the top left corner."""
        return self.row, self.column

    @property
    def height(self) -> int:
        """Rows of the bounding box."""
        return self.grid.shape[0]

    @property
    def width(self) -> int:
        """Columns of the bounding box."""
        return self.grid.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the bounding box."""
        return self.grid.shape

    @property
    def bottom(self) -> int:
        """Its last row."""
        return self.row + self.height - 1

    @property
    def right(self) -> int:
        """Its last column."""
        return self.column + self.width - 1

    @property
    def center(self) -> tuple[int, int]:
        """(row, column) of the middle of the bounding box, rounded down."""
        return self.row + (self.height - 1) // 2, self.column + (self.width - 1) // 2

    @property
    def area(self) -> int:
        """Number of cells."""
        return int(self.mask.sum())

    @property
    def color(self) -> int:
        """Its most frequent color; the smallest of equals."""
        return int(np.bincount(self.grid[self.mask]).argmax())

    @property
    def colors(self) -> list[int]:
        """Its colors, ascending."""
        return [int(color) for color in np.unique(self.grid[self.mask])]

    @property
    def n_holes(self) -> int:
        """Number of separate areas that the object encloses."""
        return int(label_areas(enclosed_areas(self.mask), diagonal=False)[1])

    @property
    def is_rectangle(self) -> bool:
        """Whether it fills its bounding box."""
        return bool(self.mask.all())

    @property
    def is_square(self) -> bool:
        """Whether it fills its bounding box and the box is as high as wide."""
        return self.is_rectangle and self.height == self.width

    @property
    def is_line(self) -> bool:
        """Whether it is one row or one column of at least two cells."""
        return self.is_rectangle and 1 in self.size and self.area > 1

    @property
    def is_symmetric_horizontal(self) -> bool:
        """Whether it equals its left-right mirror image, colors included."""
        return self._equals(self.flip_horizontal())

    @property
    def is_symmetric_vertical(self) -> bool:
        """Whether it equals its top-bottom mirror image, colors included."""
        return self._equals(self.flip_vertical())

    def same_shape(self, other: "Object") -> bool:
        """Whether both have cells at the same places of equal bounding boxes, whatever their colors."""
        return np.array_equal(self.mask, other.mask)

    def move(self, rows: int, columns: int) -> "Object":
        """The object moved down by `rows` and right by `columns`."""
        return replace(self, row=self.row + rows, column=self.column + columns)

    def move_to(self, row: int, column: int) -> "Object":
        """The object with its top left corner at (row, column)."""
        return replace(self, row=row, column=column)

    def recolor(self, color: int) -> "Object":
        """The object in one color."""
        return replace(self, grid=np.where(self.mask, color, self.background))

    def flip_horizontal(self) -> "Object":
        """Left and right exchanged, in place."""
        return replace(self, grid=self.grid[:, ::-1], mask=self.mask[:, ::-1])

    def flip_vertical(self) -> "Object":
        """Top and bottom exchanged, in place."""
        return replace(self, grid=self.grid[::-1], mask=self.mask[::-1])

    def rotate_clockwise(self) -> "Object":
        """A quarter turn to the right; the top left corner of the bounding box stays."""
        return replace(self, grid=np.rot90(self.grid, -1), mask=np.rot90(self.mask, -1))

    def _equals(self, other: "Object") -> bool:
        return np.array_equal(self.mask, other.mask) and np.array_equal(self.grid, other.grid)


def find_objects(
    grid: Grid, background: int = 0, diagonal: bool = False, single_color: bool = True
) -> list[Object]:
    """Connected groups of cells that are not `background`, by their first cell in reading order.

    diagonal: cells that touch at corners are connected too. single_color: cells of different colors belong
    to different objects; else an object may have several colors.
    """
    layers = [grid == color for color in np.unique(grid) if color != background]
    if not single_color:
        layers = [grid != background]
    found = [obj for layer in layers for obj in _cut_out(grid, layer, background, diagonal)]
    found.sort(key=lambda obj: (obj.row, obj.column + int(obj.mask[0].argmax())))
    return found


def largest_object(objects: Iterable[Object]) -> Object:
    """The object with most cells, the first of equals. DslError when there is none."""
    return _extreme(objects, lambda obj: -obj.area)


def smallest_object(objects: Iterable[Object]) -> Object:
    """The object with fewest cells, the first of equals. DslError when there is none."""
    return _extreme(objects, lambda obj: obj.area)


def sort_objects(objects: Iterable[Object], by: str = "area", reverse: bool = False) -> list[Object]:
    """Objects ordered by the property named `by` ("area", "height", "width", "row", "column", "color", ...).

    Equals keep their order, reversed or not. DslError for a property that objects do not have.
    """
    if not isinstance(getattr(Object, by, None), property) and by not in ("row", "column"):
        raise DslError(f"objects cannot be sorted by {by!r}")
    return sorted(objects, key=lambda obj: getattr(obj, by), reverse=reverse)


def crop_object(grid: Grid, obj: Object) -> Grid:
    """The part of the grid under the object's bounding box, whatever else lies in it."""
    return crop(grid, obj.row, obj.column, obj.height, obj.width)


def touches_border(grid: Grid, obj: Object) -> bool:
    """Whether the object has a cell in the first or last row or column of the grid."""
    last_row, last_column = grid.shape[0] - 1, grid.shape[1] - 1
    return obj.row == 0 or obj.column == 0 or obj.bottom == last_row or obj.right == last_column


def label_areas(mask: np.ndarray, diagonal: bool) -> tuple[np.ndarray, int]:
    """Connected areas of a boolean array, numbered from 1 (0 outside `mask`), and how many there are."""
    # Imported here because scipy.ndimage takes longer to load than most programs take to run.
    from scipy.ndimage import label

    return label(mask, _ALL_NEIGHBOURS if diagonal else _SIDE_NEIGHBOURS)


def enclosed_areas(mask: np.ndarray) -> np.ndarray:
    """Boolean array: cells outside `mask` that no path of side-by-side steps connects to the border."""
    from scipy.ndimage import binary_fill_holes

    return binary_fill_holes(mask) & ~mask


def _cut_out(grid: Grid, layer: np.ndarray, background: int, diagonal: bool) -> list[Object]:
    from scipy.ndimage import find_objects as bounding_boxes

    labels, _ = label_areas(layer, diagonal)
    objects = []
    for number, (rows, columns) in enumerate(bounding_boxes(labels), start=1):
        mask = labels[rows, columns] == number
        part = np.where(mask, grid[rows, columns], background)
        objects.append(Object(rows.start, columns.start, part, mask, background))
    return objects


def _extreme(objects: Iterable[Object], key: Callable[[Object], int]) -> Object:
    best = min(objects, key=key, default=None)
    if best is None:
        raise DslError("no objects to choose from")
    return best
