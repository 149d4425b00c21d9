"""The pages on commands and settings, made from the command line itself: `python docs/generate.py`.

They are kept, to be read where the code is, and a test compares. Nothing is typed twice: what they say is
what --help says. MkDocs calls the functions named on_*; its page of results is RESULTS.md.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import tyro
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from rich.console import Console

from varcon.cli import OVERVIEW, VERBS
from varcon.methods import METHODS

# A link to a file of the repository that is no page of the site; where the code is read, it can be followed.
OUTWARD = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")
ROOT = Path(__file__).parents[1]
WORDS = {"INT": "whole number", "FLOAT": "number", "STR": "text", "PATH": "path", "None": "none"}
SHARED = ("data", "augment", "encoder", "method", "train")  # sections of every recipe


def pages() -> dict[str, str]:
    parsers = {verb: parser(verb) for verb in VERBS}
    of_methods = {name: parser_for_method(name) for name in METHODS}
    return {
        "commands.md": commands_page(parsers),
        "settings.md": settings_page(of_methods, parsers["evaluate"]),
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    results = (ROOT / "RESULTS.md").read_text(encoding="utf-8").replace("](results", "](../results")
    files.append(File.generated(config, "results.md", content=results))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return OUTWARD.sub(named_instead, markdown.replace("](../RESULTS.md)", "](results.md)"))


def named_instead(link: re.Match[str]) -> str:
    words, place = link[1], link[2]
    if words.isdecimal():  # how many runs there are, in a narrow column of the results
        return words
    return f"`{place}`" if words.strip("`") in place else f"{words} (`{place}`)"


class Caught(Exception):
    """Ends a command once it has said what it takes."""


def parser(verb: str, *before: str) -> argparse.ArgumentParser:
    """The parser with which a command reads its arguments."""
    found: list[argparse.ArgumentParser] = []

    def catch(kind: Any, args: list[str], **settings: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # tyro 1.0 has no other way to a parser
            found.append(tyro.extras.get_parser(kind, **settings))
        raise Caught

    with mock.patch.object(tyro, "cli", catch):
        try:
            VERBS[verb]([*before, "--help"], Console(quiet=True))
        except Caught:
            return found[0]
    raise AssertionError(f"varcon {verb} reads its arguments without tyro")


def parser_for_method(name: str) -> argparse.ArgumentParser:
    """The parser of `varcon train` with a recipe of this method."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.toml"
        recipe.write_text(f'[method]\nname = "{name}"\n', encoding="utf-8")
        return parser("train", str(recipe))


def commands_page(parsers: dict[str, argparse.ArgumentParser]) -> str:
    head = f"""# Commands

    $ varcon --help
{indented(OVERVIEW)}

Made from the command line itself. Flags may be written with `-` or `_`. A mistake in the input is told in one
sentence and ends with exit code 2, a failed run with 1.
"""
    return head + "\n" + "\n".join(command_section(verb, one) for verb, one in parsers.items())


def command_section(verb: str, one: argparse.ArgumentParser) -> str:
    groups = dict(sections_of(one))
    own = [action for name in ("positional arguments", "options") for action in groups.pop(name, [])]
    text, *more = (one.description or "").split("\n\n")
    listing = "\n\n".join(f"\n{indented(part)}\n" if "\n  " in part else escaped(part) for part in more)
    lines = [f"## varcon {verb}", escaped(text), listing, table("argument", own, flag_of)]
    if groups:
        prefixes = ", ".join(f"`--{name}.*`" for name in groups)
        lines.append(f"and the [settings](settings.md) as flags: {prefixes}.")
    return "\n\n".join(line for line in lines if line) + "\n"


def settings_page(of_methods: dict[str, argparse.ArgumentParser], judging: argparse.ArgumentParser) -> str:
    """`judging` is the parser of `varcon evaluate`."""
    parts = [
        """# Settings

A recipe is a TOML file with a section for each heading below; what it leaves out has the default. Every
setting is also a flag of `varcon train`: `train.batch_size` is `--train.batch-size 256`, a switch
`--train.nesterov` or `--train.no-nesterov`, several values `--train.snapshots 0 10 50`. The sections
`evaluate.*` are flags of `varcon evaluate` too, there without that word: `--knn.k 20`. Made from the code.
"""
    ]
    recipe = dict(sections_of(of_methods["varcon"]))
    for name in SHARED:
        if name == "method":
            for method, one in of_methods.items():
                parts.append(settings_section(f"method: {method}", dict(sections_of(one)).get("method", [])))
        else:
            parts.append(settings_section(name, recipe[name]))
    judged = [name for name in recipe if name.startswith("evaluate.")]
    parts += [settings_section(name, recipe[name]) for name in judged]
    parts.append("""## Evaluations by name

These are flags of `varcon evaluate` alone and not part of a recipe.
""")
    standard = {name.removeprefix("evaluate.") for name in judged}
    for name, actions in sections_of(judging):
        if name not in ("positional arguments", "options", *standard):
            parts.append(settings_section(name, actions, level=3))
    return "\n".join(parts)


def settings_section(name: str, actions: list[argparse.Action], level: int = 2) -> str:
    body = table("setting", actions, setting_of) if actions else "No settings of its own."
    return f"{'#' * level} {name}\n\n{body}\n"


def sections_of(one: argparse.ArgumentParser) -> Iterator[tuple[str, list[argparse.Action]]]:
    """Arguments by their heading, such as `data` for all of `--data.*`."""
    for group in one._action_groups:
        actions = [action for action in group._group_actions if action.dest != "help"]
        if actions:
            yield (group.title or "").removesuffix(" options"), actions


def table(head: str, actions: list[argparse.Action], name_of: Callable[[argparse.Action], str]) -> str:
    rows = [f"| {head} | value | default | |", "|---|---|---|---|"]
    for action in actions:
        text, default = explained(action)
        if action.option_strings and action.required:
            text += "; required"
        kind = kind_of(action, "switch" if head == "argument" else "true or false")
        cells = (f"`{name_of(action)}`", kind, default and f"`{default}`", escaped(text))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def flag_of(action: argparse.Action) -> str:
    names = [name for name in action.option_strings if not name.startswith("--no-")]
    return ", ".join(names) or str(action.metavar)


def setting_of(action: argparse.Action) -> str:
    return action.option_strings[0].removeprefix("--").replace("-", "_")


def explained(action: argparse.Action) -> tuple[str, str]:
    """What the help says, and the default that stands at its end."""
    words = re.sub(r"\s+", " ", action.help or "").strip()
    found = re.fullmatch(r"(.*?) ?\((?:default: (.*)|required|repeatable)\)", words)
    text, default = (found[1], found[2] or "") if found else (words, "")
    plain = {"None": "", "True": "true", "False": "false", "''": ""}
    return text, plain.get(default, default)


def kind_of(action: argparse.Action, of_two: str) -> str:
    if not action.option_strings:
        return "required" if action.required else ""
    if action.metavar is None:
        return of_two
    kind = str(action.metavar)
    several = re.fullmatch(r"\[(.+?) \[(?:\1 )?\.\.\.\]\]", kind)
    if several:
        return escaped(f"{worded(several[1])}, any number")
    return escaped(" or ".join(worded(part) for part in kind.removeprefix("{None}|").split("|")))


def worded(kind: str) -> str:
    if kind.startswith("{") and kind.endswith("}"):
        *rest, last = (WORDS.get(choice, choice) for choice in kind[1:-1].split(","))
        return f"{', '.join(rest)} or {last}" if rest else last
    return " ".join(WORDS.get(word, word) for word in kind.split(" "))


def escaped(text: str) -> str:
    """Words in which nothing is markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|$])", r"\\\1", text)


def indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.rstrip().splitlines())


if __name__ == "__main__":
    for page, content in pages().items():
        (Path(__file__).parent / page).write_text(content, encoding="utf-8")
