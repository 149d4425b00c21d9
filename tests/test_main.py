import sys
from pathlib import Path

from varcon import __main__


class Interrupting:
    """Ctrl-C while the command line is being imported."""

    def find_spec(self, name, path=None, target=None):
        if name == "varcon.cli":
            raise KeyboardInterrupt


def test_ctrl_c_while_torch_is_imported_is_no_traceback(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "varcon.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert __main__.main() == 130
    assert capsys.readouterr().err == "varcon: interrupted\n"


def test_one_of_several_processes_that_fails_ends_at_once(monkeypatch, capsys):
    """Without what Python does at its end, which may wait for the others."""
    ended = []
    monkeypatch.setattr(__main__.os, "_exit", ended.append)
    monkeypatch.setattr(sys, "argv", ["varcon", "trian"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    __main__.main()
    monkeypatch.setattr(sys, "argv", ["varcon", "--version"])
    assert __main__.main() == 0
    assert ended == [2]
    assert "did you mean 'train'" in capsys.readouterr().err


def test_a_warning_of_ours_is_a_line_for_people():
    ours, theirs = Path(__main__.__file__).with_name("data") / "folder.py", Path("/elsewhere/torch.py")
    assert __main__.in_a_line("dim images", UserWarning, str(ours), 7) == "varcon: dim images\n"
    assert __main__.in_a_line("old", UserWarning, str(theirs), 7).startswith(f"{theirs}:7: UserWarning: old")


def test_it_is_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["varcon", "trian"])
    assert __main__.main() == 2
    assert "did you mean 'train'" in capsys.readouterr().err
