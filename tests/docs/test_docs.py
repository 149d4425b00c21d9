"""The site builds, needs no network, tells every command and setting, and names only what there is."""

import dataclasses
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
import tyro
from rich.console import Console

from varcon import VarConClassifier, VarConLoss, cli_train, run, run_folder
from varcon.cli import VERBS
from varcon.core import Batch
from varcon.data import DataSettings, load
from varcon.encoders import EncoderSettings
from varcon.estimator import VECTORS
from varcon.evaluations import EvaluateSettings, FurtherSettings
from varcon.evaluations.transfer import Target
from varcon.methods import METHODS
from varcon.recipe import DIGITS, Recipe, load_recipe, recipe_from_dict

ROOT = Path(__file__).parents[2]
GENERATED = ("commands.md", "settings.md")
WRITTEN = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED]
PAGES = [ROOT / "README.md", *WRITTEN]
BY_TARGET = (tuple[Target, ...], Target | None)  # set by --target, and no flags of their own


class Elements(HTMLParser):
    """What a page loads, and the rows of its tables under each heading."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.rows: dict[str, dict[str, list[str]]] = {}
        self._heading = self._cell = ""
        self._cells: list[str] = []
        self._in: str | None = None
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.loaded.append(values.get("src") or "")
        if tag == "link":
            self.loaded.append(values.get("href") or "")
        if tag in ("h2", "h3"):
            self._heading, self._in = "", "heading"
        elif tag in ("td", "th"):
            self._cell, self._in = "", "cell"
        elif tag == "tr":
            self._cells = []

    def handle_endtag(self, tag):
        if tag in ("h2", "h3"):
            self._heading, self._in = self._heading.replace("¶", "").strip(), None
            self.rows[self._heading] = {}
        elif tag in ("td", "th"):
            self._cells.append(self._cell.strip())
            self._in = None
        elif tag == "tr" and self._cells and self._heading:
            self.rows[self._heading][self._cells[0]] = self._cells[1:]

    def handle_data(self, data):
        if self._in == "heading":
            self._heading += data
        elif self._in == "cell":
            self._cell += data


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """In a process of its own, whose libraries may warn."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site(site):
    names = {page.stem for page in PAGES[1:]} | {"commands", "settings", "results"}
    assert names <= {page.stem for page in site.glob("*.html")}
    assert not list(site.rglob("*.py"))


def test_kept_pages_are_what_the_command_line_says():
    """In a process of its own, as the site is built."""
    code = f"import sys; sys.path[:0] = [{str(ROOT / 'docs')!r}]; import generate, json; "
    code += "print(json.dumps(generate.pages()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    made = json.loads(done.stdout)
    assert tuple(made) == GENERATED
    for page, content in made.items():
        kept = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert kept == content, f"{page} has changed: python docs/generate.py"


def test_no_page_needs_the_network(site):
    for page in site.glob("*.html"):
        loaded = Elements(page).loaded
        assert loaded
        assert [place for place in loaded if re.match(r"(\w+:)?//", place)] == [], page.name
        assert [place for place in loaded if place and not (site / place.lstrip("/")).is_file()] == [], (
            page.name
        )
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(\s*['\"]?|@import\s+['\"])(https?:)?//", style.read_text()), style.name


def test_pictures_are_small_and_complete(site):
    shown = re.findall(r"\((pictures/[\w-]+\.svg)\)", (ROOT / "docs/method.md").read_text(encoding="utf-8"))
    drawn = sorted((ROOT / "docs/pictures").iterdir())
    assert sorted(ROOT / "docs" / place for place in shown) == drawn
    for picture in drawn:
        assert picture.stat().st_size < 150_000
        assert "http" not in picture.read_text().replace("http://www.w3.org/2000/svg", "")


def test_every_command_is_told(site):
    rows = Elements(site / "commands.html").rows
    assert list(rows) == [f"varcon {verb}" for verb in VERBS]
    assert all(rows.values())
    assert {flag for found in rows.values() for flag, cells in found.items() if not cells[-1]} == {"argument"}
    assert {"RUN", "IMAGE [IMAGE ...]", "--top", "--json", "--data.path"} <= rows["varcon predict"].keys()
    assert rows["varcon serve"]["--port"] == [
        "whole number",
        "8000",
        "where the page is found; 0: any that is free",
    ]


def settings_of(cls, prefix):
    """Every setting of a dataclass with its default, those of its parts included."""
    hints = get_type_hints(cls)
    for one in dataclasses.fields(cls):
        place = f"{prefix}.{one.name}" if prefix else one.name
        default = one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
        if dataclasses.is_dataclass(hints[one.name]):
            yield from settings_of(hints[one.name], place)
        elif hints[one.name] not in BY_TARGET:
            yield place, default


def written(default):
    """As on the command line; a tuple's values stand one after the other, and none is not a value to type."""
    if default is None:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def expected_settings():
    for section in dataclasses.fields(Recipe):
        if section.name == "evaluate":
            for place, default in settings_of(EvaluateSettings, "evaluate"):
                yield place.rpartition(".")[0], place, default
        elif section.name != "method":
            for place, default in settings_of(get_type_hints(Recipe)[section.name], section.name):
                yield section.name, place, default
    for name, method in METHODS.items():
        for place, default in settings_of(method.Settings, "method"):
            yield f"method: {name}", place, default
    for place, default in settings_of(FurtherSettings, ""):
        yield place.rpartition(".")[0], place, default


def test_every_setting_is_told(site):
    rows = Elements(site / "settings.html").rows
    expected = list(expected_settings())
    assert len(expected) > 200
    for heading, place, default in expected:
        assert place in rows[heading], f"{heading}: {place}"
        kind, told, words = rows[heading][place]
        assert kind, place
        assert words or heading == "robustness.given", f"{place} has no help"  # which all are told at once
        assert told == written(default), place
    assert sum(map(len, rows.values())) - sum("setting" in found for found in rows.values()) == len(expected)
    assert rows["train"]["train.batch_size"] == [
        "whole number",
        "128",
        "images per step, over all processes",
    ]


def spans(page):
    """Code in a page: its lines in blocks, and what stands within a sentence."""
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [line for language, block in fences if language != "python" for line in block.splitlines()]
    lines += re.findall(r"^    (.+)$", text, re.MULTILINE)
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]
    return lines, inline


def commands_named():
    for page in PAGES:
        lines, inline = spans(page)
        for code in [*lines, *inline]:
            found = re.match(r"(?:torchrun .*-m )?varcon ([a-z]+)(?: (.*))?$", code)
            if found:
                yield pytest.param(found[1], found[2] or "", id=f"{page.stem}: {code[:70]}")


class Parsed(Exception):
    pass


@pytest.mark.parametrize(("verb", "words"), list(commands_named()))
def test_commands_in_the_docs_are_understood(verb, words, monkeypatch):
    """By the parser itself, which is stopped before anything is done."""
    assert verb in VERBS
    arguments = shlex.split(words, comments=True)
    if not arguments or arguments == ["--data"]:  # only named
        return
    parse = tyro.cli

    def parse_and_stop(*kind, **settings):
        parse(*kind, **settings)
        raise Parsed

    # What a reader has and this folder has not: runs, and recipes chosen for a reader's data.
    recipes = ROOT / "recipes"
    monkeypatch.setattr(tyro, "cli", parse_and_stop)
    monkeypatch.setattr(run_folder, "stored_recipe", lambda folder: DIGITS)
    of_a_folder = dataclasses.replace(DIGITS, data=DataSettings("folder", "photos"))
    monkeypatch.setattr(
        cli_train,
        "with_suggested_recipe",
        lambda words, _: (of_a_folder, ["RECIPE", *words[2:]], run.nothing),
    )
    monkeypatch.setattr(
        cli_train,
        "load_recipe",
        lambda path: load_recipe(
            ROOT / path if str(path).startswith("recipes/") else recipes / "digits/ce.toml"
        ),
    )
    with pytest.raises(Parsed):
        VERBS[verb](arguments, Console(quiet=True))


def test_flags_in_the_docs_exist(site):
    flags = {"--help", "--data", "--strict"}
    for page in ("commands", "settings"):
        for rows in Elements(site / f"{page}.html").rows.values():
            for name in (name for cell in rows for name in cell.split(", ")):
                flag = name if name.startswith("--") else f"--{name}".replace("_", "-")
                flags |= {flag, flag.replace("--evaluate.", "--")}
    named = set()
    for page in PAGES:
        for code in spans(page)[1]:
            named |= set(re.findall(r"^--[a-z][\w.-]*", code))
    assert len(named) > 10
    assert {flag for flag in named if flag.replace(".no-", ".") not in flags} == set()


def test_files_in_the_docs_exist():
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for place in re.findall(r"\]\((?!\w+:|#)([^)#]+)", text):
            assert (page.parent / place).exists(), f"{page.name}: {place}"
        lines, inline = spans(page)
        for code in [*lines, *inline]:
            for target in re.findall(r"^make (\w+)", code):
                assert f"\n{target}:" in targets, f"{page.name}: make {target}"
            for script in re.findall(r"\bpython ([\w/]+\.py)", code):
                assert (ROOT / script).is_file(), f"{page.name}: {script}"


def blocks(name, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


def test_code_of_the_readme_is_that_of_the_docs():
    """Other tests run the README's."""
    assert blocks("README.md") == [*blocks("docs/own-loop.md"), *blocks("docs/scikit-learn.md")]


def test_the_recipe_for_vectors_is_one():
    (text,) = blocks("docs/own-data.md", "toml")
    recipe = recipe_from_dict(tomllib.loads(text))
    assert (recipe.encoder, recipe.augment, recipe.method) == (
        VECTORS.encoder,
        VECTORS.augment,
        VECTORS.method,
    )
    assert recipe.train == VECTORS.train


def test_the_method_in_the_docs_learns():
    (code,) = blocks("docs/develop.md")
    names = {}
    exec(code, names)
    method = names["Align"](EncoderSettings().build(), names["AlignSettings"](), num_classes=2)
    views = list(torch.rand(2, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    output = method(Batch(views, torch.tensor([0, 1, 0, 1]), torch.arange(4)))
    output.loss.backward()
    assert 0 < output.loss < 2
    assert all(weight.grad.abs().max() > 0 for weight in method.parameters() if weight.ndim > 1)


def test_the_array_in_the_docs_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])
    names = {
        f"{part}_{kind}": value
        for part in ("train", "test")
        for kind, value in (("images", images), ("labels", labels))
    }
    exec(blocks("docs/own-data.md")[0], names)
    assert load(DataSettings("npz", "data.npz")).classes == ["cat", "dog"]


def test_what_is_shown_from_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("quick.toml").write_text("[train]\nepochs = 1\n")
    the_whole_way, as_files, without_a_file, in_use = blocks("docs/python.md")
    names: dict[str, Any] = {}
    exec(the_whole_way.replace("recipes/digits/varcon.toml", "quick.toml"), names)
    assert (tmp_path / "runs/mine/report.html").exists()
    exec(as_files, names)
    assert len(list((tmp_path / "figures").glob("01-*.svg"))) == 1
    names = {}
    exec(without_a_file, names)
    recipe = run_folder.stored_recipe(names["folder"])
    assert (recipe.train.epochs, recipe.train.seed, recipe.method.temperature) == (2, 1, 0.2)
    names = {"images": np.zeros((2, 8, 8, 3), np.uint8)}
    exec(in_use, names)
    assert names["vectors"].shape == (2, names["model"].features)
    assert (len(names["found"].top), len(names["found"].neighbours)) == (3, 5)


def test_the_quick_start_says_what_the_readme_says():
    """About the demo: its numbers stand in both."""
    readme, start = (
        path.read_text(encoding="utf-8") for path in (ROOT / "README.md", ROOT / "docs/index.md")
    )
    begin, end = "## See it work", "## Your own images"
    assert readme[readme.index(begin) : readme.index(end)] == start[start.index(begin) : start.index(end)]


@pytest.mark.parametrize(("page", "kind"), [("own-loop", VarConLoss), ("scikit-learn", VarConClassifier)])
def test_arguments_are_told_with_their_defaults(page, kind):
    rows = re.findall(r"^\| (`.+?`) \| (.+?) \| .+ \|$", (ROOT / f"docs/{page}.md").read_text(), re.MULTILINE)
    told = {
        name: value
        for names, values in rows
        for name, value in zip(re.findall(r"`(\w+)`", names), re.split(r", (?![^(]*\))", values), strict=True)
    }
    signature = inspect.signature(kind).parameters
    assert told == {name: repr(argument.default) for name, argument in signature.items()}
