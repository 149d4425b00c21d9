"""The API, over a real connection."""

import io
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection

import httpx
import numpy as np
import pytest
from PIL import Image

from varcon.deploy.export import export
from varcon.deploy.model import load
from varcon.deploy.serve import uploads


def send(client, *files):
    parts = [("image", (name, content)) for name, content in files]
    return client.post("/api/predict", files=parts)


def png(picture):
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def same(found, wanted, gallery_names):
    """The API's answer and what `varcon.load` says of the same file."""
    assert found["label"] == wanted.label
    assert found["probability"] == pytest.approx(wanted.probability, abs=1e-5)
    assert found["unlike_anything_seen"] == wanted.unlike_anything_seen
    assert [one["label"] for one in found["top"]] == [label for label, _ in wanted.top]
    assert [one["cosine"] for one in found["neighbours"]] == pytest.approx(
        [one.cosine for one in wanted.neighbours], abs=1e-5
    )
    assert found["neighbours"][0]["name"] == gallery_names[found["neighbours"][0]["id"]]


def test_the_model_is_described(client, model):
    found = client.get("/api/model").json()
    assert found["classes"] == ["blue", "green", "red"]
    assert (found["name"], found["encoder"], found["image_size"]) == ("served", "small", 16)
    assert (found["train_images"], found["test_images"]) == (36, 21)
    assert found["scores"]["prediction top-1"] == model.config.measured["top1"]
    assert found["images"] == {"title": "training images", "count": 36, "labels": "given", "on_map": 36}
    assert found["limits"]["file_bytes"] == 20_000_000


def test_the_page_loads_nothing_from_elsewhere(client):
    found = client.get("/")
    assert found.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|url\(""", found.text)


def test_one_image_and_several_are_predicted_as_the_model_does(client, data, model):
    files = [data / "test/red/03.png", data / "test/blue/01.png", data / "train/green/05.png"]
    names = model.training.files
    wanted = model.predict(files, top=5, neighbours=6)
    found = send(client, *((file.name, file.read_bytes()) for file in files))
    assert found.status_code == 200
    assert [one["name"] for one in found.json()["images"]] == ["03.png", "01.png", "05.png"]
    for one, expected in zip(found.json()["images"], wanted, strict=True):
        same(one, expected, names)
    (single,) = send(client, ("a.png", files[0].read_bytes())).json()["images"]
    same(single, wanted[0], names)


def test_a_training_image_lies_where_it_is_on_the_map(client, data, answers):
    name = "train/green/05.png"
    (found,) = send(client, (name, (data / name).read_bytes())).json()["images"]
    first = found["neighbours"][0]
    assert first["name"] == name
    assert first["cosine"] == pytest.approx(1, abs=1e-5)
    place = np.flatnonzero(answers.gallery.map.ids == first["id"])[0]
    spread = np.ptp(answers.gallery.map.points)
    assert np.abs(answers.gallery.map.points[place] - [found["place"]["x"], found["place"]["y"]]).max() < (
        0.02 * spread
    )
    assert found["place"]["near"][0] == first["id"]


def test_the_map_has_every_image_with_its_class(client, model):
    found = client.get("/api/map").json()
    assert found["ids"] == list(range(36))
    assert [model.classes[label] for label in found["labels"]] == [
        name.split("/")[1] for name in model.training.files
    ]
    assert np.isfinite([found["x"], found["y"]]).all()


def test_neighbours_are_the_nearest_of_all_but_the_image_itself(client, model):
    vectors = np.array(model.training.vectors, np.float64)
    for number in (0, 17, 35):
        found = client.get(f"/api/neighbours/{number}").json()
        cosines = vectors @ vectors[number]
        order = [int(one) for one in np.argsort(-cosines, kind="stable") if one != number][:6]
        assert found["image"]["id"] == number
        assert [one["cosine"] for one in found["neighbours"]] == pytest.approx(cosines[order], abs=1e-5)
        assert number not in [one["id"] for one in found["neighbours"]]


def test_a_thumbnail_is_the_training_image(client, data, model):
    link = client.get("/api/neighbours/20").json()["image"]["thumbnail"]
    found = client.get(link)
    assert found.headers["content-type"] == "image/png"
    assert "max-age" in found.headers["cache-control"]
    with (
        Image.open(io.BytesIO(found.content)) as shown,
        Image.open(data / model.training.files[20]) as original,
    ):
        assert np.array_equal(np.asarray(shown), np.asarray(original))
    assert client.get("/api/thumbnail/20").headers["cache-control"] == "no-store"  # perhaps of another run


@pytest.mark.parametrize("kind", ["thumbnail", "neighbours"])
@pytest.mark.parametrize(
    "number", ["36", "-1", "abc", "1e1", "9" * 30, "..%2f..%2fetc%2fpasswd", "../../etc/passwd", "0/../1"]
)
def test_only_its_own_images_are_ever_served(client, kind, number):
    with closing(HTTPConnection(client.base_url.host, client.base_url.port)) as plain:  # httpx tidies paths
        plain.request("GET", f"/api/{kind}/{number}")
        found = plain.getresponse()
        assert found.status == 404
        assert set(json.loads(found.read())) == {"error"}


def test_a_thumbnail_whose_file_is_gone_is_not_found_and_tells_no_path(own, data, tmp_path, run_server):
    elsewhere = load(own, "cpu", data_path=shutil.copytree(data, tmp_path / "nowhere"))
    shutil.rmtree(tmp_path / "nowhere")
    with run_server(elsewhere) as (address, _):
        found = httpx.get(f"{address}/api/thumbnail/3", trust_env=False)
    assert found.status_code == 404
    assert found.json() == {"error": "the file of image 3 is gone or cannot be read any more"}


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", 400, "is empty"),
        (b"no image at all", 415, "is not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415, "is not an image"),
        ("cut", 400, "is broken"),
        ("bomb", 413, "million pixels"),
        ("32 bits", 400, "32 bits"),
        (bytes(20_000_001), 413, "larger than 20 MB"),
    ],
)
def test_what_is_no_usable_image_is_refused_in_a_sentence(client, draw, content, status, words):
    if content == "cut":
        content = png(draw("red", 1, (200, 200)))[:20_000]
    elif content == "bomb":
        content = png(Image.new("1", (12_000, 12_000)))
        assert len(content) < 100_000
    elif content == "32 bits":
        stream = io.BytesIO()
        Image.new("F", (9, 9)).save(stream, "TIFF")
        content = stream.getvalue()
    found = send(client, ("holiday.png", content))
    assert found.status_code == status
    assert found.json()["error"].startswith("holiday.png ")
    assert words in found.json()["error"]
    assert "\n" not in found.json()["error"]
    assert found.json()["images"][0]["status"] == status


def test_a_broken_image_among_others_costs_only_itself(client, data):
    good = (data / "test/red/03.png").read_bytes()
    found = send(client, ("a.png", good), ("b.png", b"no"), ("c.png", bytes(25_000_000)), ("d.png", good))
    assert found.status_code == 200
    results = found.json()["images"]
    assert [one.get("status") for one in results] == [None, 415, 413, None]
    assert results[0]["label"] == results[3]["label"]


def test_a_file_of_50_megabytes_is_refused_and_the_server_goes_on(client, data):
    found = send(client, ("huge.jpg", bytes(50_000_000)))
    assert (found.status_code, found.json()["error"]) == (
        413,
        "huge.jpg is larger than 20 MB; make it smaller",
    )
    assert send(client, ("a.png", (data / "test/red/03.png").read_bytes())).status_code == 200


def test_a_request_may_hold_so_much_and_no_more(client, data, monkeypatch):
    monkeypatch.setattr(uploads, "REQUEST_BYTES", 5000)
    found = send(client, ("a.png", bytes(3000)), ("b.png", bytes(3000)))
    assert found.status_code == 413
    assert "send the images in parts" in found.json()["error"]

    def unannounced():  # without a length, which then shows only as it comes
        for _ in range(9):
            yield b"-" * 1000

    kind = {"content-type": "multipart/form-data; boundary=x"}
    assert client.post("/api/predict", content=unannounced(), headers=kind).status_code in (400, 413)
    monkeypatch.setattr(uploads, "REQUEST_BYTES", 10**8)
    monkeypatch.setattr(uploads, "FILES", 2)
    good = (data / "test/red/03.png").read_bytes()
    assert send(client, *[("a.png", good)] * 2).status_code == 200
    assert send(client, *[("a.png", good)] * 3).status_code == 413


@pytest.mark.parametrize(
    ("headers", "content", "status", "words"),
    [
        ({"content-type": "image/png"}, b"abc", 415, "multipart/form-data"),
        ({}, b"", 415, "multipart/form-data"),
        ({"content-type": "multipart/form-data"}, b"abc", 415, "multipart/form-data"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"abc", 400, "not proper"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x--\r\n", 400, "holds no file"),
        (
            {"content-type": "multipart/form-data; boundary=x"},
            b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\nhalf',
            400,
            "in the middle",
        ),
    ],
)
def test_requests_that_are_none_are_refused_in_a_sentence(client, headers, content, status, words):
    found = client.post("/api/predict", headers=headers, content=content)
    assert found.status_code == status
    assert words in found.json()["error"]


def test_other_errors_are_json_too(client):
    found = client.get("/nothing")
    assert (found.status_code, found.json()) == (404, {"error": "there is nothing at /nothing"})
    found = client.get("/api/predict")
    assert (found.status_code, found.json()) == (
        405,
        {"error": "GET is not how to ask at /api/predict"},
    )
    assert found.headers["allow"] == "POST"
    assert client.get("/docs").status_code == 404  # which would load scripts from elsewhere


@pytest.mark.parametrize("path", ["/", "/api/model", "/api/map", "/api/neighbours/0", "/api/thumbnail/0"])
def test_head_is_answered_as_get_but_for_the_content(client, path):
    wanted, found = client.get(path), client.head(path)
    assert (found.status_code, found.content) == (200, b"")
    for name in ("content-type", "content-length"):
        assert found.headers[name] == wanted.headers[name]


def test_a_page_from_elsewhere_cannot_pass_for_this_machine(client):
    for path in ("/", "/api/model", "/api/thumbnail/0"):
        found = client.get(path, headers={"host": "evil.example:8000"})
        assert found.status_code == 403
        assert "only" in found.json()["error"]
    assert client.get("/api/model", headers={"host": "localhost:99"}).status_code == 200


def test_ten_clients_at_once_get_their_own_answers(client, data, model):
    files = sorted((data / "test").rglob("*.png"))[:20]
    wanted = model.predict(files, top=5, neighbours=6)

    def one_client(number):
        with httpx.Client(base_url=client.base_url, timeout=60, trust_env=False) as own:
            mine = files[2 * number : 2 * number + 2]
            found = send(own, *((file.name, file.read_bytes()) for file in mine)).json()["images"]
            return [*found, own.get(found[0]["neighbours"][0]["thumbnail"]).status_code]

    with ThreadPoolExecutor(10) as pool:
        for number, (first, second, thumbnail) in enumerate(pool.map(one_client, range(10))):
            same(first, wanted[2 * number], model.training.files)
            same(second, wanted[2 * number + 1], model.training.files)
            assert thumbnail == 200


def test_a_folder_can_stand_in_for_the_training_images(own, data, tmp_path, run_server, zoo):
    (zoo / "broken.png").write_text("no image")
    folder = export(own, "safetensors", tmp_path / "exported")
    classifier = np.load(folder / "classifier.npy")
    np.save(folder / "classifier.npy", np.roll(classifier, 1, axis=0))  # which then is not what centroids say
    model = load(folder, "cpu")
    wanted = model.predict([zoo / "large.jpg"])[0].label
    with (
        run_server(model, zoo) as (address, answers),
        httpx.Client(base_url=address, trust_env=False) as client,
    ):
        about = client.get("/api/model").json()["images"]
        assert about == {"title": "images of zoo", "count": 12, "labels": "predicted", "on_map": 12}
        (found,) = send(client, ("x.jpg", (zoo / "large.jpg").read_bytes())).json()["images"]
        nearest = found["neighbours"][0]
        assert (nearest["name"], nearest["label"]) == ("large.jpg", wanted)
        thumbnail = client.get(nearest["thumbnail"])
        assert thumbnail.headers["content-type"] == "image/jpeg"
        with Image.open(io.BytesIO(thumbnail.content)) as shown:
            assert shown.size == (256, 192)
        turned = next(number for number in range(12) if answers.gallery.name_of(number) == "turned.jpg")
        with Image.open(io.BytesIO(client.get(f"/api/thumbnail/{turned}").content)) as shown:
            assert shown.size == (30, 50)  # upright


def test_names_that_are_not_utf_8_are_told_with_a_question_mark(own, data, tmp_path, run_server):
    """JSON cannot hold them, and every image that was near such a file would get no answer."""
    folder = tmp_path / os.fsdecode("caf\u00e9s".encode("latin-1"))
    folder.mkdir()
    shutil.copyfile(data / "test/red/03.png", folder / os.fsdecode("caf\u00e9.png".encode("latin-1")))
    with (
        run_server(load(own, "cpu"), folder) as (address, _),
        httpx.Client(base_url=address, timeout=60, trust_env=False) as client,
    ):
        (found,) = send(client, ("a.png", (data / "test/red/03.png").read_bytes())).json()["images"]
        assert [one["name"] for one in found["neighbours"]] == ["caf?.png"]
        assert client.get("/api/neighbours/0").json()["image"]["name"] == "caf?.png"
        assert client.get("/api/model").json()["images"]["title"] == "images of caf?s"


def test_an_exported_model_predicts_without_images_of_its_own(own, data, tmp_path, run_server):
    model = load(export(own, "safetensors", tmp_path / "exported"), "cpu")
    with run_server(model) as (address, _), httpx.Client(base_url=address, trust_env=False) as client:
        assert client.get("/api/model").json()["images"] is None
        assert client.get("/api/map").json() == {"ids": [], "x": [], "y": [], "labels": []}
        assert client.get("/api/thumbnail/0").status_code == 404
        (found,) = send(client, ("a.png", (data / "test/red/03.png").read_bytes())).json()["images"]
        assert found["label"] == model.predict([data / "test/red/03.png"])[0].label
        assert (found["neighbours"], found["place"]) == ([], None)
