import pytest

from varcon import InputError, Recipe
from varcon.run_folder import check_folder, run_name


def test_runs_are_named_for_their_recipes(tmp_path):
    assert run_name(tmp_path / "recipes/digits/varcon.toml") == "digits-varcon"
    assert run_name(tmp_path / "mine.toml") == "mine"
    assert run_name(tmp_path / "runs/digits-varcon/recipe.json") == "digits-varcon-again"


def test_a_folder_with_a_file_of_another_program_is_no_run(tmp_path):
    check_folder(tmp_path, Recipe(), resume=False)  # an empty one serves
    (tmp_path / ".recipe.json.swp").write_text("an editor's")
    with pytest.raises(InputError, match="exists and is not a run"):
        check_folder(tmp_path, Recipe(), resume=False)
