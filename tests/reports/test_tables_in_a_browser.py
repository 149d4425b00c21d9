"""Tables as a reader sees them, in windows from a telephone's to a desk's."""

import json

import numpy as np
import pytest
from PIL import Image
from reports.test_collect import add_finding, make_run
from reports.test_page import untrained

from varcon.reports import write_report
from varcon.reports.figures.calibration import SCORES

pytestmark = pytest.mark.browser

NAMES = ["giant_white_arum_lily", "hard-leaved_pocket_orchid", "Donaudampfschifffahrtskapitaensmuetze"]
CONFUSED, HARDEST, CALIBRATION = (
    "Most confused classes",
    "The hardest training images, by file",
    "Calibration errors",
)
# By title: how far the last cell is from where the page cuts it off, and the lines of the tallest number.
MEASURED = """Object.fromEntries([...document.querySelectorAll('.item')].map(item => {
  const right = (one) => one.getBoundingClientRect().right;
  const cut = Math.min(document.documentElement.clientWidth, right(item));
  const lines = (cell) => {
    const words = document.createRange();
    words.selectNodeContents(cell);
    return words.getClientRects().length;
  };
  return [item.querySelector('h2, h3, h4').textContent, {
    room: cut - Math.max(...[...item.querySelectorAll('th, td')].map(right)),
    lines: Math.max(...[...item.querySelectorAll('td.number')].map(lines)),
  }];
}))"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a run with long names of classes and of files, and with a table of nine columns."""
    folder = untrained(make_run(tmp_path_factory.mktemp("long") / "run"))
    record = json.loads((folder / "recipe.json").read_text())
    record["classes"] = NAMES * 14  # the confusion of few classes is drawn without a table
    (folder / "recipe.json").write_text(json.dumps(record))
    add_finding(folder, "knn", {"top1": 50.0}, confusion=np.full((42, 42), 7))
    files = [f"train/{name}/val_image_0{place}.jpg" for place, name in enumerate(NAMES)]
    labels = np.arange(3)
    hardest = {"labels": labels, "rivals": (labels + 1) % 3, "confidence": labels / 1000}
    hardest |= {"files": np.array(files), "pictures": np.zeros((3, 8, 8, 3), np.uint8)}
    arrays = {f"hardest_{name}": values for name, values in hardest.items()}
    add_finding(folder, "temperature", {"tau2_mean": 0.1}, **arrays)
    add_finding(folder, "calibration", dict.fromkeys(SCORES, 12.3456))
    return write_report([folder], folder / "report.html").as_uri()


def look(window, page, width):
    window.open(page, width=width)
    window.wait(
        f"document.readyState == 'complete' && innerWidth == {width} && document.querySelector('.item')"
    )
    found = window.run(MEASURED)
    assert {CONFUSED, HARDEST, CALIBRATION} <= found.keys()
    return found


@pytest.mark.parametrize("width", [400, 900, 1400])
def test_no_cell_is_out_of_sight_and_no_number_is_broken(window, page, width):
    found = look(window, page, width)
    assert {one["lines"] for one in found.values()} == {1}
    if width == 400:
        assert found.pop(CALIBRATION)["room"] < 0  # nine columns of numbers: see below
    assert {title: one["room"] for title, one in found.items() if one["room"] < -0.5} == {}
    assert window.run("document.documentElement.scrollWidth <= innerWidth")


def test_a_table_that_scrolls_is_shaded_where_it_is_cut_until_its_end_is_reached(window, page, tmp_path):
    look(window, page, 400)
    box = f"[...document.querySelectorAll('.item')].find(one => one.textContent.includes('{CALIBRATION}'))"
    window.run(f"{box}.scrollIntoView()")
    scroller = f"{box}.querySelector('.scroll')"
    right = window.run(f"{scroller}.getBoundingClientRect().right")
    down = window.run(f"{scroller}.querySelector('tbody').getBoundingClientRect().bottom")  # above the bar

    def at_the_edge():
        window.picture(tmp_path / "picture.png", whole=False)
        return Image.open(tmp_path / "picture.png").convert("L").getpixel((int(right) - 1, int(down) - 4))

    assert at_the_edge() < 220
    window.run(f"{scroller}.scrollLeft = 9999")
    assert at_the_edge() == 255
    assert window.run(f"{scroller}.querySelector('th').getBoundingClientRect().left") >= 0  # names stay
