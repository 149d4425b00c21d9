import json
import re
from pathlib import Path

import numpy as np
import pytest

from varcon.core import InputError
from varcon.reproduce.entries import Entry, Reading
from varcon.reproduce.figures import Maps
from varcon.reproduce.gather import Gathered
from varcon.reproduce.scales import SCALES
from varcon.reproduce.setup import Runs, Setup

MINE = Runs("varcon")


def write_maps(folder: Path, accuracy: float) -> Path:
    """Two maps of six images, after the first epoch and the second."""
    (folder / "findings").mkdir(parents=True)
    scores = {"knn_top1@epoch1": accuracy, "knn_top1@epoch2": accuracy + 1}
    (folder / "findings/maps.json").write_text(json.dumps({"scores": scores, "settings": {}}))
    points = np.random.default_rng(0).normal(size=(2, 6, 2)).astype(np.float32)
    arrays = {"labels": np.arange(6) % 2, "epochs": np.array([1, 2]), "chosen": np.arange(6)}
    np.savez(folder / "findings/maps.npz", points=points, **arrays)
    return folder


def test_a_map_s_title_has_the_score_of_the_run_that_is_drawn(tmp_path: Path) -> None:
    folders = {seed: write_maps(tmp_path / str(seed), 50.0 + 20 * seed) for seed in (0, 1)}
    entries = [
        Entry(f"epoch {epoch}", "kNN", Reading(MINE, "maps", f"knn_top1@epoch{epoch}"), x=epoch)
        for epoch in (1, 2)
    ]
    scale = SCALES["smoke"]
    setup = Setup(scale, scale.base, (3, 3), 8, tmp_path)
    drawn = Maps(MINE).draw(setup, entries, Gathered({MINE: folders}), "")
    assert drawn is not None
    assert re.findall(r"epoch \d: kNN [\d.]+", drawn) == ["epoch 1: kNN 50.00", "epoch 2: kNN 51.00"]


def test_maps_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    folder = write_maps(tmp_path / "run", 50.0)
    scale = SCALES["smoke"]
    for content in (b"", b"no maps"):
        (folder / "findings/maps.npz").write_bytes(content)
        with pytest.raises(InputError, match=r"maps\.npz cannot be read; delete .*maps\.json, and start"):
            Maps(MINE).draw(
                Setup(scale, scale.base, (3, 3), 8, tmp_path), [], Gathered({MINE: {0: folder}}), ""
            )


@pytest.mark.parametrize("scale", list(SCALES))
def test_the_maps_side_by_side_have_the_paper_s_perplexity(scale: str) -> None:
    assert SCALES[scale].base.evaluate.map2d.perplexity == 50
