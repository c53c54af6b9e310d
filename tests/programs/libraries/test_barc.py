"""What the vectors do not cover: silence, bounds, the star import, random makers, exact choices."""

import itertools
import random
import sys

import numpy as np
import pytest

from arcnb.programs.libraries import barc
from arcnb.programs.libraries.barc import detection
from arcnb.programs.libraries.barc.regions import components
from arcnb.programs.libraries.barc.sprites import SYMMETRIES

FULL = np.ones((30, 30), dtype=int)


def noise(shape, colors, seed):
    return np.random.default_rng(seed).integers(0, colors, shape)


def test_the_star_import_gives_numpy_random_typing_and_every_public_name():
    names = {}
    exec("from arcnb.programs.libraries.barc import *", names)
    assert names["np"] is np
    assert names["random"] is random
    assert {"List", "Tuple", "Optional", "Union", "Set", "Callable", "Any"} <= set(names)
    assert {"Color", "visualize", "show_colored_grid", "generate_sprite", "scale_pattern"} <= set(names)
    assert "RotationalSymmetry" not in names


def test_scipy_is_not_needed():
    import subprocess

    code = "import sys, arcnb.programs.libraries.barc; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_aliases_of_colors_appear_once_in_the_lists():
    every, visible = barc.Color.ALL_COLORS, barc.Color.NOT_BLACK
    assert every == list(range(10))
    assert visible == list(range(1, 10))


def at_depth(levels, action):
    return action() if levels == 0 else at_depth(levels - 1, action)


@pytest.mark.parametrize(
    "action",
    [
        lambda: barc.flood_fill(FULL.copy(), 15, 15, 2),
        lambda: barc.find_connected_components(FULL, connectivity=8),
        lambda: barc.object_neighbors(FULL * 0 + np.eye(30, dtype=int)),
        lambda: barc.detect_objects(FULL, allowed_dimensions=[(1, 2)]),
        lambda: barc.detect_mirror_symmetry(FULL),
        lambda: barc.random_sprite(30, 30, symmetry="mirror"),
    ],
    ids=["flood", "components", "neighbors", "detect", "mirror", "sprite"],
)
def test_nothing_overflows_the_stack_at_any_call_depth(action):
    used = len(list(iter_frames()))
    at_depth(sys.getrecursionlimit() - used - 60, action)


def iter_frames():
    frame = sys._getframe()
    while frame:
        yield frame
        frame = frame.f_back


def test_nothing_prints(capsys):
    grid = noise((12, 12), 3, 0)
    barc.scale_pattern(grid, 2)
    barc.detect_objects(grid, connectivity=4)
    barc.detect_translational_symmetry(grid)
    barc.random_sprite(5, 5)
    assert capsys.readouterr() == ("", "")


def test_the_display_helpers_accept_their_arguments(capsys):
    barc.visualize(lambda: noise((3, 4), 5, 1), lambda grid: grid.T, n_examples=2, n_attempts=3)
    barc.visualize(lambda: 1 / 0, lambda grid: grid, n_attempts=2)
    barc.show_colored_grid(noise((3, 4), 10, 2), text=True)
    assert "2 failed attempts" in capsys.readouterr().out


# -- in place or not ------------------------------------------------------------------------------------


def test_blit_of_a_window_onto_the_same_grid_copies_cell_by_cell():
    grid = np.array([[1, 2, 3, 4]])
    barc.blit(grid, grid[:, 0:3], 0, 1)
    np.testing.assert_array_equal(grid, [[1, 1, 1, 1]])


def test_crop_is_a_view_and_translate_is_not():
    grid = np.zeros((5, 5), dtype=int)
    grid[2, 3] = 4
    barc.crop(grid)[0, 0] = 7
    assert grid[2, 3] == 7
    barc.translate(grid, 0, 0)[2, 3] = 1
    assert grid[2, 3] == 7


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, bool])
def test_dtypes_survive_where_cells_are_only_moved(dtype):
    grid = (noise((4, 5), 2, 3)).astype(dtype)
    for moved in (barc.translate(grid, 1, -1), barc.scale_sprite(grid, 2), barc.crop(grid)):
        assert moved.dtype == dtype


def test_objects_from_a_mask_are_integers():
    mask = np.eye(3, dtype=bool)
    for obj in barc.find_connected_components(mask, monochromatic=False):
        assert obj.dtype.kind == "i"
        assert obj.sum() == 1


def test_a_program_finds_the_library_as_it_was():
    """Color and its lists are shared and mutable; what one program does to them no other program sees."""
    from arcnb.programs.executor.executor import Executor
    from arcnb.programs.executor.limits import Job

    spoil = [
        "Color.RED = 7\ndef transform(g):\n    return [[Color.RED]]",
        "def transform(g):\n    Color.ALL_COLORS.clear()\n    return [[len(Color.ALL_COLORS)]]",
        "def transform(g):\n    Color.NOT_BLACK.append(0)\n    return [[Color.NOT_BLACK[-1]]]",
        "import common\ncommon.crop = len\ndef transform(g):\n    return [[common.crop([1])]]",
    ]
    look = (
        "from common import *\nimport common\ndef transform(g):\n"
        "    lists = len(Color.ALL_COLORS) - 1, len(Color.NOT_BLACK)\n"
        "    return [[Color.RED, *lists, int(common.crop is not len)]]"
    )
    programs = [program for spoiler in spoil for program in (spoiler, look + f"  # {spoiler!r}")] * 3
    grid = np.zeros((2, 2), dtype=np.uint8)
    with Executor(workers=1) as executor:
        results = list(executor.run(Job(program, (grid,)) for program in programs))
    assert [result.status for result in results] == ["ok"] * len(programs)
    assert [r.outputs[0].tolist() for r in results[::2]] == [[[7]], [[0]], [[0]], [[1]]] * 3
    assert all(result.outputs[0].tolist() == [[2, 9, 9, 1]] for result in results[1::2])


# -- against a literal reading of the description ---------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("connectivity", [4, 8])
def test_components_agree_with_scipy(seed, connectivity):
    from scipy import ndimage

    mask = noise((1 + seed % 7, 3 + seed), 2, seed).astype(bool)
    labels, count = ndimage.label(mask, np.ones((3, 3)) if connectivity == 8 else None)
    found = components(mask, connectivity)
    assert len(found) == count
    for number, region in enumerate(found, start=1):
        assert sorted(region) == np.flatnonzero(labels == number).tolist()


def orbit_by_product(grid, x, y, symmetries):
    n, m = grid.shape
    points = set()
    for counts in itertools.product(*(barc.symmetry._counts(s, n, m) for s in symmetries)):
        at = (x, y)
        for symmetry, count in zip(symmetries, counts, strict=True):
            at = symmetry.apply(*at, count)
            if not (0 <= at[0] < n and 0 <= at[1] < m):
                break
        else:
            points.add(at)
    return list(points)


@pytest.mark.parametrize("seed", range(12))
def test_orbit_follows_every_combination(seed):
    draw = random.Random(seed)
    grid = np.zeros((draw.randint(3, 8), draw.randint(3, 8)), dtype=int)
    kinds = [
        barc.TranslationalSymmetry(draw.randint(-3, 3), draw.randint(-3, 3)),
        barc.MirrorSymmetry(draw.choice([None, 2, 2.5]), 3),
        barc.symmetry.RotationalSymmetry(2.5, 2.5),
        barc.TranslationalSymmetry(2, 0),
    ]
    symmetries = draw.sample(kinds, draw.randint(0, 3))
    assert barc.orbit(grid, 1, 2, symmetries) == orbit_by_product(grid, 1, 2, symmetries)


def choose_by_description(objects, background):
    """The exponential search, word by word."""
    ordered = sorted(
        objects, key=lambda o: (-detection._area(o, background), -detection._size(o, background))
    )
    masks = [obj != background for obj in ordered]
    meets = [[i != j and (a & b).any() for j, b in enumerate(masks)] for i, a in enumerate(masks)]
    crowd = [i for i, row in enumerate(meets) if any(row)]
    everything = int(np.any([masks[i] for i in crowd], axis=0).sum()) if crowd else 0

    def covered(chosen):
        return sum(int(masks[i].sum()) for i in chosen)

    def best(position, chosen):
        if position == len(crowd):
            return chosen
        i = crowd[position]
        if any(meets[i][j] for j in chosen):
            return best(position + 1, chosen)
        taken = best(position + 1, [*chosen, i])
        if covered(taken) == everything:
            return taken
        left = best(position + 1, chosen)
        return taken if covered(taken) > covered(left) else left

    return [obj for i, obj in enumerate(ordered) if i not in crowd] + [ordered[i] for i in best(0, [])]


@pytest.mark.parametrize("seed", range(60))
def test_detect_objects_chooses_as_described(seed):
    draw = random.Random(seed)
    shape = draw.choice([(3, 3), (4, 4), (3, 5), (6, 2), (4, 5)])
    grid = noise(shape, draw.choice([2, 3]), seed)
    dimensions = draw.sample([(1, 2), (2, 2), (2, 1), (3, 1), (1, 3), (2, 3)], draw.choice([1, 1, 2]))
    every = barc.detect_objects(grid, allowed_dimensions=dimensions, can_overlap=True)
    expected = choose_by_description(every[:22], 0)
    actual = detection.choose_disjoint(every[:22], 0)
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_too_many_overlaps_are_refused_in_bounded_time():
    with pytest.raises(ValueError, match="too many overlapping objects"):
        barc.detect_objects(noise((30, 30), 2, 30), allowed_dimensions=[(2, 2), (3, 3)])


# -- random makers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetry", SYMMETRIES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 12])
def test_random_sprites_keep_their_promises(symmetry, size):
    random.seed(size)
    for connectivity, density in itertools.product((4, 8), (0.1, 0.5, 0.9, 1)):
        sprite = barc.random_sprite(size, size, density, symmetry, [1, 2], connectivity, background=3)
        mask = sprite != 3
        assert len(components(mask, connectivity)) == 1
        assert all(side.any() for side in (mask[0], mask[-1], mask[:, 0], mask[:, -1]))
        assert set(np.unique(sprite[mask])) <= {1, 2}
        least = {1: 1, 2: max(density, 0.6), 3: max(density, 0.5)}.get(size, min(0.95, density - 0.1))
        assert mask.mean() >= (1 if density == 1 else least) - 1e-9


def test_density_is_about_what_was_asked():
    random.seed(0)
    shares = [np.count_nonzero(barc.random_sprite(8, 8, 0.5, "not_symmetric")) / 64 for _ in range(40)]
    assert 0.45 < np.mean(shares) < 0.65


def test_seeding_both_generators_makes_the_makers_repeatable():
    def draw():
        random.seed(5)
        np.random.seed(5)
        sprite = barc.random_sprite(range(3, 6), range(3, 6))
        place = barc.random_free_location_for_sprite(np.zeros((9, 9), dtype=int), sprite, padding=1)
        grid = barc.randomly_scatter_points(np.zeros((6, 6), dtype=int), 3, 0.3)
        return sprite.tolist(), place, grid.tolist(), barc.randomly_spaced_indices(20, 4).tolist()

    assert draw() == draw()


def test_scattering_more_than_there_is_room_for_is_refused():
    with pytest.raises(ValueError, match="only 3 cells are background"):
        barc.randomly_scatter_points(np.array([[1, 0, 0], [0, 1, 1]]), 5, 0.9)


@pytest.mark.parametrize("symmetry", ["horizontal", "vertical", "mirror", "not_symmetric"])
def test_generate_sprite_takes_any_shape(symmetry):
    random.seed(1)
    assert barc.generate_sprite(4, 7, symmetry, color_palate=[6]).shape == (4, 7)


def test_generate_sprite_radial_needs_a_square():
    with pytest.raises(AssertionError):
        barc.generate_sprite(3, 4, "radial")


def test_an_orbit_under_thousands_of_symmetries_ends():
    symmetries = [barc.MirrorSymmetry(i % 7, None) for i in range(3000)]
    orbit = barc.orbit(np.zeros((9, 9), dtype=int), 1, 1, symmetries)
    assert set(orbit) == {(1, 1), (3, 1), (5, 1), (7, 1)}


def test_boxes_and_colors_are_those_of_the_plain_definition():
    """Both are computed by searching bytes; here they are written down as they are meant."""
    rng = np.random.default_rng(3)
    for number in range(2000):
        grid = rng.integers(rng.choice([-3, 0]), rng.choice([2, 10, 40]), rng.integers(1, 9, 2))
        grid = grid * (rng.random(grid.shape) < rng.choice([0.05, 0.3, 1.0]))
        kinds = [
            grid,
            grid > 1,
            grid.astype(np.uint8),
            np.asfortranarray(grid),
            grid[::-1],
            grid.astype(float),
        ]
        grid, background = kinds[number % len(kinds)], int(rng.integers(0, 2))
        xs, ys = np.nonzero(grid != background)
        n, m = grid.shape
        box = (xs.min(), ys.min(), np.ptp(xs) + 1, np.ptp(ys) + 1) if len(xs) else (n, m, -n, -m)
        assert barc.bounding_box(grid, background) == box
        colors, expected = barc.object_colors(grid, background), list(set(grid.flatten()) - {background})
        assert colors == expected
        assert [type(color) for color in colors] == [type(color) for color in expected]
