from dataclasses import replace

import pytest
from PIL import Image

from varcon.reproduce.setup import set_up


@pytest.fixture(scope="session")
def imagenet(tmp_path_factory):
    """The paper's scale on a folder: of a few small images, but counted as ImageNet's are."""
    folder = tmp_path_factory.mktemp("photos")
    for part in ("train", "test"):
        for label in ("ant", "bee"):
            (folder / part / label).mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (8, 8), (90 * number, 50, 50)).save(folder / part / label / f"{number}.png")
    setup, _ = set_up("paper", str(folder), folder / "out", lambda done, total, what: None)
    counts = (732,) + (1300,) * 895 + (1124,) * 103 + (1163,)
    assert (len(counts), sum(counts)) == (1000, 1_281_167)
    return replace(setup, counts=counts)
