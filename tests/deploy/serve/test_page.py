"""The page in a real browser: what a visitor does, and what a visitor then sees."""

import re

import pytest
from PIL import Image

from varcon.deploy.model import load

pytestmark = pytest.mark.browser

READY = "document.querySelectorAll('#classes button').length === 3"
POINT = """(() => {{
    canvas.scrollIntoView({{block: 'center'}});
    const point = points.find(point => point.id === {number}), box = canvas.getBoundingClientRect();
    return [box.left + across(point.x), box.top + down(point.y)];
}})()"""


@pytest.fixture
def page(window, address):
    """Opened anew, on a screen in the light; what it complains of at the end fails the test."""
    window.open(address)
    window.wait(READY)
    window.complaints.clear()
    yield window
    assert window.complaints == []


def upload(page, *files):
    before = page.run("document.querySelectorAll('.result').length")
    page.give_files("#files", files)
    page.wait(f"document.querySelectorAll('.result').length === {before + len(files)}")


def texts(page, selector):
    return page.run(f"[...document.querySelectorAll({selector!r})].map(one => one.innerText)")


def test_an_uploaded_image_shows_class_probabilities_and_neighbours(page, data, model):
    file = data / "test/red/03.png"
    (wanted,) = model.predict([file], top=5, neighbours=6)
    upload(page, file)
    assert texts(page, ".result h3") == [wanted.label]
    assert texts(page, ".result .file") == ["03.png"]
    assert texts(page, ".sure .label") == [label for label, _ in wanted.top]
    assert texts(page, ".sure .share") == [f"{100 * share:.1f} %" for _, share in wanted.top]
    widths = page.run("[...document.querySelectorAll('.fill')].map(one => parseFloat(one.style.width))")
    assert widths == pytest.approx([100 * share for _, share in wanted.top], abs=0.06)
    shown = [tuple(text.split("\n")) for text in texts(page, ".result .images button")]
    assert shown == [(one.label, f"{one.cosine:.3f}") for one in wanted.neighbours]
    page.wait("[...document.querySelectorAll('.result img')].every(one => one.complete && one.naturalWidth)")
    assert (len(texts(page, ".unlike")) == 1) == wanted.unlike_anything_seen
    assert page.run("find('status').textContent").startswith(f"03.png: {wanted.label}, ")


def test_what_is_unlike_anything_seen_is_marked(page, data, model, tmp_path):
    candidates = [tmp_path / f"{name}.png" for name in ("stripes", "black", "white", "grey")]
    stripes = Image.new("RGB", (16, 16))
    stripes.putdata([(255, 255, 0) if (place // 16) % 2 else (0, 255, 255) for place in range(256)])
    pictures = [stripes, *(Image.new("RGB", (16, 16), value) for value in ("black", "white", "grey"))]
    for file, picture in zip(candidates, pictures, strict=True):
        picture.save(file)
    marks = [found.unlike_anything_seen for found in model.predict(candidates)]
    assert any(marks)
    upload(page, *candidates)
    cards = page.run(
        "[...document.querySelectorAll('.result')].map(one => !!one.querySelector('.unlike')).reverse()"
    )
    assert cards == marks


def test_several_images_at_once_and_a_broken_one_among_them(page, data, tmp_path):
    broken = tmp_path / "<b>broken.png"  # whose name is text, and no HTML
    broken.write_bytes((data / "test/red/03.png").read_bytes()[:300])
    upload(page, data / "test/blue/01.png", broken, data / "test/green/02.png")
    assert texts(page, ".result .file") == ["02.png", "<b>broken.png", "01.png"]
    (error,) = texts(page, ".result .error")
    assert error.startswith("<b>broken.png is broken and cannot be read")
    assert page.run("find('status').textContent") == "3 images are done."
    (told,) = page.complaints  # the browser itself notes the status
    assert "400" in told
    page.complaints.clear()


def test_a_file_of_50_megabytes_is_refused_before_and_by_the_server(page, tmp_path):
    huge = tmp_path / "huge.jpg"
    with huge.open("wb") as file:
        file.truncate(50_000_000)
    upload(page, huge)
    assert texts(page, ".error") == ["huge.jpg is larger than 20 MB; make it smaller"]
    assert page.complaints == []  # it was not even sent
    answer = page.run(
        """(async () => {
            const form = new FormData();
            form.append('image', new Blob([new Uint8Array(50_000_000)]), 'huge.jpg');
            const response = await fetch('/api/predict', {method: 'POST', body: form});
            return [response.status, (await response.json()).error];
        })()"""
    )
    assert answer == [413, "huge.jpg is larger than 20 MB; make it smaller"]
    page.complaints.clear()


def test_ten_requests_at_once_get_their_own_answers(page, data, model):
    files = sorted((data / "test").rglob("*.png"))[::2][:10]
    contents = [list(file.read_bytes()) for file in files]
    found = page.run(
        f"""Promise.all({contents}.map(async (content, place) => {{
            const form = new FormData();
            form.append('image', new Blob([new Uint8Array(content)]), place + '.png');
            return (await (await fetch('/api/predict', {{method: 'POST', body: form}})).json()).images[0];
        }}))"""
    )
    for place, (one, wanted) in enumerate(zip(found, model.predict(files), strict=True)):
        assert (one["name"], one["label"]) == (f"{place}.png", wanted.label)
        assert one["likelihood"] == pytest.approx(wanted.likelihood, abs=1e-4)
        assert one["neighbours"][0]["cosine"] == pytest.approx(wanted.neighbours[0].cosine, abs=1e-5)


def test_dropping_a_file_is_as_good_as_choosing_it(page, data):
    content = list((data / "test/red/03.png").read_bytes())
    page.run(
        f"""(() => {{
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array({content})], 'dropped.png'));
            const how = {{dataTransfer: files, bubbles: true, cancelable: true}};
            document.body.dispatchEvent(new DragEvent('drop', how));
        }})()"""
    )
    page.wait("document.querySelectorAll('.result').length === 1")
    assert texts(page, ".result .file") == ["dropped.png"]


def test_the_map_shows_an_image_on_hover_and_opens_it_on_click(page, model):
    name, label = model.training.files[30], model.classes[model.training.labels[30]]
    x, y = page.run(POINT.format(number=30))
    page.mouse("mouseMoved", x, y)
    page.wait("!tip.hidden && tip.of.id === 30 && tip.querySelector('img').naturalWidth === 24")
    assert page.run("tip.innerText") == label
    page.click(x, y)
    page.wait("!find('chosen').hidden")
    assert texts(page, "#chosen h2") == [label]
    assert texts(page, "#chosen figcaption") == [name]
    assert len(texts(page, "#chosen .images button")) == 6
    page.run("find('chosen').querySelector('.images button').click()")  # and on to its neighbour
    page.wait("chosen !== 30 && find('chosen').querySelector('figcaption')")
    page.wait("find('chosen').querySelector('figure img').naturalWidth === 24")


def test_the_map_is_coloured_by_class(page):
    page.wait("style && !waiting")
    for number in (0, 15, 35):
        page.run(POINT.format(number=number))
        page.run("new Promise(requestAnimationFrame)")
        shown = page.run(
            f"""(() => {{
                const point = points.find(point => point.id === {number}), ratio = canvas.width / size.width;
                points.sort((a, b) => (a.id === {number}) - (b.id === {number}));  // on top of the others
                paint();
                const seen = pen.getImageData(across(point.x) * ratio, down(point.y) * ratio, 1, 1).data;
                pen.clearRect(0, 0, size.width, size.height);
                pen.globalAlpha = .85; pen.fillStyle = colour(point.label); pen.fillRect(0, 0, 9, 9);
                return [[...seen], [...pen.getImageData(4, 4, 1, 1).data]];
            }})()"""
        )
        seen, wanted = shown
        assert seen[:3] == pytest.approx(wanted[:3], abs=3)


def test_the_map_zooms_moves_and_comes_back(page):
    x, y = page.run(POINT.format(number=5))
    begin = page.run("view")
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
    page.wait(f"view.scale > 2 * {begin['scale']}")
    # What is under the mouse stays there; but the mouse is at whole pixels.
    assert page.run(POINT.format(number=5)) == pytest.approx([x, y], abs=3)
    x, y = page.run(POINT.format(number=5))
    page.mouse("mouseMoved", x, y)
    page.mouse("mousePressed", x, y, button="left", clickCount=1)
    page.mouse("mouseMoved", x + 40, y + 30, button="left", buttons=1)
    page.mouse("mouseReleased", x + 40, y + 30, button="left", clickCount=1)
    assert page.run(POINT.format(number=5)) == pytest.approx([x + 40, y + 30], abs=1)
    assert page.run("find('chosen').hidden")  # a drag is no click
    page.run("find('all').click()")
    assert page.run("view") == pytest.approx(begin)


def test_the_map_obeys_the_keyboard(page):
    page.run("canvas.focus()")
    begin = page.run("view")
    page.press("+")
    assert page.run("view.scale") == pytest.approx(1.5 * begin["scale"])
    page.press("ArrowRight")
    assert page.run("view.x") == pytest.approx(begin["x"] + 60 / (1.5 * begin["scale"]))
    page.press("Enter")
    page.wait("!find('chosen').hidden")
    at_cross = page.run("nearest(size.width / 2, size.height / 2, Infinity).id")
    assert page.run("chosen") == at_cross
    page.run("canvas.focus()")
    page.press("0")
    assert page.run("view") == pytest.approx(begin)


def test_a_class_is_found_by_its_name(page, model):
    page.run("find('find').focus()")
    for letter in "REE":
        page.press(letter)
    page.wait("document.querySelectorAll('#classes button').length === 1")
    assert texts(page, "#classes li") == ["green"]
    page.press("Enter")
    page.wait("highlighted === 1")
    assert texts(page, "#chosen h2") == ["green"]
    assert texts(page, "#chosen .hint") == ["12 images on the map"]
    shown = page.run("[...document.querySelectorAll('#chosen img')].map(one => one.getAttribute('src'))")
    numbers = [int(re.search(r"thumbnail/(\d+)", source)[1]) for source in shown]
    assert [model.classes[model.training.labels[number]] for number in numbers] == ["green"] * 12
    page.press("x")
    page.wait("find('classes').innerText === 'There is no such class.'")


def test_an_upload_takes_its_place_on_the_map(page, data, model):
    name = "train/green/05.png"
    number = model.training.files.index(name)
    upload(page, data / name)
    mark, point = page.run(f"[uploads[0], points.find(point => point.id === {number})]")
    spread = page.run("Math.max(...points.map(p => p.x)) - Math.min(...points.map(p => p.x))")
    assert abs(mark["x"] - point["x"]) < 0.03 * spread
    assert mark["near"][0] == number
    page.run("document.querySelector('.actions button').click()")
    assert page.run("[across(uploads[0].x) - size.width / 2, down(uploads[0].y) - size.height / 2]") == [0, 0]


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground_in_light_and_dark(page, address, data, dark):
    page.open(address, dark=dark)
    page.wait(READY)
    upload(page, data / "test/red/03.png")
    page.run("choose(3)")
    page.wait("find('chosen').querySelector('.images')")
    ratios = page.run(
        """(() => {
            const light = text => text.match(/[\\d.]+/g).slice(0, 3).map(value => {
                value /= 255;
                return value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
            }).reduce((sum, value, place) => sum + value * [.2126, .7152, .0722][place], 0);
            const ground = one => {
                for (; one; one = one.parentElement) {
                    const colour = getComputedStyle(one).backgroundColor;
                    if (!/, 0\\)$/.test(colour)) return colour;
                }
            };
            const texts = 'h1, h2, h3, h4, p, li, span, label, button, strong, figcaption';
            return [...document.querySelectorAll(texts)]
                .filter(one => one.innerText && one.getClientRects().length)
                .map(one => {
                    const both = [getComputedStyle(one).color, ground(one)];
                    const pair = both.map(light).sort((a, b) => b - a);
                    return [(pair[0] + .05) / (pair[1] + .05), one.innerText.slice(0, 30)];
                });
        })()"""
    )
    assert len(ratios) > 30
    assert min(ratios)[0] >= 4.5, min(ratios)  # as WCAG asks of text
    ink = page.run("getComputedStyle(document.body).color")
    assert (ink == "rgb(230, 233, 239)") == dark


def test_a_phone_shows_all_without_scrolling_sideways(page, address, data):
    page.open(address, width=360, height=740, touch=True)
    page.wait(READY)
    upload(page, data / "test/red/03.png")
    page.run("choose(3)")
    page.wait("find('chosen').querySelector('.images')")
    assert page.run("document.documentElement.scrollWidth") <= 360
    tops = page.run("[find('results'), find('explore')].map(one => one.getBoundingClientRect().top)")
    assert tops[1] > tops[0] + 100  # below one another
    low = page.run("Math.min(...[...document.querySelectorAll('.bar button')].map(one => one.offsetHeight))")
    assert low >= 35  # for a finger


def test_everything_has_a_name_and_can_be_reached_by_keyboard(page, data):
    upload(page, data / "test/red/03.png")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    nameless = [
        node["role"]["value"]
        for node in nodes
        if not node["ignored"]
        and node["role"]["value"] in ("button", "searchbox", "textbox", "image", "img", "link", "heading")
        and not node.get("name", {}).get("value")
    ]
    assert nameless == []
    names = [
        node["name"]["value"] for node in nodes if not node["ignored"] and node.get("name", {}).get("value")
    ]
    for wanted in ("Find a class", "Zoom in", "Zoom out", "Whole map"):
        assert wanted in names
    assert any(name.startswith("Choose images, or drop them here") for name in names)
    reached = []
    page.run("document.activeElement.blur()")
    for _ in range(25):
        page.press_tab()
        reached.append(page.run("document.activeElement.id || document.activeElement.className"))
    for wanted in ("files", "find", "in", "out", "all", "map"):
        assert wanted in reached


def test_neighbours_open_also_where_too_few_images_make_no_map(window, own, data, draw, tmp_path, run_server):
    folder = tmp_path / "few"
    folder.mkdir()
    for number in range(2):
        draw("red", number).save(folder / f"{number}.png")
    with run_server(load(own, "cpu"), folder) as (address, _):
        window.open(address)
        window.wait("document.readyState === 'complete'")
        upload(window, data / "test/red/03.png")
        assert texts(window, ".error") == []
        assert window.run("find('explore').hidden")
        assert texts(window, ".result h4") == ["Nearest images of few, with predicted classes"]
        window.run("document.querySelector('.result .images button').click()")
        window.wait("find('chosen').getClientRects().length && find('chosen').querySelector('figcaption')")
        assert len(texts(window, "#chosen .images button")) == 1


def test_an_image_dropped_before_the_model_is_known_waits_for_it(window, address, data):
    late = """const real = fetch;
        fetch = async (path, options) => {
            if (path === '/api/model') await new Promise(done => setTimeout(done, 1000));
            return real(path, options);
        }"""
    script = window.call("Page.addScriptToEvaluateOnNewDocument", source=late)
    window.open(address)
    window.wait("document.readyState === 'complete' && find('files')")
    window.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
    assert window.run("model === undefined")
    upload(window, data / "test/red/03.png")
    assert texts(window, ".error") == []
    assert texts(window, ".result h3") == ["red"]


def test_the_page_says_so_when_the_server_has_gone(window, own, data, run_server):
    with run_server(load(own, "cpu")) as (address, _):
        window.open(address)
        window.wait(READY)
    upload(window, data / "test/red/03.png")
    assert "the server may have been stopped" in texts(window, ".error")[0]
