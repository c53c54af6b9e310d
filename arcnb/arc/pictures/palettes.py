"""The ten colours of ARC, also for readers who see colours otherwise.

A picture is drawn in the palette in use: `ARCNB_PALETTE` of the environment, or what `use_palette` was told.
Whoever reads the page may still choose: every coloured shape carries the class of its value, and
`palette_css()` recolours them all where the root element says `data-palette`, as exported pages do by a
button.
"""

from __future__ import annotations

import os

from arcnb.errors import ArcnbError, nearest

# "arc" is the palette of the ARC website. In "colorblind" any two colours stay 30 apart (CIE76) for normal
# sight and under simulated deuteranopia, protanopia and tritanopia; in "arc" some come as close as 8. In
# "lightness" the values rise from black to pale yellow in steps of 11 (CIELAB lightness, the hues of
# matplotlib's inferno), so that they differ for readers who see no hue at all, and on a gray printer.
PALETTES: dict[str, tuple[str, ...]] = {
    "arc": (
        "#000000", "#0074D9", "#FF4136", "#2ECC40", "#FFDC00",
        "#AAAAAA", "#F012BE", "#FF851B", "#7FDBFF", "#870C25",
    ),
    "colorblind": (
        "#000000", "#2C3BB0", "#C72700", "#37D57C", "#FFFF79",
        "#9B9B9B", "#955199", "#F58E00", "#7B8FFF", "#952D37",
    ),
    "lightness": (
        "#000000", "#260C51", "#550F6D", "#88226A", "#B93556",
        "#E05536", "#F67E14", "#FCAC11", "#F5DB4C", "#FCFFA4",
    ),
}  # fmt: skip

_chosen: dict[str, str] = {}


def check_palette(name: str) -> str:
    """The name; ArcnbError, with the nearest one, where no palette has it."""
    if name in PALETTES:
        return name
    raise ArcnbError(f"there is no palette {name!r}{nearest(name, PALETTES)}")


def use_palette(name: str) -> None:
    """Draw with this palette from now on, in this process. Raises ArcnbError for a name that is none."""
    _chosen["name"] = check_palette(name)


def palette_name() -> str:
    """The palette in use; ArcnbError, with the nearest name, where the environment names none."""
    return check_palette(_chosen.get("name") or os.environ.get("ARCNB_PALETTE") or "arc")


def palette_css() -> str:
    """Rules that recolour every grid of a page whose root element has data-palette="NAME"."""
    return "\n".join(
        " ".join(f':root[data-palette="{name}"] .arcnb-grid .c{i}{{fill:{c}}}' for i, c in enumerate(colors))
        for name, colors in PALETTES.items()
    )
