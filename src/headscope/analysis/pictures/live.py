"""Redraws the heatmaps of a figure often during training. The layout is computed only once.

matplotlib spends most of its time on layout and text, which do not change. A pixel is one byte: a
grey or a shade of the colour scale. A PNG with three bytes per pixel would take longer to compress.
"""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from headscope.analysis.pictures.sheet import DPI, EDGE, TEXT, TITLE, array, cut, write_name
from headscope.errors import UserError

GREYS, SHADES = 64, 192  # colours in the palette: black to white, then the colour scale
WHITE = GREYS - 1


class LivePicture:
    """Draws new values into the heatmaps of a finished figure. The image has half the size of the
    figure, and no numbers. Cells that are NaN in `figure`, such as the future, stay white."""

    def __init__(self, figure: Figure) -> None:
        self.panels = [panel for panel in figure.axes if panel.images]
        first = (np.asanyarray(panel.images[0].get_array()) for panel in self.panels)
        self._blank = [np.ma.getmaskarray(values) for values in first]
        self.names = [panel.get_title(loc="left") for panel in self.panels]
        for panel in self.panels:
            panel.set_title("", loc="left")
            for hidden in (*panel.images, *panel.texts):
                hidden.set_visible(False)
        [self.title] = figure.texts
        self.title.set_text("")
        self._renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(self._renderer)
        scale = matplotlib.colormaps["viridis"](np.linspace(0, 1, SHADES), bytes=True)[:, :3]
        greys = np.linspace(0, 255, GREYS).round().astype(np.uint8)[:, None].repeat(3, axis=1)
        self._palette = np.concatenate([greys, scale]).tobytes()
        colours = Image.new("P", (1, 1))
        colours.putpalette(self._palette)
        page = Image.fromarray(np.asarray(self._renderer.buffer_rgba())).convert("RGB").reduce(2)
        self._page = np.array(page.quantize(palette=colours, dither=Image.Dither.NONE))
        self._page[(np.asarray(page) == 255).all(axis=-1)] = WHITE

    def places(self) -> list[tuple[slice, slice]]:
        """The rows and columns of pixels that each heatmap covers."""
        height, places = len(self._page), []
        for panel in self.panels:
            (left, low), (right, high) = (panel.bbox.get_points() / 2).round().astype(int)
            places.append((slice(height - high, height - low), slice(left, right)))
        return places

    def draw(self, values: Sequence[Tensor], title: str, names: Sequence[str] = ()) -> Image.Image:
        """An image with a title of one line, and with one matrix of values per heatmap. `names` are
        written above the heatmaps; the default is the names in the figure. Text that is too long is
        cut. Raises UserError when a matrix and its heatmap have different shapes."""
        given, shapes = [array(each) for each in values], [each.shape for each in self._blank]
        if [each.shape for each in given] != shapes:
            raise UserError(f"values of shapes {[each.shape for each in given]} must be {shapes}")
        pixels = self._page.copy()
        cells = zip(self.panels, self._blank, given, self.places(), strict=True)
        for panel, blank, each, place in cells:
            shares = np.nan_to_num(panel.images[0].norm(each)).clip(0, 1)
            shades = GREYS + (shares * (SHADES - 1)).round()
            codes = np.where(blank | np.isnan(each), WHITE, shades).astype(np.uint8)
            part = pixels[place]
            heatmap = Image.fromarray(codes).resize(part.shape[::-1], Image.Resampling.NEAREST)
            # Colour only the white pixels, so that lines and marks stay visible.
            np.copyto(part, np.asarray(heatmap), where=part == WHITE)
        self._renderer.clear()
        self._write(title, names or self.names)
        ink = np.asarray(
            Image.fromarray(np.asarray(self._renderer.buffer_rgba())[..., 3]).reduce(2)
        )
        grey = (255 - ink) // (256 // GREYS)
        np.minimum(pixels, grey, out=pixels, where=ink > 0)
        picture = Image.fromarray(pixels)
        picture.putpalette(self._palette)
        return picture

    def _write(self, title: str, names: Sequence[str]) -> None:
        """Draw the title, and the name of each heatmap, with the renderer."""
        self.title.set_text(cut(title, self.title.figure.bbox.width * 72 / DPI - 2 * EDGE, TITLE))
        self.title.draw(self._renderer)
        for panel, name in zip(self.panels, names, strict=True):
            text = write_name(panel, cut(name, panel.bbox.width * 72 / DPI, TEXT))
            text.draw(self._renderer)
